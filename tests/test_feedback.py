"""Feedback: the second ranking worked out by brute force, and what it must leave alone."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyte import Encoder, HybridIndex, Settings, geometry
from hyte.fusion import FUSIONS
from hyte.ranking import best_of_each, fed_back
from tests.conftest import WORDS, write_artifact
from tests.test_index import corpora, names, queries

DOCUMENTS = {f"d{i}": f"{WORDS[5 + i % 7]} {WORDS[8 + i % 11]} {WORDS[6 + i % 5]}" for i in range(40)} | {"none": "☃ ☃"}
BASE = Settings(analyzer="alnum", window=None, fill=False)


def build(encoder, documents=DOCUMENTS, **options) -> HybridIndex:
    index = HybridIndex(encoder, dataclasses.replace(BASE, **options))
    for path, text in documents.items():
        index.add(path, text)
    return index


def unit(point) -> np.ndarray:
    x = np.asarray(point, np.float64)[1:]
    return x / np.sqrt((x * x).sum())


def turned(encoder, query, hits, weight) -> np.ndarray:
    """The moved query by the definition, in float64: the direction of u_q + weight mean(u_i) at the query's radius."""
    point = encoder.encode([query])[0].astype(np.float64)
    points = [encoder.encode([text])[0] for text in hits]
    direction = unit(point) + weight * np.mean([unit(each) for each in points if each[1:].any()], axis=0)
    return geometry.expmap0(geometry.radius(point) * direction / np.sqrt((direction**2).sum()))


@pytest.mark.parametrize("weight", [0.25, 1.0, 30.0])
@pytest.mark.parametrize("docs", [1, 3, 100])
def test_lorentz_by_brute_force(encoder, weight, docs):
    first = build(encoder).search("cat sea", 99, mode="lorentz")
    query = turned(encoder, "cat sea", [DOCUMENTS[path] for path in names(first)[:docs]], weight)
    inner = {path: float(geometry.inner(encoder.encode([text])[0], query)) for path, text in DOCUMENTS.items()}
    hits = build(encoder, feedback=weight, feedback_docs=docs).search("cat sea", 99, mode="lorentz")
    assert names(hits)[-1] == "none"
    assert [hit.lorentz for hit in hits[:-1]] == pytest.approx([inner[hit.path] for hit in hits[:-1]], rel=1e-5)
    assert sorted(names(hits)) == sorted(DOCUMENTS)
    scores = [hit.score for hit in hits[:-1]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("candidates", [4, "all"])
def test_hybrid_by_brute_force(encoder, fusion, candidates):
    used = {"fusion": fusion, "alpha": 0.4, "candidates": candidates}
    first = build(encoder, **used).search("cat bird fish", 99)
    query = turned(encoder, "cat bird fish", [DOCUMENTS[path] for path in names(first)[:3]], 0.7)
    hits = build(encoder, feedback=0.7, feedback_docs=3, **used).search("cat bird fish", 99)
    fused = [hit for hit in hits if hit.lorentz is not None]
    expected = [float(geometry.inner(encoder.encode([DOCUMENTS[hit.path]])[0], query)) for hit in fused]
    assert [hit.lorentz for hit in fused] == pytest.approx(expected, rel=1e-5)
    order = list(DOCUMENTS)
    every = sorted(fused if candidates == 4 else hits, key=lambda hit: order.index(hit.path))  # so do equal ranks
    inner = np.array([-np.inf if hit.lorentz is None else hit.lorentz for hit in every])
    scores = FUSIONS[fusion](np.array([hit.bm25 for hit in every]), inner, 0.4)
    assert [hit.score for hit in every] == pytest.approx(list(scores), rel=1e-12)
    assert {hit.path: hit.bm25 for hit in hits} == {hit.path: hit.bm25 for hit in first}  # the same documents
    assert (np.diff([hit.score for hit in hits]) <= 0).all()


def test_only_documents_count_each_at_its_best_chunk(encoder):
    documents = {"long": "cat cat sea cat dog ran", "b": "bird fish", "c": "mat blue"}
    cut = {"window": 2, "overlap": 0}
    first = build(encoder, documents, **cut).search("cat", 9, mode="lorentz")
    hits = build(encoder, documents, feedback=2.0, feedback_docs=2, **cut).search("cat", 9, mode="lorentz")
    query = turned(encoder, "cat", [hit.text for hit in first[:2]], 2.0)
    for hit in hits:
        assert hit.lorentz == pytest.approx(float(geometry.inner(encoder.encode([hit.text])[0], query)), rel=1e-5)


@pytest.fixture(scope="module")
def wide(tmp_path_factory, tiny_tokenizer_file) -> Encoder:
    return Encoder.load(write_artifact(tmp_path_factory.mktemp("wide"), tiny_tokenizer_file, dim=384))


@pytest.mark.parametrize("fusion", FUSIONS)
@settings(max_examples=30)
@given(documents=corpora, query=queries, weight=st.sampled_from([0.0, 0.5, 4.0]), docs=st.integers(1, 4))
def test_what_feedback_leaves_alone(wide, fusion, documents, query, weight, docs):
    texts = {str(i): text for i, text in enumerate(documents)}
    plain = build(wide, texts, fusion=fusion)
    fed = build(wide, texts, fusion=fusion, feedback=weight, feedback_docs=docs)
    for ask in ({"mode": "bm25"}, {"alpha": 1.0}, {"alpha": 1.0, "candidates": 2}):
        assert fed.search(query, 99, **ask) == plain.search(query, 99, **ask)
    for ask in ({}, {"candidates": 2}, {"candidates": "all", "alpha": 0.0}, {"mode": "lorentz"}):
        hits, before = fed.search(query, 99, **ask), plain.search(query, 99, **ask)
        assert weight > 0 or hits == before
        assert sorted(names(hits)) == sorted(names(before))
        assert fed.search(query, 2, **ask) == hits[:2]
        scores = [hit.score for hit in hits if hit.score is not None]
        assert scores == sorted(scores, reverse=True)


def test_equal_chunks_still_tie(wide):
    documents = {f"d{i:02}": f"cat {WORDS[5 + i % 3]}" for i in range(30)}
    hits = build(wide, documents, feedback=0.5, candidates="all").search("cat", 99, alpha=0.0)
    for text in set(documents.values()):
        same = [hit for hit in hits if documents[hit.path] == text]
        assert len({hit.lorentz for hit in same}) == 1
        assert names(same) == sorted(names(same))


def test_an_excluded_document_feeds_nothing_back(encoder):
    fed = {"feedback": 1.0, "feedback_docs": 1}
    without = build(encoder, {path: text for path, text in DOCUMENTS.items() if path != "d0"}, **fed)
    for mode in ("hybrid", "lorentz"):
        expected = [(hit.path, hit.score) for hit in without.search("cat", 99, mode=mode, candidates="all", alpha=0.0)]
        hits = build(encoder, **fed).search("cat", 99, mode=mode, candidates="all", alpha=0.0, exclude="d0")
        assert [(hit.path, hit.score) for hit in hits] == expected


def test_by_hand():
    query = geometry.lift([3.0, 0.0]).astype(np.float32)
    hits = geometry.lift([[0.0, 5.0], [0.0, 0.0], [0.0, 0.1]]).astype(np.float32)
    # (1, 0) + 1 * (0, 1), at |x| = 3: the point at the origin does not count, radii do not either
    np.testing.assert_allclose(fed_back(query, hits, 1.0), geometry.lift([3 / 2**0.5, 3 / 2**0.5]), rtol=1e-6)
    np.testing.assert_allclose(fed_back(query, hits[:1], 0.75), geometry.lift([3 * 0.8, 3 * 0.6]), rtol=1e-6)


def test_where_nothing_has_a_direction_the_query_stays():
    query = geometry.lift([3.0, 4.0]).astype(np.float32)
    start = geometry.origin(2).astype(np.float32)
    for hits in (np.zeros((0, 3)), start[None], geometry.lift([[-3.0, -4.0]])):
        assert fed_back(query, hits.astype(np.float32), 1.0) is query
    assert fed_back(start, query[None], 1.0) is start


def test_best_of_each_document():
    np.testing.assert_array_equal(best_of_each(np.array([7, 7, 2, 7, 9, 2], np.int32)), [0, 2, 4])
