"""The Lorentz model of hyperbolic space, in numpy.

Convention, used everywhere in this project (paper eqs. 3-8):

* A point is p = (t, x): **time first**, then the d space coordinates; arrays are (..., d+1).
* K > 0 is geoopt's `k`: the curvature is -1/K and <p, p> = -K, t = sqrt(|x|^2 + K) > 0.
* Functions compute in float64 and return float64. What is stored on disk is float32.
* Radii and distances are lengths: a point at radius r has t = sqrt(K) cosh(r / sqrt(K)).
* The Poincare and Klein charts are unit balls for every K, as in geoopt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError

Array = npt.NDArray[np.float64]

# Largest radius in units of sqrt(K) that `expmap0` gives, here and in `hyte.nn.lorentz`, by the dtype of its argument's
# arithmetic: t = sqrt(K) cosh(r / sqrt(K)) is finite beyond it, but t^2, and so every inner product, would overflow.
MAX_RADIUS = {"float32": 43.0, "float64": 350.0}


def _float64(values: npt.ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def _norm(x: Array) -> Array:
    return np.asarray(np.linalg.norm(x, axis=-1, keepdims=True), dtype=np.float64)


def check_k(k: float) -> float:
    """Return `k` as a float. Raises InputError unless it is finite and positive."""
    if not (np.isfinite(k) and k > 0):
        raise InputError(f"K must be a finite number above 0 (curvature -1/K), not {k}")
    return float(k)


def lift(space: npt.ArrayLike, k: float = 1.0) -> Array:
    """Put space coordinates (..., d) on the hyperboloid: (..., d+1) with t = sqrt(|x|^2 + K) (eq. 8)."""
    x = _float64(space)
    time = np.hypot(_norm(x), np.sqrt(check_k(k)))
    return np.concatenate([time, x], axis=-1)


def origin(dim: int, k: float = 1.0) -> Array:
    """The origin (sqrt(K), 0, ..., 0) of the hyperboloid with `dim` space coordinates: (dim+1,)."""
    return lift(np.zeros(dim), k)


def inner(p: npt.ArrayLike, q: npt.ArrayLike) -> Any:
    """Minkowski inner product -t_p t_q + x_p . x_q (eq. 4) of points (..., d+1): (...), at most -K."""
    a, b = _float64(p), _float64(q)
    return np.sum(a[..., 1:] * b[..., 1:], axis=-1) - a[..., 0] * b[..., 0]


def radius(p: npt.ArrayLike, k: float = 1.0) -> Any:
    """Distance from the origin, sqrt(K) asinh(|x|/sqrt(K)), of points (..., d+1): (...), at least 0.

    Equal to the paper's arcosh(t/sqrt(K)) for K = 1, without its loss of digits near the origin.
    """
    root = np.sqrt(check_k(k))
    return root * np.arcsinh(_norm(_float64(p)[..., 1:])[..., 0] / root)


def distance(p: npt.ArrayLike, q: npt.ArrayLike, k: float = 1.0) -> Any:
    """Geodesic distance (eq. 6) of points (..., d+1): (...), at least 0.

    Computed as 2 sqrt(K) asinh sqrt(sinh^2((r_p - r_q)/(2 sqrt(K))) + |x||y| |x/|x| - y/|y||^2 / (4K)),
    which equals sqrt(K) arcosh(-<p, q>/K) and keeps its digits for near and for far points.
    """
    x, y = _float64(p)[..., 1:], _float64(q)[..., 1:]
    root = np.sqrt(check_k(k))
    norm_x, norm_y = _norm(x), _norm(y)
    apart = np.arcsinh(norm_x / root) - np.arcsinh(norm_y / root)
    chord = x / np.where(norm_x > 0, norm_x, 1.0) - y / np.where(norm_y > 0, norm_y, 1.0)
    turn = norm_x * norm_y * _norm(chord) ** 2 / (4.0 * k)
    return 2.0 * root * np.arcsinh(np.sqrt(np.sinh(apart / 2.0) ** 2 + turn))[..., 0]


def expmap0(v: npt.ArrayLike, k: float = 1.0) -> Array:
    """Exponential map at the origin: tangent space coordinates (..., d) to points (..., d+1) at radius |v|.

    The radius is cut at `MAX_RADIUS` sqrt(K), so that every finite v gives a finite point.
    """
    tangent = _float64(v)
    root = np.sqrt(check_k(k))
    norm = _norm(tangent)
    unit = tangent / np.where(norm > 0, norm, 1.0)
    radii = np.minimum(norm / root, MAX_RADIUS["float64"])
    return np.concatenate([root * np.cosh(radii), root * np.sinh(radii) * unit], axis=-1)


def logmap0(p: npt.ArrayLike, k: float = 1.0) -> Array:
    """Inverse of `expmap0`: points (..., d+1) to tangent space coordinates (..., d)."""
    x = _float64(p)[..., 1:]
    norm = _norm(x)
    return np.asarray(radius(p, k)[..., None] * x / np.where(norm > 0, norm, 1.0), dtype=np.float64)


def at_radius(p: npt.ArrayLike, r: float, k: float = 1.0) -> Array:
    """Points (..., d+1) moved to radius r, at least 0, their directions kept; the origin, which has none, stays.

    Points at one radius are ordered by the angle alone: at angle a the inner product of two of them is
    -K cosh^2(r / sqrt(K)) + K sinh^2(r / sqrt(K)) cos(a).
    """
    x = _float64(p)[..., 1:]
    norm = _norm(x)
    return expmap0(r * (x / np.where(norm > 0, norm, 1.0)), k)


def to_poincare(p: npt.ArrayLike, k: float = 1.0) -> Array:
    """Points (..., d+1) to the open unit ball (..., d): y = x / (t + sqrt(K))."""
    point = _float64(p)
    return np.asarray(point[..., 1:] / (point[..., :1] + np.sqrt(check_k(k))), dtype=np.float64)


def from_poincare(y: npt.ArrayLike, k: float = 1.0) -> Array:
    """Inverse of `to_poincare`: (..., d) in the open unit ball to points (..., d+1)."""
    ball = _float64(y)
    return lift(2.0 * np.sqrt(check_k(k)) * ball / (1.0 - _norm(ball) ** 2), k)


def to_klein(p: npt.ArrayLike) -> Array:
    """Points (..., d+1) to the open unit ball (..., d): y = x / t. Straight lines are geodesics there."""
    point = _float64(p)
    return np.asarray(point[..., 1:] / point[..., :1], dtype=np.float64)


def from_klein(y: npt.ArrayLike, k: float = 1.0) -> Array:
    """Inverse of `to_klein`: (..., d) in the open unit ball to points (..., d+1)."""
    ball = _float64(y)
    return lift(np.sqrt(check_k(k)) * ball / np.sqrt(1.0 - _norm(ball) ** 2), k)
