"""Ordering the chunks of an index for one query: BM25 alone, Lorentz alone, or both in one or two stages.

With feedback the query's point is turned toward the first documents, and all is ordered once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyte.chunks import Chunks
from hyte.errors import InputError
from hyte.fusion import FUSIONS, order
from hyte.geometry import Array
from hyte.pooling import NO_DIRECTION
from hyte.settings import Settings

MODES = ("hybrid", "bm25", "lorentz")

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


def check_search(query: str, k: int, mode: str) -> None:
    """Raises TypeError unless the query is a string, InputError unless k >= 0 and `mode` is one of `MODES`."""
    if not isinstance(query, str):
        raise TypeError(f"the query is {type(query).__name__}, not a string")
    if k < 0:
        raise InputError(f"k must be at least 0, not {k}")
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is unknown: use one of {', '.join(MODES)}")


def inner_with(query: npt.NDArray[np.float32], chunks: Chunks) -> Inner:
    """The inner products (eq. 4) of chunks with the query's point (d+1,)."""
    signed = query * np.where(np.arange(len(query)) == 0, np.float32(-1), np.float32(1))

    def inner(numbers: Numbers) -> Array:
        most = len(numbers) > len(chunks) // 2  # then computing all is cheaper than copying these
        rows = chunks.points.parts() if most else [chunks.points[numbers]]
        # Not a BLAS product: it gives a row other last bits in another place, and equal chunks would not tie.
        products = np.concatenate([np.einsum("nd,d->n", part, signed) for part in rows]).astype(np.float64)
        return np.where(chunks.known[numbers], products[numbers] if most else products, -np.inf)

    return inner


def with_points(
    query: npt.NDArray[np.float32], chunks: Chunks, rank: Callable[[Inner], Ranking], settings: Settings
) -> Ranking:
    """What `rank` makes of the inner products with the query's point (d+1,).

    With feedback it ranks twice: the second time with the point that `fed_back` makes of the first documents, each at
    its best chunk, in the order of the first ranking.
    """
    first = rank(inner_with(query, chunks))
    if settings.feedback == 0.0:
        return first
    hits = first.chunks[best_of_each(chunks.document[first.chunks])[: settings.feedback_docs]]
    return rank(inner_with(fed_back(query, chunks.points[hits], settings.feedback), chunks))


def best_of_each(document: npt.NDArray[np.int32]) -> Numbers:
    """Where in a ranking each document comes first: positions, rising, of the documents (n,) of its chunks."""
    return np.sort(np.unique(document, return_index=True)[1])


def fed_back(query: npt.NDArray[np.float32], hits: npt.NDArray[np.float32], weight: float) -> npt.NDArray[np.float32]:
    """The query's point (d+1,) turned toward the points (n, d+1) of the first hits, its radius kept.

    Its direction becomes that of u_q + weight mean(u_i), where u = x/|x|: Rocchio's rule for directions. Points at the
    origin (texts without known tokens are) have none and do not count; where that leaves nothing, or the sum has no
    direction, the query stays.
    """
    x, lengths = query[1:].astype(np.float64), np.linalg.norm(hits[:, 1:].astype(np.float64), axis=1)
    length, far = np.linalg.norm(x), lengths > 0
    if length == 0 or not far.any():
        return query
    turned = x / length + weight * (hits[far, 1:] / lengths[far, None]).mean(axis=0)
    size = np.linalg.norm(turned)
    if size <= NO_DIRECTION * (1.0 + weight):
        return query
    return np.concatenate([query[:1], length / size * turned]).astype(np.float32)


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

    Chosen are BM25's best M, or with M = "all", or where BM25 finds nothing, all allowed chunks. Where it finds fewer
    than M, the nearest of the others fill up, if the settings say so. At alpha = 1 a chunk that BM25 does not find
    is never chosen, which makes that list BM25's own.
    """
    found = by_bm25(allowed, scores).chunks
    limit = len(found) if settings.candidates == "all" else settings.candidates
    chosen, rest = found[:limit], found[limit:]
    if settings.alpha < 1.0:
        if settings.candidates == "all" or len(found) == 0:
            chosen, rest = allowed, found[:0]
        elif settings.fill and len(found) < limit:
            others = by_lorentz(allowed[scores[allowed] <= 0], inner)
            chosen = np.concatenate([found, others.chunks[np.isfinite(others.inner)][: limit - len(found)]])
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
