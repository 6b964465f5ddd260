r"""The three files of an index: the only place that knows their bytes.

`idx.bin` is little-endian: magic `HYTEIDX\0`, format version (uint32), length of the head (uint32), sha256 of the
head (32 bytes), the head (JSON), then the sections, each on a multiple of 64 bytes. The head holds the settings, the
artifact's fingerprint, each section's offset, dtype, shape and sha256, and the length and sha256 of the other two
files, so that files of different saves are never read together. The first section is the matrix: N x (d+1) float32 in
one block.

`texts.z` holds the documents' texts in UTF-8, one after the other, in blocks of 64 KiB that are compressed with zlib on
their own. `paths.txt` holds one path a line in UTF-8; a backslash is written `\\`, a line feed `\n`, a carriage return
`\r`, and a byte that is not UTF-8 `\xNN`.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from hyte.bm25 import BM25
from hyte.errors import InputError
from hyte.files import atomic_write

INDEX_FILE, TEXTS_FILE, PATHS_FILE = "idx.bin", "texts.z", "paths.txt"
MAGIC = b"HYTEIDX\0"
VERSION = 1
START = struct.Struct("<8sII32s")
ALIGN = 64
BLOCK = 1 << 16
BUILD_AGAIN = "build it anew (hyte index)"
DTYPES = {"float32": "<f4", "int32": "<i4", "int64": "<i8", "uint8": "u1"}


@dataclass
class Chunks:
    """Arrays with one row a chunk.

    Attributes:
        document: (N,) number of its document.
        number: (N,) number within its document.
        span: (N, 2) characters in the document's text.
        known: (N,) False where no token is known and the point means nothing.
        points: (N, d+1) float32, time first.
    """

    document: npt.NDArray[np.int32]
    number: npt.NDArray[np.int32]
    span: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]
    points: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.document)

    @classmethod
    def empty(cls, width: int) -> Chunks:
        """No chunks, of points with `width` coordinates (0 without an encoder)."""
        none, points = np.zeros(0, np.int32), np.zeros((0, width), np.float32)
        return cls(none, none, np.zeros((0, 2), np.int64), np.zeros(0, bool), points)

    @classmethod
    def joined(cls, parts: list[Chunks]) -> Chunks:
        """The chunks of all parts in order."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def kept(self, keep: npt.NDArray[np.bool_]) -> Chunks:
        """The chunks where `keep` (N,) is true."""
        return Chunks(*(getattr(self, field.name)[keep] for field in fields(self)))


@dataclass(frozen=True)
class Contents:
    """All that is saved of an index; `made_by` is `Encoder.record`, None where there is no encoder."""

    settings: dict[str, Any]
    made_by: dict[str, Any] | None
    paths: list[str]
    texts: Sequence[str]
    chunks: Chunks
    bm25: BM25


class Texts(Sequence[str]):
    """The documents' texts in `texts.z`; reading one inflates only the blocks that hold it."""

    def __init__(self, packed: bytes, blocks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self._packed, self._blocks, self._ends = packed, blocks, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        start, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
        first, last = start // BLOCK, -(-end // BLOCK)
        held = b"".join(self._inflate(i) for i in range(first, last))
        return held[start - first * BLOCK : end - first * BLOCK].decode("utf-8", "surrogatepass")

    def _inflate(self, block: int) -> bytes:
        start = int(self._blocks[block - 1]) if block else 0
        return zlib.decompress(self._packed[start : int(self._blocks[block])])


def save(folder: str | Path, contents: Contents) -> None:
    """Write the three files, each whole or not at all, `idx.bin` last. The folder is made if missing."""
    target = Path(folder)
    ends, blocks, texts = _packed_texts(contents.texts)
    paths = b"".join(escape_path(path) + b"\n" for path in contents.paths)
    arrays = {**_arrays(contents), "text_ends": ends, "text_blocks": blocks}
    head = {
        "settings": contents.settings,
        "made_by": contents.made_by,
        "documents": len(contents.paths),
        "files": {TEXTS_FILE: _digest(texts), PATHS_FILE: _digest(paths)},
    }
    for name, content in ((TEXTS_FILE, texts), (PATHS_FILE, paths)):
        with atomic_write(target / name) as file:
            file.write(content)
    _write_index(target / INDEX_FILE, head, arrays)


def load(folder: str | Path) -> Contents:
    """Read and check the three files; the matrix stays mapped from `idx.bin`.

    Raises InputError where a file is missing, damaged, of another version, or of another save than `idx.bin`.
    """
    source = Path(folder)
    head, arrays = _read_index(source / INDEX_FILE)
    held = {name: _read_checked(source / name, digest) for name, digest in head["files"].items()}
    paths = [unescape_path(line) for line in held[PATHS_FILE].split(b"\n")[:-1]]
    if not len(paths) == head["documents"] == len(arrays["text_ends"]):
        raise InputError(f"{source / PATHS_FILE}: {len(paths)} paths for {head['documents']} documents; {BUILD_AGAIN}")
    chunks = Chunks(*(arrays[field.name] for field in fields(Chunks)))
    chunks.known = chunks.known.astype(bool)
    bm25 = _bm25(head["settings"], arrays)
    texts = Texts(held[TEXTS_FILE], arrays["text_blocks"], arrays["text_ends"])
    return Contents(head["settings"], head["made_by"], paths, texts, chunks, bm25)


def _arrays(contents: Contents) -> dict[str, npt.NDArray[Any]]:
    chunks, bm25 = contents.chunks, contents.bm25
    terms = [term.encode("utf-8", "surrogatepass") for term in bm25.terms]
    return {
        "points": chunks.points,
        "document": chunks.document,
        "number": chunks.number,
        "span": chunks.span,
        "known": chunks.known.astype(np.uint8),
        "lengths": bm25.lengths,
        "starts": bm25.starts,
        "postings": bm25.chunks,
        "frequencies": bm25.frequencies,
        "term_ends": np.cumsum([len(term) for term in terms], dtype=np.int64),
        "terms": np.frombuffer(b"".join(terms), np.uint8),
    }


def _bm25(settings: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> BM25:
    bm25 = BM25(settings["k1"], settings["b"])
    bm25.lengths, bm25.starts = arrays["lengths"], arrays["starts"]
    bm25.chunks, bm25.frequencies = arrays["postings"], arrays["frequencies"]
    text, ends = arrays["terms"].tobytes(), arrays["term_ends"].tolist()
    terms = (text[start:end] for start, end in zip([0, *ends], ends, strict=False))
    bm25.terms = {term.decode("utf-8", "surrogatepass"): number for number, term in enumerate(terms)}
    return bm25


def _packed_texts(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bytes]:
    """(end of each text in bytes, end of each compressed block, the compressed blocks)."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = b"".join(encoded)
    packed = [zlib.compress(joined[i : i + BLOCK]) for i in range(0, len(joined), BLOCK)]
    ends, blocks = ([len(part) for part in parts] for parts in (encoded, packed))
    return np.cumsum(ends, dtype=np.int64), np.cumsum(blocks, dtype=np.int64), b"".join(packed)


def _digest(content: bytes | memoryview) -> dict[str, Any]:
    length = content.nbytes if isinstance(content, memoryview) else len(content)
    return {"length": length, "sha256": hashlib.sha256(content).hexdigest()}


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


def _write_index(path: Path, head: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
    raw = {name: np.ascontiguousarray(a, DTYPES[a.dtype.name]) for name, a in arrays.items()}
    sections, offset = {}, 0
    for name, array in raw.items():
        offset = _aligned(offset)
        sections[name] = {"offset": offset, "dtype": array.dtype.name, "shape": array.shape, **_digest(array.data)}
        offset += array.nbytes
    text = json.dumps({**head, "sections": sections}, allow_nan=False).encode()
    with atomic_write(path) as file:
        file.write(START.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()) + text)
        base = _aligned(START.size + len(text))
        for name, array in raw.items():
            file.write(b"\0" * (base + sections[name]["offset"] - file.tell()))
            file.write(array.data if array.size else b"")


def _read_index(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    if not path.is_file():
        raise InputError(f"{path}: no index there; make one with: hyte index PATH --out {path.parent}")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(START.size)
        if not start.startswith(MAGIC):
            raise InputError(f"{path}: not a HyTE index (it begins with {start[:8]!r}); {BUILD_AGAIN}")
        if len(start) < START.size:
            raise InputError(f"{path}: truncated: {size} bytes, the start alone has {START.size}; {BUILD_AGAIN}")
        _, version, length, digest = START.unpack(start)
        if version != VERSION:
            raise InputError(f"{path}: format version {version}, this program reads {VERSION}; {BUILD_AGAIN}")
        if START.size + length > size:
            raise InputError(f"{path}: truncated: {size} bytes, its head ends at {START.size + length}; {BUILD_AGAIN}")
        text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise InputError(f"{path}: the head (offset {START.size}) is damaged: checksum differs; {BUILD_AGAIN}")
    head = json.loads(text)
    base = _aligned(START.size + length)
    end = base + max(s["offset"] + s["length"] for s in head["sections"].values())
    if size != end:
        word = "truncated" if size < end else "too long"
        raise InputError(f"{path}: {word}: {size} bytes, its head says {end}; {BUILD_AGAIN}")
    return head, {name: _section(path, base, name, section) for name, section in head["sections"].items()}


def _section(path: Path, base: int, name: str, section: dict[str, Any]) -> npt.NDArray[Any]:
    dtype, shape, offset = DTYPES[section["dtype"]], tuple(section["shape"]), base + section["offset"]
    if section["length"] == 0:
        return np.zeros(shape, dtype)
    array = np.memmap(path, dtype, "r", offset, shape)
    if _digest(array.data) != {"length": section["length"], "sha256": section["sha256"]}:
        raise InputError(f"{path}: section {name} (offset {offset}) is damaged: checksum differs; {BUILD_AGAIN}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{path}: section {name} holds a value that is not finite (NaN or inf); {BUILD_AGAIN}")
    return array


def _read_checked(path: Path, expected: dict[str, Any]) -> bytes:
    if not path.is_file():
        raise InputError(f"{path}: missing, {INDEX_FILE} beside it needs it; {BUILD_AGAIN}")
    if path.stat().st_size != expected["length"]:
        raise InputError(
            f"{path}: {path.stat().st_size} bytes, {INDEX_FILE} says {expected['length']}: truncated, or of another "
            f"save; {BUILD_AGAIN}"
        )
    content = path.read_bytes()
    if _digest(content) != expected:
        raise InputError(f"{path}: damaged, or of another save than {INDEX_FILE}: checksum differs; {BUILD_AGAIN}")
    return content


def escape_path(path: str) -> bytes:
    """A path as one line of bytes without its line feed."""
    plain = path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return b"".join(_escaped_characters(plain))


def _escaped_characters(text: str) -> Iterator[bytes]:
    for part in re.split("([\ud800-\udfff])", text):
        if len(part) == 1 and "\udc80" <= part <= "\udcff":  # how Python holds a byte that is not UTF-8
            yield f"\\x{ord(part) - 0xDC00:02x}".encode()
        else:
            yield part.encode("utf-8", "surrogatepass")


def unescape_path(line: bytes) -> str:
    """Inverse of `escape_path`."""
    plain = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
    text = line.decode("utf-8", "surrogatepass")
    return re.sub(r"\\(?:[\\nr]|x[0-9a-f]{2})", lambda m: plain.get(m[0]) or chr(0xDC00 + int(m[0][2:], 16)), text)
