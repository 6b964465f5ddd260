"""Runs against a first one, query by query: `python -m eval.compare BASE RUN… [--metric ndcg@10]`.

BASE and each RUN are folders that eval.run left, or folders of such folders, one a collection. Queries are paired by
id. A row of the table compares one RUN with BASE on one collection: the two means; their difference, RUN - BASE, with a
95 % percentile bootstrap interval over queries; p of the two-sided paired permutation test of the mean difference
(exact where the signs of the differences can be flipped in no more ways than there are resamples); p corrected by Holm
over all rows of the table; for how many queries RUN is better, equal, worse.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from eval.metrics import METRICS
from hyte.errors import InputError, report_errors
from hyte.geometry import Array

RESAMPLES = 10_000
SEED = 0
COLUMNS = ("collection", "run", "queries", "difference", "95 %", "p", "p (Holm)", "+/=/-")
PER_QUERY = "per_query.jsonl"
BATCH = 1000  # resamples drawn at a time, which bounds memory


class Result(NamedTuple):
    """What eval.run left of one collection: facts of metrics.json, and one metric by query id."""

    collection: str
    split: str
    sha256: str
    scores: dict[str, float]


class Difference(NamedTuple):
    """A second run minus a first one over paired queries; `low` to `high` is the 95 % interval, `p` in (0, 1]."""

    mean: float
    low: float
    high: float
    p: float
    wins: int
    ties: int
    losses: int


def read(folder: Path, metric: str) -> dict[str, Result]:
    """The results in a folder, or in the folders directly in it, by collection.

    Raises InputError where there is none, one is not what eval.run leaves, or two are of one collection.
    """
    single = (folder / "metrics.json").is_file()
    folders = [folder] if single else sorted(path.parent for path in folder.glob("*/metrics.json"))
    if not folders:
        raise InputError(f"{folder}: no metrics.json of eval.run there or one folder below")
    found: dict[str, Result] = {}
    for each in folders:
        result = _read_one(each, metric)
        if result.collection in found:
            raise InputError(f"{folder}: two results of {result.collection}; name the folder of one ({each})")
        found[result.collection] = result
    return found


def _read_one(folder: Path, metric: str) -> Result:
    if metric not in METRICS:
        raise InputError(f"metric {metric!r} is unknown: use one of {', '.join(METRICS)}")
    try:
        facts: dict[str, Any] = json.loads((folder / "metrics.json").read_text("utf-8"))
        text = (folder / PER_QUERY).read_text("utf-8")
        rows = [(str(row["query"]), float(row[metric])) for row in map(json.loads, text.splitlines())]
        known = str(facts["collection"]), str(facts["split"]), str(facts["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: not what eval.run leaves ({type(error).__name__}: {error})") from error
    return Result(*known, _checked(rows, folder / PER_QUERY, metric))


def _checked(rows: Sequence[tuple[str, float]], path: Path, metric: str) -> dict[str, float]:
    """The scores by query. Raises InputError for one outside of [0, 1], and for a query that comes twice."""
    scores: dict[str, float] = {}
    for query, score in rows:
        if not 0 <= score <= 1:  # NaN is neither
            raise InputError(f"{path}: {metric} of query {query!r} is {score}, not from 0 to 1; run eval.run again")
        if query in scores:
            raise InputError(f"{path}: query {query!r} comes twice; run eval.run again")
        scores[query] = score
    return scores


def paired(first: Result, second: Result) -> tuple[Array, Array]:
    """The scores (n,) of two results of one collection, in one order of the queries.

    Raises InputError where they are not of the same data and queries, or n < 2.
    """
    for key in ("split", "sha256"):
        one, other = getattr(first, key), getattr(second, key)
        if one != other:
            raise InputError(
                f"{first.collection}: {key} {one[:12]} against {other[:12]}; compare runs on the same data"
            )
    if first.scores.keys() != second.scores.keys():
        apart = first.scores.keys() ^ second.scores.keys()
        raise InputError(f"{first.collection}: {len(apart)} queries are in one run only, such as {min(apart)!r}")
    if len(first.scores) < 2:
        raise InputError(f"{first.collection}: {len(first.scores)} query; an interval needs 2 or more")
    return np.array([*first.scores.values()]), np.array([second.scores[query] for query in first.scores])


def compare(first: Array, second: Array, resamples: int = RESAMPLES) -> Difference:
    """Compare the scores (n,) of two runs for the same queries, n >= 2."""
    apart = second - first
    interval = stats.bootstrap(
        (apart,), np.mean, n_resamples=resamples, batch=BATCH, method="percentile", rng=np.random.default_rng(SEED)
    ).confidence_interval
    test = stats.permutation_test(
        (apart,), np.mean, permutation_type="samples", vectorized=True, n_resamples=resamples, batch=BATCH,
        rng=np.random.default_rng(SEED),
    )  # fmt: skip
    signs = [int((apart > 0).sum()), int((apart == 0).sum()), int((apart < 0).sum())]
    return Difference(float(apart.mean()), float(interval.low), float(interval.high), float(test.pvalue), *signs)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of p values: each times the number of those not below it, never falling, at most 1."""
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, dtype=np.float64)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(each) for each in corrected]


def table(base: Path, runs: Sequence[Path], metric: str = "ndcg@10") -> str:
    """The comparison of each run with the base as a Markdown table. Raises InputError where they cannot be compared."""
    first = read(base, metric)
    rows = []
    for run in runs:
        second = read(run, metric)
        if first.keys() != second.keys():
            raise InputError(f"{base} has {', '.join(first)}; {run} has {', '.join(second)}: give the same collections")
        rows += [(name, run, *paired(first[name], second[name])) for name in first]
    differences = [compare(one, other) for *_, one, other in rows]
    corrected = holm([each.p for each in differences])
    head = [*COLUMNS[:3], f"{metric} of {base}", metric, *COLUMNS[3:]]
    lines = [head, ["---"] * len(head)]
    for (name, run, one, other), found, p in zip(rows, differences, corrected, strict=True):
        means = [f"{one.mean():.4f}", f"{other.mean():.4f}"]
        lines.append([name, str(run), str(len(one)), *means, *_cells(found, p)])
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _cells(found: Difference, corrected: float) -> list[str]:
    interval = f"[{found.low:+.4f}, {found.high:+.4f}]"
    counts = f"{found.wins}/{found.ties}/{found.losses}"
    return [f"{found.mean:+.4f}", interval, f"{found.p:.4f}", f"{corrected:.4f}", counts]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        "python -m eval.compare", description="Runs against a first one: differences with intervals over queries."
    )
    parser.add_argument(
        "base", type=Path, metavar="BASE", help="folder that eval.run left, or a folder of such folders"
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="as BASE, with the same collections")
    parser.add_argument("--metric", default="ndcg@10", help=f"{', '.join(METRICS)} (default ndcg@10)")
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    with report_errors():
        options = parser.parse_args()
        sys.stdout.write(table(options.base, options.runs, options.metric) + "\n")


if __name__ == "__main__":
    main()
