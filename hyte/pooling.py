"""Pooling a bag of token points into one point of the same hyperboloid, in numpy.

A bag is given by the space coordinates x_i of its tokens (see `geometry` for the convention), with
t_i = sqrt(|x_i|^2 + K), r_i = sqrt(K) arcosh(t_i / sqrt(K)) and weights w_i = t_i^(P+1):

* `oem` (eqs. 1, 2): p = sum w_i (t_i, x_i) / sum w_i, scaled by sqrt(K / -<p, p>). Tokens in many directions pull the
  midpoint to the origin whatever P is.
* `oem_radial` (ours): the direction u of sum w_i x_i at the radius r = sum w_i r_i / sum w_i, so the point
  (sqrt(K) cosh(r / sqrt(K)), sqrt(K) sinh(r / sqrt(K)) u), or the origin where the sum has no direction.
* `einstein`: the midpoint of the literature (Lorentz-factor weights in Klein coordinates), which is `oem` with P = -1.
* `mean`: the mean of x, lifted. `max`: the token of largest t.

`hyte.nn.pooling` is the same in PyTorch; the tests hold the two together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError
from hyte.geometry import Array, check_k, lift

POOLINGS = ("oem", "oem_radial", "einstein", "mean", "max")
WITH_POWER = ("oem", "oem_radial")  # the others have no P

# Below this share of the summed lengths the direction of a weighted sum is rounding noise.
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
    logs = np.log(time)  # taken from the largest weight's before they are multiplied, so that no P overflows
    logs -= logs.max() if power > -1.0 else logs.min()
    with np.errstate(over="ignore"):  # to -inf, whose weight is 0
        return np.asarray(np.exp((power + 1.0) * logs), dtype=np.float64)


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
    """`oem_radial`: the mean direction at the mean radius, for weights (T,) that sum to 1."""
    root = np.sqrt(k)
    mean_x = _weighted_sum(weights, x)
    norm = float(np.linalg.norm(mean_x))
    if norm <= NO_DIRECTION * np.sum(weights * length):
        return lift(np.zeros(x.shape[1]), k)
    mean_radius = np.sum(weights * np.arcsinh(length / root))
    return lift(root * np.sinh(mean_radius) / norm * mean_x, k)
