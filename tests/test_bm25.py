"""BM25 by hand, against bm25s, and against ten lines of brute force."""

import math
from collections import Counter

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyte.bm25 import BM25

corpora = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=12), max_size=12)
queries = st.lists(st.sampled_from("abcxyz"), max_size=6)


def build(corpus, **settings) -> BM25:
    index = BM25(**settings)
    index.add(corpus)
    return index


def brute_force(corpus, query, k1=1.2, b=0.75, k3=None) -> list[float]:
    n, mean = len(corpus), sum(map(len, corpus)) / max(len(corpus), 1)
    scores = []
    for document in corpus:
        score = 0.0
        for term in query if k3 is None else set(query):
            df, f = sum(term in other for other in corpus), document.count(term)
            if f:
                idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
                q = query.count(term)
                weight = 1.0 if k3 is None else q * (k3 + 1) / (q + k3)
                score += weight * idf * f * (k1 + 1) / (f + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores


def test_by_hand():
    index = build([["cat", "cat", "dog"], ["dog"]])
    # df(cat) = 1 of 2, f = 2, length 3 against a mean of 2.
    expected = math.log(1 + 1.5 / 1.5) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    np.testing.assert_allclose(index.scores(["cat"]), [expected, 0.0], rtol=1e-14)
    np.testing.assert_allclose(index.scores(["cat", "cat"]), [2 * expected, 0.0], rtol=1e-14)


def test_document_frequency_counts_documents_not_occurrences():
    assert build([["cat", "cat", "cat"], ["dog"], ["bird"]]).document_frequency("cat") == 1


@given(corpora, queries)
def test_equals_brute_force(corpus, query):
    np.testing.assert_allclose(build(corpus).scores(query), brute_force(corpus, query), rtol=1e-12)
    for own in ({"k1": 0.9, "k3": 3.0}, {"k3": 0.0}, {"k1": 0.0, "b": 0.0, "k3": 1000.0}):
        np.testing.assert_allclose(build(corpus, **own).scores(query), brute_force(corpus, query, **own), rtol=1e-12)


def test_a_word_that_the_query_repeats_counts_less_each_time_with_k3():
    corpus = [["cat", "cat", "dog"], ["dog"], ["sea"]]
    once, often = ([build(corpus, k3=k3).scores(["cat"] * n)[0] for k3 in (0.0, 3.0, None)] for n in (1, 7))
    assert once[0] == once[1] == once[2]  # to the bit
    np.testing.assert_allclose(often, [once[0], once[0] * 7 * 4 / 10, once[0] * 7], rtol=1e-14)


@given(corpora, queries)
def test_idf_is_never_negative_and_scores_are_finite(corpus, query):
    scores = build(corpus).scores(query)
    assert np.all(np.isfinite(scores))
    assert np.all(scores >= 0)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_equals_bm25s(seed):
    rng = np.random.default_rng(seed)
    vocabulary = [f"t{i}" for i in range(30)]
    corpus = [list(rng.choice(vocabulary, rng.integers(1, 40))) for _ in range(25)]
    query = list(rng.choice(vocabulary, 4, replace=False))
    peer = bm25s.BM25(k1=1.2, b=0.75, method="lucene", dtype="float64")
    peer.index(corpus, show_progress=False)
    # bm25s follows Lucene in leaving out the constant factor k1 + 1.
    np.testing.assert_allclose(build(corpus).scores(query), 2.2 * peer.get_scores(query), rtol=1e-6)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from("abcd"), max_size=6)), max_size=10), queries)
def test_any_sequence_of_adds_and_removals_scores_bit_for_bit_as_a_fresh_build(steps, query):
    index, corpus = BM25(), {}
    for add, document in steps:
        if add or not corpus:
            corpus[len(index)] = document
            index.add([document])
        else:
            gone = list(corpus)[len(document) % len(corpus)]
            index.remove([gone])
            del corpus[gone]
        if len(document) == 6:
            index.settle()
            corpus = dict(enumerate(corpus.values()))
    fresh = build(list(corpus.values())).scores(query)
    scores = index.scores(query)
    np.testing.assert_array_equal(scores[list(corpus)], fresh)
    assert scores.sum() == pytest.approx(fresh.sum())  # the dead have none
    index.settle()
    np.testing.assert_array_equal(index.scores(query), fresh)
    corpus = list(corpus.values())
    assert set(index.parts[0].terms) == {term for document in corpus for term in document}
    for term, count in Counter(t for document in corpus for t in set(document)).items():
        assert index.document_frequency(term) == count


@given(corpora, queries, st.randoms())
def test_the_order_of_the_corpus_does_not_change_a_bit(corpus, query, random):
    order = list(range(len(corpus)))
    random.shuffle(order)
    shuffled = build([corpus[i] for i in order]).scores(query)
    np.testing.assert_array_equal(shuffled, build(corpus).scores(query)[order])


def test_a_failure_while_adding_leaves_the_index_as_it_was():
    index = build([["a", "b"]])
    before = index.scores(["a", "c"])

    def interrupted():
        yield ["c"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.add(interrupted())
    np.testing.assert_array_equal(index.scores(["a", "c"]), before)
    index.add([["c"]])
    np.testing.assert_array_equal(index.scores(["a", "c"]), build([["a", "b"], ["c"]]).scores(["a", "c"]))


@pytest.mark.parametrize(("corpus", "best"), [([], None), ([[]], None), ([[], []], None), ([[], ["word"]], 1)])
def test_empty_documents_do_no_harm(corpus, best):
    scores = build(corpus).scores(["word"])
    assert len(scores) == len(corpus)
    assert best is None or int(np.argmax(scores)) == best
    assert (scores > 0).sum() == (best is not None)


def test_a_string_in_place_of_tokens_is_refused():
    with pytest.raises(TypeError, match="run the analyzer first"):
        build([["a"]]).scores("windy london")
    with pytest.raises(TypeError, match="run the analyzer first"):
        build(["windy"])
