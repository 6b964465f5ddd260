"""Numpy geometry against cosh, sinh and the law of cosines in Python's own floats and fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from hyte import geometry
from hyte.errors import InputError

CURVATURES = [0.5, 1.0, 2.0]
RADII = [0.01, 0.1, 1.0, 3.0, 8.0]


def point_at(r: float, angle: float, k: float) -> np.ndarray:
    """A point of the plane at radius r, from cosh and sinh, not from `geometry`."""
    root = math.sqrt(k)
    x = root * math.sinh(r / root)
    return np.array([root * math.cosh(r / root), x * math.cos(angle), x * math.sin(angle)])


@pytest.mark.parametrize("k", CURVATURES)
@pytest.mark.parametrize("r", RADII)
def test_lifted_points_lie_on_the_hyperboloid_at_their_radius(k, r):
    expected = point_at(r, 0.7, k)
    point = geometry.lift(expected[1:], k)
    np.testing.assert_allclose(point, expected, rtol=1e-13)
    assert geometry.radius(point, k) == pytest.approx(r, rel=1e-13)
    # -<p, p> = K in exact rational arithmetic on the float64 coordinates, up to their own rounding (2 t^2 ulp)
    t, x, y = map(Fraction, point.tolist())
    assert abs(float(t * t - x * x - y * y) - k) <= 4e-16 * float(t * t)


@pytest.mark.parametrize("k", CURVATURES)
def test_distance_by_hand(k):
    # Hyperbolic law of cosines, in Python floats: near points would lose digits, so they are tested apart.
    for r1, r2, angle in [(1.0, 2.0, 0.5), (0.3, 3.0, 2.0), (8.0, 8.0, 1.0), (0.01, 8.0, 3.0)]:
        root = math.sqrt(k)
        a, b = r1 / root, r2 / root
        cosh_d = math.cosh(a) * math.cosh(b) - math.sinh(a) * math.sinh(b) * math.cos(angle)
        actual = geometry.distance(point_at(r1, 0.2, k), point_at(r2, 0.2 + angle, k), k)
        assert actual == pytest.approx(root * math.acosh(cosh_d), rel=1e-9)


@pytest.mark.parametrize("k", CURVATURES)
@pytest.mark.parametrize("r", [0.01, 1.0, 8.0])
def test_distance_keeps_its_digits_for_near_points(k, r):
    # Same direction: the distance is the difference of the radii. arcosh of the inner product would give 0 or noise.
    assert geometry.distance(point_at(r, 0, k), point_at(r + 1e-9, 0, k), k) == pytest.approx(1e-9, rel=1e-4)
    # Same radius, tiny angle: the arc sqrt(K) sinh(r/sqrt(K)) * angle.
    arc = math.sqrt(k) * math.sinh(r / math.sqrt(k)) * 1e-7
    assert geometry.distance(point_at(r, 0, k), point_at(r, 1e-7, k), k) == pytest.approx(arc, rel=1e-6)


def test_distance_is_zero_at_itself_symmetric_and_finite_at_the_origin():
    rng = np.random.default_rng(0)
    p, q = (geometry.lift(rng.normal(size=(500, 7)) * rng.uniform(1e-3, 1e2, size=(500, 1))) for _ in range(2))
    assert np.all(geometry.distance(p, p) == 0)
    np.testing.assert_array_equal(geometry.distance(p, q), geometry.distance(q, p))
    origin = geometry.origin(7)
    np.testing.assert_allclose(geometry.distance(p, origin), geometry.radius(p), rtol=1e-12)
    assert geometry.distance(origin, origin) == 0


def test_distance_agrees_with_the_inner_product():
    rng = np.random.default_rng(1)
    p, q = (geometry.lift(rng.normal(size=(100, 5)), 2.0) for _ in range(2))
    expected = math.sqrt(2) * np.arccosh(-geometry.inner(p, q) / 2.0)
    np.testing.assert_allclose(geometry.distance(p, q, 2.0), expected, rtol=1e-9)


@pytest.mark.parametrize("k", CURVATURES)
def test_exponential_and_logarithm_invert_each_other(k):
    rng = np.random.default_rng(2)
    v = rng.normal(size=(6, 5))
    v *= np.array([0.0, 1e-8, 0.1, 1.0, 4.0, 8.0])[:, None] / np.linalg.norm(v, axis=1, keepdims=True)
    p = geometry.expmap0(v, k)
    np.testing.assert_allclose(geometry.radius(p, k), np.linalg.norm(v, axis=1), rtol=1e-12, atol=1e-20)
    np.testing.assert_allclose(geometry.logmap0(p, k), v, rtol=1e-12, atol=1e-20)


@pytest.mark.parametrize("k", CURVATURES)
def test_exponential_is_finite_for_every_length_and_on_the_hyperboloid(k):
    lengths = np.array([0.0, 1e-8, 1.0, 20.0, 90.0, 1e3, 1e6, 1e100])
    p = geometry.expmap0(lengths[:, None] * np.array([0.6, 0.8]), k)
    assert np.isfinite(p).all()
    assert np.isfinite(geometry.inner(p, p)).all()
    assert np.all(np.abs(geometry.inner(p, p) + k) <= 1e-12 * p[:, 0] ** 2)  # cosh and sinh each to their last digits
    limit = geometry.MAX_RADIUS["float64"] * math.sqrt(k)
    np.testing.assert_allclose(geometry.radius(p, k), np.minimum(lengths, limit), rtol=1e-12, atol=1e-20)


@pytest.mark.parametrize("k", CURVATURES)
def test_charts_by_hand_and_back(k):
    p = point_at(1.5, 0.4, k)
    half = 1.5 / math.sqrt(k)
    assert np.linalg.norm(geometry.to_poincare(p, k)) == pytest.approx(math.tanh(half / 2), rel=1e-12)
    assert np.linalg.norm(geometry.to_klein(p)) == pytest.approx(math.tanh(half), rel=1e-12)
    np.testing.assert_allclose(geometry.from_poincare(geometry.to_poincare(p, k), k), p, rtol=1e-12)
    np.testing.assert_allclose(geometry.from_klein(geometry.to_klein(p), k), p, rtol=1e-12)


@pytest.mark.parametrize("k", [0.0, -1.0, math.nan, math.inf])
def test_curvature_must_be_finite_and_positive(k):
    with pytest.raises(InputError, match="K must be"):
        geometry.lift([1.0, 2.0], k)


def test_float32_storage_error_is_as_stated():
    """Stored as float32, <p, p> of a point is off by up to 2 eps t^2."""
    eps = np.finfo(np.float32).eps
    for t in (10.0, 100.0, 1e4):
        p = geometry.lift(
            np.array([[math.sqrt(t * t - 1), 0.0], [0.6 * math.sqrt(t * t - 1), 0.8 * math.sqrt(t * t - 1)]])
        )
        assert np.all(np.abs(geometry.inner(p.astype(np.float32), p.astype(np.float32)) + 1) <= 2 * eps * t * t)


@pytest.mark.parametrize("k", CURVATURES)
@pytest.mark.parametrize("r", [0.1, 1.0, 8.0])
def test_points_at_one_radius_have_the_inner_product_of_their_angle(k, r):
    a, b = point_at(0.3, 0.4, k), point_at(5.0, 1.9, k)
    p, q = geometry.at_radius([a, b], r, k)
    np.testing.assert_allclose([p, q], [point_at(r, 0.4, k), point_at(r, 1.9, k)], rtol=1e-12)
    root = math.sqrt(k)
    expected = -k * math.cosh(r / root) ** 2 + k * math.sinh(r / root) ** 2 * math.cos(1.5)
    assert geometry.inner(p, q) == pytest.approx(expected, rel=1e-12)


def test_the_origin_has_no_direction_and_stays():
    np.testing.assert_array_equal(geometry.at_radius(geometry.origin(3, 2.0), 5.0, 2.0), geometry.origin(3, 2.0))
