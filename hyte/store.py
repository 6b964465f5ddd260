"""What is saved of an index, and how it becomes the sections of `idx.bin`, `texts.z` and `paths.txt`.

docs/FORMATS.md describes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyte import commits
from hyte.bm25 import BM25, Postings
from hyte.chunks import Rows
from hyte.commits import INDEX_FILE, PATHS_FILE, TEXTS_FILE, Buffer, Digest
from hyte.encoder import check_record
from hyte.errors import InputError
from hyte.paths import escape_path, read_paths
from hyte.sections import BUILD_AGAIN, Arrays, CheckedRows, Index, pieces, sums
from hyte.settings import Settings
from hyte.texts import BLOCK, Packed, Texts


@dataclass(frozen=True)
class Contents:
    """All that is saved of an index.

    Attributes:
        settings: of the index.
        made_by: `Encoder.record`, None where there is no encoder.
        paths: of the D documents.
        digests: (D, 32) what tells whether a document changed.
        texts: theirs.
        chunks: the N chunks, in the order of their documents.
        bm25: settled, that is one part without dead chunks.
    """

    settings: Settings
    made_by: dict[str, Any] | None
    paths: list[str]
    digests: npt.NDArray[np.uint8]
    texts: Texts
    chunks: Rows
    bm25: BM25


def save(folder: str | Path, contents: Contents, opened: int | None = None, anew: bool = False) -> int:
    """Commit the contents as a new generation, and return its number; `hyte.commits.commit` says how.

    Args:
        folder: made if missing.
        contents: of the new generation.
        opened: the generation that they go on from; None replaces whatever is there.
        anew: pack all texts anew.

    Raises InputError where the folder is at another generation than `opened`, and OSError, naming a file, where it
    cannot be written.
    """
    texts = contents.texts.packed(anew)
    paths = [b"".join(escape_path(path) + b"\n" for path in contents.paths)]
    arrays = _arrays(contents, texts)

    def index(generation: int, files: dict[str, Digest]) -> Iterator[Buffer]:
        head = {
            "generation": generation,
            "settings": asdict(contents.settings),
            "made_by": contents.made_by,
            "documents": len(contents.paths),
            "files": files,
        }
        return pieces(head, arrays)

    return commits.commit(Path(folder), {TEXTS_FILE: texts.content, PATHS_FILE: paths}, index, opened)


def load(folder: str | Path) -> tuple[Contents, int]:
    """Read one generation, and its number; matrix and texts stay mapped from their files.

    All but the matrix is checked here, the matrix when it is first read. Raises InputError where a file is missing,
    damaged, foreign, of another version, or of another generation than `idx.bin`.
    """
    return commits.read(Path(folder), _load)


def _load(source: Path) -> tuple[Contents, int]:
    path = source / INDEX_FILE
    with _told_as_damage(path):
        index = Index(path)
        head, arrays = index.head, index.arrays
        settings, made_by = Settings(**head["settings"]), head["made_by"]
        if made_by is not None:
            check_record(made_by)
        texts, paths = (commits.opened(source, name, head["files"][name]) for name in (TEXTS_FILE, PATHS_FILE))
        lines = read_paths(bytes(paths))
        _check_numbers(path, head["documents"], len(lines), len(texts), arrays)
        contents = Contents(
            settings,
            made_by,
            paths=lines,
            digests=arrays["digests"],
            texts=Texts(texts, arrays["text_blocks"], arrays["text_spans"]),
            chunks=_rows(arrays, index.points),
            bm25=_bm25(settings, arrays),
        )
        return contents, int(head["generation"])


@contextmanager
def _told_as_damage(path: Path) -> Iterator[None]:
    """Turn what reading nonsense raises into an InputError. The checksums fit: somebody wrote the nonsense."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: it holds something else than it should ({error!r}); {BUILD_AGAIN}") from error


def _arrays(contents: Contents, texts: Packed) -> Arrays:
    rows, postings = contents.chunks, contents.bm25.parts[0]
    points = rows.points[:]
    return {
        "points": points,
        "sums": sums(points),
        "document": rows.document,
        "number": rows.number,
        "span": rows.span,
        "known": rows.known.astype(np.uint8),
        "lengths": contents.bm25.lengths.whole(),
        "starts": postings.starts,
        "postings": postings.chunks,
        "frequencies": postings.frequencies,
        "terms": np.frombuffer(_lines(postings.terms), np.uint8),
        "digests": contents.digests,
        "text_spans": texts.spans,
        "text_blocks": texts.blocks,
    }


def _lines(terms: Iterable[str]) -> bytes:
    """Each term ended by a line feed. Raises InputError where one holds a line feed: no analyzer here gives such."""
    held = list(terms)
    text = "".join(f"{term}\n" for term in held)
    if text.count("\n") != len(held):
        raise InputError("a token of the analyzer holds a line feed, which an index cannot save: use another analyzer")
    return text.encode("utf-8", "surrogatepass")


def _rows(arrays: Arrays, points: CheckedRows) -> Rows:
    known = arrays["known"].astype(bool)
    return Rows(arrays["document"], arrays["number"], arrays["span"], known, points)


def _bm25(settings: Settings, arrays: Arrays) -> BM25:
    terms = arrays["terms"].tobytes().decode("utf-8", "surrogatepass").split("\n")[:-1]
    numbers = dict(zip(terms, range(len(terms)), strict=True))
    if len(arrays["starts"]) != len(numbers) + 1:
        raise ValueError(f"{len(numbers)} terms, {len(arrays['starts'])} starts")
    postings = Postings(numbers, arrays["starts"], arrays["postings"], arrays["frequencies"])
    return BM25(settings.k1, settings.b, settings.k3, arrays["lengths"], postings)


def _check_numbers(path: Path, documents: int, texts: int, packed: int, arrays: Arrays) -> None:
    """Raises InputError where sections do not fit each other, or a number points outside of what it counts."""
    chunks, postings = len(arrays["points"]), len(arrays["postings"])
    blocks = arrays["text_blocks"]
    below = {"document": documents, "postings": chunks, "number": None, "span": None, "lengths": None}
    fits = (
        all(len(arrays[name]) == chunks for name in ("document", "number", "span", "known", "lengths"))
        and len(arrays["starts"]) > 0
        and len(arrays["frequencies"]) == postings
        and len(arrays["text_spans"]) == documents == texts
        and arrays["digests"].shape == (documents, 32)
        and arrays["span"].shape[1] == arrays["text_spans"].shape[1] == blocks.shape[1] == 2
        and _rises(arrays["starts"], postings)
        and _rises(blocks[:, 0], packed)
        and _rises(blocks[:, 1], None)
        and bool((np.diff(blocks[:, 1], prepend=0) <= BLOCK).all())
        and bool((arrays["text_spans"][:, 0] <= arrays["text_spans"][:, 1]).all())
        and _within(arrays["text_spans"], int(blocks[-1, 1]) + 1 if len(blocks) else 1)
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
