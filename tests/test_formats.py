"""docs/FORMATS.md is enough: a reader written from it alone, in plain Python, reads what hyte writes."""

import hashlib
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from hyte import Encoder, HybridIndex, Settings
from tests.conftest import ROOT, WORDS, write_artifact

TEXTS = {
    "notes/a.txt": "the cat sat, blue sea",
    "b\nc\\d\r.txt": "",
    b"bad\xff.txt".decode("utf-8", "surrogateescape"): "naïve 日本 " * 9000,
    "d.txt": "old fish ran",
}
SIZES = {"float32": ("f", 4), "int32": ("i", 4), "int64": ("q", 8), "uint8": ("B", 1)}


def read_index(folder: Path):
    """(head, sections as flat tuples, paths, texts) by the words of the document, checksums checked."""
    raw = (folder / "idx.bin").read_bytes()
    assert raw[:8] == b"HYTEIDX\0"
    version, length = struct.unpack_from("<II", raw, 8)
    assert version == 2
    assert hashlib.sha256(raw[48 : 48 + length]).digest() == raw[16:48]
    head = json.loads(raw[48 : 48 + length])
    base = (48 + length + 63) // 64 * 64
    assert len(raw) == base + head["length"]
    sections = {}
    for name, held in head["sections"].items():
        content = raw[base + held["offset"] :][: held["length"]]
        assert (base + held["offset"]) % 64 == 0
        assert name == "points" or hashlib.sha256(content).hexdigest() == held["sha256"]
        code, size = SIZES[held["dtype"]]
        sections[name] = struct.unpack(f"<{len(content) // size}{code}", content)
    for name, held in head["files"].items():
        content = (folder / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (held["length"], held["sha256"])
    return head, sections, read_paths(folder), read_texts(folder, sections)


def read_paths(folder: Path):
    lines = (folder / "paths.txt").read_bytes().split(b"\n")
    assert lines.pop() == b""
    found = []
    for line in lines:
        path, at = b"", 0
        while at < len(line):
            if line[at : at + 1] != b"\\":
                path, at = path + line[at : at + 1], at + 1
            elif line[at + 1 : at + 2] == b"x":
                path, at = path + bytes([int(line[at + 2 : at + 4], 16)]), at + 4
            else:
                path, at = path + {b"n": b"\n", b"r": b"\r", b"\\": b"\\"}[line[at + 1 : at + 2]], at + 2
        found.append(path)
    return found


def read_texts(folder: Path, sections):
    raw, blocks, spans = (folder / "texts.z").read_bytes(), sections["text_blocks"], sections["text_spans"]
    ends = list(zip(blocks[::2], blocks[1::2], strict=True))
    found = []
    for a, b in zip(spans[::2], spans[1::2], strict=True):
        held, start, before, place = b"", 0, 0, None
        for packed, whole in ends:
            if whole > a and before < b:
                place = before if place is None else place
                held += zlib.decompress(raw[start:packed])
            start, before = packed, whole
        found.append(held[a - place : b - place].decode() if b > a else "")
    return found


@pytest.fixture
def saved(encoder, tmp_path):
    index = HybridIndex(encoder, Settings(analyzer="alnum", window=3, overlap=1))
    for path, text in TEXTS.items():
        index.add(path, text)
    index.save(tmp_path)
    index.remove("d.txt")
    index.add("d.txt", TEXTS["d.txt"], "new")
    index.save(tmp_path)
    return tmp_path


def test_an_index_is_read_from_the_document_alone(saved, encoder):
    head, sections, paths, texts = read_index(saved)
    assert (head["generation"], head["documents"]) == (2, 4)
    assert paths == [path.encode("utf-8", "surrogateescape") for path in TEXTS]
    assert texts == [*list(TEXTS.values())[:3], "new old fish ran"]
    count, width = head["sections"]["points"]["shape"]
    assert (count, width) == (len(sections["document"]), encoder.dim + 1)
    last = sections["span"][-2:]
    assert texts[3][last[0] : last[1]] == "fish ran"
    assert sections["points"][-width:] == tuple(encoder.encode(["fish ran"])[0].tolist())
    assert sections["known"][-1] == 1
    rows = max(1, 65536 // (4 * width))
    matrix = struct.pack(f"<{len(sections['points'])}f", *sections["points"])
    blocks = [matrix[i : i + 4 * width * rows] for i in range(0, len(matrix), 4 * width * rows)]
    assert bytes(sections["sums"]) == b"".join(hashlib.sha256(block).digest() for block in blocks)


def test_postings_and_digests_are_read_from_the_document_alone(saved):
    _, sections, _, _ = read_index(saved)
    number = bytes(sections["terms"]).decode().split("\n").index("fish")
    held = slice(*sections["starts"][number : number + 2])
    last = len(sections["document"]) - 1
    assert sections["postings"][held] == (last - 1, last)
    assert sections["frequencies"][held] == (1, 1)
    assert sections["lengths"][last] == 2
    text = TEXTS["d.txt"]
    assert bytes(sections["digests"][-32:]) == hashlib.sha256(f"3 new{text}".encode()).digest()


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_weights_are_read_from_the_document_alone(tmp_path, tiny_tokenizer_file, kind):
    from hyte.weights import write_weights

    rows = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float32)
    write_weights(tmp_path / "weights.bin", rows, 2.0, "oem", 3.0, "ab" * 32, kind)
    raw = (tmp_path / "weights.bin").read_bytes()
    magic, version, number, count, dims, k, power, pooling = struct.unpack_from("<8sIIIIdd16s", raw)
    assert (magic, version, number) == (b"HYTEWGT\0", 1, ["float32", "int8"].index(kind))
    assert (count, dims, k, power, pooling.rstrip(b"\0")) == (len(WORDS), 8, 2.0, 3.0, b"oem")
    assert raw[56:88] == bytes.fromhex("ab" * 32)
    assert hashlib.sha256(raw[256:]).digest() == raw[88:120]
    assert hashlib.sha256(raw[:120]).digest() == raw[120:152]
    assert raw[152:256] == bytes(104)
    if kind == "float32":
        found = np.array(struct.unpack(f"<{count * dims}f", raw[256:])).reshape(count, dims)
        np.testing.assert_array_equal(found, rows)
    else:
        scales = np.array(struct.unpack_from(f"<{count}f", raw, 256))
        whole = np.array(struct.unpack(f"<{count * dims}b", raw[256 + 4 * count :])).reshape(count, dims)
        assert (np.abs(whole * scales[:, None] - rows) <= scales[:, None] / 2 * 1.001).all()


def test_the_document_names_every_section_and_version():
    from hyte import sections, weights

    document = (ROOT / "docs" / "FORMATS.md").read_text()
    for name in sections.SECTIONS:
        assert f"| `{name}` | {sections.SECTIONS[name][0]} |" in document
    assert f"| idx.bin | {sections.VERSION} |" in document
    assert f"| weights.bin | {weights.VERSION} |" in document


def test_an_artifact_of_the_document_is_what_the_encoder_reads(tmp_path, tiny_tokenizer_file):
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    raw = (folder / "weights.bin").read_bytes()
    rows = np.frombuffer(raw, "<f4", offset=256).reshape(len(WORDS), 8)
    point = Encoder.load(folder).encode(["cat"])[0]
    row = rows[WORDS.index("cat")].astype(np.float64)
    np.testing.assert_allclose(point, [np.sqrt(row @ row + 1), *row], rtol=1e-5)
