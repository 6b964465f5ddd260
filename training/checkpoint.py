"""Checkpoints: one safetensors file that holds the projection and its whole configuration as plain data.

`checkpoint.safetensors` is what export reads. `last.safetensors` is of the same format and holds besides what a run
needs to go on: the optimiser's state, averaged weights, and its progress (see `training.state`). `previous.safetensors`
is the checkpoint that an earlier run left in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hyte.errors import InputError
from hyte.files import atomic_write, strict_json
from hyte.geometry import check_k
from hyte.pooling import check_pooling
from hyte.weights import read_matrix
from training.checksum import KEY, checksum

FILE = "checkpoint.safetensors"
LAST = "last.safetensors"
PREVIOUS = "previous.safetensors"
FORMAT = "1"
PUBLISHED = ("proj_weight.bin", "proj_out.bin")
# What the authors trained with (paper, section on experiments): their two matrix files do not say it.
PUBLISHED_CONFIG = {"k": 1.0, "pooling": {"name": "oem", "power": 1.0}, "tokens": {"name": "bge_small", "path": None}}


@dataclass(frozen=True)
class Checkpoint:
    """A trained projection.

    Attributes:
        state: `w1` (hidden, d), `w2` (d, hidden) and, unless it is a published pair, the scalar `log_scale`; float32.
            With tokens.weighting also `token_weights` (V,), by which each token's unit row is multiplied.
            Of `last.safetensors` also what `training.state` adds.
        config: plain data: `k`, `pooling` (`name`, `power`), `tokens` (`name`, `path`, and what
            `TokenTable.describe` gives, with `tokenizer_sha256`), and the settings of the run.
        path: where it was read from.
        progress: of `last.safetensors` the `training.state.Progress` as plain data, else empty.
    """

    state: dict[str, Tensor]
    config: dict[str, Any]
    path: Path
    progress: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: str | Path, state: Mapping[str, Tensor], config: dict[str, Any], progress: dict[str, Any] | None = None
) -> None:
    """Write a checkpoint whole or not at all. Raises InputError where a value is not finite: the old file stays."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: not written: {name} holds a value that is not finite; lower lr")
    metadata = {"format": FORMAT, "config": strict_json(config), "progress": strict_json(progress or {})}
    metadata[KEY] = _checksum(tensors, metadata)
    with atomic_write(path) as file:
        file.write(save(tensors, metadata))


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    arrays = {name: value.numpy() for name, value in tensors.items()}
    return checksum(arrays, metadata.get("config", ""), metadata.get("progress", ""))


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint: its file, its run folder, or else the published pair proj_weight.bin, proj_out.bin.

    Raises InputError, with the file, where it is missing, damaged, of another format, or W1 and W2 do not fit.
    """
    source = Path(path)
    if not (source / FILE).is_file() and all((source / name).is_file() for name in PUBLISHED):
        w1, w2 = (torch.from_numpy(read_matrix(source / name)) for name in PUBLISHED)
        return _checked(Checkpoint({"w1": w1, "w2": w2}, dict(PUBLISHED_CONFIG), source))
    file = source / FILE if source.is_dir() else source
    if not file.is_file():
        raise InputError(f"checkpoint={path}: no {FILE} there, and no {' with '.join(PUBLISHED)}; train one first")
    return _checked(_read(file))


def _read(file: Path) -> Checkpoint:
    try:
        with safe_open(file, framework="pt") as tensors:
            metadata = tensors.metadata() or {}
            state = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise InputError(
            f"{file}: damaged: not a whole safetensors file ({error}); copy it again, or train again"
        ) from error
    if metadata.get("format") != FORMAT or not {"w1", "w2"} <= state.keys():
        found = metadata.get("format", "none")
        raise InputError(f"{file}: not a HyTE checkpoint of format {FORMAT} (format: {found}); train again")
    if KEY in metadata and metadata[KEY] != _checksum(state, metadata):  # files of before have none
        raise InputError(f"{file}: damaged: its checksum does not fit; copy it again, or train again")
    try:
        config = json.loads(metadata["config"])
        config["pooling"]["power"] = float(config["pooling"]["power"])
        check_pooling(config["pooling"]["name"], config["pooling"]["power"])
        config["k"], config["tokens"]["name"] = check_k(float(config["k"])), str(config["tokens"]["name"])
        progress = dict(json.loads(metadata.get("progress", "{}")))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: its configuration is not that of a training run ({error!r}); train again") from error
    return Checkpoint(state, config, file, progress)


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    w1, w2 = checkpoint.state["w1"], checkpoint.state["w2"]
    if w1.ndim != 2 or w2.shape != w1.shape[::-1]:
        shapes = f"W1 {tuple(w1.shape)} and W2 {tuple(w2.shape)}"
        raise InputError(f"{checkpoint.path}: {shapes} do not fit each other; train again")
    for name, weight in (("W1", w1), ("W2", w2)):
        if not (weight.is_floating_point() and bool(torch.isfinite(weight).all())):
            raise InputError(f"{checkpoint.path}: {name} is not all finite floating-point numbers; train again")
    _check_token_weights(checkpoint)
    return checkpoint


def _check_token_weights(checkpoint: Checkpoint) -> None:
    tokens, weights = checkpoint.config["tokens"], checkpoint.state.get("token_weights")
    weighting = tokens.get("weighting", "none")
    if (weights is None) != (weighting == "none"):
        found = "none" if weights is None else "some"
        raise InputError(f"{checkpoint.path}: tokens.weighting={weighting} and {found} token_weights; train again")
    if weights is None:
        return
    rows = tokens.get("rows", len(weights) if weights.ndim else 0)
    if weights.ndim != 1 or len(weights) != rows:
        raise InputError(f"{checkpoint.path}: token_weights {tuple(weights.shape)} must be ({rows},); train again")
    if not (weights.is_floating_point() and bool((torch.isfinite(weights) & (weights >= 0)).all())):
        raise InputError(f"{checkpoint.path}: token_weights must be finite and 0 or more; train again")
