"""Batches of training pairs: a seeded order, and each batch as flat ids of distinct tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError
from training.data import Ints, Pairs, ranges, starts


@dataclass(frozen=True)
class Batch:
    """What one step needs. The texts stand in the order B queries, B positives, N mined negatives.

    Attributes:
        rows: (B,) rows of `Pairs`.
        distinct: (U,) token ids, each once, ascending.
        ids: (T,) int64 rows of `distinct`, text after text; `counts` (T,) how often each occurs there.
        offsets: (2B + N,) where each text starts in `ids`.
        hashes: (2B + N,) of the texts.
    """

    rows: Ints
    distinct: Ints
    ids: Ints
    counts: npt.NDArray[np.int32]
    offsets: Ints
    hashes: Ints


def batches(pairs: Pairs, size: int, seed: int, skip: int = 0) -> Iterator[Ints]:
    """Rows (B,) of one batch after the other, without end.

    Every epoch has pairs (see `epoch_rows`) and an order of its own that depend on the seed and its number only; what
    is left over at its end, less than a batch, is dropped from that epoch. The size is the one of `batch_size`.

    Args:
        pairs: whose usable rows are drawn.
        size: B, pairs a batch.
        seed: 0 or more.
        skip: batches that were used already. Nothing is drawn of epochs that lie before.

    Raises InputError as `check_enough` does.
    """
    check_enough(pairs)
    size, epoch, sources = batch_size(pairs, size), 0, pairs.by_source()
    while True:
        length = sum(stop - start for start, stop in _spans(sources, pairs, epoch))
        end = length - length % size
        if skip * size < end:
            order = np.random.default_rng([seed, epoch]).permutation(epoch_rows(pairs, seed, epoch))
            for start in range(skip * size, end, size):
                yield order[start : start + size]
        skip, epoch = max(0, skip - end // size), epoch + 1


def batch_size(pairs: Pairs, size: int) -> int:
    """Pairs a batch: `size`, or what every epoch has at least, if that is less."""
    weights = pairs.weights or (1.0,) * len(pairs.files)
    return min(size, sum(int(len(rows) * weight) for rows, weight in zip(pairs.by_source(), weights, strict=True)))


def check_enough(pairs: Pairs) -> None:
    """Raises InputError for fewer than two pairs an epoch: a batch of one has no negatives."""
    if len(pairs) < 2:
        raise InputError(f"{len(pairs)} usable pair, training needs at least 2: the others are its negatives")
    weights = pairs.weights or (1.0,) * len(pairs.files)
    drawn = sum(len(rows) for rows, weight in zip(pairs.by_source(), weights, strict=True) if weight > 0)
    least = batch_size(pairs, drawn)  # of a single pair with a large weight there are only copies
    if least < 2:
        raise InputError(f"data.weights leave {least} of {len(pairs)} pairs an epoch, training needs at least 2")


def epoch_rows(pairs: Pairs, seed: int, epoch: int) -> Ints:
    """The rows of an epoch, source after source; with all weights 1 the usable rows as they stand.

    A source of n usable pairs and weight w is an endless row of shuffled copies of it, of which each epoch takes the
    next n w pairs (rounded so that the ends add up): with w = 2 every pair twice, with w = 0.5 one half and in the next
    epoch the other. So all pairs of a source are used equally often.
    """
    parts, sources = [], pairs.by_source()
    for number, (rows, (start, stop)) in enumerate(zip(sources, _spans(sources, pairs, epoch), strict=True)):
        while start < stop:
            copy, begin = divmod(start, len(rows))
            end = min(len(rows), begin + stop - start)
            # A whole copy needs no order. The key is never that of an epoch: NumPy takes [seed, 7, 0] for [seed, 7].
            drawn = rows if end - begin == len(rows) else _shuffled(rows, [seed, copy, number + 1])[begin:end]
            parts.append(drawn)
            start += end - begin  # noqa: PLW2901 - the rest of the span
    return np.concatenate(parts)


def _shuffled(rows: Ints, key: list[int]) -> Ints:
    return np.random.default_rng(key).permutation(rows)


def _spans(sources: list[Ints], pairs: Pairs, epoch: int) -> list[tuple[int, int]]:
    """From where to where in its endless row each source is taken in an epoch."""
    sizes = [len(rows) * weight for rows, weight in zip(sources, pairs.weights or (1.0,) * len(sources), strict=True)]
    return [(round(epoch * size), round((epoch + 1) * size)) for size in sizes]


def collate(pairs: Pairs, rows: Ints) -> Batch:
    """The texts of these rows, each distinct token listed once. Mined negatives without a known token are left out."""
    queries, extra = pairs.first[rows], pairs.first[rows + 1] - pairs.first[rows] - 2
    if pairs.negatives is not None:
        extra = np.minimum(extra, pairs.negatives)
    negatives = ranges(queries + 2, extra)
    negatives = negatives[pairs.offsets[negatives + 1] > pairs.offsets[negatives]]
    texts = np.concatenate([queries, queries + 1, negatives])
    sizes = pairs.offsets[texts + 1] - pairs.offsets[texts]
    flat = ranges(pairs.offsets[texts], sizes)
    distinct, ids = np.unique(pairs.ids[flat], return_inverse=True)
    return Batch(
        rows, distinct.astype(np.int64), ids.astype(np.int64), pairs.counts[flat],
        starts(sizes)[:-1], pairs.hashes[texts],
    )  # fmt: skip
