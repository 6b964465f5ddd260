"""hyte.nn against hyte (numpy), geoopt, mpmath and values worked out by hand."""

import math
import warnings

import geoopt
import mpmath
import numpy as np
import pytest
import torch

from hyte import geometry, pooling
from hyte.nn import lorentz
from hyte.nn.encoder import HyteEncoder
from hyte.nn.pooling import fused_sum, pool, portable_sum
from hyte.nn.projection import Projection

RADII = (0.01, 0.1, 1.0, 3.0, 8.0)
KS = (0.5, 1.0, 2.0)
POWERS = (-1.0, 0.0, 1.0, 4.0, math.inf)
DIM = 6


def space_at(radius: float, count: int, seed: int = 0) -> np.ndarray:
    """Space coordinates (count, DIM), K = 1, of random directions at about this radius."""
    directions = np.random.default_rng(seed).normal(size=(count, DIM))
    spread = np.linspace(0.7, 1.0, count)[:, None]
    return np.sinh(radius * spread) * directions / np.linalg.norm(directions, axis=1, keepdims=True)


def exact_distance(p: np.ndarray, q: np.ndarray, k: float) -> float:
    """Eq. 6 word for word in 60 digits, with t recomputed from x."""
    with mpmath.workdps(60):
        x, y = ([mpmath.mpf(float(v)) for v in point[1:]] for point in (p, q))
        t_x, t_y = (mpmath.sqrt(sum(v * v for v in z) + mpmath.mpf(k)) for z in (x, y))
        product = sum(a * b for a, b in zip(x, y, strict=True)) - t_x * t_y
        return float(mpmath.sqrt(k) * mpmath.acosh(-product / k))


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("radius", RADII)
def test_operations_equal_numpy_and_geoopt_in_float64(radius, k):
    x, y = space_at(radius, 20, 1), space_at(radius, 20, 2)
    p, q = lorentz.lift(torch.tensor(x), k), lorentz.lift(torch.tensor(y), k)
    a, b = geometry.lift(x, k), geometry.lift(y, k)
    reference = geoopt.Lorentz(k=torch.tensor(k, dtype=torch.float64))
    size = p[:, 0].max().item() ** 2
    np.testing.assert_allclose(p, a, rtol=1e-14)
    torch.testing.assert_close(p, reference.projx(p), rtol=1e-14, atol=0)
    np.testing.assert_allclose(lorentz.inner(p, q), geometry.inner(a, b), rtol=0, atol=1e-14 * size)
    torch.testing.assert_close(lorentz.inner(p, p), torch.full((20,), -k), rtol=0, atol=1e-14 * size, check_dtype=False)
    np.testing.assert_allclose(lorentz.pairwise_inner(p, q).diagonal(), lorentz.inner(p, q), atol=1e-14 * size)
    np.testing.assert_allclose(lorentz.radius(p, k), geometry.radius(a, k), rtol=1e-14)
    torch.testing.assert_close(lorentz.radius(p, k), reference.dist0(p), rtol=1e-8, atol=1e-11)
    for chart in ("poincare", "klein"):
        to, back = getattr(lorentz, f"to_{chart}"), getattr(lorentz, f"from_{chart}")
        arguments = (k,) if chart == "poincare" else ()
        ball = to(p, *arguments)
        np.testing.assert_allclose(ball, getattr(geometry, f"to_{chart}")(a, *arguments), rtol=1e-14)
        torch.testing.assert_close(back(ball, k), p, rtol=1e-14 * size + 1e-13, atol=0)
    ball = geoopt.manifolds.lorentz.math.lorentz_to_poincare(p, k=reference.k)
    torch.testing.assert_close(lorentz.to_poincare(p, k), ball, rtol=1e-14, atol=0)
    tangent = lorentz.logmap0(p, k)
    np.testing.assert_allclose(tangent, geometry.logmap0(a, k), rtol=1e-13)
    torch.testing.assert_close(reference.logmap0(p)[:, 1:], tangent, rtol=1e-7, atol=1e-11)
    torch.testing.assert_close(lorentz.expmap0(tangent, k), p, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(geometry.expmap0(tangent, k), a, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("radius", RADII)
def test_distances_are_exact_in_float64_where_arcosh_is_not(radius, k):
    x = space_at(radius, 4, 3)
    near = x * (1 + 1e-9) + 1e-9
    p, q = geometry.lift(np.concatenate([x, x]), k), geometry.lift(np.concatenate([space_at(radius, 4, 4), near]), k)
    exact = np.array([exact_distance(a, b, k) for a, b in zip(p, q, strict=True)])
    ours = lorentz.distance(torch.tensor(p), torch.tensor(q), k)
    np.testing.assert_allclose(ours, exact, rtol=1e-4)  # a difference of 1e-9 has few digits left once it is added to x
    np.testing.assert_allclose(ours[:4], exact[:4], rtol=1e-13)
    np.testing.assert_allclose(ours, geometry.distance(p, q, k), rtol=1e-4)
    np.testing.assert_allclose(ours[:4], geometry.distance(p, q, k)[:4], rtol=1e-13)
    pairs = lorentz.pairwise_distance(torch.tensor(p), torch.tensor(q), k)
    limit = 1e-7 * np.linalg.norm(p[:, 1:], axis=1).max()
    np.testing.assert_allclose(pairs.diagonal(), exact, rtol=1e-12, atol=limit)
    np.testing.assert_allclose(pairs.diagonal()[:4], exact[:4], rtol=1e-12)
    broadcast = lorentz.distance(torch.tensor(p)[:, None], torch.tensor(q)[None], k)
    torch.testing.assert_close(pairs, broadcast, rtol=1e-12, atol=limit)
    torch.testing.assert_close(broadcast.T, lorentz.distance(torch.tensor(q)[:, None], torch.tensor(p)[None], k))


@pytest.mark.parametrize("radius", RADII)
def test_distance_in_float32_is_within_1e5_of_its_size(radius):
    p, q = (lorentz.lift(torch.tensor(space_at(radius, 200, seed), dtype=torch.float32)) for seed in (5, 6))
    exact = lorentz.distance(p.double(), q.double())
    assert ((lorentz.distance(p, q).double() - exact).abs() / exact).max() < 1e-5
    assert ((lorentz.pairwise_distance(p, q).diagonal().double() - exact).abs() / exact).max() < 1e-6


def test_neighbours_far_out_need_the_long_formula_in_float32():
    x = torch.tensor(space_at(8.0, 200, 5), dtype=torch.float32)
    p, q = lorentz.lift(x), lorentz.lift(1.3 * x)
    exact = lorentz.distance(lorentz.lift(x.double()), lorentz.lift((1.3 * x).double()))
    naive = torch.acosh((-lorentz.inner(p, q)).clamp_min(1.0))
    assert ((lorentz.distance(p, q) - exact).abs() / exact).max() < 2e-5
    assert ((lorentz.pairwise_distance(p, q).diagonal() - exact).abs() / exact).max() < 2e-5
    assert (naive - exact).abs().max() > 0.1


def test_distance_of_equal_points_is_zero_or_tiny_and_never_nan():
    rng = np.random.default_rng(7)
    norms = 10 ** rng.uniform(-3, 2, size=(100_000, 1))
    x = torch.tensor(rng.normal(size=(100_000, 3)) * norms / 2, dtype=torch.float32)
    p, q = lorentz.lift(x), lorentz.lift(x + 1e-7)
    assert (lorentz.distance(p, p) == 0).all()
    there, back = lorentz.distance(p, q), lorentz.distance(q, p)
    assert torch.isfinite(there).all()
    assert (there >= 0).all()
    assert (there < 1e-2).all()
    torch.testing.assert_close(there, back, rtol=1e-6, atol=1e-9)


def test_all_pairs_of_equal_and_near_points_are_never_nan_or_negative():
    rng = np.random.default_rng(8)
    x = torch.tensor(rng.normal(size=(1000, 3)) * 10 ** rng.uniform(-3, 2, size=(1000, 1)), dtype=torch.float32)
    p, q = lorentz.lift(x), lorentz.lift(x + 1e-7)
    for there, back in ((lorentz.pairwise_distance(p, p),) * 2, tuple(map(lorentz.pairwise_distance, (p, q), (q, p)))):
        assert torch.isfinite(there).all()
        assert (there >= 0).all()
        assert (there.diagonal() < 1e-2).all()
        torch.testing.assert_close(there, back.T, rtol=1e-6, atol=1e-5)  # 1e-7 sqrt(|x||y|) for one direction


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pairwise", [False, True])
def test_gradient_is_finite_at_equal_points_and_at_the_origin(dtype, pairwise):
    x = torch.tensor(space_at(1.0, 3, 8), dtype=dtype)
    x[1] = 0.0
    x.requires_grad_()
    p = lorentz.lift(x)
    distances = lorentz.pairwise_distance(p, p) if pairwise else lorentz.distance(p[:, None], p[None])
    distances.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(distances).all()


def test_one_equal_pair_leaves_the_gradient_of_the_others_alone():
    x = torch.tensor(space_at(1.0, 4, 9))
    y = torch.tensor(space_at(1.0, 4, 10))
    y[2] = x[2]
    gradients = []
    for rows in ([0, 1, 2, 3], [0, 1, 3]):
        leaf = x[rows].clone().requires_grad_()
        lorentz.distance(lorentz.lift(leaf), lorentz.lift(y[rows])).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0][[0, 1, 3]], gradients[1], rtol=1e-14, atol=0)
    assert torch.equal(gradients[0][2], torch.zeros(DIM))


@pytest.mark.parametrize("k", KS)
def test_derivatives_are_right_by_finite_differences(k):
    x = torch.tensor(space_at(1.0, 4, 11), requires_grad=True)
    y = torch.tensor(space_at(1.5, 3, 12), requires_grad=True)
    v = torch.tensor(space_at(1.0, 2, 13), requires_grad=True)

    def distances(x, y):
        p, q = lorentz.lift(x, k), lorentz.lift(y, k)
        return lorentz.pairwise_distance(p, q, k), lorentz.distance(p[:, None], q[None], k)

    assert torch.autograd.gradcheck(distances, (x, y))
    assert torch.autograd.gradcheck(lambda v: lorentz.expmap0(v, k), (v,))
    assert torch.autograd.gradcheck(lambda v: lorentz.logmap0(lorentz.lift(v, k), k), (v,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expmap0_is_finite_for_every_length(dtype):
    v = torch.zeros(7, DIM, dtype=dtype)
    v[:, 0] = torch.tensor([0, 1e-8, 1, 20, 90, 1e3, 1e6])
    v.requires_grad_()
    p = lorentz.expmap0(v)
    assert p.dtype == dtype
    assert torch.isfinite(p).all()
    assert ((lorentz.inner(p.double(), p.double()) + 1).abs() < 1e-6 * p[:, 0].double() ** 2 + 1e-6).all()
    torch.testing.assert_close(p[2, :2].detach(), torch.tensor([math.cosh(1), math.sinh(1)], dtype=dtype))
    p[:3].sum().backward()
    assert torch.isfinite(v.grad).all()


def test_k_that_float32_cannot_hold_stays_float64():
    k = 0.1
    p = lorentz.lift(torch.tensor(space_at(1.0, 5, 14)), k)
    for result in (lorentz.expmap0(lorentz.logmap0(p, k), k), lorentz.from_poincare(lorentz.to_poincare(p, k), k)):
        assert result.dtype == torch.float64
        torch.testing.assert_close(result, p, rtol=1e-13, atol=1e-14)


def test_k_must_be_positive():
    with pytest.raises(ValueError, match="K must be"):
        lorentz.lift(torch.zeros(3), -1.0)
    with pytest.raises(ValueError, match="K must be"):
        pool(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]), "mean", 1.0, 0.0)


# Pooling


def bags(seed: int = 0):
    """Flat ids of seven bags over 30 tokens: the second and the last are empty, one is a single token."""
    rng = np.random.default_rng(seed)
    sizes = [5, 0, 1, 40, 2, 12, 0]
    return rng.integers(0, 30, sum(sizes)), np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes


def numpy_pool(space, ids, sizes, name, power, k):
    parts = np.split(ids, np.cumsum(sizes)[:-1])
    return np.stack([pooling.pool(space[part], name, power, k) for part in parts])


@pytest.mark.parametrize("bag_sum", [fused_sum, portable_sum])
@pytest.mark.parametrize("name", pooling.POOLINGS)
@pytest.mark.parametrize("radius", RADII)
def test_pooling_equals_numpy_in_float64(radius, name, bag_sum):
    space = space_at(radius, 30, 15)
    space[3] = 0.0  # a token at the origin
    ids, offsets, sizes = bags()
    for k in KS:
        for power in POWERS:
            expected = numpy_pool(space, ids, sizes, name, power, k)
            arguments = (torch.tensor(space), torch.tensor(ids), torch.tensor(offsets), name, power, k)
            points, known = pool(*arguments, bag_sum=bag_sum)
            error = np.linalg.norm(points - expected, axis=1) / np.linalg.norm(expected, axis=1)
            # oem cancels: t^2 of the points times the rounding of float64
            assert error.max() < 1e-12 * max(1.0, math.cosh(radius) ** 2 if name in ("oem", "einstein") else 1.0)
            assert points.dtype == torch.float64
            assert known.tolist() == [size > 0 for size in sizes]
            torch.testing.assert_close(lorentz.lift(points[:, 1:], k), points, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", pooling.POOLINGS)
@pytest.mark.parametrize("power", POWERS)
def test_counts_stand_for_repeated_tokens(name, power):
    space = torch.tensor(space_at(1.5, 5, 16))
    one_by_one = pool(space, torch.tensor([0, 0, 0, 2, 4, 4]), torch.tensor([0]), name, power)[0]
    counted = pool(space, torch.tensor([0, 2, 4]), torch.tensor([0]), name, power, counts=torch.tensor([3, 1, 2]))[0]
    torch.testing.assert_close(counted, one_by_one, rtol=1e-13, atol=1e-14)


def test_pooling_by_hand():
    # One dimension, K = 1: x = 3/4 has t = 5/4 and r = ln 2, the other token is the origin. P = 1: w = 25/16 and 1.
    space, ids, offsets = torch.tensor([[0.75], [0.0]], dtype=torch.float64), torch.tensor([0, 1]), torch.tensor([0])
    time, x = 25 / 16 * 5 / 4 + 1, 25 / 16 * 3 / 4
    oem = pool(space, ids, offsets, "oem", 1.0)[0][0]
    torch.testing.assert_close(oem.tolist(), [time / math.sqrt(time**2 - x**2), x / math.sqrt(time**2 - x**2)])
    radial = pool(space, ids, offsets, "oem_radial", 1.0)[0][0]
    r = 25 / 16 * math.log(2) / (25 / 16 + 1)
    torch.testing.assert_close(radial.tolist(), [math.cosh(r), math.sinh(r)])
    # Einstein: (9/4, 3/4) renormalised, 9/4 : 3/4 = 3 : 1, so over sqrt(8).
    einstein = pool(space, ids, offsets, "einstein")[0][0]
    torch.testing.assert_close(einstein.tolist(), [3 / math.sqrt(8), 1 / math.sqrt(8)])
    mean = pool(space, ids, offsets, "mean")[0][0]
    torch.testing.assert_close(mean.tolist(), [math.sqrt(9 / 64 + 1), 3 / 8])
    for name, power in (("max", 1.0), ("oem", math.inf), ("oem_radial", math.inf)):
        torch.testing.assert_close(pool(space, ids, offsets, name, power)[0][0].tolist(), [1.25, 0.75])


def test_opposite_tokens_have_no_direction():
    space = torch.tensor([[2.0, 0.0], [-2.0, 0.0]], requires_grad=True)
    point, known = pool(space, torch.tensor([0, 1]), torch.tensor([0]), "oem_radial")
    assert point.tolist() == [[1.0, 0.0, 0.0]]
    assert known.tolist() == [True]
    point.sum().backward()
    assert torch.isfinite(space.grad).all()


def test_max_takes_the_first_of_equals():
    space = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.0]])
    ids, offsets = torch.tensor([2, 1, 0, 0, 1]), torch.tensor([0, 3])
    for bag_sum in (fused_sum, portable_sum):
        points = pool(space, ids, offsets, "max", bag_sum=bag_sum)[0]
        assert points[:, 1:].tolist() == [[1.0, 0.0], [0.0, 1.0]]


# The errors that hyte.nn.pooling states for float32, relative to the point, by radius.
FLOAT32_ERROR = {
    "oem": {0.01: 1e-6, 0.1: 1e-6, 1.0: 2e-6, 3.0: 1e-4},
    "einstein": {0.01: 1e-6, 0.1: 1e-6, 1.0: 2e-6, 3.0: 1e-4},
    "oem_radial": dict.fromkeys(RADII, 2e-6),
    "mean": dict.fromkeys(RADII, 2e-6),
    "max": dict.fromkeys(RADII, 2e-6),
}


@pytest.mark.parametrize("name", pooling.POOLINGS)
def test_float32_errors_are_as_stated(name):
    ids, offsets, sizes = bags(1)
    for radius, limit in FLOAT32_ERROR[name].items():
        space = space_at(radius, 30, 17).astype(np.float32)
        for power in POWERS:
            points = pool(torch.tensor(space), torch.tensor(ids), torch.tensor(offsets), name, power)[0]
            expected = numpy_pool(space, ids, sizes, name, power, 1.0)
            error = np.linalg.norm(points.double() - expected, axis=1) / np.linalg.norm(expected, axis=1)
            assert points.dtype == torch.float32
            assert error.max() < limit, (radius, power)


@pytest.mark.parametrize("bag_sum", [fused_sum, portable_sum])
@pytest.mark.parametrize("name", pooling.POOLINGS)
@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
def test_derivatives_of_pooling_are_right_by_finite_differences(name, power, bag_sum):
    space = torch.tensor(space_at(1.0, 6, 18), requires_grad=True)
    ids, offsets = torch.tensor([0, 1, 1, 2, 3, 4, 5]), torch.tensor([0, 4, 4])
    counts = torch.tensor([1, 1, 2, 1, 3, 1, 1])
    assert torch.autograd.gradcheck(lambda s: pool(s, ids, offsets, name, power, 2.0, counts, bag_sum)[0], (space,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", pooling.POOLINGS)
@pytest.mark.parametrize("power", POWERS)
def test_gradient_of_pooling_is_finite_for_empty_origin_and_far_bags(name, power, dtype):
    space = torch.tensor(space_at(8.0, 6, 19), dtype=dtype)
    space[:2] = 0.0
    space.requires_grad_()
    ids, offsets = torch.tensor([0, 0, 1, 2, 3, 4, 5, 5, 0]), torch.tensor([0, 3, 3, 6])
    points, _ = pool(space, ids, offsets, name, power)
    lorentz.pairwise_distance(points, points).sum().backward()
    assert torch.isfinite(points).all()
    assert torch.isfinite(space.grad).all()


@pytest.mark.parametrize("name", pooling.POOLINGS)
@pytest.mark.parametrize("power", [1.0, math.inf])
def test_nan_is_not_hidden(name, power):
    space = torch.tensor([[1.0, 2.0], [math.nan, 0.0]])
    points, known = pool(space, torch.tensor([0, 1, 0]), torch.tensor([0, 2]), name, power)
    assert torch.isnan(points[0]).any()
    assert torch.isfinite(points[1]).all()
    assert known.tolist() == [True, True]


def test_no_texts_and_no_tokens():
    for bag_sum in (fused_sum, portable_sum):
        none = torch.zeros(0, dtype=torch.int64)
        for name in pooling.POOLINGS:
            points, known = pool(torch.ones(2, 3), none, none, name, bag_sum=bag_sum)
            assert points.shape == (0, 4)
            assert known.shape == (0,)
            points, known = pool(torch.ones(2, 3), none, torch.tensor([0, 0]), name, bag_sum=bag_sum)
            assert points.tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
            assert not known.any()


def test_unknown_pooling_and_power_are_refused():
    arguments = (torch.ones(1, 2), torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(ValueError, match="'sum' is unknown"):
        pool(*arguments, "sum")
    with pytest.raises(ValueError, match="power"):
        pool(*arguments, "oem", math.nan)


# Projection and encoder


def make_encoder(dtype=torch.float32, pooling_name="oem_radial", power=1.0):
    table = np.random.default_rng(20).normal(size=(30, DIM))
    table = (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)
    encoder = HyteEncoder(table, Projection.from_directions(table, 4, 2.0), 1.0, pooling_name, power)
    return encoder.to(dtype), table


def start_of(start, hidden=4, scale=1.5, seed=3):
    """The projection, the table and its principal directions (DIM, DIM) by SVD, strongest first."""
    table = make_encoder()[1]
    _, _, directions = np.linalg.svd(table.astype(np.float64), full_matrices=False)
    projection = Projection.from_directions(table, hidden, scale, start, seed)
    return projection, table.astype(np.float64), directions


def test_start_pairs_is_the_scaled_projection_on_half_as_many_directions():
    projection, table, directions = start_of("pairs")
    expected = 1.5 * table @ directions[:2].T @ directions[:2]
    np.testing.assert_allclose(projection(torch.tensor(table).float()).detach(), expected, atol=1e-5)
    assert projection.w1.shape == (4, DIM)
    whole, table, _ = start_of("pairs", 2 * DIM)
    np.testing.assert_allclose(whole(torch.tensor(table).float()).detach(), 1.5 * table, atol=1e-5)


def test_start_directions_is_that_projection_and_a_part_that_is_even():
    projection, table, directions = start_of("directions")
    along = table @ directions[:4].T  # |U e| hangs on no sign of U, but U^T |U e| does: take the signs that W1 has
    signs = np.sign((projection.w1.detach().numpy() * directions[:4]).sum(1))
    expected = 1.5 * (along @ directions[:4] + np.abs(along) @ (signs[:, None] * directions[:4]))
    np.testing.assert_allclose(projection(torch.tensor(table).float()).detach(), expected, atol=1e-5)
    largest = np.abs(projection.w1.detach().numpy()).argmax(1)
    assert (projection.w1.detach().numpy()[np.arange(4), largest] > 0).all()


def test_start_rotated_has_orthonormal_rows_of_the_same_space_in_another_order_for_another_seed():
    projection, _, directions = start_of("rotated")
    w1 = projection.w1.detach().double().numpy()
    np.testing.assert_allclose(w1 @ w1.T, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(w1.T @ w1, directions[:4].T @ directions[:4], atol=1e-5)
    assert np.abs(w1 @ directions[:4].T).max() < 0.999  # truly turned
    torch.testing.assert_close(projection.w2, 3.0 * projection.w1.T)
    assert torch.equal(projection.w1, start_of("rotated")[0].w1)
    assert not torch.allclose(projection.w1, start_of("rotated", seed=4)[0].w1, atol=0.01)
    default = Projection.from_directions(make_encoder()[1], 4, 1.5, seed=3)
    assert torch.equal(default.w1, start_of("directions")[0].w1)


def test_starts_have_their_own_limits():
    table = make_encoder()[1]
    for start, most in (("pairs", 2 * DIM), ("directions", DIM), ("rotated", DIM)):
        even = most - most % 2
        assert Projection.from_directions(table, even, start=start).w1.shape == (even, DIM)
        with pytest.raises(ValueError, match=f"at most {most} for start={start}"):
            Projection.from_directions(table, even + 2, start=start)
    with pytest.raises(ValueError, match="start 'random' is unknown"):
        Projection.from_directions(table, 4, start="random")


def test_projection_is_eq_7_without_bias():
    w1, w2 = torch.tensor([[1.0, -1.0], [-2.0, 0.0], [0.0, 3.0]]), torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, -1.0]])
    space = Projection(w1, w2)(torch.tensor([[1.0, 2.0], [0.0, 0.0], [-1.0, -2.0]]))
    assert space.tolist() == [[0, -6], [0, 0], [3, 4]]


def test_projection_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="must be"):
        Projection(torch.zeros(4, 6), torch.zeros(4, 6))
    table = np.eye(3, dtype=np.float32)
    for hidden in (3, 8, 0):
        with pytest.raises(ValueError, match="even"):
            Projection.from_directions(table, hidden)
    with pytest.raises(ValueError, match="dimensions"):
        HyteEncoder(np.eye(4, dtype=np.float32), Projection.from_directions(table, 2))


def test_encoder_does_not_depend_on_neighbours_and_equals_the_numpy_pooling_of_its_baked_rows():
    encoder, _ = make_encoder()
    ids, offsets, sizes = bags(2)
    together, known = encoder(torch.tensor(ids), torch.tensor(offsets))
    expected = numpy_pool(encoder.baked(), ids, sizes, "oem_radial", 1.0, 1.0)
    np.testing.assert_allclose(together.detach(), expected, atol=3e-6)
    assert known.tolist() == [size > 0 for size in sizes]
    for row, part in enumerate(np.split(ids, np.cumsum(sizes)[:-1])):
        alone, _ = encoder(torch.tensor(part), torch.tensor([0]))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-6)


def test_only_the_projection_learns_and_only_it_is_saved():
    encoder, table = make_encoder()
    points, _ = encoder(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2]))
    lorentz.distance(points[0], points[1]).backward()
    assert set(encoder.state_dict()) == {"projection.w1", "projection.w2"} == {n for n, _ in encoder.named_parameters()}
    assert encoder.table.grad is None
    np.testing.assert_array_equal(encoder.table, table)
    assert torch.isfinite(encoder.projection.w1.grad).all()
    assert encoder.projection.w2.grad.abs().sum() > 0


def test_float64_goes_through_without_a_float32_constant():
    encoder, table = make_encoder(torch.float64, "oem", 2.0)
    w1, w2 = (w.detach().numpy() for w in (encoder.projection.w1, encoder.projection.w2))
    rows = np.maximum(table.astype(np.float64) @ w1.T, 0) @ w2.T
    ids, offsets, sizes = bags(3)
    points, _ = encoder(torch.tensor(ids), torch.tensor(offsets))
    assert points.dtype == torch.float64
    np.testing.assert_allclose(points.detach(), numpy_pool(rows, ids, sizes, "oem", 2.0, 1.0), rtol=1e-12, atol=1e-14)


def test_importing_hyte_nn_gives_no_warning_of_its_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_encoder()[0](torch.tensor([1, 2]), torch.tensor([0]))


@pytest.mark.parametrize("power", [-3.0, 1.0, 60.0, 400.0])
def test_shared_weights_and_weights_by_bag_give_the_same_points_and_gradients(power):
    """Up to a spread of e^30 the bags share the weights of their tokens; beyond it each bag has its own."""
    random = torch.Generator().manual_seed(3)
    space = torch.randn(40, 6, generator=random, dtype=torch.float64) * torch.linspace(0.1, 2.0, 40)[:, None]
    ids, offsets = torch.randint(40, (300,), generator=random), torch.arange(0, 300, 10)
    counts = torch.randint(1, 5, (300,), generator=random)
    for name in ("oem", "oem_radial"):
        found = []
        for bag_sum in (fused_sum, portable_sum):
            leaf = space.clone().requires_grad_()
            points, _ = pool(leaf, ids, offsets, name, power, 1.5, counts, bag_sum)
            points.sin().sum().backward()
            found.append((points.detach(), leaf.grad))
        for fused, portable in zip(*found, strict=True):
            assert torch.allclose(fused, portable, rtol=1e-9, atol=1e-9 * float(portable.abs().max()))
