"""Batches of training pairs: a seeded order, and each batch as flat ids of distinct tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError
from training.data import Ints, Pairs, starts


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


def batches(pairs: Pairs, size: int, seed: int) -> Iterator[Ints]:
    """Rows (B,) of one batch after the other, without end.

    Every epoch has an order of its own that depends on the seed and its number only; what is left over at its end, less
    than a batch, is dropped from that epoch. With fewer pairs than `size` a batch is all of them.

    Raises InputError as `check_enough` does.
    """
    check_enough(pairs)
    size, epoch = min(size, len(pairs)), 0
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(pairs.usable)
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]
        epoch += 1


def check_enough(pairs: Pairs) -> None:
    """Raises InputError for fewer than two pairs: a batch of one has no negatives."""
    if len(pairs) < 2:
        raise InputError(f"{len(pairs)} usable pair, training needs at least 2: the others are its negatives")


def collate(pairs: Pairs, rows: Ints) -> Batch:
    """The texts of these rows, each distinct token listed once. Mined negatives without a known token are left out."""
    queries, extra = pairs.first[rows], pairs.first[rows + 1] - pairs.first[rows] - 2
    negatives = _ranges(queries + 2, extra)
    negatives = negatives[pairs.offsets[negatives + 1] > pairs.offsets[negatives]]
    texts = np.concatenate([queries, queries + 1, negatives])
    sizes = pairs.offsets[texts + 1] - pairs.offsets[texts]
    flat = _ranges(pairs.offsets[texts], sizes)
    distinct, ids = np.unique(pairs.ids[flat], return_inverse=True)
    return Batch(
        rows, distinct.astype(np.int64), ids.astype(np.int64), pairs.counts[flat],
        starts(sizes)[:-1], pairs.hashes[texts],
    )  # fmt: skip


def _ranges(first: Ints, sizes: Ints) -> Ints:
    """Concatenation of the ranges first .. first + size - 1."""
    ends = starts(sizes)
    return np.repeat(first - ends[:-1], sizes) + np.arange(ends[-1])
