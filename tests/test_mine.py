"""Hard negatives: candidates of a small corpus with known answers, what is dropped, and the files."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hyte import geometry
from hyte.errors import InputError
from tests.test_training import pair, write_lines
from training.candidates import Points, Words, highest, merged
from training.distillation import sha256
from training.lines import read_lines
from training.mine import mine, read_corpus

A = [
    pair("cat", "the cat sat"),  # 0
    pair("cat", "a cat ran"),  # 1: another answer to the same query
    pair("dog", "old dog cat"),  # 2
    pair("fish", "the  Cat SAT"),  # a copy of 0
    pair("red bird", "cat bird"),  # 3
]
B = [pair("gene", "gene cell cat"), pair("sea", "sea fish"), pair("Cat", "cat mat")]  # 4, 5, 6


@pytest.fixture
def files(tmp_path) -> list[str]:
    return [str(write_lines(tmp_path / "a.jsonl", A)), str(write_lines(tmp_path / "b.jsonl", B))]


def read(path: str | Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(Path(path).read_bytes()).decode().splitlines()]


# Candidates


def test_highest_are_in_order_with_ties_by_number():
    scores = np.array([1.0, 5.0, 0.0, 5.0, 1.0, 1.0, 7.0])
    assert highest(scores, 4, 0.0).tolist() == [6, 1, 3, 0]
    assert highest(scores, 50, 0.0).tolist() == [6, 1, 3, 0, 4, 5]
    assert highest(scores, 5, 6.0).tolist() == [6]
    assert highest(scores[:0], 3, 0.0).tolist() == []


def test_highest_are_those_of_a_full_sort():
    rng = np.random.default_rng(0)
    for size in (1, 10, 300):
        scores = rng.integers(-5, 20, size).astype(float)
        best = sorted((i for i in range(size) if scores[i] > 0), key=lambda i: (-scores[i], i))
        for depth in (1, 7, 299):
            assert highest(scores, depth, 0.0).tolist() == best[:depth]


def test_rankings_are_merged_in_turns_without_duplicates():
    assert merged([1, 2, 3], [2, 4]) == [1, 2, 4, 3]
    assert merged([], [5, 6]) == [5, 6]


def test_words_are_ranked_by_bm25_of_english_stems():
    texts = ["cats running", "a dog", "the running dog ran and the dog runs", "the and of"]
    index = Words(texts)
    # "run" stems "running" and "runs", not "ran"; text 2 is longer, but has it twice. Stop words find nothing.
    assert list(index.best(["runs", "dogs", "the of", "zebra"], 5))[1:] == [[1, 2], [], []]
    assert sorted(next(index.best(["runs"], 5))) == [0, 2]
    assert next(index.best(["runs"], 1)) == next(index.best(["runs"], 5))[:1]


@pytest.mark.parametrize("at_once", [1, 2**24])
def test_points_are_ranked_by_inner_product_in_blocks(encoder, monkeypatch, at_once):
    monkeypatch.setattr("training.candidates.SCORES_AT_ONCE", at_once)
    monkeypatch.setattr("training.candidates.ENCODED_AT_ONCE", 2)
    texts, queries = ["the cat", "zzz", "dog bird", "red sea", "old gene cell"], ["cat", "zzz", "sea fish"]
    found = list(Points(encoder, texts).best(queries, 3))
    known = [0, 2, 3, 4]
    for query, best in zip(queries, found, strict=True):
        inner = {i: geometry.inner(*encoder.encode([query, texts[i]]).astype(np.float64)) for i in known}
        expected = sorted(known, key=lambda i: -inner[i])[:3]
        assert best == ([] if query == "zzz" else expected)
    assert sorted(next(Points(encoder, texts).best(["cat"], 50))) == known


# What is dropped


def test_the_corpus_holds_each_positive_once_and_what_answers_each_query(files):
    corpus = read_corpus(files)
    assert corpus.texts == [
        "the cat sat", "a cat ran", "old dog cat", "cat bird", "gene cell cat", "sea fish", "cat mat",
    ]  # fmt: skip
    assert corpus.answers.tolist() == [0, 1, 2, 0, 3, 4, 5, 6]
    assert corpus.file.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert corpus.line.tolist() == [1, 2, 3, 4, 5, 1, 2, 3]
    assert corpus.excluded["cat"] == {0, 1, 6}  # "Cat" is the same query


def test_a_query_that_is_itself_in_the_corpus_is_no_negative_of_itself(tmp_path):
    lines = [pair("The cat sat", "a dog"), pair("bird", "the cat sat")]
    assert read_corpus([str(write_lines(tmp_path / "a.jsonl", lines))]).excluded["the cat sat"] == {0, 1}


def test_negatives_are_the_best_that_are_no_known_answer(files, tiny_artifact, tmp_path, encoder):
    result = mine(files, str(tiny_artifact), str(tmp_path / "out"), skip=0, count=50)
    corpus = read_corpus(files)
    words, points = Words(corpus.texts), Points(encoder, corpus.texts)
    written = [*read(tmp_path / "out" / "a.jsonl.gz"), *read(tmp_path / "out" / "b.jsonl.gz")]
    assert [(line["query"], line["positive"]) for line in written][:3] == [
        ("cat", "the cat sat"), ("cat", "a cat ran"), ("dog", "old dog cat"),
    ]  # fmt: skip
    for row, line in enumerate(written):
        query = [line["query"]]
        best = merged(next(words.best(query, 50)), next(points.best(query, 50)))
        expected = [corpus.texts[i] for i in best if i not in corpus.excluded[line["query"].lower()]]
        assert line["negatives"] == expected, row
    # BM25 of "cat": the shortest texts first, without stop words; those that answer it are gone.
    assert next(words.best(["cat"], 50)) == [0, 1, 3, 6, 2, 4]
    assert not {"the cat sat", "a cat ran", "cat mat"} & set(written[0]["negatives"])
    assert (result["corpus"], result["pairs"], result["without"]) == (7, 8, 0)
    assert result["negatives"] == sum(len(line["negatives"]) for line in written)
    assert list(read_lines(result["files"]))[0]["negatives"] == written[0]["negatives"]
    assert result["seconds"].keys() == result["per_second"].keys()


def test_skip_and_count_cut_the_list(files, tiny_artifact, tmp_path):
    mine(files, str(tiny_artifact), str(tmp_path / "all"), skip=0, count=50)
    result = mine(files, str(tiny_artifact), str(tmp_path / "cut"), skip=1, count=2)
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        for whole, cut in zip(read(tmp_path / "all" / name), read(tmp_path / "cut" / name), strict=True):
            assert cut["negatives"] == whole["negatives"][1:3]
    assert result["negatives"] == 16
    with pytest.raises(InputError, match="none of 8 pairs has a negative"):
        mine(files, str(tiny_artifact), str(tmp_path / "none"), skip=7)
    assert not (tmp_path / "none").exists()


def test_a_sample_is_seeded_and_in_the_order_of_the_lines(files, tiny_artifact, tmp_path):
    for name, seed in (("one", 7), ("two", 7), ("three", 1)):
        assert mine(files, str(tiny_artifact), str(tmp_path / name), per_source=2, seed=seed, skip=0)["pairs"] == 4
    one, two = ((tmp_path / name / "a.jsonl.gz").read_bytes() for name in ("one", "two"))
    assert one == two
    corpus = read_corpus(files)
    for name in ("one", "three"):
        queries = [line["query"] for line in read(tmp_path / name / "a.jsonl.gz")]
        places = [corpus.queries.index(query) for query in queries]
        assert len(queries) == 2
        assert places == sorted(places)


# With a teacher


def write_teacher(path: Path, files: list[str], known: dict, scores: dict) -> Path:
    """A cache that knows these (file, line), with positives along one axis: cosine = score of the text."""
    queries = np.tile(np.float16([1, 0]), (len(known), 1))
    cosines = np.array([scores[place] for place in known])
    positives = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float16)
    file, line = (np.array(each, dtype=np.int64) for each in zip(*known, strict=True))
    tensors = {"queries": queries, "positives": positives, "file": file, "line": line}
    save_file(tensors, path, {"config": json.dumps({"digests": [sha256(name) for name in files]})})
    return path


def test_a_teacher_drops_what_it_does_not_know_and_what_it_scores_near_the_positive(files, tiny_artifact, tmp_path):
    scores = {(0, 1): 0.8, (0, 3): 0.5, (0, 5): 0.79, (1, 1): 0.7}
    cache = write_teacher(tmp_path / "t.safetensors", files, list(scores), scores)
    options = {"skip": 0, "count": 50, "teacher": str(cache)}
    result = mine(files, str(tiny_artifact), str(tmp_path / "out"), **options)
    found = {
        line["query"]: set(line["negatives"]) for name in "ab" for line in read(tmp_path / "out" / f"{name}.jsonl.gz")
    }
    assert found == {
        "cat": {"old dog cat", "gene cell cat"},  # 0.95 x 0.8 = 0.76: the bird's 0.79 is too near
        "red bird": {"old dog cat", "gene cell cat"},  # 0.95 x 0.79 = 0.75 < 0.8
        "gene": {"old dog cat"},
    }  # dog: all others are above 0.475; the other queries are not in the cache
    assert (result["pairs"], result["without"]) == (3, 5)
    wide = mine(files, str(tiny_artifact), str(tmp_path / "wide"), margin=2.0, **options)
    assert wide["pairs"] == 4
    with pytest.raises(InputError, match="made from other files than"):
        mine([str(write_lines(tmp_path / "c.jsonl", A[:2]))], str(tiny_artifact), str(tmp_path / "x"), str(cache))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count=0 must be a whole number, 1 or more"),
        ({"per_source": "all"}, "per_source='all' must be"),
        ({"skip": -1}, "skip=-1 must be a whole number, 0 or more"),
        ({"depth": True}, "depth=True must be"),
        ({"margin": "1"}, "margin='1' must be a number above 0"),
        ({"margin": float("nan")}, "margin=nan must be"),
        ({"teacher": "nowhere"}, "^teacher=nowhere: no such file"),
        ({"artifact": "nowhere"}, "nowhere"),
    ],
)
def test_bad_settings_are_one_line_and_write_nothing(files, tiny_artifact, tmp_path, changes, message):
    options = {"artifact": str(tiny_artifact), "out": str(tmp_path / "out")} | changes
    with pytest.raises(InputError, match=message):
        mine(files, **options)
    assert not (tmp_path / "out").exists()


def test_no_input_is_overwritten_and_no_two_files_become_one(tiny_artifact, tmp_path):
    (tmp_path / "other").mkdir()
    one = write_lines(tmp_path / "a.jsonl", A)
    two = tmp_path / "other" / "a.jsonl.gz"
    two.write_bytes(gzip.compress(one.read_bytes()))
    with pytest.raises(InputError, match="would both become"):
        mine([str(one), str(two)], str(tiny_artifact), str(tmp_path / "out"))
    with pytest.raises(InputError, match="is one of data.pairs and would be overwritten"):
        mine([str(two)], str(tiny_artifact), str(two.parent))
    with pytest.raises(InputError, match="is a file; name a folder"):
        mine([str(two)], str(tiny_artifact), str(one))
    for folder in (one, one / "below"):
        with pytest.raises(InputError, match=f"out={folder}: {one} is a file; name a folder"):
            mine([str(two)], str(tiny_artifact), str(folder))


def test_where_nothing_is_found_the_files_of_before_stay(files, tiny_artifact, tmp_path):
    result = mine(files, str(tiny_artifact), str(tmp_path / "out"), skip=0)
    before = [Path(name).read_bytes() for name in result["files"]]
    with pytest.raises(InputError, match="none of 8 pairs has a negative, so nothing is written; raise depth"):
        mine(files, str(tiny_artifact), str(tmp_path / "out"), skip=1000)
    assert [Path(name).read_bytes() for name in result["files"]] == before


def test_a_set_of_the_hub_is_not_mined(tiny_artifact, tmp_path):
    with pytest.raises(InputError, match="data.pairs: hub:owner/name: only local files are supported here"):
        mine(["hub:owner/name"], str(tiny_artifact), str(tmp_path / "out"))
