"""Short runs of what `make soak` does at length."""

import pytest

from hyte import HybridIndex
from tests import soak


@pytest.mark.slow
def test_fifty_kills_at_random_moments(tiny_artifact):
    found = soak.kills(50, tiny_artifact, seed=1)
    assert found["adding"] + found["saving"] + found["compacting"] > 20
    assert found["saving"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("forge", [soak.blindly, soak.knowingly])
def test_half_a_minute_of_damaged_files(tiny_artifact, forge):
    assert soak.fuzz(30, tiny_artifact, 1, forge)["refused"] > 100


@pytest.mark.parametrize("forge", [soak.blindly, soak.knowingly])
def test_a_moment_of_damaged_files(tiny_artifact, forge):
    assert soak.fuzz(0.1, tiny_artifact, 2, forge)["refused"] > 0


def test_the_fuzzer_tells_of_other_answers_of_many_lines_and_of_memory(tiny_artifact, tmp_path, monkeypatch):
    target = soak.Target(tmp_path, tiny_artifact)
    (target.copy / "texts.z").write_bytes(b"")
    target.attempt("texts.z", same=True)
    assert target.counts == {"refused": 1}
    monkeypatch.setattr(target, "read", lambda name: [])
    with pytest.raises(AssertionError, match="other answers, and no word"):
        target.attempt("texts.z", same=True)
    monkeypatch.setattr(target, "read", lambda name: bytearray(soak.MORE_MEMORY * 2).count(0))
    with pytest.raises(AssertionError, match="bytes of memory"):
        target.attempt("texts.z", same=False)


def test_what_a_generation_holds_is_what_the_changes_make_of_it(encoder, tmp_path):
    index = HybridIndex(encoder, soak.PLAIN)
    for generation in range(1, 30):
        soak.changes(index, generation)
        assert index.save(tmp_path) == generation
        assert {hit.path for hit in index.search(f"g{generation}", mode="bm25")} == {soak.document(generation)[0]}
    assert soak.check(tmp_path, encoder, 29) == 29
