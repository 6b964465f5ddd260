"""One table of several runs: `python -m eval.collect METRICS.json…`.

A row is a setting, a column a collection, a cell NDCG@10; the last column is their mean. Settings that are the same in
every run are not shown.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyte.errors import InputError, report_errors

SETTINGS = (
    "mode", "pooling", "P", "analyzer", "fusion", "alpha", "candidates", "window", "overlap", "titled", "tail",
    "drop_same_id", "fingerprint",
)  # fmt: skip
# Results of earlier versions lack these.
LATER = ("k1", "b", "k3", "query_P", "radius", "feedback", "feedback_docs", "fill")
METRIC = "ndcg@10"


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The metrics of each file. Raises InputError where one is not what eval.run leaves, or NDCG is not in [0, 1]."""
    found = []
    for path in paths:
        try:
            metrics = json.loads(path.read_text("utf-8"))
            numbers: dict[str, Any] = {"collection": str(metrics["collection"]), METRIC: float(metrics[METRIC])}
            settings = {key: metrics[key] for key in SETTINGS} | {key: metrics.get(key) for key in LATER}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a metrics.json of eval.run ({type(error).__name__}: {error})") from error
        if not 0 <= numbers[METRIC] <= 1:  # NaN is neither
            raise InputError(f"{path}: {METRIC} is {numbers[METRIC]}, not from 0 to 1; run eval.run again")
        found.append(numbers | settings)
    return found


def table(runs: Sequence[Mapping[str, Any]], metric: str = METRIC) -> str:
    """The runs as a Markdown table. Raises InputError where two runs have the same setting and collection."""
    shown = [key for key in (*SETTINGS, *LATER) if len({str(run.get(key)) for run in runs}) > 1] or ["mode"]
    collections = list(dict.fromkeys(run["collection"] for run in runs))
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for run in runs:
        row = cells.setdefault(tuple(_short(run.get(key)) for key in shown), {})
        if run["collection"] in row:
            raise InputError(f"{run['collection']}: two of the runs have the same settings; leave one out")
        row[run["collection"]] = run[metric]
    lines = [[*shown, *collections, "mean"], ["---"] * (len(shown) + len(collections) + 1)]
    for setting, row in cells.items():
        values = [row.get(name) for name in collections]
        mean = None if None in values else sum(filter(None, values)) / len(values)
        lines.append([*setting, *(f"{value:.4f}" if value is not None else "-" for value in (*values, mean))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(value: Any) -> str:
    return "-" if value is None else str(value)[:12]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser("python -m eval.collect", description="One table of several eval.run results.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="METRICS.json", help="what eval.run left")
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    with report_errors():
        sys.stdout.write(table(read(parser.parse_args().paths)) + "\n")


if __name__ == "__main__":
    main()
