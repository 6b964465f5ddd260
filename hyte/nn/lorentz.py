"""Lorentz operations in PyTorch, differentiable everywhere. The convention is the one of `hyte.geometry`.

Points are (..., d+1), time first; K > 0 is geoopt's `k` and <p, p> = -K. Functions compute and return in the dtype of
their arguments (`expmap0` and `pairwise_distance` compute in float64 and cast back). No constant is a float32 tensor.

geoopt is used where it is exact. It is not used for distances (arcosh loses digits near and far, and its floor of 1e-15
has no gradient), for `logmap0` (same arcosh) or for the Poincare chart (an epsilon one way, 2-D only the other).
"""

from __future__ import annotations

import math

import geoopt
import torch
from geoopt.manifolds.lorentz import math as math_of_geoopt
from torch import Tensor

from hyte.geometry import MAX_RADIUS, check_k


def manifold(k: float = 1.0) -> geoopt.Lorentz:
    """The Lorentz manifold of geoopt with K in float64 (geoopt's own default would round it to float32)."""
    return geoopt.Lorentz(k=torch.tensor(check_k(k), dtype=torch.float64))


def safe_sqrt(values: Tensor) -> Tensor:
    """Square root of values (...) whose gradient at 0 is 0 and not inf: (...); 0 for negative values."""
    negative = values <= 0  # not `values > 0`: NaN must pass through
    return torch.where(negative, 0.0, torch.sqrt(torch.where(negative, 1.0, values)))


def norm(x: Tensor) -> Tensor:
    """Euclidean length (..., 1) of x (..., d); the gradient at x = 0 is 0."""
    return safe_sqrt(x.square().sum(-1, keepdim=True))


def unit(x: Tensor) -> Tensor:
    """Directions (..., d) of x (..., d); 0 at x = 0, with gradient 0."""
    return _unit(x, norm(x))


def _unit(x: Tensor, length: Tensor) -> Tensor:
    return x / torch.where(length > 0, length, 1.0)


def lift(space: Tensor, k: float = 1.0) -> Tensor:
    """Space coordinates (..., d) to points (..., d+1) with t = sqrt(|x|^2 + K) (eq. 8)."""
    time = torch.sqrt(space.square().sum(-1, keepdim=True) + check_k(k))
    return torch.cat([time, space], dim=-1)


def origin(dim: int, k: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """The origin (sqrt(K), 0, ..., 0): (dim+1,)."""
    return lift(torch.zeros(dim, dtype=dtype), k)


def inner(p: Tensor, q: Tensor) -> Tensor:
    """Minkowski inner product -t_p t_q + x_p . x_q (eq. 4) of points (..., d+1): (...), at most -K."""
    product: Tensor = math_of_geoopt.inner(p, q)  # Lorentz.inner would take its first argument for a base point
    return product


def radius(p: Tensor, k: float = 1.0) -> Tensor:
    """Distance from the origin, sqrt(K) asinh(|x|/sqrt(K)), of points (..., d+1): (...), at least 0."""
    root = math.sqrt(check_k(k))
    return root * torch.asinh(norm(p[..., 1:]) / root)[..., 0]


def distance(p: Tensor, q: Tensor, k: float = 1.0) -> Tensor:
    """Geodesic distance (eq. 6) of points (..., d+1), broadcast: (...), at least 0.

    The form of sqrt(K) arcosh(-<p, q>/K) in `hyte.geometry.distance`, exact for near and far points.
    The gradient is 0 at p = q.
    """
    x, y = p[..., 1:], q[..., 1:]
    root = math.sqrt(check_k(k))
    norm_x, norm_y = norm(x), norm(y)
    apart = torch.asinh(norm_x / root) - torch.asinh(norm_y / root)
    chord = _unit(x, norm_x) - _unit(y, norm_y)
    turn = norm_x * norm_y * chord.square().sum(-1, keepdim=True) / (4.0 * k)
    return 2.0 * root * torch.asinh(safe_sqrt(torch.sinh(apart / 2.0).square() + turn))[..., 0]


def pairwise_inner(p: Tensor, q: Tensor) -> Tensor:
    """Inner products (eq. 4) of all pairs of points (n, d+1) and (m, d+1): (n, m), at most -K."""
    return p[:, 1:] @ q[:, 1:].T - p[:, :1] @ q[:, :1].T


def pairwise_distance(p: Tensor, q: Tensor, k: float = 1.0) -> Tensor:
    """Geodesic distances (eq. 6) of all pairs of points (n, d+1) and (m, d+1): (n, m), at least 0.

    `distance` with the squared chord written as 2 - 2 cos, so that one float64 matrix product gives all pairs. It costs
    digits only for points in nearly the same direction: an error below 1e-7 sqrt(|x||y|) there, else 1e-12 relative.
    """
    x, y = p[:, 1:].double(), q[:, 1:].double()
    root = math.sqrt(check_k(k))
    norm_x, norm_y = norm(x), norm(y)
    apart = torch.asinh(norm_x / root) - torch.asinh(norm_y / root).T
    fall = (1.0 - _unit(x, norm_x) @ _unit(y, norm_y).T).clamp_min(0.0)
    turn = norm_x * norm_y.T * fall / (2.0 * k)
    result = 2.0 * root * torch.asinh(safe_sqrt(torch.sinh(apart / 2.0).square() + turn))
    return result.to(p.dtype)


def expmap0(v: Tensor, k: float = 1.0) -> Tensor:
    """Exponential map at the origin: tangent space coordinates (..., d) to points (..., d+1) at radius |v|.

    The radius is cut at `hyte.geometry.MAX_RADIUS` sqrt(K), so that every finite v gives a finite point.
    """
    limit = MAX_RADIUS[str(v.dtype).removeprefix("torch.")] * math.sqrt(check_k(k))
    length = norm(v.double())
    tangent = v.double() * torch.where(length > limit, limit / torch.where(length > 0, length, 1.0), 1.0)
    point: Tensor = manifold(k).expmap0(torch.cat([torch.zeros_like(length), tangent], dim=-1))
    return point.to(v.dtype)


def logmap0(p: Tensor, k: float = 1.0) -> Tensor:
    """Inverse of `expmap0`: points (..., d+1) to tangent space coordinates (..., d)."""
    x = p[..., 1:]
    length, root = norm(x), math.sqrt(check_k(k))
    ratio = torch.where(length > 0, root * torch.asinh(length / root) / torch.where(length > 0, length, 1.0), 1.0)
    return ratio * x


def to_poincare(p: Tensor, k: float = 1.0) -> Tensor:
    """Points (..., d+1) to the open unit ball (..., d): y = x / (t + sqrt(K))."""
    return p[..., 1:] / (p[..., :1] + math.sqrt(check_k(k)))


def from_poincare(y: Tensor, k: float = 1.0) -> Tensor:
    """Inverse of `to_poincare`: (..., d) in the open unit ball to points (..., d+1)."""
    return lift(2.0 * math.sqrt(check_k(k)) * y / (1.0 - y.square().sum(-1, keepdim=True)), k)


def to_klein(p: Tensor) -> Tensor:
    """Points (..., d+1) to the open unit ball (..., d): y = x / t."""
    return p[..., 1:] / p[..., :1]


def from_klein(y: Tensor, k: float = 1.0) -> Tensor:
    """Inverse of `to_klein`: (..., d) in the open unit ball to points (..., d+1)."""
    return lift(math.sqrt(check_k(k)) * y / torch.sqrt(1.0 - y.square().sum(-1, keepdim=True)), k)
