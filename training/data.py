"""Training pairs as flat token ids.

Reading and tokenising go through `datasets`, whose cache keeps the tokenised pairs until a file, the tokenizer or
`max_tokens` changes. No text stays in memory.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hyte.errors import InputError
from hyte.tokenizer import token_ids
from training.lines import find_files, read_lines

log = logging.getLogger(__name__)

# Part of the cache's key: raise it whenever reading or tokenising changes, here, in `lines` or in `hyte.tokenizer`.
CACHE_FORMAT = 1
MAP_BATCH = 2000

INT32, INT64, TEXT = datasets.Value("int32"), datasets.Value("int64"), datasets.Value("string")
LINES = datasets.Features({"query": TEXT, "positive": TEXT, "negatives": [TEXT], "file": INT32, "line": INT64})
# A row is one pair: distinct ids and counts of all its texts, text after text; how many ids and which hash a text has.
BAGS = datasets.Features(
    {"ids": [INT32], "counts": [INT32], "sizes": [INT32], "hashes": [INT64], "file": INT32, "line": INT64}
)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Tokenised training pairs. The texts stand pair after pair: query, positive, mined negatives.

    Attributes:
        ids: (T,) int32 distinct token ids of the texts, text after text; `counts` (T,) how often each occurs there.
        offsets: (texts + 1,) text i has ids[offsets[i]:offsets[i + 1]].
        hashes: (texts,) equal for texts of the same tokens in the same order.
        first: (n + 1,) pair i has texts first[i] (the query), first[i] + 1 (the positive), up to first[i + 1].
        file: (n,) number of the pair's file in `files`; `line` (n,) its line there, from 1.
        usable: rows whose query and positive both have a known token. Training sees only these.
    """

    ids: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    offsets: Ints
    hashes: Ints
    first: Ints
    file: Ints
    line: Ints
    files: tuple[str, ...]
    usable: Ints

    def __len__(self) -> int:
        return len(self.usable)

    def where(self, rows: Ints) -> list[str]:
        """The `file:line` of each of these rows."""
        return [f"{self.files[self.file[row]]}:{self.line[row]}" for row in rows]


def load_pairs(
    patterns: str | Path | Sequence[str | Path],
    tokenizer: Tokenizer,
    max_tokens: int | None = 200,
    cache: str | Path | None = None,
) -> Pairs:
    """Read and tokenise JSON lines (see `training.lines`).

    Args:
        patterns: files, or glob patterns of files.
        tokenizer: see `hyte.tokenizer`.
        max_tokens: of a longer text only this many known tokens, from its beginning, are kept; None keeps all.
        cache: folder for the cache of `datasets`; None is its own default.

    Raises InputError, with file and line, for whatever `find_files` and `read_lines` refuse.
    """
    files = find_files(patterns)
    # Absolute names, sizes and times make the cache of `datasets` notice another or a changed file.
    stats = [(path, path.stat()) for path in (Path(name).resolve() for name in files)]
    stamps = [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    with _quiet_unless_terminal(), _one_line_errors():
        lines = datasets.Dataset.from_generator(
            _generate,
            features=LINES,
            cache_dir=None if cache is None else str(cache),
            # A tuple: `datasets` would take a list for shards and call the generator once for each file.
            gen_kwargs={"files": tuple(files), "key": repr((CACHE_FORMAT, stamps))},
        )
        bags = lines.map(
            _tokenise,
            batched=True,
            batch_size=MAP_BATCH,
            remove_columns=["query", "positive", "negatives"],
            features=BAGS,
            fn_kwargs={"tokenizer_json": tokenizer.to_str(), "max_tokens": max_tokens, "version": CACHE_FORMAT},
            desc="tokenising",
        )
    return _collect(bags, tuple(files))


def _generate(files: tuple[str, ...], key: str) -> Iterator[dict[str, Any]]:
    del key  # only there for the cache
    return read_lines(files)


def _tokenise(
    columns: dict[str, list[Any]], tokenizer_json: str, max_tokens: int | None, version: int
) -> dict[str, Any]:
    """Lines to rows of `BAGS`. The tokenizer comes as JSON because the cache can hash that."""
    del version
    lines = list(zip(columns["query"], columns["positive"], columns["negatives"], strict=True))
    texts = [text for query, positive, negatives in lines for text in (query, positive, *negatives)]
    kept = [ids[:max_tokens] for ids in token_ids(Tokenizer.from_str(tokenizer_json), texts)]
    ids, counts, sizes = distinct_tokens(kept)
    hashes = np.array([_hash(each) for each in kept], dtype=np.int64)
    per_line = starts([2 + len(negatives) for _, _, negatives in lines])
    cuts = starts(sizes)[per_line][1:-1]
    found = {"ids": np.split(ids, cuts), "counts": np.split(counts, cuts)}
    return found | {"sizes": np.split(sizes, per_line[1:-1]), "hashes": np.split(hashes, per_line[1:-1])}


def _hash(ids: npt.NDArray[np.int32]) -> int:
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little", signed=True)


def distinct_tokens(
    texts: Sequence[npt.NDArray[np.int32]],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Each text's distinct ids, ascending, text after text (T,); their counts (T,); how many each text has (texts,)."""
    lengths = [len(each) for each in texts]
    flat = np.concatenate([*texts, np.empty(0, np.int32)]).astype(np.int64)
    keys, counts = np.unique(np.repeat(np.arange(len(texts)), lengths) << 32 | flat, return_counts=True)
    sizes = np.bincount(keys >> 32, minlength=len(texts))
    return (keys & 0xFFFFFFFF).astype(np.int32), counts.astype(np.int32), sizes.astype(np.int32)


def starts(sizes: npt.ArrayLike) -> Ints:
    """Where each of some runs of these sizes (n,) starts, and where the last ends: (n + 1,)."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _collect(bags: datasets.Dataset, files: tuple[str, ...]) -> Pairs:
    """Rows of `BAGS` as flat arrays, and which of them are usable."""
    sizes, texts = _flat(bags, "sizes"), _lengths(bags, "sizes")
    first = starts(texts)
    known = (sizes[first[:-1]] > 0) & (sizes[first[:-1] + 1] > 0)
    file, line = (np.asarray(bags.data.column(name), dtype=np.int64) for name in ("file", "line"))
    pairs = Pairs(
        _flat(bags, "ids"), _flat(bags, "counts"), starts(sizes), _flat(bags, "hashes"), first,
        file, line, files, np.flatnonzero(known),
    )  # fmt: skip
    if len(pairs) < len(known):
        example = pairs.where(np.flatnonzero(~known)[:1])[0]
        log.warning("dropped %d of %d pairs without a known token (%s)", len(known) - len(pairs), len(known), example)
    if len(pairs) == 0:
        raise InputError(f"{', '.join(files[:3])}: no usable pair in {len(files)} file(s), {len(known)} line(s) read")
    return pairs


def _flat(bags: datasets.Dataset, column: str) -> npt.NDArray[Any]:
    return np.concatenate([chunk.flatten().to_numpy() for chunk in bags.data.column(column).chunks])


def _lengths(bags: datasets.Dataset, column: str) -> Ints:
    return np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in bags.data.column(column).chunks])


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """No progress bars of `datasets` in a file or pipe."""
    shown = datasets.are_progress_bars_disabled() is False
    if shown and not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Let the InputError of a bad line through, which `datasets` wraps in an error of its own."""
    try:
        yield
    except datasets.exceptions.DatasetGenerationError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, InputError | OSError):
            cause = cause.__cause__
        raise (error if cause is None else cause) from None
