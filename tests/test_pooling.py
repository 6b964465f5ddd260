"""Numpy pooling on values worked out by hand or by the definition in exact steps."""

import math

import numpy as np
import pytest

from hyte import geometry
from hyte.errors import InputError
from hyte.pooling import POOLINGS, pool

CURVATURES = [0.5, 1.0, 2.0]


def on_line(*radii: float) -> np.ndarray:
    """Space coordinates of points on one line through the origin (K = 1)."""
    return np.array([[math.sinh(r)] for r in radii])


def test_oem_by_hand():
    # Points (5/3, 4/3) and (5/4, -3/4): t^2 weights 25/9 and 25/16 -> weights 16 : 9.
    pooled = pool([[4 / 3], [-3 / 4]], "oem", power=1.0)
    t, x = (16 * 5 / 3 + 9 * 5 / 4) / 25, (16 * 4 / 3 - 9 * 3 / 4) / 25
    np.testing.assert_allclose(pooled, np.array([t, x]) / math.sqrt(t * t - x * x), rtol=1e-14)


def test_einstein_is_the_plain_sum_renormalised():
    # Two points at radius r on one line at opposite sides of a third: rapidities add, (1, 3) meet at 2.
    np.testing.assert_allclose(pool(on_line(1, 3), "einstein"), [math.cosh(2), math.sinh(2)], rtol=1e-14)
    np.testing.assert_allclose(pool(on_line(1, 3), "oem", power=-1), [math.cosh(2), math.sinh(2)], rtol=1e-14)
    # Lorentz-factor weights in Klein coordinates, the definition in the literature, give the same point.
    x = np.random.default_rng(0).normal(size=(5, 3))
    points = geometry.lift(x)
    gamma = points[:, :1]
    klein = (gamma * geometry.to_klein(points)).sum(0) / gamma.sum()
    np.testing.assert_allclose(pool(x, "einstein"), geometry.from_klein(klein), rtol=1e-12)


def test_oem_radial_by_hand():
    # x = (3, 0) and (0, 4) with P = -1: direction (3, 4)/5, radius the mean of the two.
    r = (math.asinh(3) + math.asinh(4)) / 2
    expected = [math.cosh(r), math.sinh(r) * 0.6, math.sinh(r) * 0.8]
    np.testing.assert_allclose(pool([[3, 0], [0, 4]], "oem_radial", power=-1), expected, rtol=1e-14)


def test_mean_and_max_by_hand():
    x = [[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]]
    np.testing.assert_allclose(pool(x, "mean"), [math.sqrt(1 / 9 + 16 / 9 + 1), 1 / 3, 4 / 3], rtol=1e-14)
    np.testing.assert_allclose(pool(x, "max"), [math.sqrt(5), 0, 2], rtol=1e-14)


def test_oem_collapses_where_oem_radial_does_not():
    # Many tokens in different directions fall to the origin, whatever their radius.
    x = 10 * np.eye(200)
    assert geometry.radius(pool(x, "oem")) < 1.0
    assert geometry.radius(pool(x, "oem_radial")) == pytest.approx(math.asinh(10), rel=1e-12)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("k", CURVATURES)
@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 4.0, math.inf])
@pytest.mark.parametrize("r", [0.01, 1.0, 8.0])
class TestEveryPooling:
    def tokens(self, r, k):
        v = np.random.default_rng(3).normal(size=(7, 4))
        radii = r * np.array([0.2, 0.9, 1.0, 0.5, 0.7, 0.8, 0.3])
        return geometry.expmap0(v / np.linalg.norm(v, axis=1, keepdims=True) * radii[:, None], k)[:, 1:]

    def test_gives_a_point_of_the_hyperboloid(self, pooling, k, power, r):
        point = pool(self.tokens(r, k), pooling, power, k)
        assert point[0] == pytest.approx(math.sqrt(k + point[1:] @ point[1:]), rel=1e-14)
        assert geometry.radius(point, k) <= r * (1 + 1e-9)

    def test_counts_are_repetitions(self, pooling, k, power, r):
        x, counts = self.tokens(r, k), [1, 2, 3, 1, 1, 5, 1]
        # -<p, p>/K, by which the midpoint is scaled, is off by up to 2^-53 t^2/K, in another way on another processor.
        rtol = 1e-9 + 4 * 2.0**-53 * (1 + (x * x).sum(axis=1).max() / k)
        np.testing.assert_allclose(
            pool(x, pooling, power, k, counts), pool(np.repeat(x, counts, axis=0), pooling, power, k), rtol=rtol
        )

    def test_a_bag_of_one_token_is_that_token(self, pooling, k, power, r):
        x = self.tokens(r, k)[:1]
        np.testing.assert_allclose(pool(x, pooling, power, k), geometry.lift(x[0], k), rtol=1e-9)


@pytest.mark.parametrize("pooling", ["oem", "oem_radial"])
def test_infinite_power_gives_the_farthest_token_and_large_powers_come_near_it(pooling):
    x = np.random.default_rng(4).normal(size=(6, 3)) * np.array([1, 2, 3, 4, 5, 9])[:, None]
    farthest = geometry.lift(x[np.argmax(np.linalg.norm(x, axis=1))])
    np.testing.assert_allclose(pool(x, pooling, math.inf), farthest, rtol=1e-12)
    np.testing.assert_allclose(pool(x, pooling, 1e4), farthest, rtol=1e-9)


@pytest.mark.parametrize("pooling", ["oem", "einstein", "oem_radial"])
def test_all_powers_agree_where_all_radii_are_equal(pooling):
    x = np.array([[3.0, 4.0, 0.0], [0.0, 5.0, 0.0], [4.0, 0.0, 3.0], [0.0, 3.0, -4.0]])  # lengths exactly 5
    reference = pool(x, pooling, -1.0)
    for power in (0.0, 1.0, 7.0, math.inf):
        np.testing.assert_allclose(pool(x, pooling, power), reference, rtol=1e-9)


def test_opposite_tokens_have_no_direction():
    np.testing.assert_array_equal(pool([[2.0, 0.0], [-2.0, 0.0]], "oem_radial"), geometry.origin(2))


@pytest.mark.parametrize("left", [1e-7, 1e-5, 1e-2])
def test_a_direction_counts_from_a_millionth_of_the_summed_lengths_on(left):
    pooled = pool([[2.0, 0.0], [-2.0, 4.0 * left]], "oem_radial", power=-1.0)
    if left < 1e-6:
        np.testing.assert_array_equal(pooled, geometry.origin(2))
    else:
        np.testing.assert_allclose(pooled[1:], [0.0, 2.0], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("pooling", ["oem", "oem_radial"])
@pytest.mark.parametrize(("power", "wins"), [(1e308, 1), (-1e308, 0)])
def test_no_power_overflows(pooling, power, wins):
    x = np.array([[1.0, 0.0], [0.0, 30.0]])
    np.testing.assert_allclose(pool(x, pooling, power), geometry.lift(x[wins]), rtol=1e-12)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_empty_bag_and_tokens_at_the_origin_give_the_origin(pooling):
    np.testing.assert_array_equal(pool(np.zeros((0, 3)), pooling, k=2.0), geometry.origin(3, 2.0))
    np.testing.assert_allclose(pool(np.zeros((4, 3)), pooling, k=2.0), geometry.origin(3, 2.0), atol=1e-15)


def test_unknown_pooling_and_power_are_refused():
    with pytest.raises(InputError, match="'median' is unknown: use one of oem"):
        pool([[1.0]], "median")
    for power in (math.nan, -math.inf):
        with pytest.raises(InputError, match="power"):
            pool([[1.0]], "oem", power)
