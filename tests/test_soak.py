"""Short runs of what `make soak` does at length."""

import pytest

from tests import soak


@pytest.mark.slow
def test_fifty_kills_at_random_moments(tiny_artifact):
    last, between = soak.kills(50, tiny_artifact, seed=1)
    assert last > 10
    assert between > 0  # some came after the commit and before the child could tell of it


@pytest.mark.slow
@pytest.mark.parametrize("forge", [soak.blindly, soak.knowingly])
def test_half_a_minute_of_damaged_files(tiny_artifact, forge):
    counts = soak.fuzz(30, tiny_artifact, 1, forge)
    assert counts["refused"] > 100


@pytest.mark.parametrize("forge", [soak.blindly, soak.knowingly])
def test_a_second_of_damaged_files(tiny_artifact, forge):
    assert soak.fuzz(1, tiny_artifact, 2, forge)["refused"] > 0


def test_what_a_generation_holds_is_what_the_changes_make_of_it(encoder, tmp_path):
    from hyte import HybridIndex

    index = HybridIndex(encoder, soak.PLAIN)
    for generation in range(1, 30):
        soak.changes(index, generation)
        assert index.save(tmp_path) == generation
        assert {hit.path for hit in index.search(f"g{generation}", mode="bm25")} == {soak.document(generation)[0]}
    assert soak.check(tmp_path, encoder, 29) == 29
