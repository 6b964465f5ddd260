"""Pooling a bag of token points into one point of the same hyperboloid, in numpy.

A bag is given by the space coordinates x_i of its tokens (see `geometry` for the convention); t_i = sqrt(|x_i|^2 + K).
`hyte.nn.pooling` is the same in PyTorch; the tests hold the two together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError
from hyte.geometry import Array, check_k, lift

POOLINGS = ("oem", "oem_radial", "einstein", "mean", "max")

# Below this share of the summed lengths the direction of a weighted sum is rounding noise (DESIGN section 2).
NO_DIRECTION = 1e-6


def check_pooling(pooling: str, power: float) -> None:
    """Raises InputError unless `pooling` is one of `POOLINGS` and `power` is a number above -inf."""
    if pooling not in POOLINGS:
        raise InputError(f"pooling {pooling!r} is unknown: use one of {', '.join(POOLINGS)}")
    if not power > -np.inf:
        raise InputError(f"pooling power must be a finite number or inf, not {power}")


def pool(
    space: npt.ArrayLike,
    pooling: str,
    power: float = 1.0,
    k: float = 1.0,
    counts: npt.ArrayLike | None = None,
    norms: npt.ArrayLike | None = None,
) -> Array:
    """Pool the tokens of one bag.

    Args:
        space: (T, d) space coordinates of the tokens; T = 0 gives the origin.
        pooling: one of `POOLINGS`.
        power: P of eq. 1, any finite number or inf (then the farthest token decides).
        k: K of the hyperboloid.
        counts: (T,) how often each token stands in the bag; 1 each by default.
        norms: (T,) the |x_i| if they are known already.

    Returns:
        (d+1,) float64 point.
    """
    check_pooling(pooling, power)
    x = np.asarray(space, dtype=np.float64)
    length = np.sqrt(np.einsum("td,td->t", x, x)) if norms is None else np.asarray(norms, dtype=np.float64)
    times = np.ones(len(x)) if counts is None else np.asarray(counts, dtype=np.float64)
    if len(x) == 0:
        return lift(np.zeros(x.shape[1]), k)
    if pooling == "max":
        return lift(x[np.argmax(length)], k)
    if pooling == "mean":
        return lift(_weighted_sum(times, x) / times.sum(), k)
    time = np.hypot(length, np.sqrt(check_k(k)))
    weights = times * radial_weights(time, -1.0 if pooling == "einstein" else power)
    weights /= weights.sum()
    if pooling == "oem_radial":
        return _pool_apart(x, length, weights, k)
    return _midpoint(x, time, weights, k)


def radial_weights(time: Array, power: float) -> Array:
    """t_i^(P+1), divided by its largest value, of time coordinates (T,): in [0, 1] (eq. 1)."""
    if np.isposinf(power):
        return np.asarray(time == time.max(), dtype=np.float64)
    logs = (power + 1.0) * np.log(time)
    return np.asarray(np.exp(logs - logs.max()), dtype=np.float64)


def _weighted_sum(weights: Array, x: Array) -> Array:
    # Not a BLAS product: its order of summation, and so its last bit, would change with the number of threads.
    return np.asarray(np.einsum("t,td->d", weights, x), dtype=np.float64)


def _midpoint(x: Array, time: Array, weights: Array, k: float) -> Array:
    """Outward Einstein Midpoint (eqs. 1, 2) for weights (T,) that sum to 1."""
    mean_x, mean_t = _weighted_sum(weights, x), float(np.sum(weights * time))
    length = float(np.linalg.norm(mean_x))
    # A mean of points of the hyperboloid never has -<p, p> below K; rounding may say otherwise far out.
    squared = max((mean_t - length) * (mean_t + length), k)
    return lift(np.sqrt(k / squared) * mean_x, k)


def _pool_apart(x: Array, length: Array, weights: Array, k: float) -> Array:
    """`oem_radial` of DESIGN section 2: the mean direction at the mean radius, for weights (T,) that sum to 1."""
    root = np.sqrt(k)
    mean_x = _weighted_sum(weights, x)
    norm = float(np.linalg.norm(mean_x))
    if norm <= NO_DIRECTION * np.sum(weights * length):
        return lift(np.zeros(x.shape[1]), k)
    mean_radius = np.sum(weights * np.arcsinh(length / root))
    return lift(root * np.sinh(mean_radius) / norm * mean_x, k)
