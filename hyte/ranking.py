"""Ordering the chunks of an index for one query: BM25 alone, Lorentz alone, or both in one or two stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyte.fusion import FUSIONS, order
from hyte.geometry import Array
from hyte.settings import Settings

Numbers = npt.NDArray[np.intp]
Inner = Callable[[Numbers], Array]  # chunk numbers (n,) to their inner products with the query (n,), -inf for no score


class Ranking(NamedTuple):
    """Chunks from best to worst.

    Attributes:
        chunks: (n,) chunk numbers.
        score: (n,) what they were ordered by.
        bm25: (n,) BM25 scores; NaN where it was not asked.
        inner: (n,) inner products; NaN where they were not computed, -inf for a chunk without known tokens.
    """

    chunks: Numbers
    score: Array
    bm25: Array
    inner: Array


def by_bm25(allowed: Numbers, scores: Array) -> Ranking:
    """The allowed chunks with a BM25 score above 0, best first, ties by position. `scores` is (N,), for every chunk."""
    found = allowed[scores[allowed] > 0]
    found = found[np.argsort(-scores[found], kind="stable")]
    return Ranking(found, scores[found], scores[found], np.full(len(found), np.nan))


def by_lorentz(allowed: Numbers, inner: Inner) -> Ranking:
    """All allowed chunks by inner product, ties by position, those without known tokens last."""
    products = inner(allowed)
    best = np.argsort(-products, kind="stable")
    return Ranking(allowed[best], products[best], np.full(len(best), np.nan), products[best])


def by_both(allowed: Numbers, scores: Array, inner: Inner, settings: Settings) -> Ranking:
    """Fuse the chosen chunks; after them come BM25's other hits in BM25's order.

    Those have score alpha BM25/max, or less where the last fused score is below that: scores never rise down the list.

    Chosen are BM25's best M, or with M = "all", or where BM25 finds nothing, all allowed chunks. At alpha = 1 a chunk
    that BM25 does not find is never chosen, which makes that list BM25's own.
    """
    lexical = by_bm25(allowed, scores)
    found, limit = lexical.chunks, settings.candidates
    if settings.alpha < 1.0 and (limit == "all" or len(found) == 0):
        chosen, rest = allowed, found[:0]
    else:
        limit = len(found) if limit == "all" else limit
        chosen, rest = found[:limit], found[limit:]
    bm25, products = scores[chosen], inner(chosen)
    fused = FUSIONS[settings.fusion](bm25, products, settings.alpha)
    best = order(fused, bm25, products, settings.alpha)
    tail = settings.alpha * scores[rest] / scores[found].max(initial=1e-300)
    least = fused.min(initial=1.0)
    tail = np.minimum(tail * min(1.0, least / tail.max(initial=1e-300)), least)  # the product may round up
    return Ranking(
        np.concatenate([chosen[best], rest]),
        np.concatenate([fused[best], tail]),
        np.concatenate([bm25[best], scores[rest]]),
        np.concatenate([products[best], np.full(len(rest), np.nan)]),
    )
