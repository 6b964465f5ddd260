"""Fusion by hand and by its rules."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyte.fusion import FUSIONS, minmax, order, paper, rrf, zscore

NONE = -math.inf
scores = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 7.0, 25.0]), st.one_of(st.just(NONE), st.floats(-60, -1, allow_nan=False))
    ),
    min_size=1,
    max_size=12,
)


def test_paper_by_hand():
    fused = paper(np.array([4.0, 1.0, 0.0]), np.array([-1.0, -2.0, NONE]), 0.25)
    expected = [0.25 + 0.75 / (1 + math.exp(-1)), 0.25 / 4 + 0.75 / 2, 0.0]
    np.testing.assert_allclose(fused, expected, rtol=1e-14)


def test_minmax_by_hand():
    fused = minmax(np.array([4.0, 1.0, 0.0]), np.array([-1.0, -2.0, -5.0]), 0.5)
    np.testing.assert_allclose(fused, [1.0, 0.125 + 0.375, 0.0], rtol=1e-14)


def test_zscore_by_hand():
    """Means 5/3 and -8/3, variances 26/9 and 26/9; without a Lorentz score a chunk has the lowest there is."""
    fused = zscore(np.array([4.0, 1.0, 0.0]), np.array([-1.0, -2.0, -5.0]), 0.25)
    root = math.sqrt(26) / 3
    expected = [0.25 * a / root + 0.75 * b / root for a, b in [(7 / 3, 5 / 3), (-2 / 3, 2 / 3), (-5 / 3, -7 / 3)]]
    np.testing.assert_allclose(fused, expected, rtol=1e-14)
    unknown = zscore(np.zeros(3), np.array([-1.0, NONE, -3.0]), 0.0)
    np.testing.assert_allclose(unknown, [1.0, -1.0, -1.0], rtol=1e-14)


def test_rrf_by_hand():
    fused = rrf(np.array([4.0, 9.0, 0.0]), np.array([-1.0, NONE, -3.0]), 0.3)
    expected = [0.3 / 62 + 0.7 / 61, 0.3 / 61, 0.7 / 62]
    np.testing.assert_allclose(fused, expected, rtol=1e-14)


@pytest.mark.parametrize("name", FUSIONS)
@given(pairs=scores, alpha=st.floats(0, 1))
def test_fused_scores_are_finite_and_bounded(name, pairs, alpha):
    """In the unit interval; standard deviations have no interval, but of n numbers none is sqrt(n) of them away."""
    bm25, inner = map(np.array, zip(*pairs, strict=True))
    fused = FUSIONS[name](bm25, inner, alpha)
    low, high = (-math.sqrt(len(pairs)), math.sqrt(len(pairs))) if name == "zscore" else (0.0, 1.0)
    assert np.all((fused >= low) & (fused <= high + 1e-12))


@pytest.mark.parametrize("name", FUSIONS)
@given(pairs=scores)
def test_the_ends_of_alpha_are_the_single_rankers_exactly(name, pairs):
    bm25, inner = map(np.array, zip(*pairs, strict=True))
    positions = range(len(pairs))
    for alpha, single in ((1.0, bm25), (0.0, inner)):
        expected = sorted(positions, key=lambda i: (-single[i], i))
        assert list(order(FUSIONS[name](bm25, inner, alpha), bm25, inner, alpha)) == expected


@pytest.mark.parametrize("name", FUSIONS)
@given(pairs=scores, alpha=st.floats(0.01, 0.99))
def test_equal_fused_scores_go_by_inner_product_then_bm25_then_position(name, pairs, alpha):
    bm25, inner = map(np.array, zip(*pairs, strict=True))
    fused = np.round(FUSIONS[name](bm25, inner, alpha), 1)
    expected = sorted(range(len(pairs)), key=lambda i: (-fused[i], -inner[i], -bm25[i], i))
    assert list(order(fused, bm25, inner, alpha)) == expected


@pytest.mark.parametrize("name", ["paper", "minmax", "zscore"])
def test_a_side_without_information_does_not_change_the_order_of_the_other(name):
    varied, flat = np.array([3.0, 1.0, 2.0]), np.zeros(3)
    by_bm25 = FUSIONS[name](varied, np.full(3, -2.0), 0.5)
    assert list(order(by_bm25, varied, np.full(3, -2.0), 0.5)) == [0, 2, 1]
    inner = np.array([-3.0, -1.0, -2.0])
    assert list(order(FUSIONS[name](flat, inner, 0.5), flat, inner, 0.5)) == [1, 2, 0]


@pytest.mark.parametrize("name", FUSIONS)
def test_one_chunk_alone_gives_a_finite_score(name):
    for bm25, inner in [(0.0, NONE), (0.0, -1.0), (3.0, NONE), (3.0, -1.0)]:
        assert np.isfinite(FUSIONS[name](np.array([bm25]), np.array([inner]), 0.5)).all()


@pytest.mark.parametrize("name", FUSIONS)
def test_the_weight_counts_in_every_fusion(name):
    bm25, inner = np.array([25.0, 20.0, 1.0]), np.array([-5.0, -2.0, -1.0])
    assert list(order(FUSIONS[name](bm25, inner, 0.9), bm25, inner, 0.9))[0] == 0
    assert list(order(FUSIONS[name](bm25, inner, 0.1), bm25, inner, 0.1))[0] == 2
