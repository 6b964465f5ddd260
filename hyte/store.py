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
import math
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyte.bm25 import BM25
from hyte.chunks import Chunks
from hyte.encoder import check_record
from hyte.errors import InputError
from hyte.files import atomic_write, sync
from hyte.settings import Settings
from hyte.texts import Texts, pack

INDEX_FILE, TEXTS_FILE, PATHS_FILE = "idx.bin", "texts.z", "paths.txt"
MAGIC = b"HYTEIDX\0"
VERSION = 1
START = struct.Struct("<8sII32s")
ALIGN = 64
BUILD_AGAIN = "build it anew (hyte index)"
DTYPES = {"float32": "<f4", "int32": "<i4", "int64": "<i8", "uint8": "u1"}
# The sections of idx.bin: type and number of dimensions.
SECTIONS = {
    "points": ("float32", 2),
    "document": ("int32", 1),
    "number": ("int32", 1),
    "span": ("int64", 2),
    "known": ("uint8", 1),
    "lengths": ("int32", 1),
    "starts": ("int64", 1),
    "postings": ("int32", 1),
    "frequencies": ("int32", 1),
    "term_ends": ("int64", 1),
    "terms": ("uint8", 1),
    "text_ends": ("int64", 1),
    "text_blocks": ("int64", 1),
}


@dataclass(frozen=True)
class Contents:
    """All that is saved of an index; `made_by` is `Encoder.record`, None where there is no encoder."""

    settings: Settings
    made_by: dict[str, Any] | None
    paths: list[str]
    texts: Sequence[str]
    chunks: Chunks
    bm25: BM25


def save(folder: str | Path, contents: Contents) -> None:
    """Write the three files. The old ones go when the new ones are whole and on disk, `idx.bin` last.

    The folder is made if missing. Raises OSError, naming a file, where they cannot be written; the old ones stay.
    """
    target = Path(folder)
    ends, blocks, texts = pack(contents.texts)
    paths = b"".join(escape_path(path) + b"\n" for path in contents.paths)
    head = {
        "settings": asdict(contents.settings),
        "made_by": contents.made_by,
        "documents": len(contents.paths),
        "files": {TEXTS_FILE: _digest(texts), PATHS_FILE: _digest(paths)},
    }
    index = _index_parts(head, {**_arrays(contents), "text_ends": ends, "text_blocks": blocks})
    with ExitStack() as files:  # it closes, and so renames, in reverse order
        for name, parts in ((INDEX_FILE, index), (TEXTS_FILE, [texts]), (PATHS_FILE, [paths])):
            file = files.enter_context(atomic_write(target / name))
            file.writelines(parts)
            sync(file)


def load(folder: str | Path) -> Contents:
    """Read and check the three files; the matrix stays mapped from `idx.bin`.

    Raises InputError where a file is missing, damaged, of another version, or of another save than `idx.bin`.
    """
    source = Path(folder)
    index = source / INDEX_FILE
    with _told_as_damage(index):
        head, arrays = _read_index(index)
        settings, made_by = Settings(**head["settings"]), head["made_by"]
        if made_by is not None:
            check_record(made_by)
        held = {name: _read_checked(source / name, head["files"][name]) for name in (TEXTS_FILE, PATHS_FILE)}
        paths = [unescape_path(line) for line in held[PATHS_FILE].split(b"\n")[:-1]]
        _check_numbers(index, head["documents"], len(paths), len(held[TEXTS_FILE]), arrays)
        chunks = Chunks(*(arrays[field.name] for field in fields(Chunks)))
        chunks.known = chunks.known.astype(bool)
        texts = Texts(held[TEXTS_FILE], arrays["text_blocks"], arrays["text_ends"])
        return Contents(settings, made_by, paths, texts, chunks, _bm25(settings, arrays))


@contextmanager
def _told_as_damage(path: Path) -> Iterator[None]:
    """Turn what reading nonsense raises into an InputError. The checksums fit: somebody wrote the nonsense."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: it holds something else than it should ({error!r}); {BUILD_AGAIN}") from error


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


def _bm25(settings: Settings, arrays: dict[str, npt.NDArray[Any]]) -> BM25:
    bm25 = BM25(settings.k1, settings.b, settings.k3)
    bm25.lengths, bm25.starts = arrays["lengths"], arrays["starts"]
    bm25.chunks, bm25.frequencies = arrays["postings"], arrays["frequencies"]
    text, ends = arrays["terms"].tobytes(), arrays["term_ends"].tolist()
    terms = (text[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False))
    bm25.terms = {term: number for number, term in enumerate(terms)}
    return bm25


def _digest(content: bytes | memoryview) -> dict[str, Any]:
    length = content.nbytes if isinstance(content, memoryview) else len(content)
    return {"length": length, "sha256": hashlib.sha256(content).hexdigest()}


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


def _index_parts(head: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> list[bytes | memoryview]:
    """The bytes of `idx.bin`, piece by piece."""
    raw = {name: np.ascontiguousarray(array, DTYPES[array.dtype.name]) for name, array in arrays.items()}
    sections: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in raw.items():
        offset = _aligned(offset)
        sections[name] = {"offset": offset, "dtype": array.dtype.name, "shape": array.shape, **_digest(array.data)}
        offset += array.nbytes
    text = json.dumps({**head, "sections": sections}, allow_nan=False).encode()
    parts: list[bytes | memoryview] = [START.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()), text]
    base = end = _aligned(START.size + len(text))
    parts.append(b"\0" * (base - START.size - len(text)))
    for name, array in raw.items():
        start = base + sections[name]["offset"]
        parts += [b"\0" * (start - end), array.tobytes() if array.size else b""]
        end = start + array.nbytes
    return parts


def _read_index(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    text, base, size = _read_head(path)
    head = json.loads(text)
    sections = {name: (base + int(held["offset"]), held) for name, held in head["sections"].items()}
    end = max(offset + held["length"] for offset, held in sections.values())
    if size != end:
        word = "truncated" if size < end else "too long"
        raise InputError(f"{path}: {word}: {size} bytes, its head says {end}; {BUILD_AGAIN}")
    return head, {name: _section(path, name, *sections[name]) for name in SECTIONS}


def _read_head(path: Path) -> tuple[bytes, int, int]:
    """The head's JSON text, the offset of the first section, and the size of the file."""
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
    return text, _aligned(START.size + length), size


def _section(path: Path, name: str, offset: int, held: dict[str, Any]) -> npt.NDArray[Any]:
    dtype, dimensions = SECTIONS[name]
    shape = tuple(int(extent) for extent in held["shape"])
    size = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if held["dtype"] != dtype or len(shape) != dimensions or min(shape) < 0 or held["length"] != size or offset < 0:
        raise InputError(f"{path}: section {name} is {held['dtype']} {shape} in {held['length']} bytes; {BUILD_AGAIN}")
    if math.prod(shape) == 0:
        return np.zeros(shape, DTYPES[dtype])
    array = np.memmap(path, DTYPES[dtype], "r", offset, shape)
    if _digest(array.data) != {"length": held["length"], "sha256": held["sha256"]}:
        raise InputError(f"{path}: section {name} (offset {offset}) is damaged: checksum differs; {BUILD_AGAIN}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{path}: section {name} holds a value that is not finite (NaN or inf); {BUILD_AGAIN}")
    return array


def _check_numbers(path: Path, documents: int, texts: int, packed: int, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Raises InputError where sections do not fit each other, or a number points outside of what it counts."""
    chunks, terms, postings = len(arrays["points"]), len(arrays["term_ends"]), len(arrays["postings"])
    rising = {"starts": postings, "term_ends": len(arrays["terms"]), "text_ends": None, "text_blocks": packed}
    below = {"document": documents, "postings": chunks, "number": None, "span": None, "lengths": None}
    fits = (
        all(len(arrays[name]) == chunks for name in ("document", "number", "span", "known", "lengths"))
        and len(arrays["starts"]) == terms + 1
        and len(arrays["frequencies"]) == postings
        and len(arrays["text_ends"]) == documents == texts
        and arrays["span"].shape[1] == 2
        and all(_rises(arrays[name], last) for name, last in rising.items())
        and all(_within(arrays[name], end) for name, end in below.items())
    )
    if not fits:
        raise InputError(f"{path}: its sections do not fit each other; {BUILD_AGAIN}")


def _rises(values: npt.NDArray[Any], last: int | None) -> bool:
    if len(values) == 0:
        return last in (None, 0)
    return bool(values[0] >= 0 and (np.diff(values) >= 0).all() and last in (None, values[-1]))


def _within(values: npt.NDArray[Any], end: int | None) -> bool:
    return values.size == 0 or bool(values.min() >= 0 and (end is None or values.max() < end))


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
