"""HybridIndex: six documents with rankings worked out here, and the rules that search follows."""

import tempfile
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyte import Encoder, HybridIndex, InputError, Settings, geometry
from hyte.bm25 import BM25
from hyte.fusion import FUSIONS
from hyte.ranking import by_both
from tests.conftest import WORDS, write_artifact

DOCUMENTS = {
    "cats": "The cat sat, the cat ran",
    "dogs": "A dog ran",
    "sea": "blue fish sat in the blue sea",
    "cell": "cell protein gene",
    "drug": "drug trial, new drug",
    "unknown": "☃ ☃☃",
    "empty": "  \n",
}
WHOLE = Settings(analyzer="alnum", window=None, fusion="paper", fill=False)
corpora = st.lists(st.lists(st.sampled_from([*WORDS[5:18], "☃"]), max_size=8).map(" ".join), min_size=1, max_size=9)
queries = st.lists(st.sampled_from([*WORDS[5:18], "☃"]), max_size=4).map(" ".join)


def build(encoder, documents=DOCUMENTS, settings=WHOLE) -> HybridIndex:
    index = HybridIndex(encoder, settings)
    for path, text in documents.items():
        index.add(path, text)
    return index


@pytest.fixture(scope="module")
def index(encoder) -> HybridIndex:
    return build(encoder)


def names(hits) -> list[str]:
    return [hit.path for hit in hits]


def test_bm25_alone_finds_what_holds_a_query_word_in_the_order_of_bm25(index):
    bm25 = BM25()
    bm25.add([text.lower().replace(",", "").split() for text in DOCUMENTS.values()][:5] + [[]])
    scores = bm25.scores(["cat", "ran"])
    hits = index.search("cat ran", mode="bm25")
    assert names(hits) == ["cats", "dogs"]
    assert [hit.score for hit in hits] == pytest.approx([scores[0], scores[1]], rel=1e-12)
    assert hits[0].lorentz is None
    assert hits[0].text == "The cat sat, the cat ran"


def test_lorentz_alone_ranks_all_by_inner_product_and_unknown_texts_last(index, encoder):
    query = encoder.encode(["new sea"])[0].astype(np.float64)
    known = [path for path in DOCUMENTS if path not in ("unknown", "empty")]
    inner = {path: float(geometry.inner(encoder.encode([DOCUMENTS[path]])[0], query)) for path in known}
    hits = index.search("new sea", mode="lorentz")
    assert names(hits) == [*sorted(known, key=lambda path: -inner[path]), "unknown"]
    t_q = query[0]
    for hit in hits[:-1]:
        t_d = encoder.encode([DOCUMENTS[hit.path]])[0, 0]
        assert hit.lorentz == pytest.approx(inner[hit.path], abs=1e-5 * t_d * t_q)
    assert hits[-1].lorentz is None


@pytest.mark.parametrize("candidates", [50, "all"])
def test_hybrid_mixes_both_scores_by_eqs_10_to_12(index, candidates):
    hits = index.search("the blue cat", alpha=0.4, candidates=candidates)
    top = max(hit.bm25 for hit in hits)
    for hit in hits:
        logistic = 0.0 if hit.lorentz is None else 1 / (1 + np.exp(-(hit.lorentz + 2)))
        assert hit.score == pytest.approx(0.4 * hit.bm25 / top + 0.6 * logistic, rel=1e-9)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(hits) == (2 if candidates == 50 else 6)


@pytest.mark.parametrize("fusion", FUSIONS)
@settings(max_examples=40)
@given(documents=corpora, query=queries)
def test_the_ends_of_alpha_are_the_single_rankers_exactly(encoder, fusion, documents, query):
    index = build(encoder, {str(i): text for i, text in enumerate(documents)})
    lexical = names(index.search(query, k=99, mode="bm25"))
    for candidates in (3, "all"):
        assert names(index.search(query, k=99, alpha=1.0, candidates=candidates, fusion=fusion)) == lexical
    dense = names(index.search(query, k=99, mode="lorentz"))
    assert names(index.search(query, k=99, alpha=0.0, candidates="all", fusion=fusion)) == dense


@settings(max_examples=40)
@given(documents=corpora, query=queries)
def test_two_stages_order_the_candidates_as_lorentz_does_at_alpha_0_then_go_on_with_bm25(encoder, documents, query):
    index = build(encoder, {str(i): text for i, text in enumerate(documents)})
    lexical = names(index.search(query, k=99, mode="bm25"))
    if not lexical or not encoder.encode_with_flags([query])[1][0]:
        return
    dense = [path for path in names(index.search(query, k=99, mode="lorentz")) if path in lexical[:3]]
    assert names(index.search(query, k=99, alpha=0.0, candidates=3)) == dense + lexical[3:]


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("candidates", [1, 10, "all"])
def test_scores_never_rise_down_the_list(encoder, fusion, alpha, candidates):
    documents = {f"d{i}": f"cat {'dog ' * i}{'sea ' * (i * 7 % 11)}" for i in range(40)}
    hits = build(encoder, documents).search("cat sea", 99, alpha, candidates, fusion=fusion)
    scores = [hit.score for hit in hits]
    assert len(hits) == 40
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("fusion", FUSIONS)
@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0.01, 30), st.floats(-20, -1)), min_size=3, max_size=12), st.floats(0, 1))
def test_not_even_rounding_makes_scores_rise(fusion, pairs, alpha):
    bm25, products = np.array(pairs).T
    used = Settings(fusion=fusion, alpha=alpha, candidates=2)
    ranked = by_both(np.arange(len(pairs)), bm25, lambda chunks: products[chunks], used)
    assert (np.diff(ranked.score) <= 0).all()


@pytest.fixture(scope="module")
def wide(tmp_path_factory, tiny_tokenizer_file) -> Encoder:
    """An encoder of 384 dimensions, where a BLAS product gives equal rows unequal last bits."""
    return Encoder.load(write_artifact(tmp_path_factory.mktemp("wide"), tiny_tokenizer_file, dim=384))


@pytest.mark.parametrize("exclude", [None, "d000"])
def test_equal_chunks_tie_and_stay_in_their_places(wide, exclude):
    words = WORDS[5:25]
    documents = {f"d{i:03}": f"cat {words[i % 3]} {words[i % 2 + 5]}" for i in range(203)}
    index = build(wide, documents)
    order = {path: i for i, path in enumerate(documents)}
    for ask in ({"mode": "lorentz"}, {"candidates": "all", "alpha": 0.0}, {"candidates": 50, "alpha": 0.0}):
        hits = index.search("cat", 300, exclude=exclude, **ask)
        for a, b in pairwise(hits):
            same = documents[a.path] == documents[b.path] and None not in (a.lorentz, b.lorentz)
            assert not same or (a.lorentz == b.lorentz and order[a.path] < order[b.path])


@settings(max_examples=20)
@given(documents=corpora, query=queries)
def test_two_stages_give_the_very_scores_of_exhaustive_search(wide, documents, query):
    index = build(wide, {str(i): text for i, text in enumerate(documents)})
    every = {hit.path: hit.lorentz for hit in index.search(query, 99, mode="lorentz")}
    for hit in index.search(query, 99, candidates=2):
        assert hit.lorentz in (None, every[hit.path])


@pytest.mark.parametrize("fusion", FUSIONS)
def test_the_number_of_results_does_not_change_their_order_or_scores(index, fusion):
    for candidates in (3, "all"):
        longest = index.search("the blue cat ran", 100, candidates=candidates, fusion=fusion)
        for k in (1, 2, 5):
            assert index.search("the blue cat ran", k, candidates=candidates, fusion=fusion) == longest[:k]


def test_what_only_lorentz_ranks_first_comes_up_if_it_is_among_the_candidates(encoder):
    # Unknown tokens lengthen the gold document for BM25 and leave its point where the query's is.
    documents = {f"d{i}": "cat " + "dog " * (i + 1) for i in range(60)} | {"gold": "cat " + "☃ " * 70}
    index = build(encoder, documents, Settings(analyzer="whitespace", window=None))
    assert names(index.search("cat", 99, mode="bm25"))[-1] == "gold"
    assert names(index.search("cat", 1, mode="lorentz")) == ["gold"]
    assert names(index.search("cat", 5, alpha=0.0, candidates=100))[0] == "gold"
    assert names(index.search("cat", 5, alpha=0.0, candidates="all"))[0] == "gold"
    assert "gold" not in names(index.search("cat", 5, alpha=0.0, candidates=10))


@pytest.mark.parametrize("fusion", FUSIONS)
@settings(max_examples=40)
@given(documents=corpora, query=queries, limit=st.integers(1, 9))
def test_the_nearest_fill_up_what_bm25_finds_too_little_of(encoder, fusion, documents, query, limit):
    texts = {str(i): text for i, text in enumerate(documents)}
    filled, plain = (build(encoder, texts, WHOLE.override(fill=fill, fusion=fusion)) for fill in (True, False))
    lexical = names(plain.search(query, 99, mode="bm25"))
    near = [hit.path for hit in plain.search(query, 99, mode="lorentz") if hit.lorentz is not None]
    assert names(filled.search(query, 99, 1.0, limit)) == lexical
    hits = filled.search(query, 99, 0.5, limit)
    if not lexical or len(lexical) >= limit or not near:
        assert hits == plain.search(query, 99, 0.5, limit)
        return
    expected = lexical + [path for path in near if path not in lexical][: limit - len(lexical)]
    assert sorted(names(hits)) == sorted(expected)
    every = {hit.path: hit for hit in plain.search(query, 99, 0.5, "all")}
    assert all((hit.bm25, hit.lorentz) == (every[hit.path].bm25, every[hit.path].lorentz) for hit in hits)
    fused = FUSIONS[fusion](
        np.array([every[path].bm25 for path in expected]),
        np.array([-np.inf if every[path].lorentz is None else every[path].lorentz for path in expected]),
        0.5,
    )
    assert {hit.path: hit.score for hit in hits} == pytest.approx(dict(zip(expected, fused, strict=True)), rel=1e-9)


def test_more_results_than_there_are(index):
    assert len(index.search("the", 1000, candidates=1000)) == 2
    assert index.search("the", 0) == []
    with pytest.raises(InputError, match="k must be at least 0, not -1"):
        index.search("the", -1)


@pytest.mark.parametrize("mode", ["hybrid", "bm25", "lorentz"])
@pytest.mark.parametrize("n", [0, 1])
def test_tiny_indexes_answer(encoder, mode, n):
    index = build(encoder, dict(list(DOCUMENTS.items())[:n]))
    assert len(index.search("cat", 10, mode=mode)) == n


@pytest.mark.parametrize("mode", ["hybrid", "bm25", "lorentz"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("query", ["", "   ", "\n"])
def test_an_empty_query_finds_nothing(index, mode, alpha, query):
    assert index.search(query, mode=mode, alpha=alpha) == []


def test_a_query_without_known_tokens_is_ranked_by_bm25_alone(encoder):
    index = build(encoder, settings=Settings(analyzer="whitespace", window=None))
    lexical = index.search("☃☃ ☃", mode="bm25")
    assert names(lexical) == ["unknown"]
    for mode in ("hybrid", "lorentz"):
        assert index.search("☃☃ ☃", mode=mode, alpha=0.0) == lexical
        assert index.search("🙂", mode=mode) == []


def test_where_bm25_finds_nothing_hybrid_is_lorentz(index):
    assert names(index.search("red", alpha=0.7)) == names(index.search("red", mode="lorentz"))
    assert index.search("red", alpha=1.0) == []


@pytest.mark.parametrize("mode", ["hybrid", "bm25", "lorentz"])
@pytest.mark.parametrize("candidates", [2, "all"])
def test_an_excluded_document_is_left_out_before_anything_is_ranked(encoder, index, mode, candidates):
    ask = {"mode": mode, "candidates": candidates}
    full, without = (names(index.search("the cat ran", 99, exclude=path, **ask)) for path in (None, "cats"))
    assert "cats" in full
    if mode != "hybrid":  # there the maximum of BM25, and so the mix, changes with what is left
        assert without == [path for path in full if path != "cats"]
    assert "cats" not in without
    assert len(without) == len(full) - 1
    assert names(index.search("the cat ran", 99, exclude="no such", **ask)) == full


def test_documents_come_once_at_their_best_chunk(encoder):
    cut = Settings(analyzer="alnum", window=2, overlap=0)
    index = build(encoder, {"long": "dog ran sea cat cat cat the a", "short": "cat mat"}, cut)
    hits = index.search("cat", mode="bm25")
    assert sorted(names(hits)) == ["long", "short"]
    hit = next(hit for hit in hits if hit.path == "long")
    assert (hit.chunk, hit.text, hit.span) == (2, "cat cat", (16, 23))


def test_chunks_are_gathered_until_enough_documents_are_full(encoder):
    cut = Settings(analyzer="alnum", window=1, overlap=0)
    index = build(encoder, {"flood": "cat " * 200} | {f"d{i}": f"cat {'dog ' * i}" for i in range(9)}, cut)
    for mode in ("hybrid", "bm25", "lorentz"):
        found = names(index.search("cat", 5, mode=mode, candidates=50))
        assert len(set(found)) == len(found) == 5


def test_identical_texts_keep_both_paths(encoder):
    assert sorted(names(build(encoder, {"a": "cat", "b": "cat"}).search("cat"))) == ["a", "b"]


def test_titles_stand_before_the_text_or_before_every_chunk(encoder):
    plain, titled = (
        HybridIndex(encoder, Settings(analyzer="alnum", window=2, overlap=0, titled=on)) for on in (False, True)
    )
    for index in (plain, titled):
        index.add("d", "dog ran sea", "Cat")
        index.add("only title", "", "red mat")
    assert (plain.n_chunks, titled.n_chunks) == (3, 3)
    assert [hit.chunk for hit in plain.search("cat", mode="bm25")] == [0]
    assert titled.search("cat sea", mode="bm25")[0].text == "sea"
    assert names(titled.search("mat", mode="bm25")) == ["only title"]


def test_empty_documents_are_counted_and_found_by_nothing(index):
    assert (len(index), index.n_chunks, index.n_empty) == (7, 6, 1)
    for mode in ("hybrid", "bm25", "lorentz"):
        assert "empty" not in names(index.search("the cat sat", 99, mode=mode, candidates="all"))


def test_adding_a_path_again_replaces_its_text(encoder):
    index = build(encoder)
    assert index.add("cats", "old mat") == "updated"
    assert index.add("more", "red fish") == "added"
    assert names(index.search("cat", mode="bm25")) == []
    assert names(index.search("mat", mode="bm25")) == ["cats"]
    assert index.add("cats", "new cat") == "updated"
    assert index.add("cats", "new cat") == "unchanged"
    assert names(index.search("mat", mode="bm25")) == []
    assert len(index) == len(DOCUMENTS) + 1 == len(index.paths)


def test_removed_documents_are_gone_and_removing_what_is_not_there_is_an_error(encoder):
    index = build(encoder)
    index.remove("cats")
    assert "cats" not in index
    assert names(index.search("cat", mode="bm25")) == []
    assert len(index) == len(DOCUMENTS) - 1
    with pytest.raises(InputError, match="cats: not in the index, which holds 6 documents"):
        index.remove("cats")


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), corpora.map(" ".join))), max_size=8), queries)
def test_any_sequence_of_changes_searches_as_a_fresh_build(encoder, steps, query):
    settings_ = Settings(analyzer="alnum", window=3, overlap=1)
    index, current = HybridIndex(encoder, settings_), {}
    for path, text in steps:
        if text is not None:
            told = "unchanged" if current.get(path) == text else "updated" if path in current else "added"
            assert index.add(path, text) == told
            if told == "updated":
                del current[path]  # it moves to the end
            current[path] = text
        elif path in current:
            index.remove(path)
            del current[path]
        if text and len(text) % 2:
            index.flush()
    fresh = build(encoder, current, settings_)
    same_answers(index, fresh, query)
    assert (index.paths, len(index), index.n_chunks, index.n_empty) == (
        list(current), len(current), fresh.n_chunks, fresh.n_empty,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        same_answers(index, fresh, query)
        same_answers(HybridIndex.load(folder), fresh, query)


def same_answers(index, other, query):
    for mode in ("hybrid", "bm25", "lorentz"):
        assert index.search(query, 99, mode=mode) == other.search(query, 99, mode=mode)


def test_an_interrupted_flush_loses_nothing(encoder):
    index = build(encoder)

    def interrupt(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.flush(interrupt)
    assert names(index.search("cat ran", mode="bm25")) == ["cats", "dogs"]


def test_progress_counts_every_document(encoder):
    done = []
    build(encoder, {str(i): "cat" for i in range(600)}).flush(done.append)
    assert sum(done) == 600


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\]"),
        ({"alpha": float("nan")}, r"alpha must be in \[0, 1\]"),
        ({"candidates": 0}, "candidates must be a count above 0"),
        ({"candidates": 2.5}, "candidates must be a number without a fraction"),
        ({"fusion": "sum"}, "fusion 'sum' is unknown"),
        ({"mode": "dense"}, "mode 'dense' is unknown"),
    ],
)
def test_arguments_out_of_range_are_refused(index, wrong, message):
    with pytest.raises(InputError, match=message):
        index.search("cat", **wrong)


def test_settings_of_numpy_are_saved_as_plain_numbers(encoder, tmp_path):
    given = Settings(
        window=np.int64(5), overlap=np.int32(1), k1=np.float32(1.5), alpha=np.float64(0.25), candidates=np.int64(7)
    )
    build(encoder, settings=given).save(tmp_path)
    assert HybridIndex.load(tmp_path).settings == Settings(window=5, overlap=1, k1=1.5, alpha=0.25, candidates=7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 5, "overlap": 5}, {"window": 5.0}, {"window": True}, {"window": "5"}, {"analyzer": "x"}, {"k1": -1},
        {"k1": np.inf}, {"k3": -1}, {"k3": np.inf}, {"k3": "x"}, {"b": 2}, {"b": np.nan}, {"tail": "x"},
        {"candidates": True}, {"candidates": None}, {"alpha": "x"}, {"feedback": -0.1}, {"feedback": np.nan},
        {"feedback": np.inf}, {"feedback_docs": 0}, {"feedback_docs": 1.5},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InputError):
        Settings(**wrong)


def test_what_is_not_text_is_refused_with_its_path(encoder):
    index = build(encoder)
    with pytest.raises(TypeError, match="'x': the text is NoneType"):
        index.add("x", None)
    assert len(index) == len(DOCUMENTS)


def test_inner_products_are_as_fine_as_float64_says(wide):
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS[5:25], 12)) for _ in range(1000)]
    index = build(wide, {str(i): text for i, text in enumerate(texts)})
    points = wide.encode(texts).astype(np.float64)
    for query in texts[:20]:
        hits = index.search(f"{query} cat", 1000, mode="lorentz")
        exact = geometry.inner(points, wide.encode([f"{query} cat"])[0].astype(np.float64))
        assert len({hit.lorentz for hit in hits}) >= 0.99 * len(set(exact))
        assert [hit.path for hit in hits[:10]] == [str(i) for i in np.argsort(-exact, kind="stable")[:10]]


def test_words_in_every_document_still_count(encoder):
    index = build(encoder, {str(i): f"cat {'the ' * i}" for i in range(4)})
    assert len(index.search("cat", 3, mode="bm25")) == 3
    assert len(index.search("cat the", 9, mode="bm25")) == 4


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("candidates", [1000, "all"])
def test_asking_for_more_than_there_is_gives_what_there_is(encoder, n, candidates):
    index = build(encoder, dict(list(DOCUMENTS.items())[:n]))
    for mode in ("hybrid", "bm25", "lorentz"):
        found = index.search("the a blue cat ran", 10, mode=mode, candidates=candidates)
        assert len(found) == n


def test_scripts_without_spaces_and_accents(encoder):
    index = build(encoder, {"d": "混合检索 系统 café naïve", "e": "cat"}, Settings(analyzer="whitespace", window=None))
    for query in ("系统", "café", "NAÏVE"):
        assert names(index.search(query, mode="bm25")) == ["d"]
    for query in ("检索", "cafe\u0301"):  # inside a word; another spelling of é: neither is the same word to BM25
        assert index.search(query, mode="bm25") == []


def test_a_word_that_wordpiece_does_not_know_is_found_by_bm25(encoder):
    index = build(encoder, {"long": "x" * 300, "cat": "cat"})
    assert names(index.search("x" * 300)) == ["long"]


@pytest.mark.parametrize("query", [None, 3, ["cat"], b"cat"])
def test_a_query_that_is_no_text_is_refused(index, query):
    with pytest.raises(TypeError, match="the query is"):
        index.search(query)


def test_an_index_without_encoder_does_bm25_only(encoder):
    index = build(None)
    assert index.search("cat ran", mode="bm25") == build(encoder).search("cat ran", mode="bm25")
    with pytest.raises(InputError, match="mode hybrid needs an artifact"):
        index.search("cat")


def test_saved_and_loaded_the_index_answers_the_same(encoder, tmp_path):
    tuned = Settings(
        analyzer="whitespace", window=2, overlap=1, k1=0.8, b=0.4, k3=7.0, fusion="rrf", alpha=0.3, candidates="all",
        feedback=0.5, feedback_docs=2,
    )  # fmt: skip
    index = build(encoder, settings=tuned)
    index.save(tmp_path / "idx")
    loaded = HybridIndex.load(tmp_path / "idx")
    assert loaded.settings == tuned
    assert loaded.encoder.path == encoder.path
    assert (loaded.paths, loaded.n_chunks, loaded.n_empty) == (index.paths, index.n_chunks, index.n_empty)
    for query in ("the cat", "blue", "☃", "red"):
        for mode in ("hybrid", "bm25", "lorentz"):
            assert loaded.search(query, mode=mode) == index.search(query, mode=mode)
    loaded.add("more", "the red fish")
    loaded.remove("sea")
    loaded.save(tmp_path / "idx")
    again = HybridIndex.load(tmp_path / "idx")
    assert names(again.search("fish", mode="bm25")) == ["more"]


def test_an_index_opens_only_with_the_artifact_that_built_it(encoder, tmp_path, tiny_tokenizer_file):
    artifact = write_artifact(tmp_path / "artifact", tiny_tokenizer_file, seed=1)
    build(Encoder.load(artifact)).save(tmp_path / "idx")
    with pytest.raises(InputError, match="built with artifact .* or build the index anew"):
        HybridIndex.load(tmp_path / "idx", encoder)
    assert HybridIndex.load(tmp_path / "idx", artifact).search("cat")
    moved = artifact.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="built with artifact .* or build the index anew"):
        HybridIndex.load(tmp_path / "idx")
    assert HybridIndex.load(tmp_path / "idx", Encoder.load(moved)).search("cat")


@pytest.mark.parametrize("other", [{"dim": 16}, {"seed": 2}, {"k": 2.0}, {"tokenizer": "cased"}])
def test_an_artifact_of_other_width_weights_curvature_or_tokens_is_refused(
    encoder, tmp_path, tiny_tokenizer_file, other
):
    build(encoder).save(tmp_path / "idx")
    if "tokenizer" in other:
        changed = tiny_tokenizer_file.read_text().replace('"lowercase":true', '"lowercase":false')
        changed = changed.replace('"lowercase": true', '"lowercase": false')
        assert changed != tiny_tokenizer_file.read_text()
        (tmp_path / "tokenizer.json").write_text(changed)
        artifact = write_artifact(tmp_path / "artifact", tmp_path / "tokenizer.json")
    else:
        artifact = write_artifact(tmp_path / "artifact", tiny_tokenizer_file, **other)
    with pytest.raises(InputError, match="build the index anew") as caught:
        HybridIndex.load(tmp_path / "idx", artifact)
    for fingerprint in (encoder.fingerprint, Encoder.load(artifact).fingerprint):
        assert fingerprint[:12] in str(caught.value)


def test_without_its_artifact_an_index_still_does_what_needs_no_point(encoder, tmp_path, tiny_tokenizer_file):
    artifact = write_artifact(tmp_path / "artifact", tiny_tokenizer_file, seed=1)
    build(Encoder.load(artifact, "oem", 3.0)).save(tmp_path / "idx")
    moved = artifact.rename(tmp_path / "moved")
    index = HybridIndex.load(tmp_path / "idx", need_encoder=False)
    assert names(index.search("cat", mode="bm25")) == ["cats"]
    with pytest.raises(InputError, match="mode hybrid needs an artifact"):
        index.search("cat")
    index.remove("sea")
    index.save(tmp_path / "idx")
    index.add("new", "cat")
    with pytest.raises(InputError, match=f"adding needs the artifact {artifact}"):
        index.flush()
    again = HybridIndex.load(tmp_path / "idx", moved)
    assert (again.encoder.pooling, again.encoder.power) == ("oem", 3.0)
    assert "sea" not in again
    assert again.search("cat")[0].lorentz is not None


def test_an_empty_index_saves_loads_and_grows(encoder, tmp_path):
    HybridIndex(encoder).save(tmp_path / "idx")
    index = HybridIndex.load(tmp_path / "idx")
    assert index.search("cat") == []
    index.add("a", "cat")
    assert names(index.search("cat")) == ["a"]


def test_a_removed_document_never_comes_back(encoder, tmp_path):
    """A rare and a common word together, in every mode, before and after a save; nor does its text stay on the disk."""
    index = build(encoder, {f"d{i}": f"cat sat {'sea ' * (i % 3)}" for i in range(19)} | {"gone": "cat gene 5ecret"})
    index.save(tmp_path)
    index.remove("gone")
    for found in (index, HybridIndex.load(tmp_path)):
        if found is not index:
            found.remove("gone")
            found.compact()
            found.save(tmp_path)
        for mode in ("hybrid", "bm25", "lorentz"):
            for candidates in (3, "all"):
                hits = found.search("gene cat", 20, mode=mode, candidates=candidates)
                assert len(hits) == 19
                assert "gone" not in names(hits)
    again = HybridIndex.load(tmp_path)
    assert len(again.search("gene cat", 20)) == 19
    raw = (tmp_path / "texts.z").read_bytes()
    assert b"5ecret" not in zlib.decompress(raw)


@pytest.mark.parametrize("mode", ["hybrid", "bm25", "lorentz"])
def test_removing_the_nearest_leaves_as_many_results_as_were_asked_for(encoder, mode):
    index = build(encoder, {f"d{i}": f"cat {'dog ' * (i % 7)}{'sea ' * (i // 7)}" for i in range(60)})
    for hit in index.search("cat", 10, mode=mode):
        index.remove(hit.path)
    assert len(index.search("cat", 10, mode=mode)) == 10
    assert len(index.search("cat", 99, mode=mode, candidates="all")) == 50


def test_removing_the_last_document_leaves_an_index_that_saves_loads_and_grows(encoder, tmp_path):
    index = build(encoder, {"a": "cat"})
    index.remove("a")
    index.save(tmp_path)
    again = HybridIndex.load(tmp_path)
    assert (len(again), again.n_chunks, again.search("cat")) == (0, 0, [])
    again.add("b", "cat")
    assert names(again.search("cat")) == ["b"]
    assert [(tmp_path / name).stat().st_size for name in ("texts.z", "paths.txt")] == [0, 0]


def test_what_is_added_is_found_at_once_and_costs_no_copy_of_the_rest(encoder, tmp_path):
    build(encoder, {f"d{i}": f"cat {i}" for i in range(300)}).save(tmp_path)
    index = HybridIndex.load(tmp_path)
    base, postings = index._chunks.points._base, index._bm25.parts[0]
    for i in range(20):
        index.add(f"new {i}", f"protein {i}")
        assert f"new {i}" in names(index.search("protein", 99, mode="bm25"))
        index.add(f"d{i}", f"old fish {i}")
        assert f"d{i}" not in names(index.search("cat", 999, mode="bm25"))
    assert index._chunks.points._base is base
    assert index._bm25.parts[0] is postings


def test_ten_thousand_changes_do_not_pile_up_in_memory_or_on_disk(tmp_path):
    index = HybridIndex(None, Settings(analyzer="whitespace"))
    for i in range(10_000):
        index.add(f"d{i % 5}", f"word {i}")
        if i % 10 == 0:
            index.flush()
        if i % 1000 == 0:
            index.save(tmp_path)
    assert len(index._chunks) < 3000
    assert index._documents.size < 3000
    index.save(tmp_path)
    assert (tmp_path / "texts.z").stat().st_size < 3000
    assert sorted(index.paths) == [f"d{i}" for i in range(5)]
