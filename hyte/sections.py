r"""`idx.bin`: a head and named arrays in one file, each with its checksum.

Little-endian: magic `HYTEIDX\0`, format version (uint32), length of the head (uint32), sha256 of the head (32 bytes),
the head (JSON), then the sections, each on a multiple of 64 bytes from the beginning. docs/FORMATS.md has all of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError

MAGIC = b"HYTEIDX\0"
VERSION = 2
START = struct.Struct("<8sII32s")
ALIGN = 64
MAX_HEAD = 1 << 20
CHECKED_BYTES = 1 << 16  # of the matrix have one checksum
BUILD_AGAIN = "build it anew (hyte index)"
DTYPES = {"float32": "<f4", "int32": "<i4", "int64": "<i8", "uint8": "u1"}
POINTS, SUMS = "points", "sums"
# The sections: type and number of dimensions. The matrix is the first.
SECTIONS = {
    POINTS: ("float32", 2),
    SUMS: ("uint8", 2),
    "document": ("int32", 1),
    "number": ("int32", 1),
    "span": ("int64", 2),
    "known": ("uint8", 1),
    "lengths": ("int32", 1),
    "starts": ("int64", 1),
    "postings": ("int32", 1),
    "frequencies": ("int32", 1),
    "terms": ("uint8", 1),
    "digests": ("uint8", 2),
    "text_spans": ("int64", 2),
    "text_blocks": ("int64", 2),
}

Arrays = dict[str, npt.NDArray[Any]]


def digest(content: bytes | memoryview) -> dict[str, Any]:
    """Length and sha256 of some bytes, as heads hold them."""
    length = content.nbytes if isinstance(content, memoryview) else len(content)
    return {"length": length, "sha256": hashlib.sha256(content).hexdigest()}


def rows_checked_together(width: int) -> int:
    """Rows of the matrix, of `width` float32 numbers each, that have one checksum."""
    return max(1, CHECKED_BYTES // max(1, 4 * width))


def sums(points: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """(B, 32) the sha256 of each so many rows of a matrix (N, w)."""
    rows = np.ascontiguousarray(points, "<f4")
    step = rows_checked_together(rows.shape[1])
    found = [hashlib.sha256(rows[i : i + step].data).digest() for i in range(0, len(rows), step) if rows.size]
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 32)


class CheckedRows:
    """A matrix (N, w) whose rows are checked when they are first read.

    Reading raises InputError where bytes are not those that were saved, or a value is not finite.

    Args:
        rows: mapped from the file.
        expected: (B, 32) what `sums` gave when they were saved.
        where: the file, and at which offset in it the rows begin.
    """

    def __init__(self, rows: npt.NDArray[np.float32], expected: npt.NDArray[np.uint8], where: tuple[Path, int]) -> None:
        self._rows, self._expected, self._where = rows, expected, where
        self._step = rows_checked_together(rows.shape[1])
        self._checked = np.zeros(len(expected), bool)
        self.shape, self.dtype = rows.shape, rows.dtype

    def __getitem__(self, numbers: Any) -> npt.NDArray[np.float32]:
        """The rows of these numbers (n,), or of a slice."""
        if not self._checked.all():
            whole = isinstance(numbers, slice)
            for block in range(len(self._checked)) if whole else np.unique(np.asarray(numbers) // self._step):
                if not self._checked[block]:
                    self._check(int(block))
        found: npt.NDArray[np.float32] = self._rows[numbers]
        return found

    def _check(self, block: int) -> None:
        rows = self._rows[block * self._step : (block + 1) * self._step]
        path, start = self._where
        place = f"{path}: section {POINTS} (offset {start + 4 * block * self._step * rows.shape[1]})"
        if hashlib.sha256(rows.data).digest() != self._expected[block].tobytes():
            raise InputError(f"{place} is damaged: checksum differs; {BUILD_AGAIN}")
        if not np.isfinite(rows).all():
            raise InputError(f"{place} holds a value that is not finite (NaN or inf); {BUILD_AGAIN}")
        self._checked[block] = True


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


def pieces(head: Mapping[str, Any], arrays: Arrays) -> Iterator[bytes | memoryview]:
    """The bytes of `idx.bin`, piece by piece."""
    raw = {name: np.ascontiguousarray(arrays[name], DTYPES[SECTIONS[name][0]]) for name in SECTIONS}
    held: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in raw.items():
        offset = _aligned(offset)
        checked = {"length": array.nbytes} if name == POINTS else digest(array.tobytes())
        held[name] = {"offset": offset, "dtype": array.dtype.name, "shape": array.shape, **checked}
        offset += array.nbytes
    text = json.dumps({**head, "sections": held, "length": offset}, allow_nan=False).encode()
    yield START.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest())
    yield text
    end = START.size + len(text)
    base = _aligned(end)
    for name, array in raw.items():
        start = base + held[name]["offset"]
        yield b"\0" * (start - end)
        if array.size:
            yield array.reshape(-1).view(np.uint8).data
        end = start + array.nbytes


class Index:
    """An opened `idx.bin`.

    Attributes:
        head: what it holds beside the sections.
        arrays: the sections by name, mapped from the file; all but the matrix are checked.
        points: the matrix.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError where the file is missing, damaged, foreign or of another version."""
        if not path.is_file():
            raise InputError(f"{path}: no index there; make one with: hyte index PATH --out {path.parent}")
        with path.open("rb") as file:  # one file, whatever takes its place meanwhile
            text, base = _read_head(path, file.read(START.size), file)
            size = file.seek(0, 2)
            self.head = json.loads(text)
            if size != base + self.head["length"]:
                word = "truncated" if size < base + self.head["length"] else "too long"
                raise InputError(
                    f"{path}: {word}: {size} bytes, its head says {base + self.head['length']}; {BUILD_AGAIN}"
                )
            mapped = np.asarray(np.memmap(file, np.uint8, "r"))
        self.arrays = {name: _section(path, name, mapped, base, self.head["sections"][name]) for name in SECTIONS}
        points, expected = self.arrays[POINTS], self.arrays[SUMS]
        blocks = -(-len(points) // rows_checked_together(points.shape[1])) if points.size else 0
        if expected.shape != (blocks, 32):
            raise InputError(f"{path}: {expected.shape} checksums for a matrix {points.shape}; {BUILD_AGAIN}")
        self.points = CheckedRows(points, expected, (path, base + self.head["sections"][POINTS]["offset"]))


def _read_head(path: Path, start: bytes, file: Any) -> tuple[bytes, int]:
    """The head's JSON text and the offset of the first section; `start` are the first bytes of the file."""
    if not start.startswith(MAGIC):
        raise InputError(f"{path}: not a HyTE index (it begins with {start[:8]!r}); {BUILD_AGAIN}")
    if len(start) < START.size:
        raise InputError(f"{path}: truncated: {len(start)} bytes, the start alone has {START.size}; {BUILD_AGAIN}")
    _, version, length, expected = START.unpack(start)
    if version != VERSION:
        raise InputError(f"{path}: format version {version}, this program reads {VERSION}; {BUILD_AGAIN}")
    if length > MAX_HEAD:
        raise InputError(f"{path}: its head would have {length} bytes, at most {MAX_HEAD} are read; {BUILD_AGAIN}")
    text: bytes = file.read(length)
    if len(text) < length:
        raise InputError(
            f"{path}: truncated: {START.size + len(text)} bytes, its head ends at {START.size + length}; {BUILD_AGAIN}"
        )
    if hashlib.sha256(text).digest() != expected:
        raise InputError(f"{path}: the head (offset {START.size}) is damaged: checksum differs; {BUILD_AGAIN}")
    return text, _aligned(START.size + length)


def _section(
    path: Path, name: str, mapped: npt.NDArray[np.uint8], base: int, held: Mapping[str, Any]
) -> npt.NDArray[Any]:
    dtype, dimensions = SECTIONS[name]
    shape, offset = tuple(int(extent) for extent in held["shape"]), base + int(held["offset"])
    size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    fits = held["dtype"] == dtype and len(shape) == dimensions and min(shape) >= 0 and held["length"] == size
    if not fits or offset < base or offset % ALIGN or offset + size > len(mapped):
        raise InputError(
            f"{path}: section {name} is {held['dtype']} {shape} in {held['length']} bytes at {offset}, the file has "
            f"{len(mapped)}; {BUILD_AGAIN}"
        )
    found = mapped[offset : offset + size]
    if name != POINTS and hashlib.sha256(found.data).hexdigest() != held["sha256"]:
        raise InputError(f"{path}: section {name} (offset {offset}) is damaged: checksum differs; {BUILD_AGAIN}")
    return found.view(DTYPES[dtype]).reshape(shape)
