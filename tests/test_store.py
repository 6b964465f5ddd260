"""The three index files: damage and mixtures are refused in one line, odd paths survive."""

import hashlib
import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyte import HybridIndex, InputError, Settings, store
from hyte.cli import main
from hyte.paths import escape_path, unescape_path
from hyte.sections import pieces

FILES = ("idx.bin", "texts.z", "paths.txt")
ODD_PATHS = [
    "a\nb.txt", "c\rd.txt", b"bad\xff.txt".decode("utf-8", "surrogateescape"), "u\u2028x.txt", "x\x0by.txt",
    " lead.txt", "trail ", "🙂" * 250, "back\\slash\\n", "\\xff", "", "日本/1", "\ud800",
]  # fmt: skip


@pytest.fixture
def saved(encoder, tmp_path):
    index = HybridIndex(encoder, Settings(analyzer="alnum", window=3, overlap=1))
    for name in ("a", "b", "c"):
        index.add(f"{name}.txt", f"the {name} cat sat, blue sea")
    index.save(tmp_path / "idx")
    return tmp_path / "idx"


def test_the_matrix_is_one_aligned_float32_block_where_the_head_says(saved, encoder):
    raw = (saved / "idx.bin").read_bytes()
    magic, version, length, _ = struct.unpack_from("<8sII32s", raw)
    assert (magic, version) == (b"HYTEIDX\0", 2)
    head = json.loads(raw[48 : 48 + length])
    section = head["sections"]["points"]
    offset = -(-(48 + length) // 64) * 64 + section["offset"]
    assert offset % 64 == 0
    matrix = np.frombuffer(raw, "<f4", np.prod(section["shape"]), offset).reshape(section["shape"])
    np.testing.assert_array_equal(matrix[0], encoder.encode(["the a cat"])[0])


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_refused_or_harmless(saved, name):
    raw = (saved / name).read_bytes()
    expected = HybridIndex.load(saved).search("blue cat")
    refused = 0
    for offset in range(len(raw)):
        (saved / name).write_bytes(raw[:offset] + bytes([raw[offset] ^ 0x10]) + raw[offset + 1 :])
        try:
            found = HybridIndex.load(saved).search("blue cat")
        except InputError as error:
            refused += str(saved / name) in str(error)
        else:
            assert found == expected
    assert refused >= 0.75 * len(raw)  # what is left is padding between sections


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_refused_and_names_the_file(saved, name):
    raw = (saved / name).read_bytes()
    for length in range(len(raw)):
        (saved / name).write_bytes(raw[:length])
        with pytest.raises(InputError, match=name):
            HybridIndex.load(saved)
    (saved / name).write_bytes(raw + b"x")
    with pytest.raises(InputError, match=name):
        HybridIndex.load(saved)
    (saved / name).unlink()
    with pytest.raises(InputError, match=name):
        HybridIndex.load(saved)


@pytest.mark.parametrize("letters", ["xyz", "xy"])  # as many documents, of the same lengths; fewer
@pytest.mark.parametrize("name", ["texts.z", "paths.txt"])
def test_files_of_two_saves_are_never_read_together(saved, encoder, tmp_path, name, letters):
    other = HybridIndex(encoder, Settings(analyzer="alnum", window=3, overlap=1))
    for letter in letters:
        other.add(f"{letter}.txt", f"the {letter} cat sat, blue sea")
    other.save(tmp_path / "other")
    (saved / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(InputError, match=f"{name}.*another save"):
        HybridIndex.load(saved)


@pytest.mark.parametrize("version", [0, 1, 3, 7])
def test_another_format_version_is_named(saved, version):
    raw = bytearray((saved / "idx.bin").read_bytes())
    raw[8] = version
    (saved / "idx.bin").write_bytes(raw)
    with pytest.raises(InputError, match=f"format version {version}, this program reads 2; build it anew"):
        HybridIndex.load(saved)


def test_an_index_of_before_feedback_and_k3_loads_without_them(saved):
    raw = (saved / "idx.bin").read_bytes()
    length = struct.unpack_from("<8sII32s", raw)[2]
    head = json.loads(raw[48 : 48 + length])
    assert [head["settings"].pop(name) for name in ("feedback", "feedback_docs", "k3")] == [0.0, 5, None]
    text = json.dumps(head).encode().ljust(length)  # the sections stay where they are
    start = struct.pack("<8sII32s", b"HYTEIDX\0", 2, length, hashlib.sha256(text).digest())
    (saved / "idx.bin").write_bytes(start + text + raw[48 + length :])
    loaded = HybridIndex.load(saved)
    assert loaded.settings == Settings(analyzer="alnum", window=3, overlap=1)
    assert len(loaded.search("blue cat")) == 3


def test_a_nan_among_the_points_is_refused(encoder, tmp_path, monkeypatch):
    index = HybridIndex(encoder)
    index.add("a", "cat")
    index.flush()
    index._chunks.points.parts()[0][0, 1] = np.nan
    index.save(tmp_path / "idx")
    loaded = HybridIndex.load(tmp_path / "idx")
    with pytest.raises(InputError, match=r"section points \(offset \d+\) holds a value that is not finite"):
        loaded.search("cat")


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_save_that_fails_leaves_the_old_index_and_no_temporary_file(saved, encoder, monkeypatch, nth, error):
    before = {name: (saved / name).read_bytes() for name in FILES}
    index = HybridIndex.load(saved)
    index.add("d.txt", "red fish")

    calls = iter(range(1, 100))

    def full(*args):
        if next(calls) == nth:
            raise error(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(error, match=str(saved) if error is OSError else None):
        index.save(saved)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_an_index_on_a_read_only_medium_is_searched_without_writing(saved, capsys):
    for path in [*saved.iterdir(), saved]:
        path.chmod(0o500)
    before = {path: path.stat().st_mtime_ns for path in [*saved.iterdir(), saved]}  # the folder's: nothing came or went
    assert HybridIndex.load(saved).search("cat")
    for command in (["search", str(saved), "cat"], ["info", str(saved)], ["check", str(saved)]):
        assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in [*saved.iterdir(), saved]} == before


def test_a_token_with_a_line_feed_is_refused_before_anything_is_written(saved):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    index = HybridIndex.load(saved)
    index._analyze = lambda text: [text]
    index.add("d", "two\nlines")
    with pytest.raises(InputError, match="a token of the analyzer holds a line feed"):
        index.save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_odd_paths_survive_one_a_line(encoder, tmp_path):
    index = HybridIndex(encoder)
    for path in ODD_PATHS:
        index.add(path, "cat")
    index.save(tmp_path)
    assert HybridIndex.load(tmp_path).paths == ODD_PATHS
    assert (tmp_path / "paths.txt").read_bytes().count(b"\n") == len(ODD_PATHS)


@given(st.text(st.characters()))
def test_paths_are_escaped_reversibly_and_without_line_breaks(path):
    line = escape_path(path)
    assert unescape_path(line) == path
    assert b"\n" not in line
    assert b"\r" not in line


@pytest.mark.parametrize("texts", [[], [""], ["", "é" * 70_000, "", "short", "x" * (1 << 14), "\ud800 end"]])
def test_texts_are_read_one_by_one_across_block_borders(encoder, tmp_path, texts):
    index = HybridIndex(encoder)
    for i, text in enumerate(texts):
        index.add(str(i), text)
    index.save(tmp_path)
    assert list(store.load(tmp_path)[0].texts) == texts


JUNK = st.sampled_from([None, -1, 0, 7, 10**9, 2**63, 1.5, "x", [], [10**9, 385], [1, 2, 3], {}, True])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_head_that_lies_with_the_right_checksum_is_refused_or_harmless(saved, data):
    raw = (saved / "idx.bin").read_bytes()
    length = struct.unpack_from("<I", raw, 12)[0]
    head = json.loads(raw[48 : 48 + length])
    places = [(head, key) for key in head]
    places += [(head["sections"], key) for key in head["sections"]]
    places += [(held, key) for held in head["sections"].values() for key in held]
    places += [(head[name], key) for name in ("settings", "made_by", "files") for key in head[name]]
    place, key = data.draw(st.sampled_from(places))
    place[key] = data.draw(JUNK)
    text = json.dumps(head).encode()[: len(raw)]
    body = raw[-(-(48 + length) // 64) * 64 :]
    start = struct.pack("<8sII32s", b"HYTEIDX\0", 2, len(text), hashlib.sha256(text).digest()) + text
    (saved / "idx.bin").write_bytes(start.ljust(-(-len(start) // 64) * 64, b"\0") + body)
    try:
        with suppress(InputError):
            HybridIndex.load(saved).search("blue cat")
    finally:
        (saved / "idx.bin").write_bytes(raw)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_numbers_that_lie_with_the_right_checksum_are_refused_or_harmless(saved, data):
    contents, _ = store.load(saved)
    arrays = store._arrays(contents, contents.texts.packed())
    name = data.draw(st.sampled_from([name for name, array in arrays.items() if array.dtype.kind in "iu"]))
    array = arrays[name] = arrays[name].copy()
    info = np.iinfo(array.dtype)
    array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.sampled_from([info.min, 0, 1, 5, info.max]))
    raw = (saved / "idx.bin").read_bytes()
    head = json.loads(raw[48 : 48 + struct.unpack_from("<I", raw, 12)[0]])
    (saved / "idx.bin").write_bytes(b"".join(pieces({key: head[key] for key in head if key != "sections"}, arrays)))
    try:
        with suppress(InputError):
            index = HybridIndex.load(saved)
            for query in ("blue cat", "a", "b"):
                index.search(query)
    finally:
        (saved / "idx.bin").write_bytes(raw)
