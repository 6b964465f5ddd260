"""The search behind RECIPE.md: `python -m training.recipe DATA --out DIR` trains every row of it and prints the table.

Rows differ from the first in the overrides that they name, and in nothing else. Sources that ask something like what a
user asks are left out of training and, as collections, show how a model does on what it never saw.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hyte.errors import InputError, report_errors
from hyte.files import strict_json, write_text
from training import heldout
from training.average import average
from training.logs import METRICS, read_metrics
from training.settings import from_config
from training.train import CONF, train

DEV = ("cacm", "medline1033", "squad11_dev")
LEFT_OUT = ("pubmedqa", "scitldr", "medquad", "qed_nq")
BASE = [
    "steps=300",
    "wandb.mode=disabled",
    "validation.every=300",
    "validation.queries=500",
    "validation.drop_same_id=false",
]
TEACHER = ["distillation.only=true"]
LONG = ["experiment=hyte", "steps=500", "validation.every=500"]
THEN = [
    "experiment=hyte_teacher",
    "steps=250",
    "validation.every=250",
    "distillation.cache={out}/teacher.safetensors",
]
AS_IT_IS = ["steps=1", "lr=0.0", "batch_size=64", "validation.every=1"]  # a step that changes nothing, to be scored

# Row: its overrides. {out} is the folder of the search, where teacher.safetensors and mined/ are looked for.
ROWS: dict[str, list[str]] = {
    "base": [],
    "seed 2": ["seed=2"],
    "start = rotated": ["model.start=rotated"],
    "start = pairs": ["model.start=pairs"],
    "init_scale = 1": ["model.init_scale=1.0"],
    "init_scale = 4": ["model.init_scale=4.0"],
    "loss = distance": ["loss=distance"],
    "loss = angle": ["loss=angle"],
    "logit_scale = 5": ["logit_scale=5.0"],
    "logit_scale = 30": ["logit_scale=30.0"],
    "P = 0": ["pooling.power=0"],
    "P = 3": ["pooling.power=3"],
    "lr = 1e-3": ["lr=1e-3"],
    "lr = 6e-3": ["lr=6e-3"],
    "batch 512, 600 steps": ["batch_size=512", "steps=600", "validation.every=600"],
    "batch 2,048": ["batch_size=2048"],
    "batch 2,048, seed 2": ["batch_size=2048", "seed=2"],
    "batch 2,048, 150 steps": ["batch_size=2048", "steps=150", "validation.every=150"],
    "batch 2,048, 200 steps": ["batch_size=2048", "steps=200", "validation.every=200"],
    "batch 2,048, average = 0.98": ["batch_size=2048", "average=0.98"],
    "batch 2,048, lr = 1.5e-3": ["batch_size=2048", "lr=1.5e-3"],
    "batch 4,096": ["batch_size=4096"],
    "600 steps": ["steps=600", "validation.every=600"],
    "weight_decay = 0.3": ["weight_decay=0.3"],
    "average = 0.99": ["average=0.99"],
    "first 100 tokens": ["max_tokens=100"],
    "arXiv x 0.15, ACL x 0.3": ["data.weights.arxiv=0.15", "data.weights.acl=0.3"],
    "oem": ["pooling=oem"],
    "einstein": ["pooling=einstein"],
    "teacher's pairs, no teacher": [
        "distillation.cache={out}/teacher.safetensors",
        "distillation.weight=0.0",
        *TEACHER,
    ],
    "teacher 0.5": ["distillation.cache={out}/teacher.safetensors", *TEACHER],
    "teacher 0.8": ["distillation.cache={out}/teacher.safetensors", "distillation.weight=0.8", *TEACHER],
    "teacher 0.5, all pairs": ["distillation.cache={out}/teacher.safetensors"],
    "batch 2,048, 500 steps": LONG,
    "batch 2,048, 500 steps, seed 2": [*LONG, "seed=2"],
    "500 steps, then teacher": [*THEN, "checkpoint={out}/rows/batch_2_048__500_steps"],
    "500 steps, then teacher, seed 2": [*THEN, "checkpoint={out}/rows/batch_2_048__500_steps__seed_2", "seed=2"],
    "batch 2,048, then teacher": [*THEN, "checkpoint={out}/rows/batch_2_048"],
    "batch 2,048, then teacher, seed 2": [*THEN, "checkpoint={out}/rows/batch_2_048__seed_2", "seed=2"],
}
# Rows that are the mean of the weights of others.
MEANS: dict[str, list[str]] = {
    "mean of two": ["batch 2,048", "batch 2,048, seed 2"],
    "mean of two, then teacher": ["batch 2,048, then teacher", "batch 2,048, then teacher, seed 2"],
    "mean of these four": [
        "batch 2,048",
        "batch 2,048, seed 2",
        "batch 2,048, then teacher",
        "batch 2,048, then teacher, seed 2",
    ],
    "mean of two, 500 steps": ["batch 2,048, 500 steps", "batch 2,048, 500 steps, seed 2"],
    "mean of two, 500 steps, then teacher": ["500 steps, then teacher", "500 steps, then teacher, seed 2"],
    "mean of these four, 500 steps": [
        "batch 2,048, 500 steps",
        "batch 2,048, 500 steps, seed 2",
        "500 steps, then teacher",
        "500 steps, then teacher, seed 2",
    ],
}
ROWS |= {name: [*AS_IT_IS, "checkpoint={row}/mean"] for name in MEANS}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: trains the rows that have no result yet, then prints all that have one."""
    parser = argparse.ArgumentParser(prog="python -m training.recipe", description=__doc__)
    parser.add_argument("data", help="folder with dev/*.zip and train/*.jsonl.gz")
    parser.add_argument("--out", required=True, help="folder of the search; rows with a result there are not run again")
    parser.add_argument("--only", nargs="*", default=list(ROWS), metavar="ROW", help="names of rows (default: all)")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    with report_errors():
        unknown = [name for name in given.only if name not in ROWS]
        if unknown:
            raise InputError(f"no row {unknown[0]!r}; there are: {', '.join(ROWS)}")
        collections = _collections(Path(given.data), Path(given.out))
        for name in given.only:
            if not _result(given.out, name).exists():
                run_row(name, Path(given.data), Path(given.out), collections)
        sys.stdout.write(table(Path(given.out)))


def _collections(data: Path, out: Path) -> list[str]:
    """The dev collections, and those made from the sources that are left out."""
    made = out / "heldout"
    if not (made / "asreview_halves").exists():
        files = [str(data / "train" / f"{name}.jsonl.gz") for name in LEFT_OUT]
        halves = str(data / "train" / "asreview.jsonl.gz")
        heldout.main([*files, "--halves", halves, "--out", str(made), "--documents", "8000"])
    folders = [str(made / name) for name in (*LEFT_OUT, "asreview_halves")]
    return [*(str(data / "dev" / f"{name}.zip") for name in DEV), *folders]


def run_row(name: str, data: Path, out: Path, collections: Sequence[str]) -> None:
    """Train one row and keep its result."""
    folder = _result(out, name).parent
    own = [override.replace("{out}", str(out)).replace("{row}", str(folder)) for override in ROWS[name]]
    if name in MEANS:
        average([str(_result(out, each).parent) for each in MEANS[name]], str(folder / "mean"))
    pairs = str(data / "train" / "*.jsonl.gz")
    overrides = [*BASE, *(f"data.weights.{each}=0" for each in LEFT_OUT), *own]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        plain: Any = OmegaConf.to_container(compose("train", overrides=_added(overrides)), resolve=True)
    plain["out"], plain["data"]["pairs"], plain["validation"]["collections"] = str(folder), [pairs], list(collections)
    result = train(from_config(plain))
    scores = {key: value for key, value in read_metrics(folder / METRICS)[-1].items() if key.startswith("val/")}
    if not scores:
        scores = next(row for row in reversed(read_metrics(folder / METRICS)) if "val/mean" in row)
    write_text(_result(out, name), strict_json({"row": name, "overrides": ROWS[name], **scores, **result}) + "\n")


def _added(overrides: Sequence[str]) -> list[str]:
    """Hydra wants a + before a key that the configuration does not hold yet."""
    return [f"+{each}" if each.startswith("data.weights.") else each for each in overrides]


def _result(out: str | Path, name: str) -> Path:
    return Path(out, "rows", "".join(each if each.isalnum() else "_" for each in name), "result.json")


def table(out: Path) -> str:
    """The rows that have a result, as Markdown: NDCG@10 of the Lorentz half on each collection, and two means."""
    lines = ["| row | overrides | " + " | ".join((*DEV, *LEFT_OUT, "halves", "dev", "all", "s")) + " |"]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    for name, overrides in ROWS.items():
        if _result(out, name).exists():
            found = json.loads(_result(out, name).read_text())
            values = [found[f"val/{each}"] for each in (*DEV, *LEFT_OUT, "asreview_halves")]
            shown = [*values, float(np.mean(values[: len(DEV)])), float(np.mean(values))]
            cells = [f"{value:.3f}" for value in shown[:-2]] + [f"{value:.4f}" for value in shown[-2:]]
            lines.append(f"| {name} | {_made(name, overrides)} | " + " | ".join(cells) + f" | {found['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def _made(name: str, overrides: Sequence[str]) -> str:
    """How a row's weights come about."""
    if name in MEANS:
        return f"`training.average` of {'; '.join(MEANS[name])}"
    return f"`{' '.join(overrides).replace('{out}', 'DIR') or '-'}`"


if __name__ == "__main__":
    main()
