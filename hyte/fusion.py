"""How BM25 and the Lorentz inner product become one score.

Every function takes the scores of one set of chunks (all chunks, or the two-stage candidates) for one query:
`bm25` (n,) float64, at least 0; `inner` (n,) float64, at most -K, and -inf for a chunk without known tokens, which has
no Lorentz score. `alpha` in [0, 1] is the weight of BM25: 1 is BM25 alone, 0 is Lorentz alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hyte.geometry import Array

RRF_CONSTANT = 60.0


def lexical_part(bm25: Array) -> Array:
    """BM25 divided by its maximum (eq. 11): in [0, 1], all 0 where the maximum is 0."""
    top = bm25.max(initial=0.0)
    return bm25 / top if top > 0 else np.zeros_like(bm25)


def paper(bm25: Array, inner: Array, alpha: float) -> Array:
    """Eqs. 10-12: alpha BM25/max + (1 - alpha) sigma(<p, q> + 2), in [0, 1]; eq. 12 literally for every K."""
    logistic = np.exp(-np.logaddexp(0.0, -(inner + 2.0)))  # 0 at -inf
    return alpha * lexical_part(bm25) + (1.0 - alpha) * logistic


def minmax(bm25: Array, inner: Array, alpha: float) -> Array:
    """Both scores stretched to [0, 1] over the set, then mixed; a score that is the same for all counts as 0."""
    return alpha * _stretch(bm25) + (1.0 - alpha) * _stretch(inner)


def rrf(bm25: Array, inner: Array, alpha: float) -> Array:
    """Weighted reciprocal ranks, alpha/(60 + rank) + (1 - alpha)/(60 + rank); a chunk without a score has no rank."""
    return alpha * _reciprocal_rank(bm25, bm25 > 0) + (1.0 - alpha) * _reciprocal_rank(inner, np.isfinite(inner))


def zscore(bm25: Array, inner: Array, alpha: float) -> Array:
    """Both scores in standard deviations from their mean over the set, then mixed: any sign, no bounds.

    A score far above the rest keeps its lead, which a stretched one loses. All-equal scores count as 0, and a chunk
    without known tokens as the lowest that there is.
    """
    return alpha * _standardise(bm25) + (1.0 - alpha) * _standardise(inner)


Fusion = Callable[[Array, Array, float], Array]
FUSIONS: dict[str, Fusion] = {"paper": paper, "minmax": minmax, "zscore": zscore, "rrf": rrf}


def order(fused: Array, bm25: Array, inner: Array, alpha: float) -> npt.NDArray[np.intp]:
    """Positions from best to worst: by fused score, then inner product, then BM25, then position.

    At alpha 1 and 0 the half of weight 0 breaks no ties, so that the order is exactly that of the other half alone.
    """
    if alpha == 1.0:
        return np.argsort(-bm25, kind="stable")
    if alpha == 0.0:
        return np.argsort(-inner, kind="stable")
    return np.lexsort((-bm25, -inner, -fused))


def _stretch(scores: Array) -> Array:
    known = scores[np.isfinite(scores)]
    low, high = known.min(initial=np.inf), known.max(initial=-np.inf)
    if not high > low:
        return np.zeros_like(scores)
    return np.where(np.isfinite(scores), (scores - low) / (high - low), 0.0)


def _standardise(scores: Array) -> Array:
    known = np.isfinite(scores)
    if not scores[known].max(initial=-np.inf) > scores[known].min(initial=np.inf):
        return np.zeros_like(scores)
    filled = np.where(known, scores, scores[known].min())
    return np.asarray((filled - scores[known].mean()) / scores[known].std(), dtype=np.float64)


def _reciprocal_rank(scores: Array, ranked: npt.NDArray[np.bool_]) -> Array:
    rank = np.empty(len(scores))
    rank[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return np.where(ranked, 1.0 / (RRF_CONSTANT + rank), 0.0)
