"""A run in one picture, drawn from its metrics.jsonl alone: `python -m training.summary RUN` redraws `summary.png`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write
from training.logs import METRICS, read_metrics

FILE = "summary.png"
MEAN = "val/mean"

Lines = Sequence[dict[str, Any]]


def draw(out: str | Path) -> Path:
    """Draw loss, learning rate, gradient norm with scale, and validation curves of a run folder; returns the picture.

    Raises InputError where there is no metrics.jsonl, it holds no line, or matplotlib is not installed.
    """
    path = Path(out) / METRICS
    if not path.is_file():
        raise InputError(f"{path}: no such file; name the folder of a training run")
    lines = read_metrics(path)
    if not lines:
        raise InputError(f"{path}: no line in it, there is nothing to draw")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - takes a second
    except ImportError as error:
        raise InputError('summary.png needs matplotlib, which is not installed: pip install "hyte[train]"') from error
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it talks about its font cache
    figure = Figure(figsize=(10, 6.5))
    loss, rate, gradient, validation = figure.subplots(2, 2).flat
    _curve(loss, lines, "loss", "C0")
    _curve(rate, lines, "lr", "C0", "learning rate")
    _curve(gradient, lines, "grad_norm", "C0", "gradient norm")
    _curve(gradient.twinx(), lines, "scale", "C1", "logit scale")
    _validation(validation, lines)
    figure.suptitle(str(Path(out).resolve().name))
    figure.subplots_adjust(left=0.1, right=0.97, top=0.92, bottom=0.08, wspace=0.5, hspace=0.4)  # layouts take seconds
    with atomic_write(Path(out) / FILE) as file:
        figure.savefig(file, format="png", dpi=100)
    return Path(out) / FILE


def _curve(axes: Any, lines: Lines, key: str, color: str, label: str = "") -> None:
    found = [(line["step"], line[key]) for line in lines if key in line]
    axes.plot(*zip(*found, strict=True) if found else ((), ()), color=color, marker="." if len(found) < 30 else "")
    axes.set_xlabel("step")
    axes.set_ylabel(label or key, color=color)


def _validation(axes: Any, lines: Lines) -> None:
    scored = [line for line in lines if MEAN in line]
    if not scored:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no validation", ha="center", va="center", color="grey")
        return
    steps = [line["step"] for line in scored]
    for key in scored[0]:
        if key.startswith("val/"):
            style: dict[str, Any] = {"color": "black", "linewidth": 2} if key == MEAN else {"linewidth": 1}
            axes.plot(steps, [line[key] for line in scored], label=key.removeprefix("val/"), marker=".", **style)
    best = max(scored, key=lambda line: line[MEAN])  # the first of equals, as training keeps it
    axes.plot(best["step"], best[MEAN], "o", color="C3", label=f"best {best[MEAN]:.4f}, step {best['step']}")
    axes.set_xlabel("step")
    axes.set_ylabel("NDCG@10, lorentz")
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 3, "columnspacing": 1.0, "handlelength": 1.2}
    axes.legend(**place, fontsize="small", frameon=False)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser("python -m training.summary", description=__doc__)
    parser.add_argument("run", help="folder of a training run")
    with report_errors():
        sys.stdout.write(f"{draw(parser.parse_args().run)}\n")


if __name__ == "__main__":
    main()
