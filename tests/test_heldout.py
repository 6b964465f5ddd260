"""Collections made from pairs: what they hold, and that a bad call leaves what was there."""

import json
from pathlib import Path

import pytest

from eval.collections import load
from tests.test_training import pair, write_lines
from training import heldout

LINES = [pair("cat", "the cat sat"), pair("dog", "the cat sat"), pair("cat", "a cat ran"), pair("fish", "blue fish")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fails(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        heldout.main([str(each) for each in arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_folder_is_what_eval_reads_with_the_answers_of_each_query(tmp_path, capsys):
    file = write_lines(tmp_path / "a.jsonl", LINES)
    heldout.main([str(file), "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'a'}: 3 documents, 3 queries\n"
    folder = tmp_path / "out" / "a"
    texts = {row["_id"]: row["text"] for row in map(json.loads, (folder / "corpus.jsonl").read_text().splitlines())}
    asked = {row["_id"]: row["text"] for row in map(json.loads, (folder / "queries.jsonl").read_text().splitlines())}
    judged = [line.split("\t") for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    assert {(asked[query], texts[text]) for query, text, _ in judged} == {(e["query"], e["positive"]) for e in LINES}
    assert len(judged) == 4
    assert load(str(folder))
    first = contents(folder)
    heldout.main([str(file), "--out", str(tmp_path / "out")])  # again, in its place
    assert contents(folder) == first
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


def test_halves_are_those_of_texts_that_are_long_enough(tmp_path, capsys):
    words = [f"w{number}" for number in range(2 * heldout.HALF_WORDS)]
    long, short = " ".join(words), " ".join(words[1:])
    file = write_lines(tmp_path / "a.jsonl", [pair("q", long), pair("q", short)])
    heldout.main(["--halves", str(file), "--out", str(tmp_path / "out")])
    assert "1 documents, 1 queries" in capsys.readouterr().out
    row = json.loads((tmp_path / "out" / "a_halves" / "queries.jsonl").read_text())
    assert row["text"] == " ".join(words[: heldout.HALF_WORDS])
    said = fails(capsys, file, "--halves", write_lines(tmp_path / "b.jsonl", LINES), "--out", tmp_path / "new")
    assert "b.jsonl: no positive of 120 words or more" in said
    assert not (tmp_path / "new").exists()  # nor the collection that could be made


def test_two_files_of_one_name_are_refused_before_anything_is_written(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    one, two = (write_lines(folder / "a.jsonl", LINES) for folder in (tmp_path, tmp_path / "other"))
    said = fails(capsys, one, two, "--out", tmp_path / "out")
    assert f"{one} and {two} would both become {tmp_path / 'out' / 'a'}" in said
    named = write_lines(tmp_path / "a_halves.jsonl", LINES)
    assert "would both become" in fails(capsys, named, "--halves", one, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_is_written_whole_or_not_at_all(tmp_path, capsys, monkeypatch):
    file = write_lines(tmp_path / "a.jsonl", LINES)
    heldout.main([str(file), "--out", str(tmp_path / "out")])
    before, real = contents(tmp_path / "out"), heldout._write

    def full(path, lines):
        if path.name == "test.tsv":
            raise OSError(28, "No space left on device")
        real(path, lines)

    monkeypatch.setattr(heldout, "_write", full)
    capsys.readouterr()
    write_lines(file, LINES[:1])
    assert "No space left" in fails(capsys, file, "--out", tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert "No space left" in fails(capsys, file, "--out", tmp_path / "new")
    assert contents(tmp_path / "new") == {}


def test_a_folder_with_something_else_in_it_is_not_replaced(tmp_path, capsys):
    file = write_lines(tmp_path / "a.jsonl", LINES)
    (tmp_path / "out" / "a").mkdir(parents=True)
    (tmp_path / "out" / "a" / "notes.txt").write_text("mine")
    assert "out/a holds notes.txt, and would be replaced" in fails(capsys, file, "--out", tmp_path / "out")
    assert contents(tmp_path / "out") == {"a/notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "error: FILE: no file none.jsonl"),
        (["--halves", "none.jsonl"], "error: --halves: no file none.jsonl"),
        (["hub:owner/name"], "error: FILE: hub:owner/name: only local files are supported here"),
        ([], "error: no file given"),
    ],
)
def test_what_is_not_there_is_named_as_this_command_calls_it(tmp_path, capsys, arguments, message):
    said = fails(capsys, *arguments, "--out", tmp_path / "out")
    assert said.startswith(message)
    assert "data.pairs" not in said


def test_a_folder_cannot_be_in_a_file(tmp_path, capsys):
    file = write_lines(tmp_path / "a.jsonl", LINES)
    assert f"--out={file / 'x'}: {file} is a file; name a folder" in fails(capsys, file, "--out", file / "x")
