r"""The flat blob `weights.bin`, and the authors' published matrix files.

`weights.bin` is little-endian, whatever the machine:

| offset | bytes | what |
|---|---|---|
| 0 | 8 | magic `HYTEWGT\0` |
| 8 | 4 | format version, 1 (uint32) |
| 12 | 4 | kind of the rows: 0 is float32, 1 is int8 (uint32) |
| 16 | 4 | rows V, the size of the vocabulary (uint32) |
| 20 | 4 | dims d (uint32) |
| 24 | 8 | K (float64); the curvature is -1/K |
| 32 | 8 | P of the trained pooling (float64) |
| 40 | 16 | trained pooling, ASCII, filled with NUL |
| 56 | 32 | sha256 of the tokenizer's JSON text |
| 88 | 32 | sha256 of all from 256 on |
| 120 | 32 | sha256 of bytes 0 to 119 |
| 152 | 104 | 0 |
| 256 | 4 V d | kind 0: the rows, float32, one row x = W2 ReLU(W1 e) a token id |
| 256 | 4 V | kind 1: a scale a row, float32, 0 to 2.7e36 |
| 256 + 4 V | V d | kind 1: the rows q, int8, row after row; x = scale q, multiplied in float32 |

The published format (`word_embeds.bin`, `proj_weight.bin` = W1, `proj_out.bin` = W2) is int32 rows, int32 columns and
float32 values row by row, little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError
from hyte.files import atomic_write
from hyte.geometry import check_k
from hyte.pooling import check_pooling

MAGIC = b"HYTEWGT\0"
VERSION = 1
KINDS = ("float32", "int8")  # the header holds the place in this list
HEADER = struct.Struct("<8sIIIIdd16s32s32s")
MAX_SCALE = float(np.finfo(np.float32).max) / 128  # no int8 times a scale overflows
DATA_OFFSET = 256
EXPORT_AGAIN = "export the artifact again (python -m export.run)"

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """One baked row of space coordinates a token, and how it was trained to be pooled.

    Attributes:
        rows: (V, d) float32, mapped from the file, or made from its int8 rows.
        k: K of the hyperboloid.
        pooling: the trained pooling.
        power: the trained P.
        tokenizer_sha256: hex digest of the tokenizer that the rows belong to.
        fingerprint: hex digest of the header, which covers the rows: the identity of these weights.
    """

    rows: Rows
    k: float
    pooling: str
    power: float
    tokenizer_sha256: str
    fingerprint: str


def quantise(rows: npt.ArrayLike) -> tuple[Rows, npt.NDArray[np.int8]]:
    """Scales (V,) float32 and rows q (V, d) int8 in [-127, 127] of finite float32 rows x, so that x is about scale q.

    scale = max |x| / 127 of the row and q = x / scale, rounded half to even: |x - scale q| <= scale / 2. A row below
    1.5e-36 becomes zeros with scale 0, since a subnormal scale has too few digits.
    """
    table = np.asarray(rows, dtype=np.float32)
    scales = np.asarray(np.abs(table).max(axis=1) / np.float32(127), dtype=np.float32)
    scales[scales < np.finfo(np.float32).tiny] = 0
    quotients = table / np.where(scales > 0, scales, np.inf).astype(np.float64)[:, None]  # float64 finds ties exactly
    return scales, np.rint(quotients).astype(np.int8)


def write_weights(
    path: str | Path,
    rows: npt.ArrayLike,
    k: float,
    pooling: str,
    power: float,
    tokenizer_sha256: str,
    kind: str = "float32",
) -> None:
    """Write `weights.bin`; `kind` is one of `KINDS`.

    Raises InputError where a value is not finite, the shape is not (V, d), or the kind is unknown.
    """
    table = np.ascontiguousarray(rows, dtype="<f4")
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(f"{path}: weights must be a table (tokens, dims), not of shape {table.shape}")
    check_pooling(pooling, power)
    check_kind(kind)
    _check_finite(table, path, "train again with a lower learning rate")
    if kind == "int8":
        scales, whole = quantise(table)
        _check_scales(scales, path, "train again with a lower learning rate")
        body = scales.astype("<f4").tobytes() + whole.tobytes()
    else:
        body = table.tobytes()
    head = HEADER.pack(
        MAGIC, VERSION, KINDS.index(kind), *table.shape, check_k(k), power, pooling.encode(),
        bytes.fromhex(tokenizer_sha256), hashlib.sha256(body).digest(),
    )  # fmt: skip
    with atomic_write(path) as file:
        file.write((head + hashlib.sha256(head).digest()).ljust(DATA_OFFSET, b"\0"))
        file.write(body)


def check_kind(kind: str) -> None:
    """Raises InputError unless `kind` is one of `KINDS`."""
    if kind not in KINDS:
        raise InputError(f"rows={kind} is unknown: use one of {', '.join(KINDS)}")


def read_weights(path: str | Path) -> Weights:
    """Map `weights.bin` into memory, after checking its header, length, checksums and values.

    int8 rows are made float32 here, once. Raises InputError, with the file and what to do, where anything does not fit.
    """
    source = Path(path)
    head = _read_head(source)
    _, _, kind, count, dims, k, power, pooling, tokenizer, digest = HEADER.unpack_from(head)
    name = pooling.rstrip(b"\0").decode("ascii", "replace")
    try:
        check_k(k)
        check_pooling(name, power)
    except InputError as error:
        raise InputError(f"{source}: the header (offset 24) says: {error}; {EXPORT_AGAIN}") from error
    if kind >= len(KINDS) or count * dims == 0:
        raise InputError(
            f"{source}: the header says kind {kind}, {count} x {dims}, not {' or '.join(KINDS)} rows; {EXPORT_AGAIN}"
        )
    int8 = KINDS[kind] == "int8"
    _check_length(source, DATA_OFFSET + count * (4 + dims if int8 else 4 * dims))
    body = np.memmap(source, dtype=np.uint8, mode="r", offset=DATA_OFFSET)
    if hashlib.sha256(body.data).digest() != digest:
        raise InputError(f"{source}: the rows (offset {DATA_OFFSET}) are damaged: checksum differs; {EXPORT_AGAIN}")
    if int8:
        rows = _dequantised(body, count, source)
    else:
        rows = body.view("<f4").reshape(count, dims)
        _check_finite(rows, source, EXPORT_AGAIN)
    return Weights(rows, k, name, power, tokenizer.hex(), hashlib.sha256(head).hexdigest())


def _dequantised(body: npt.NDArray[np.uint8], count: int, source: Path) -> Rows:
    """Rows (count, d) float32 of `count` scales and as many int8 rows."""
    scales, whole = body[: 4 * count].view("<f4"), body[4 * count :].view(np.int8).reshape(count, -1)
    _check_scales(scales, source, EXPORT_AGAIN)
    return np.asarray(whole * scales[:, None], dtype=np.float32)


def _read_head(source: Path) -> bytes:
    """The header's bytes. Raises InputError where they are not those of a file that this version reads."""
    if not source.is_file():
        raise InputError(f"{source}: no weights there; {EXPORT_AGAIN}")
    with source.open("rb") as file:
        head = file.read(DATA_OFFSET)
    if not head.startswith(MAGIC):
        raise InputError(
            f"{source}: not a HyTE weights file (it begins with {head[:8]!r}, not {MAGIC!r}); {EXPORT_AGAIN}"
        )
    if len(head) < DATA_OFFSET:
        raise InputError(f"{source}: truncated: {len(head)} bytes, the header alone has {DATA_OFFSET}; {EXPORT_AGAIN}")
    version = HEADER.unpack_from(head)[1]
    if version != VERSION:
        raise InputError(f"{source}: format version {version}, this program reads {VERSION}; {EXPORT_AGAIN}")
    if hashlib.sha256(head[: HEADER.size]).digest() != head[HEADER.size : HEADER.size + 32]:
        raise InputError(f"{source}: the header (offset 0) is damaged: its checksum does not fit; {EXPORT_AGAIN}")
    end = HEADER.size + 32
    if any(head[end:]):
        raise InputError(f"{source}: bytes {end} to {DATA_OFFSET - 1} are damaged: they must be 0; {EXPORT_AGAIN}")
    return head


def write_matrix(path: str | Path, matrix: npt.ArrayLike) -> None:
    """Write a matrix in the authors' published format."""
    values = np.ascontiguousarray(matrix, dtype="<f4")
    if values.ndim != 2:
        raise InputError(f"{path}: expected a matrix, not an array of shape {values.shape}")
    with atomic_write(path) as file:
        file.write(struct.pack("<ii", *values.shape))
        file.write(values.data)


def read_matrix(path: str | Path) -> Rows:
    """Read a matrix in the authors' published format: (rows, columns) float32.

    Raises InputError where the file is missing, its length does not fit its header, or a value is not finite.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source}: no such file")
    with source.open("rb") as file:
        head = file.read(8)
    if len(head) < 8:
        raise InputError(f"{source}: truncated: {len(head)} bytes, the header alone has 8")
    rows, columns = struct.unpack("<ii", head)
    if rows <= 0 or columns <= 0:
        raise InputError(f"{source}: the header says {rows} x {columns}; both must be above 0")
    _check_length(source, 8 + 4 * rows * columns)
    matrix = np.fromfile(source, dtype="<f4", offset=8).reshape(rows, columns)
    _check_finite(matrix, source, "fetch it again")
    return np.asarray(matrix, dtype=np.float32)


def _check_length(path: Path, expected: int) -> None:
    actual = path.stat().st_size
    if actual != expected:
        word = "truncated" if actual < expected else "too long"
        raise InputError(f"{path}: {word}: {actual} bytes, its header says {expected}; copy or {EXPORT_AGAIN}")


def _check_finite(table: Rows, path: str | Path, advice: str) -> None:
    bad = ~np.isfinite(table).all(axis=1)
    if bad.any():
        raise InputError(f"{path}: row {int(np.argmax(bad))} holds a value that is not finite (NaN or inf); {advice}")


def _check_scales(scales: Rows, path: str | Path, advice: str) -> None:
    bad = ~((scales >= 0) & (scales <= MAX_SCALE))  # NaN is neither
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{path}: the scale of row {row} is {scales[row]}, not from 0 to {MAX_SCALE:.1e}; {advice}")
