"""Training pairs as flat token ids.

Local files are read through `datasets`, whose cache keeps their checked lines; sets of the hub are read from its cache
as they are. The tokenised pairs lie beside it as memory-mapped arrays and are found again until a source, the tokenizer
or the number of tokens kept changes.

In memory is no text and no token, and of a pair of two texts 32 bytes: 8 a text for where its tokens start, 8 for where
the pair starts, 8 for its place among the usable ones. The order of an epoch takes 16 more while it is drawn, then 8.
On disk are 8 bytes a distinct token of a text and 44 a pair; the system pages them in and out as it sees fit.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tqdm import tqdm

from hyte.errors import InputError
from hyte.tokenizer import token_ids
from training.arrays import open_arrays, write_arrays
from training.lines import read_lines
from training.sources import Columns, LoadedSet, Patterns, find_sources, load_sets, read_rows, weights_of

log = logging.getLogger(__name__)

# Part of the cache's key: raise it whenever reading, tokenising or the arrays change, here, in `lines`, in `sources` or
# in `hyte.tokenizer`.
CACHE_FORMAT = 2
ROWS_AT_ONCE = 100  # a row may have many negatives
# Tokenised at once. The tokenizer holds some 50 bytes a character, whatever the number and length of the texts.
CHARACTERS_AT_ONCE = 2_000_000

INT32, INT64, TEXT = datasets.Value("int32"), datasets.Value("int64"), datasets.Value("string")
LINES = datasets.Features({"query": TEXT, "positive": TEXT, "negatives": [TEXT], "file": INT32, "line": INT64})
# Distinct ids and their counts, text after text; how many ids and which hash a text has; how many texts a pair has.
ARRAYS = {
    "ids": "int32", "counts": "int32", "sizes": "int32", "hashes": "int64",
    "texts": "int32", "file": "int64", "line": "int64",
}  # fmt: skip

Ints = npt.NDArray[np.int64]
Line = dict[str, Any]


@dataclass(frozen=True)
class Pairs:
    """Tokenised training pairs. The texts stand pair after pair: query, positive, mined negatives.

    Attributes:
        ids: (T,) int32 distinct token ids of the texts, text after text; `counts` (T,) how often each occurs there.
        offsets: (texts + 1,) text i has ids[offsets[i]:offsets[i + 1]].
        hashes: (texts,) equal for texts of the same tokens in the same order.
        first: (n + 1,) pair i has texts first[i] (the query), first[i] + 1 (the positive), up to first[i + 1].
        file: (n,) number of the pair's source in `files`, never falling; `line` (n,) its line or row there, from 1.
        files: names of the files, then `hub:` names of the hub sets.
        usable: rows whose query and positive both have a known token, ascending. Training sees only these.
        commits: of each source, where it is a hub set and they are known.
        weights: of each source, how often an epoch has its pairs on average; empty for 1 each.
        negatives: a batch has only so many mined negatives of a pair, the first of its line; None for all.
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
    commits: tuple[str | None, ...] = ()
    weights: tuple[float, ...] = ()
    negatives: int | None = None

    def __len__(self) -> int:
        return len(self.usable)

    def where(self, rows: Ints) -> list[str]:
        """The `file:line` of each of these rows."""
        return [f"{self.files[self.file[row]]}:{self.line[row]}" for row in rows]

    def by_source(self) -> list[Ints]:
        """The usable rows of each source."""
        ends = np.searchsorted(self.file, np.arange(1, len(self.files)))
        return np.split(self.usable, np.searchsorted(self.usable, ends))

    def positive_counts(self, tokens: int) -> tuple[Ints, Ints]:
        """Of each token id below `tokens`: how many usable pairs' positives hold it (V,), and its occurrences (V,)."""
        positives = self.first[self.usable] + 1
        places = ranges(self.offsets[positives], self.offsets[positives + 1] - self.offsets[positives])
        ids = self.ids[places]
        occurrences = np.bincount(ids, weights=self.counts[places], minlength=tokens)
        return np.bincount(ids, minlength=tokens), occurrences.astype(np.int64)

    def describe(self) -> list[dict[str, Any]]:
        """Name, number of usable pairs, weight, and of a hub set the commit, of each source as plain data."""
        rows, weights = self.by_source(), self.weights or (1.0,) * len(self.files)
        columns = zip(self.files, rows, weights, self.commits, strict=True)
        return [
            {"name": name, "pairs": len(own), "weight": weight} | ({"commit": commit} if commit else {})
            for name, own, weight, commit in columns
        ]


def load_pairs(
    patterns: Patterns,
    tokenizer: Tokenizer,
    max_tokens: int | None = 200,
    cache: str | Path | None = None,
    *,
    query_tokens: int | None = None,
    negatives: int | None = None,
    columns: Columns | None = None,
    weights: Mapping[str, float] | None = None,
) -> Pairs:
    """Read and tokenise JSON lines (see `training.lines`) and sets of the hub (see `training.sources`).

    Args:
        patterns: files, glob patterns of files, or hub sets.
        tokenizer: see `hyte.tokenizer`.
        max_tokens: of a longer text only this many known tokens, from its beginning, are kept; None keeps all.
        cache: folder for the cache of `datasets`; None is its own default.
        query_tokens: the same for queries; None takes `max_tokens`.
        negatives: see `Pairs`.
        columns: names of the columns in hub sets, see `columns_of`.
        weights: of sources, see `weights_of`.

    Raises InputError, with file and line, for whatever `find_sources`, `read_lines`, `load_set` and `read_rows` refuse.
    """
    files, hub = find_sources(patterns, weights)
    with _quiet_unless_terminal(), _one_line_errors():
        sets = load_sets(hub, columns, cache)
        limits = (max_tokens if query_tokens is None else query_tokens, max_tokens)
        key = _key(files, sets, tokenizer, limits)
        folder = Path(cache or datasets.config.HF_DATASETS_CACHE) / f"hyte-pairs-{key}"
        if not folder.is_dir():
            write_arrays(folder, ARRAYS, _tokenised(_read(files, sets, cache), tokenizer, limits))
    names = (*files, *(each.item for each in sets))
    pairs = _open(folder, names)
    commits = (*(None for _ in files), *(each.commit for each in sets))
    return replace(pairs, commits=commits, weights=weights_of(names, weights), negatives=negatives)


def _stamps(files: Sequence[str]) -> list[tuple[str, int, int]]:
    """Absolute names, sizes and times: they tell another or a changed file."""
    stats = [(path, path.stat()) for path in (Path(name).resolve() for name in files)]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def _key(
    files: Sequence[str], sets: Sequence[LoadedSet], tokenizer: Tokenizer, limits: tuple[int | None, int | None]
) -> str:
    # The fingerprint of a loaded set stands for its name, commit (or its files), configuration and split.
    hub = [(each.dataset._fingerprint, sorted(each.columns.items())) for each in sets]
    parts = (CACHE_FORMAT, _stamps(files), hub, limits, tokenizer.to_str())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _read(files: Sequence[str], sets: Sequence[LoadedSet], cache: str | Path | None) -> Iterator[Line]:
    """Every pair's texts, its source's number and its line there: first of the files, then of the sets."""
    if files:
        lines = datasets.Dataset.from_generator(
            _generate,
            features=LINES,
            cache_dir=None if cache is None else str(cache),
            # A tuple: `datasets` would take a list for shards and call the generator once for each file.
            gen_kwargs={"files": tuple(files), "key": repr((CACHE_FORMAT, _stamps(files)))},
        )
        for batch in lines.iter(ROWS_AT_ONCE):
            for values in zip(*(batch[name] for name in LINES), strict=True):
                yield dict(zip(LINES, values, strict=True))
    yield from chain.from_iterable(read_rows(each, len(files) + number) for number, each in enumerate(sets))


def _generate(files: tuple[str, ...], key: str) -> Iterator[Line]:
    del key  # only there for the cache
    return read_lines(files)


def _tokenised(
    lines: Iterable[Line], tokenizer: Tokenizer, limits: tuple[int | None, int | None]
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Pieces of `ARRAYS` from the pairs. Of queries limits[0] known tokens are kept, of other texts limits[1]."""
    progress = tqdm(desc="tokenising", unit=" pairs", disable=None)
    for group in _groups(lines):
        texts = [text for line in group for text in (line["query"], line["positive"], *line["negatives"])]
        per_line = np.array([2 + len(line["negatives"]) for line in group])
        keep = np.full(len(texts), 1)
        keep[starts(per_line)[:-1]] = 0
        kept = [ids[: limits[which]] for which, ids in zip(keep, token_ids(tokenizer, texts), strict=True)]
        ids, counts, sizes = distinct_tokens(kept)
        hashes = np.array([_hash(each) for each in kept], dtype=np.int64)
        where = {name: np.array([line[name] for line in group], dtype=np.int64) for name in ("file", "line")}
        yield {"ids": ids, "counts": counts, "sizes": sizes, "hashes": hashes, "texts": per_line, **where}
        progress.update(len(group))
    progress.close()


def _groups(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Consecutive pairs, together of `CHARACTERS_AT_ONCE` or a little more: pairs may have many negatives."""
    group: list[Line] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line["query"]) + len(line["positive"]) + sum(map(len, line["negatives"]))
        if size >= CHARACTERS_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


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
    found = np.zeros(len(np.asarray(sizes)) + 1, dtype=np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def ranges(first: Ints, sizes: Ints) -> Ints:
    """Concatenation of the ranges first .. first + size - 1."""
    ends = starts(sizes)
    return np.repeat(first - ends[:-1], sizes) + np.arange(ends[-1])


def _open(folder: Path, files: tuple[str, ...]) -> Pairs:
    """The pairs in a folder of `ARRAYS`, and which of them are usable."""
    ids, counts, sizes, hashes, texts, file, line = open_arrays(folder, ARRAYS)
    offsets, first = starts(sizes), starts(texts)
    if not (offsets[-1] == len(ids) == len(counts) and first[-1] == len(sizes) == len(hashes)):
        raise InputError(f"{folder}: damaged cache of training pairs (lengths do not fit); remove this folder")
    known = (sizes[first[:-1]] > 0) & (sizes[first[:-1] + 1] > 0)
    pairs = Pairs(ids, counts, offsets, hashes, first, file, line, files, np.flatnonzero(known))
    if len(pairs) < len(known):
        example = pairs.where(np.flatnonzero(~known)[:1])[0]
        log.warning("dropped %d of %d pairs without a known token (%s)", len(known) - len(pairs), len(known), example)
    if len(pairs) == 0:
        raise InputError(f"{', '.join(files[:3])}: no usable pair in {len(files)} file(s), {len(known)} line(s) read")
    return pairs


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
