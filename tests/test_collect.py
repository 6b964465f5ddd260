"""The table of several runs."""

import json

import pytest

from eval.collect import LATER, SETTINGS, read, table
from hyte import InputError


def run(collection, alpha, ndcg):
    return {**dict.fromkeys(SETTINGS, "same"), "collection": collection, "alpha": alpha, "ndcg@10": ndcg}


def test_rows_are_settings_columns_are_collections_and_the_mean_stands_last():
    runs = [run("a", 0.1, 0.2), run("b", 0.1, 0.4), run("a", 0.9, 0.5)]
    assert table(runs).splitlines() == [
        "| alpha | a | b | mean |",
        "| --- | --- | --- | --- |",
        "| 0.1 | 0.2000 | 0.4000 | 0.3000 |",
        "| 0.9 | 0.5000 | - | - |",
    ]


def test_a_score_of_zero_counts_in_the_mean():
    assert table([run("a", 0.1, 0.0), run("b", 0.1, 0.4)]).endswith("| 0.0000 | 0.4000 | 0.2000 |")


def test_two_runs_of_one_setting_are_refused():
    with pytest.raises(InputError, match="a: two of the runs have the same settings"):
        table([run("a", 0.1, 0.2), run("a", 0.1, 0.3)])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"collection": "a"}'])
def test_what_eval_run_did_not_leave_is_named(tmp_path, content):
    path = tmp_path / "metrics.json"
    path.write_text(content)
    with pytest.raises(InputError, match=f"{path}: not a metrics.json"):
        read([path])


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.01])
def test_a_score_that_is_none_is_named_with_its_file(tmp_path, score):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(run("a", 0.1, score)))
    with pytest.raises(InputError, match=rf"{path}: ndcg@10 is .*, not from 0 to 1"):
        read([path])


def test_reads_what_it_shows_also_of_results_that_lack_later_settings(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({**run("a", 0.1, 0.2), "more": 1}))
    assert read([path]) == [run("a", 0.1, 0.2) | dict.fromkeys(LATER)]
    path.write_text(json.dumps({**run("a", 0.1, 0.2), "radius": 1.0}))
    assert read([path])[0]["radius"] == 1.0


def test_later_settings_tell_rows_apart():
    lines = table([run("a", 0.1, 0.2), run("a", 0.1, 0.3) | {"radius": 1.0}]).splitlines()
    assert lines[2:] == ["| - | 0.2000 | 0.2000 |", "| 1.0 | 0.3000 | 0.3000 |"]
