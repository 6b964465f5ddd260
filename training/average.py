"""Average the weights of runs that began alike: `python -m training.average RUN RUN... --out DIR`.

Runs from one start that differ in the order of their batches lie in one basin: the mean of their weights is a model
too, and a steadier one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from hyte.errors import InputError, report_errors
from training.checkpoint import FILE, load_checkpoint, save_checkpoint
from training.settings import flattened

# What must agree for the mean to mean anything.
SAME = ("k", "pooling.name", "pooling.power", "tokens.name", "tokens.tokenizer_sha256", "tokens.digest")


def average(runs: Sequence[str], out: str) -> Path:
    """Write the mean of the runs' weights to `out`, a run folder; returns its checkpoint.

    Raises InputError for fewer than two runs, for one that comes twice or is `out`, and where two
    do not agree in K, pooling, token table or shapes.
    """
    if len(runs) < 2:
        raise InputError(f"{len(runs)} run given: an average needs two or more")
    checkpoints = [load_checkpoint(run) for run in runs]
    first, path = checkpoints[0], Path(out, FILE)
    _check_places(runs, [each.path.resolve() for each in checkpoints], Path(out).resolve())
    for other in checkpoints[1:]:
        mine, theirs = flattened(first.config), flattened(other.config)
        for key in SAME:
            if theirs.get(key) != mine.get(key):
                raise InputError(f"{other.path}: {key} is {theirs.get(key)}, in {first.path} it is {mine.get(key)}")
        shapes = [{name: tuple(value.shape) for name, value in each.state.items()} for each in (first, other)]
        if shapes[0] != shapes[1]:
            raise InputError(f"{other.path}: {shapes[1]} do not fit {shapes[0]} of {first.path}")
    state = {name: torch.stack([each.state[name] for each in checkpoints]).mean(0) for name in first.state}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, state, first.config | {"average_of": [each.config.get("seed") for each in checkpoints]})
    return path


def _check_places(runs: Sequence[str], places: Sequence[Path], out: Path) -> None:
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"{run}: the same run twice; name each once")
        if place in (out / FILE, out):
            raise InputError(f"--out {out} is the run {run} and would be overwritten; name another folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: prints where the mean is, and exits with code 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m training.average", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders or checkpoints, two or more")
    parser.add_argument("--out", required=True, help="run folder of the mean")
    given = parser.parse_args(arguments)
    with report_errors():
        sys.stdout.write(f"{average(given.runs, given.out)}\n")


if __name__ == "__main__":
    main()
