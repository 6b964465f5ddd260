"""The command line, as a person and as a program use it."""

import json
import os
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from hyte.cli import main
from hyte.commits import FILES
from hyte.errors import InputError
from hyte.textfiles import read_text
from tests.conftest import write_artifact


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "cats.txt").write_text("The cat sat. The cats ran.")
    (folder / "deep" / "sea.md").write_text("blue sea, old fish")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def idx(notes, tmp_path, tiny_artifact, capsys):
    assert main(["index", str(notes), "--out", str(tmp_path / "idx"), "--artifact", str(tiny_artifact)]) == 0
    capsys.readouterr()
    return tmp_path / "idx"


def fails(arguments, capsys) -> str:
    """The one line that a command which must exit with 2 prints."""
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_index_says_what_it_did(notes, tmp_path, tiny_artifact, capsys):
    main(["index", str(notes), "--out", str(tmp_path / "idx"), "--artifact", str(tiny_artifact)])
    assert "2 added, 0 updated, 0 skipped" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "idx").iterdir()) == ["idx.bin", "paths.txt", "texts.z"]


def test_search_prints_path_chunk_scores_and_a_marked_snippet(idx, notes, capsys):
    assert main(["search", str(idx), "cats"]) == 0
    first, snippet = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith(f"1. {notes / 'cats.txt'}  chunk 0  score ")
    assert "(bm25 " in first
    assert "lorentz -" in first
    assert snippet.strip() == "The **cat** sat. The **cats** ran."


def test_search_json_is_pure_json(idx, notes, capsys):
    assert main(["search", str(idx), "blue sea", "--json", "-k", "1", "--alpha", "0.9"]) == 0
    out, err = capsys.readouterr()
    (hit,) = json.loads(out)["hits"]
    assert err == ""
    assert hit["path"] == str(notes / "deep" / "sea.md")
    assert hit["text"][slice(*hit["span"])] == "blue sea, old fish"
    assert hit["lorentz"] <= -1.0
    assert hit["bm25"] > 0


def test_search_without_a_hit_exits_with_1(idx, capsys):
    assert main(["search", str(idx), "protein", "--mode", "bm25"]) == 1
    assert main(["search", str(idx), "", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["hits"] == []


def test_alpha_1_is_bm25_and_alpha_0_is_lorentz_as_the_help_says(idx, capsys):
    def ranked(*options):
        main(["search", str(idx), "the sea", "--json", *options])
        return [hit["path"] for hit in json.loads(capsys.readouterr().out)["hits"]]

    assert ranked("--alpha", "1", "--candidates", "all") == ranked("--mode", "bm25")
    assert ranked("--alpha", "0", "--candidates", "all") == ranked("--mode", "lorentz")
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    assert "1 is BM25 alone, 0 is Lorentz alone" in " ".join(capsys.readouterr().out.split())


def test_add_updates_and_remove_removes_files_and_folders(idx, notes, capsys):
    (notes / "cats.txt").write_text("A dog ran.")
    (notes / "new.md").write_text("new protein")
    assert main(["add", str(idx), str(notes / "cats.txt"), str(notes / "new.md")]) == 0
    assert "1 added, 1 updated, 0 skipped" in capsys.readouterr().out
    assert main(["search", str(idx), "cat", "--mode", "bm25"]) == 1
    assert main(["remove", str(idx), str(notes / "deep")]) == 0
    assert "holds 2 documents" in capsys.readouterr().out
    assert main(["search", str(idx), "sea", "--mode", "bm25"]) == 1


def test_one_file_under_several_spellings_is_one_document(idx, notes, tmp_path, capsys, monkeypatch):
    (tmp_path / "link").symlink_to(notes)
    (notes / "deep" / "loop").symlink_to(notes)
    main(["add", str(idx), f"{notes}/./cats.txt", str(tmp_path / "link" / "cats.txt"), str(notes)])
    assert "0 added, 0 updated, 0 skipped, 2 unchanged" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    for spelling in ("notes", "./notes/", str(notes), "link", "link/deep/.."):
        assert main(["add", "idx", spelling]) == 0
        assert "0 added, 0 updated, 0 skipped, 2 unchanged; " in capsys.readouterr().out


def test_index_and_documents_can_be_moved_together(idx, notes, tmp_path, capsys, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    for folder in (idx, notes):
        folder.rename(tmp_path / "elsewhere" / folder.name)
    monkeypatch.chdir("/")
    folder = tmp_path / "elsewhere"
    assert main(["search", str(folder / "idx"), "cat sea", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert {hit["path"] for hit in hits} == {
        str(folder / "notes" / "cats.txt"),
        str(folder / "notes" / "deep" / "sea.md"),
    }
    assert main(["add", str(folder / "idx"), str(folder / "notes")]) == 0
    assert "0 added, 0 updated, 0 skipped, 2 unchanged; " in capsys.readouterr().out
    assert main(["remove", str(folder / "idx"), str(folder / "notes" / "deep")]) == 0


def test_odd_file_names_come_back_and_open(idx, notes, capsys):
    odd = ["a\nb.txt", "c\rd.txt", b"bad\xff.txt".decode("utf-8", "surrogateescape"), "u\u2028x.txt", "x\x0by.txt"]
    odd += [" lead.txt", "back\\slash.txt", "\u65e5\u672c.txt", "🙂" * 60 + ".txt"]
    for number, name in enumerate(odd):
        (notes / name).write_text(f"protein {number}")
    assert main(["add", str(idx), str(notes)]) == 0
    assert f"{len(odd)} added" in capsys.readouterr().out
    main(["search", str(idx), "protein", "--mode", "bm25", "--json", "-k", "99"])
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert len(hits) == len(odd)
    for hit in hits:
        assert Path(hit["path"]).read_text() == hit["text"]


def test_info_shows_settings_and_sizes(idx, tiny_artifact, capsys):
    assert main(["info", str(idx), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["documents"], facts["chunks"], facts["analyzer"], facts["window"]) == (2, 2, "english", 300)
    assert facts["artifact"] == str(tiny_artifact)
    assert facts["idx.bin_bytes"] == (idx / "idx.bin").stat().st_size
    main(["info", str(idx)])
    assert "pooling: oem_radial\nP: 1.0\n" in capsys.readouterr().out


def test_check_verifies(idx, capsys):
    assert main(["check", str(idx)]) == 0
    assert "complete and undamaged: 2 documents" in capsys.readouterr().out
    (idx / "texts.z").write_bytes(b"")
    assert "texts.z" in fails(["check", idx], capsys)


def test_a_bad_file_is_skipped_and_named_and_the_others_are_indexed(notes, tmp_path, tiny_artifact, capsys):
    (notes / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (notes / "binary.txt").write_bytes(b"a\0b")
    (notes / "empty.txt").write_bytes(b"")
    os.mkfifo(notes / "pipe.txt")
    (notes / "dangling.txt").symlink_to("nowhere")
    assert main(["index", str(notes), "--out", str(tmp_path / "i"), "--artifact", str(tiny_artifact)]) == 0
    out, err = capsys.readouterr()
    assert "3 added, 0 updated, 4 skipped" in out
    assert "3 documents, of them 1 without any word" in out
    assert f"skipped: {notes / 'latin.txt'}: not UTF-8 (byte 0xef at offset 2); convert it first" in err
    assert f"skipped: {notes / 'binary.txt'}: binary (a zero byte at offset 1)" in err
    for name in ("pipe.txt", "dangling.txt"):
        assert f"skipped: {notes / name}: not a regular file" in err


def test_text_is_read_as_bytes_say(tmp_path):
    path = tmp_path / "dos.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\x1athree\r\n")
    assert read_text(path) == "one\r\ntwo\x1athree\r\n"
    with pytest.raises(InputError, match="not a regular file"):
        read_text(tmp_path)


def test_mistakes_are_one_line_and_exit_code_2(idx, notes, tmp_path, tiny_artifact, capsys):
    artifact = ["--artifact", tiny_artifact]
    assert "holds an index already" in fails(["index", notes, "--out", idx, *artifact], capsys)
    assert "no such file" in fails(["index", tmp_path / "none", "--out", tmp_path / "i", *artifact], capsys)
    (tmp_path / "hollow").mkdir()
    assert "nothing to index" in fails(["index", tmp_path / "hollow", "--out", tmp_path / "i", *artifact], capsys)
    assert not (tmp_path / "i").exists()
    assert "window 5 and overlap 60" in fails(
        ["index", notes, "--out", tmp_path / "i", "--window", 5, *artifact], capsys
    )
    assert "no index there" in fails(["search", tmp_path / "none", "cat"], capsys)
    assert "alpha must be in [0, 1]" in fails(["search", idx, "cat", "--alpha", 2], capsys)
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for name in ("other.txt", "loop.txt"):
        assert "not in the index" in fails(["remove", idx, tmp_path / name], capsys)
    assert "no weights there" in fails(["search", idx, "cat", "--artifact", tmp_path], capsys)
    (idx / "idx.bin").write_bytes(b"")
    assert "not a HyTE index" in fails(["search", idx, "cat"], capsys)


def test_json_stays_strict_where_numbers_are_not_finite(notes, tmp_path, tiny_tokenizer_file, capsys):
    artifact = write_artifact(tmp_path / "artifact", tiny_tokenizer_file, power=float("inf"))
    (notes / "unknown.txt").write_text("☃ cafe")
    main(["index", str(notes), "--out", str(tmp_path / "i"), "--artifact", str(artifact)])
    capsys.readouterr()
    for command in (["search", str(tmp_path / "i"), "the sea", "--mode", "lorentz"], ["info", str(tmp_path / "i")]):
        assert main([*command, "--json"]) == 0
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert main(command) == 0
        capsys.readouterr()


def test_what_needs_no_point_works_without_the_artifact(notes, tmp_path, tiny_tokenizer_file, capsys):
    artifact = write_artifact(tmp_path / "artifact", tiny_tokenizer_file, seed=2)
    idx = str(tmp_path / "i")
    main(["index", str(notes), "--out", idx, "--artifact", str(artifact)])
    moved = artifact.rename(tmp_path / "moved")
    for command in (["info", idx], ["check", idx], ["search", idx, "sea", "--mode", "bm25"]):
        assert main(command) == 0
    assert main(["remove", idx, str(notes / "cats.txt")]) == 0
    capsys.readouterr()
    assert "name it (--artifact A)" in fails(["search", idx, "sea"], capsys)
    assert main(["search", idx, "sea", "--artifact", str(moved)]) == 0


def test_a_terminal_without_utf8_gets_escapes(idx, notes, tiny_artifact):
    (notes / "日本.txt").write_text("the naïve cat 🙂")
    environment = {"PYTHONIOENCODING": "ascii"}
    for command in (["add", str(idx), str(notes)], ["search", str(idx), "cat"], ["search", str(idx), "cat", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "hyte", *command], capture_output=True, text=True, env=environment, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert str(notes / "日本.txt") in {hit["path"] for hit in json.loads(done.stdout)["hits"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["remove", "IDX", ""],
        ["index", "", "--out", "x"],
        ["search", "IDX", "q", "--candidates", "abc"],
        ["search"],
        ["x"],
    ],
)
def test_wrong_options_are_one_line_too(idx, arguments, capsys):
    assert "--help" in fails([str(idx) if each == "IDX" else each for each in arguments], capsys)


def test_the_index_in_the_folder_that_it_indexes_is_left_out(notes, tiny_artifact, capsys):
    for command in (["index", str(notes), "--out", str(notes / "idx"), "--artifact", str(tiny_artifact)],
                    ["add", str(notes / "idx"), str(notes)]):  # fmt: skip
        assert main(command) == 0
        assert "holds 2 documents" in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_shown_instead(idx, notes, capsys):
    (notes / "a\nb\x1b.txt").write_text("cat \x1b]0;owned\x07\x1b[2J")
    (notes / "bad\x1b.txt").write_bytes(b"\xff")
    main(["add", str(idx), str(notes)])
    main(["search", str(idx), "cat"])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "a\\nb\\x1b.txt" in out
    assert err.count("\n") == 1


def test_a_snippet_of_one_endless_word_is_short(idx, notes, capsys):
    (notes / "long.txt").write_text("x" * 100_000)
    main(["add", str(idx), str(notes)])
    assert main(["search", str(idx), "x" * 100_000, "--mode", "bm25"]) == 0
    assert len(capsys.readouterr().out) < 1000


def test_an_interrupt_is_no_traceback_and_leaves_the_old_index(idx, notes, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("hyte.index.HybridIndex.flush", interrupt)
    with pytest.raises(SystemExit) as stopped:
        main(["add", str(idx), str(notes)])
    monkeypatch.undo()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert main(["check", str(idx)]) == 0


# A signal at the nth call of a function, as Ctrl-C gives it: while files are read, while they are encoded, on the disk.
# A test run started in the background ignores it, and its children with it: hence the handler.
INTERRUPTED = """
import importlib, os, signal, sys
from itertools import count
signal.signal(signal.SIGINT, signal.default_int_handler)
place, nth, *arguments = sys.argv[1:]
module, _, name = place.rpartition(".")
owner, _, part = module.partition(":")
owner = getattr(importlib.import_module(owner), part) if part else importlib.import_module(owner)
real, calls = getattr(owner, name), count(1)
def call(*args, **kwargs):
    if next(calls) == int(nth):
        os.kill(os.getpid(), signal.SIGINT)
    return real(*args, **kwargs)
setattr(owner, name, call)
from hyte.cli import main
sys.exit(main(arguments))
"""
MANY = 600


@pytest.mark.parametrize(
    ("place", "nth"), [("hyte.index:HybridIndex.add", MANY // 10), ("hyte.index.cut", 2), ("os.fsync", 3)]
)
@pytest.mark.parametrize("command", ["index", "add"])
def test_ctrl_c_at_a_tenth_a_half_or_nine_tenths_leaves_what_was_and_the_command_can_be_repeated(
    idx, notes, tmp_path, tiny_artifact, capsys, command, place, nth
):
    for number in range(MANY):
        (notes / f"{number}.txt").write_text(f"protein {number}")
    new = str(tmp_path / "new")
    arguments = ["add", str(idx), str(notes)]
    if command == "index":
        arguments = ["index", str(notes), "--out", new, "--artifact", str(tiny_artifact)]
    before = sorted(os.listdir(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, place, str(nth), *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")
    if command == "add":
        assert main(["check", str(idx)]) == 0
        assert "undamaged: 2 documents" in capsys.readouterr().out
        assert main(["search", str(idx), "cat"]) == 0
    else:
        assert sorted(os.listdir(tmp_path)) in (before, sorted([*before, "new"]))
        assert not os.path.exists(new) or os.listdir(new) == []
    assert main(arguments) == 0
    assert f"holds {MANY + 2} documents" in capsys.readouterr().out
    assert main(["check", arguments[1] if command == "add" else new]) == 0


def test_a_file_that_cannot_be_read_any_more_is_told_of_each_time_and_makes_no_work(idx, notes, capsys):
    (notes / "latin.txt").write_bytes(b"\xff")
    (notes / "cats.txt").write_bytes(b"\xff")
    before = {name: (idx / name).read_bytes() for name in FILES}
    for _ in range(2):
        assert main(["add", str(idx), str(notes)]) == 0
        out, err = capsys.readouterr()
        assert "0 added, 0 updated, 2 skipped, 1 unchanged; " in out
        assert err.count("convert it first; the text indexed before stays\n") == 1
    assert {name: (idx / name).read_bytes() for name in FILES} == before


def test_replace_builds_anew(idx, notes, tiny_artifact, capsys):
    arguments = ["index", str(notes / "deep"), "--out", str(idx), "--artifact", str(tiny_artifact), "--replace"]
    assert main(arguments) == 0
    assert "holds 1 documents" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error(idx):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "hyte", "info", str(idx)], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_in_a_pipe_has_no_carriage_returns_or_colours(idx, notes, tmp_path, tiny_artifact):
    run = [sys.executable, "-m", "hyte"]
    done = subprocess.run(
        [*run, "index", str(notes), "--out", str(tmp_path / "i"), "--artifact", str(tiny_artifact)],
        capture_output=True, check=True,
    )  # fmt: skip
    found = subprocess.run([*run, "search", str(idx), "cat"], capture_output=True, check=True)
    for stream in (done.stdout, done.stderr, found.stdout, found.stderr):
        assert b"\r" not in stream
        assert b"\x1b" not in stream


def test_what_did_not_change_is_not_done_again_and_what_is_gone_goes(idx, notes, capsys):
    before = {name: (idx / name).read_bytes() for name in FILES}
    assert main(["add", str(idx), str(notes)]) == 0
    assert "0 added, 0 updated, 0 skipped, 2 unchanged; " in capsys.readouterr().out
    assert {name: (idx / name).read_bytes() for name in FILES} == before
    stat = (notes / "cats.txt").stat()
    (notes / "cats.txt").write_text((notes / "cats.txt").read_text().replace("cat", "dog"))  # as long as before
    os.utime(notes / "cats.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (notes / "deep" / "sea.md").unlink()
    assert main(["add", str(idx), str(notes)]) == 0
    assert "0 added, 1 updated, 0 skipped, 1 gone; " in capsys.readouterr().out
    assert main(["search", str(idx), "sea", "--mode", "bm25"]) == 1


def test_an_empty_folder_takes_nothing_out(idx, notes, capsys):
    """It may be a disk that is not mounted."""
    shutil.rmtree(notes)
    notes.mkdir()
    with pytest.raises(SystemExit):
        main(["add", str(idx), str(notes)])
    assert "nothing to index" in capsys.readouterr().err
    assert main(["search", str(idx), "cat", "--mode", "bm25"]) == 0


def test_compact_gives_the_disk_back_what_a_removed_text_held(idx, notes, capsys):
    (notes / "secret.txt").write_text("secret " + "".join(random.Random(0).choices("abcdefgh ", k=200_000)))
    main(["add", str(idx), str(notes)])
    full = (idx / "texts.z").stat().st_size
    main(["remove", str(idx), str(notes / "secret.txt")])
    capsys.readouterr()
    assert main(["compact", str(idx)]) == 0
    assert "bytes before" in capsys.readouterr().out
    assert (idx / "texts.z").stat().st_size < full / 100
    assert b"secret" not in zlib.decompress((idx / "texts.z").read_bytes())
    assert main(["check", str(idx)]) == 0


@pytest.mark.parametrize("command", ["add", "remove", "compact"])
def test_where_no_index_is_nothing_is_made(command, tmp_path, notes, capsys):
    paths = [] if command == "compact" else [str(notes)]
    with pytest.raises(SystemExit) as stopped:
        main([command, str(tmp_path / "none"), *paths])
    assert stopped.value.code == 2
    assert "no index there; make one with: hyte index" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_check_reads_what_opening_does_not(idx, capsys):
    raw = bytearray((idx / "idx.bin").read_bytes())
    head = json.loads(raw[48 : 48 + int.from_bytes(raw[12:16], "little")])
    place = -(-(48 + int.from_bytes(raw[12:16], "little")) // 64) * 64 + head["sections"]["points"]["offset"]
    raw[place + 5] ^= 1
    (idx / "idx.bin").write_bytes(raw)
    assert main(["info", str(idx)]) == 0
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(idx)])
    assert stopped.value.code == 2
    assert f"idx.bin: section points (offset {place}) is damaged" in capsys.readouterr().err


def test_a_folder_that_may_not_be_looked_into_does_not_count_as_gone(monkeypatch, tmp_path):
    def refused(path):
        raise PermissionError(13, "Permission denied", path)

    from hyte import cli

    assert cli._is_gone(str(tmp_path / "missing"))
    assert not cli._is_gone(str(tmp_path))
    monkeypatch.setattr(cli.os, "lstat", refused)
    assert not cli._is_gone(str(tmp_path / "hidden" / "note.txt"))
