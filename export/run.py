"""Export a checkpoint: `python -m export.run checkpoint=… out=DIR` (settings: conf/export.yaml)."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import numpy.typing as npt
import torch
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from export.onnx import BakedEncoder, flat, run_onnx, write_onnx
from hyte import tokenizer as tokenizers
from hyte.encoder import TOKENIZER_FILE, WEIGHTS_FILE, Encoder
from hyte.errors import InputError, report_errors
from hyte.files import strict_json, write_text
from hyte.nn.encoder import HyteEncoder
from hyte.nn.projection import Projection
from hyte.weights import check_kind, write_matrix, write_weights
from training.arguments import arguments
from training.checkpoint import Checkpoint, load_checkpoint
from training.tokens import TokenTable, load_tokens

CONF = Path(__file__).resolve().parents[1] / "conf"
ONNX_FILE, CONFIG_FILE = "model.onnx", "config.json"
# The keys of conf/export.yaml, in the order of `export`'s arguments.
KEYS = {
    "checkpoint": str, "out": str, "tokens.name": str, "tokens.path": str, "format": str, "rows": str, "onnx": bool,
}  # fmt: skip
OPTIONAL = ("tokens.name", "tokens.path")
FORMATS = ("hyte", "published")
PUBLISHED_FILES = ("word_embeds.bin", "proj_weight.bin", "proj_out.bin")
PARITY = 1e-4

# What the three backends must agree on before an export counts.
PARITY_TEXTS = [
    "what is hyperbolic geometry?",
    "",
    "☃☃ \u200b",
    "[CLS] dog [SEP] [PAD] [UNK]",
    "a long text of five thousand words " * 715,
    "price 🙂 list, naïve café CAFE\u0301 Ωmega",
    "混合检索 系统 日本語のテキスト 한국어",
    "x" * 300,
    "the the the",
]


def export(
    checkpoint: str,
    out: str,
    tokens: str | None = None,
    tokens_path: str | None = None,
    artifact_format: str = "hyte",
    rows: str = "float32",
    onnx: bool = True,
) -> dict[str, Any]:
    """Write an artifact folder: model.onnx, weights.bin, tokenizer.json, config.json, none before all are checked.

    Args:
        checkpoint: what `training.checkpoint.load_checkpoint` reads.
        out: the folder.
        tokens: name of the token table, if it is not to be the recorded one.
        tokens_path: folder of the token table's model; by default the recorded one.
        artifact_format: "published" adds the authors' word_embeds.bin, proj_weight.bin and proj_out.bin.
        rows: "float32", or "int8" with a scale a row, a quarter of the size; of weights.bin and model.onnx.
        onnx: False leaves model.onnx out.

    Returns the contents of config.json. Raises InputError where table and checkpoint do not belong together, and
    RuntimeError where torch, onnxruntime and the runtime do not agree within 1e-4 |b| a point.
    """
    if artifact_format not in FORMATS:
        raise InputError(f"format={artifact_format} is unknown: use one of {', '.join(FORMATS)}")
    check_kind(rows)
    if not isinstance(onnx, bool):
        raise InputError(f"onnx={onnx}: expected true or false")
    trained = load_checkpoint(checkpoint)
    table = _table(trained, tokens, tokens_path)
    projection = Projection(trained.state["w1"], trained.state["w2"])
    pooling, power = trained.config["pooling"]["name"], float(trained.config["pooling"]["power"])
    model = HyteEncoder(table.table, projection, trained.config["k"], pooling, power).eval()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as scratch:
        config = _write(Path(scratch), model, table, trained, rows, onnx)
        if artifact_format == "published":
            _write_published(Path(scratch), table, projection)
        for name in (ONNX_FILE, *PUBLISHED_FILES):  # those of an earlier export would not belong to this one
            if not Path(scratch, name).exists():
                (folder / name).unlink(missing_ok=True)
        for file in sorted(Path(scratch).iterdir(), key=lambda file: file.name == WEIGHTS_FILE):
            os.replace(file, folder / file.name)
    return config


def _table(trained: Checkpoint, name: str | None, path: str | None) -> TokenTable:
    recorded = trained.config["tokens"]
    table = load_tokens(name or recorded["name"], path or recorded.get("path"))
    width, wanted = table.table.shape[1], trained.state["w1"].shape[1]
    if width != wanted:
        raise InputError(
            f"{trained.path}: trained on {wanted} dimensions, the rows of {table.source} have {width}; name the model "
            "that it was trained on with tokens=NAME tokens.path=FOLDER"
        )
    digest, expected = tokenizers.fingerprint(table.tokenizer), recorded.get("tokenizer_sha256")
    if expected not in (None, digest):
        raise InputError(
            f"{table.source}: its tokenizer (sha256 {digest[:12]}) is not the checkpoint's ({expected[:12]}): "
            "name the model it was trained on with tokens=NAME tokens.path=FOLDER"
        )
    return _weighted(table, trained)


def _weighted(table: TokenTable, trained: Checkpoint) -> TokenTable:
    """The table with its rows multiplied by the weights that they had in training, if they had any."""
    weights = trained.state.get("token_weights")
    if weights is None:
        return table
    if len(weights) != len(table.table):
        raise InputError(
            f"{trained.path}: {len(weights)} token weights, the table of {table.source} has {len(table.table)} rows; "
            "name the model it was trained on with tokens=NAME tokens.path=FOLDER"
        )
    return replace(table, table=table.table * weights.numpy()[:, None])


def _write(
    folder: Path, model: HyteEncoder, table: TokenTable, trained: Checkpoint, kind: str, onnx: bool
) -> dict[str, Any]:
    rows = model.baked()
    digest = tokenizers.fingerprint(table.tokenizer)
    table.tokenizer.save(str(folder / TOKENIZER_FILE), pretty=False)
    write_weights(folder / WEIGHTS_FILE, rows, model.k, model.pooling, model.power, digest, kind)
    baked = BakedEncoder(rows, model.pooling, model.power, model.k, kind)
    if onnx:
        write_onnx(folder / ONNX_FILE, baked)
    config = {
        "format": 1,
        "k": model.k,
        "pooling": model.pooling,
        "power": model.power,
        "rows": len(rows),
        "dim": rows.shape[1],
        "kind": kind,
        "never_pooled_ids": sorted(tokenizers.special_ids(table.tokenizer)),
        "tokenizer_sha256": digest,
        "parity": check_parity(folder, model if kind == "float32" else baked),
        "quantisation": None if kind == "float32" else quantisation(folder, model),
        "training": trained.config,
    }
    write_text(folder / CONFIG_FILE, strict_json(config, indent=1) + "\n")
    return config


def check_parity(folder: Path, model: nn.Module) -> dict[str, float]:
    """Largest |a - b| / |b| a point of torch and of onnxruntime against the runtime, over `PARITY_TEXTS`.

    Args:
        folder: the artifact; without model.onnx only torch is compared.
        model: from ids and offsets to points, with the rows that the artifact holds.

    Raises RuntimeError where one is above 1e-4.
    """
    encoder, file = Encoder.load(folder), folder / ONNX_FILE
    bags = tokenizers.token_ids(encoder.tokenizer, PARITY_TEXTS)
    runtime = encoder.encode(PARITY_TEXTS)
    found = {"torch": _difference(_torch_points(model, bags), runtime)}
    if file.exists():
        found["onnxruntime"] = _difference(run_onnx(file, bags), runtime)
        found["onnxruntime_one_by_one"] = max(
            _difference(run_onnx(file, [bag]), runtime[i : i + 1]) for i, bag in enumerate(bags)
        )
    worst = max(found.values())
    if not worst <= PARITY:
        raise RuntimeError(f"{folder}: backends differ by {worst:.1e} |b| (at most {PARITY:.0e}): {found}")
    return found


def quantisation(folder: Path, model: HyteEncoder) -> float:
    """Largest |a - b| / |b| of the artifact's points a against those of the trained model b, over `PARITY_TEXTS`."""
    encoder = Encoder.load(folder)
    trained = _torch_points(model, tokenizers.token_ids(encoder.tokenizer, PARITY_TEXTS))
    return _difference(encoder.encode(PARITY_TEXTS), trained)


def _torch_points(model: nn.Module, bags: list[tokenizers.Ids]) -> npt.NDArray[np.floating[Any]]:
    with torch.no_grad():  # float64, since float32 sums of OEM lose digits far out: its midpoint is a difference
        points = copy.deepcopy(model).double()(*map(torch.from_numpy, flat(bags)))[0]
    return np.asarray(points.numpy())


def _difference(a: npt.NDArray[np.floating[Any]], b: npt.NDArray[np.floating[Any]]) -> float:
    apart = np.linalg.norm(a.astype(np.float64) - b, axis=1) / np.linalg.norm(b.astype(np.float64), axis=1)
    return float(apart.max())


def _write_published(folder: Path, table: TokenTable, projection: Projection) -> None:
    w1, w2 = (weight.detach().numpy() for weight in (projection.w1, projection.w2))
    for name, matrix in zip(PUBLISHED_FILES, (table.table, w1, w2), strict=True):
        write_matrix(folder / name, matrix)


def _summary(config: dict[str, Any]) -> str:
    worst, lost = max(config["parity"].values()), config["quantisation"]
    told = "" if lost is None else f", points within {lost:.1e} of the float32 ones"
    return f"{config['rows']} {config['kind']} rows, parity {worst:.1e} (at most {PARITY:.0e}){told}"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="export")
def main(config: DictConfig) -> None:
    """Hydra's entry point: exports and prints what was written."""
    with report_errors(OmegaConfBaseException, RuntimeError):
        given = arguments(config, KEYS, OPTIONAL)
        written = export(*given.values())
        sys.stdout.write(f"{config.out}: {_summary(written)}\n")


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its own errors instead of printing them at length
    with report_errors(HydraException):
        main()
