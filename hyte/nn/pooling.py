"""Pooling bags of token points, in PyTorch: the twin of `hyte.pooling`, differentiable and without padding.

A batch is U distinct tokens (U, d), flat `ids` (T,) into them and the `offsets` (B,) at which each bag starts, as in
`torch.nn.EmbeddingBag`. Weights and sums are in the dtype of the tokens; the ends (renormalisation, sinh) in float64.

float32 tokens: `oem` and `einstein` cancel digits far out, relative error about 1e-7 t^2 of the result at time
coordinate t (2e-5 at radius 3, useless at radius 8); `oem_radial`, `mean` and `max` stay within 1e-6. Give float64
tokens, as the export does, where far points matter.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hyte.geometry import check_k
from hyte.nn.lorentz import lift, norm
from hyte.pooling import NO_DIRECTION, check_pooling

# Logarithm of the largest ratio of two weights up to which the bags of a batch share the weights of their tokens.
MAX_SPREAD = 30.0

# Sums over bags: terms (U, m), ids (T,), offsets (B,), weights (T,) -> (B, m), the sum of weights * terms[ids].
BagSum = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def fused_sum(terms: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Sums over bags for training: a sparse product where the weights are constants, else one fused gather and sum."""
    if weights.requires_grad:
        return functional.embedding_bag(ids, terms, offsets, mode="sum", per_sample_weights=weights)
    total: Tensor = _SparseProduct.apply(terms, ids, offsets, weights.to(terms.dtype))  # type: ignore[no-untyped-call]
    return total


class _SparseProduct(torch.autograd.Function):
    """The sums as a product with the sparse matrix (B, U) of the weights; torch's own gradient of it would be dense."""

    @staticmethod
    def forward(ctx: Any, terms: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        ends = torch.cat([offsets, offsets.new_tensor([ids.shape[0]])])
        shape = (offsets.shape[0], terms.shape[0])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse")  # that CSR is young, and unchecked by default
            ctx.matrix = torch.sparse_csr_tensor(ends, ids, weights, shape)
        return ctx.matrix @ terms if weights.shape[0] else terms.new_zeros(shape[0], terms.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        if not ctx.matrix.values().shape[0]:
            return gradient.new_zeros(ctx.matrix.shape[1], gradient.shape[1]), None, None, None
        columns = ctx.matrix.to_sparse_csc()  # the rows of the transposed matrix
        turned = torch.sparse_csr_tensor(
            columns.ccol_indices(), columns.row_indices(), columns.values(), ctx.matrix.shape[::-1]
        )
        return turned @ gradient.contiguous(), None, None, None


def portable_sum(terms: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Sums over bags by operations that torch's ONNX exporter can convert."""
    values = terms[ids] * weights[:, None]
    bags = bag_numbers(offsets, ids.shape[0])[:, None].expand(values.shape)
    return values.new_zeros((offsets.shape[0], terms.shape[1])).scatter_add(0, bags, values)


def bag_numbers(offsets: Tensor, total: int) -> Tensor:
    """The bag (T,) that each occurrence belongs to, from the starts (B,) of the bags."""
    starts = torch.zeros(total + 1, dtype=torch.int64, device=offsets.device)
    return starts.scatter_add(0, offsets, torch.ones_like(offsets)).cumsum(0)[:total] - 1


def pool(
    space: Tensor,
    ids: Tensor,
    offsets: Tensor,
    pooling: str,
    power: float = 1.0,
    k: float = 1.0,
    counts: Tensor | None = None,
    bag_sum: BagSum = fused_sum,
) -> tuple[Tensor, Tensor]:
    """Pool the tokens of each bag as `hyte.pooling` defines it.

    Args:
        space: (U, d) space coordinates of the distinct tokens, float32 or float64.
        ids: (T,) row of `space` of each occurrence, bag after bag.
        offsets: (B,) where each bag starts in `ids`; the first is 0, equal neighbours make an empty bag.
        pooling: one of `hyte.pooling.POOLINGS`.
        power: P of eq. 1, any finite number or inf; only `oem` and `oem_radial` have one.
        k: K of the hyperboloid.
        counts: (T,) how often each occurrence counts; 1 each by default. A bag may so list each token once.
        bag_sum: `fused_sum` or `portable_sum`.

    Returns:
        (B, d+1) points in the dtype of `space`, the origin for an empty bag, and (B,) bool, False for an empty bag.

    Raises ValueError for an unknown pooling, a power of NaN or -inf, or K <= 0.
    """
    check_pooling(pooling, power)
    check_k(k)
    length = norm(space)
    time = torch.sqrt(length.square() + k)
    columns = torch.cat([space, torch.ones_like(time), length, time, math.sqrt(k) * _asinh(length / math.sqrt(k))], 1)
    by_token = _weights_by_token(time, pooling, power) if bag_sum is fused_sum else None
    if by_token is None:
        weights = _weights(time[:, 0], ids, offsets, pooling, power)
    else:
        columns, weights = columns * by_token, torch.ones(ids.shape, dtype=space.dtype, device=space.device)
    if counts is not None and pooling != "max":
        weights = weights * counts.to(weights.dtype)
    sums = bag_sum(columns, ids, offsets, weights).double()
    x, total, size, mean_time, mean_radius = torch.split(sums, [space.shape[1], 1, 1, 1, 1], dim=1)
    known = total != 0  # the largest weight of a bag is 1; NaN counts as known, so that it is seen and not hidden
    total = torch.where(known, total, 1.0)
    if pooling in ("mean", "max"):
        pooled = x / total
    elif pooling == "oem_radial":
        pooled = _pool_apart(x, size, mean_radius / total, k)
    else:
        pooled = _midpoint(x / total, mean_time / total, k)
    return lift(torch.where(known, pooled, 0.0), k).to(space.dtype), known[:, 0]


# onnxruntime has no asinh and sinh of doubles, but has log and exp. These keep every digit near 0, for values >= 0.
def _asinh(a: Tensor) -> Tensor:
    square = a.square()
    return torch.log1p(a + square / (1.0 + torch.sqrt(square + 1.0)))


def _sinh(r: Tensor) -> Tensor:
    grown = torch.expm1(r)
    return (grown + grown / (grown + 1.0)) / 2.0


def _weights_by_token(time: Tensor, pooling: str, power: float) -> Tensor | None:
    """Weights (U, 1) of the distinct tokens: t^(P+1) over its largest value of all, so that bags share them.

    None where some could underflow beside the largest, or where a weight depends on the bag.
    """
    if pooling in ("mean", "einstein"):
        return torch.ones_like(time)
    if pooling == "max" or power == math.inf or not time.shape[0]:
        return None
    logs = (power + 1.0) * torch.log(time)
    top = logs.detach().max()
    return torch.exp(logs - top) if bool(top - logs.detach().min() < MAX_SPREAD) else None


def _weights(time: Tensor, ids: Tensor, offsets: Tensor, pooling: str, power: float) -> Tensor:
    """Weights (T,) of the occurrences: t^(P+1) over its largest value in the bag, so in [0, 1]."""
    each = time.index_select(0, ids)
    if pooling in ("mean", "einstein"):
        return torch.ones_like(each)
    bags = bag_numbers(offsets, ids.shape[0])
    if pooling == "max":
        return _first(each, bags, offsets) + 0.0 * each  # NaN where t is NaN or inf: seen and not hidden
    if power == math.inf:
        return (each == _top(each, bags, offsets)[bags]) + 0.0 * each
    # Every pooling divides by the sum of the weights, so the largest is a constant to the gradient. It is taken off
    # before the product, so that no P overflows.
    sign = 1.0 if power > -1.0 else -1.0
    logs = sign * torch.log(each)
    return torch.exp(abs(power + 1.0) * (logs - _top(logs, bags, offsets)[bags]))


def _top(values: Tensor, bags: Tensor, offsets: Tensor) -> Tensor:
    """Largest of the values (T,) of each bag: (B,); -inf for an empty bag. No gradient."""
    lowest = torch.full(offsets.shape, -torch.inf, dtype=values.dtype, device=values.device)
    return lowest.scatter_reduce(0, bags, values.detach(), "amax")


def _first(time: Tensor, bags: Tensor, offsets: Tensor) -> Tensor:
    """True (T,) at the first occurrence of each bag's largest time coordinate."""
    positions = torch.arange(time.shape[0], device=time.device, dtype=torch.float64)
    candidates = torch.where(time == _top(time, bags, offsets)[bags], -positions, -torch.inf)
    return candidates == _top(candidates, bags, offsets)[bags]


def _midpoint(x: Tensor, time: Tensor, k: float) -> Tensor:
    """Space coordinates (B, d) of the Outward Einstein Midpoint, from the mean x (B, d) and t (B, 1)."""
    length = norm(x)
    # A mean of points of the hyperboloid never has -<p, p> below K; rounding may say otherwise far out.
    squared = ((time - length) * (time + length)).clamp_min(k)
    return torch.sqrt(k / squared) * x


def _pool_apart(x: Tensor, size: Tensor, mean_radius: Tensor, k: float) -> Tensor:
    """Space coordinates (B, d) in the direction of x = sum w x_i, at the mean radius (B, 1); `size` is sum w|x_i|."""
    length = norm(x)
    none = length <= NO_DIRECTION * size
    scale = math.sqrt(k) * _sinh(mean_radius / math.sqrt(k)) / torch.where(none, 1.0, length)
    return torch.where(none, 0.0, scale * x)
