"""Paired comparison of runs, against enumeration and the standard error."""

import itertools
import json

import numpy as np
import pytest

from eval.compare import compare, holm, paired, read, table
from eval.metrics import METRICS
from eval.run import run
from hyte import InputError, Settings
from tests.test_collections import write


def leave(folder, scores, collection="c", split="test", sha256="0" * 64):
    """A result folder as eval.run leaves it, with the same score for each metric."""
    folder.mkdir(parents=True)
    facts = {"collection": collection, "split": split, "sha256": sha256}
    (folder / "metrics.json").write_text(json.dumps(facts))
    rows = [{"query": query, **dict.fromkeys(METRICS, score), "ms": 1.0} for query, score in scores.items()]
    (folder / "per_query.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_the_interval_is_that_of_all_resamples_enumerated():
    first, second = np.array([0.1, 0.4, 0.3, 0.9]), np.array([0.5, 0.4, 0.1, 1.0])
    means = [np.mean(each) for each in itertools.product(second - first, repeat=4)]  # all 256, equally likely
    found = compare(first, second)
    # few values, so the quantiles of 10,000 draws are those of the distribution itself
    assert [found.low, found.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=1e-12)
    assert found.mean == pytest.approx((0.4 - 0.2 + 0.1) / 4)
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)


def test_the_interval_of_many_queries_is_that_of_the_standard_error():
    generator = np.random.default_rng(0)
    first = generator.random(400)
    second = first + generator.normal(0.02, 0.1, 400)
    apart = second - first
    half = 1.96 * apart.std(ddof=1) / 20
    found = compare(first, second)
    assert [found.low, found.high] == pytest.approx([apart.mean() - half, apart.mean() + half], abs=0.05 * half)
    assert found == compare(first, second)  # seeded


@pytest.mark.parametrize("seed", range(4))
def test_p_is_that_of_all_flips_of_signs_enumerated(seed):
    generator = np.random.default_rng(seed)
    first, second = generator.integers(0, 5, (2, 9)) / 4
    apart = second - first
    flipped = np.array([apart @ signs for signs in itertools.product([1, -1], repeat=9)])
    expected = np.mean(np.abs(flipped) >= abs(apart.sum()) - 1e-12)
    assert compare(first, second).p == pytest.approx(expected, rel=1e-12)


def test_p_of_many_queries_is_about_that_of_the_normal_distribution():
    generator = np.random.default_rng(3)
    apart = generator.normal(0, 1, 400)
    apart += 1.96 * np.sqrt((apart**2).mean()) / 20 - apart.mean()  # the mean at 1.96 of its errors: p = 0.05
    assert compare(np.zeros(400), apart).p == pytest.approx(0.05, abs=0.01)


def test_the_same_run_differs_by_nothing():
    scores = np.random.default_rng(0).random(50)
    assert compare(scores, scores) == (0.0, 0.0, 0.0, 1.0, 0, 50, 0)


def test_which_run_is_first_only_turns_the_sign():
    first, second = np.random.default_rng(1).random((2, 10))
    there, back = compare(first, second), compare(second, first)
    assert (there.mean, there.p, there.wins) == (-back.mean, pytest.approx(back.p), back.losses)


def test_holm_by_hand():
    # sorted .01 .02 .03 .04: times 4, 3, 2, 1 = .04 .06 .06 .04, and never falling
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]


def test_queries_are_paired_by_id_whatever_their_order(tmp_path):
    leave(tmp_path / "a", {"q1": 0.1, "q2": 0.5, "q3": 1.0})
    leave(tmp_path / "b", {"q3": 1.0, "q1": 0.2, "q2": 0.5})
    first, second = paired(*(read(tmp_path / each, "ndcg@10")["c"] for each in "ab"))
    assert (list(first), list(second)) == ([0.1, 0.5, 1.0], [0.2, 0.5, 1.0])


def test_the_table_has_a_row_a_run_and_collection_and_corrects_over_all(tmp_path):
    for name, shift in (("base", 0.0), ("up", 0.1), ("same", 0.0)):
        for collection in ("x", "y"):
            scores = {f"q{i}": i / 20 + shift for i in range(8)}
            leave(tmp_path / name / collection, scores, collection)
    lines = table(tmp_path / "base", [tmp_path / "up", tmp_path / "same"]).splitlines()
    assert lines[0].startswith(
        f"| collection | run | queries | ndcg@10 of {tmp_path / 'base'} | ndcg@10 | difference |"
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [(row[0], row[1]) for row in cells] == [
        (collection, str(tmp_path / name)) for name in ("up", "same") for collection in ("x", "y")
    ]
    # 2 of the 256 flips of 8 equal differences reach their sum: p = .0078, the least of four: times 4
    for row in cells[:2]:
        assert row[2:] == ["8", "0.1750", "0.2750", "+0.1000", "[+0.1000, +0.1000]", "0.0078", "0.0312", "8/0/0"]
    for row in cells[2:]:
        assert row[5:] == ["+0.0000", "[+0.0000, +0.0000]", "1.0000", "1.0000", "0/8/0"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"collection": "d"}, "has c; .* has d: give the same collections"),
        ({"split": "dev"}, "c: split test against dev"),
        ({"sha256": "1" * 64}, "c: sha256 000000000000 against 111111111111"),
        ({"scores": {"q1": 0.1, "q2": 0.2, "q4": 0.1}}, "c: 2 queries are in one run only, such as 'q3'"),
        ({"scores": {"q1": 0.1, "q2": 0.2}}, "c: 1 queries are in one run only"),
    ],
)
def test_what_is_not_of_the_same_data_is_refused(tmp_path, other, message):
    scores = {"q1": 0.1, "q2": 0.2, "q3": 0.1}
    leave(tmp_path / "a", scores)
    leave(tmp_path / "b", **({"scores": scores} | other))
    with pytest.raises(InputError, match=message):
        table(tmp_path / "a", [tmp_path / "b"])


def test_what_cannot_be_read_or_compared_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no metrics\.json of eval\.run there"):
        read(tmp_path, "ndcg@10")
    leave(tmp_path / "one", {"q1": 0.5})
    with pytest.raises(InputError, match="metric 'ndcg' is unknown: use one of ndcg@10, map@100"):
        read(tmp_path / "one", "ndcg")
    with pytest.raises(InputError, match="c: 1 query; an interval needs 2"):
        table(tmp_path / "one", [tmp_path / "one"])
    leave(tmp_path / "two", {"q1": 0.5})
    with pytest.raises(InputError, match="two results of c; name the folder of one"):
        read(tmp_path, "ndcg@10")
    for content in ("{", '{"query": "q1"}', "[]", '{"query": "q1", "ndcg@10": null}'):
        (tmp_path / "two" / "per_query.jsonl").write_text(content)
        with pytest.raises(InputError, match=r"two: not what eval\.run leaves"):
            read(tmp_path / "two", "ndcg@10")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.01])
def test_a_score_that_is_none_is_named_with_file_and_query(tmp_path, score):
    leave(tmp_path / "a", {"q1": 0.5, "q2": score, "q3": 1.0, "q4": 0.0})
    with pytest.raises(InputError, match=r"a/per_query\.jsonl: ndcg@10 of query 'q2' is .*, not from 0 to 1"):
        read(tmp_path / "a", "ndcg@10")


def test_a_query_that_comes_twice_is_named(tmp_path):
    path = leave(tmp_path / "a", {"q1": 0.5, "q2": 0.5}) / "per_query.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match=r"a/per_query\.jsonl: query 'q1' comes twice"):
        read(tmp_path / "a", "ndcg@10")


def test_reads_what_eval_run_leaves(tmp_path):
    folder = write(tmp_path / "tiny", test=["q1\td1\t1", "q2\td1\t1"])
    metrics = run(folder, Settings(), "bm25", out=tmp_path / "out")
    found = read(tmp_path / "out", "map@100")["tiny"]
    assert np.mean([*found.scores.values()]) == pytest.approx(metrics["map@100"])
    assert (found.split, found.sha256) == ("test", metrics["sha256"])
