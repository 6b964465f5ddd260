"""The settings of a training run as plain values, each checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hyte.errors import InputError
from hyte.pooling import POOLINGS, WITH_POWER
from training.losses import LOSSES
from training.sources import check_columns, check_weights
from training.tokens import LOADERS

WANDB_MODES = ("offline", "online", "disabled")
INF = math.inf
# Numbers: type, smallest and largest value.
RANGES: dict[str, tuple[type, float, float]] = {
    "power": (float, -1e6, INF),
    "k": (float, 1e-6, 1e6),
    "steps": (int, 0, 10**9),
    "batch_size": (int, 2, 10**6),
    "lr": (float, 0.0, 1e30),
    "warmup": (float, 0.0, 1.0),
    "clip": (float, 1e-12, INF),
    "weight_decay": (float, 0.0, INF),
    "logit_scale": (float, 1e-6, 100.0),
    "max_tokens": (int, 1, 10**9),
    "query_tokens": (int, 1, 10**9),
    "negatives": (int, 0, 10**9),
    "hidden": (int, 2, 10**6),
    "init_scale": (float, 1e-6, 1e6),
    "seed": (int, 0, 2**63 - 1),
    "log_every": (int, 1, 10**9),
    "save_every": (int, 1, 10**9),
}
CHOICES = {
    "tokens": tuple(LOADERS),
    "pooling": (*POOLINGS, "trained"),
    "loss": LOSSES,
    "wandb_mode": WANDB_MODES,
}
# Where a setting stands in `conf/train.yaml`, if not under its own name.
PLACES = {
    "pairs": "data.pairs",
    "cache": "data.cache",
    "weights": "data.weights",
    "columns": "data.columns",
    "query_tokens": "data.query_tokens",
    "negatives": "data.negatives",
    "tokens_path": "tokens.path",
    "power": "pooling.power",
    "hidden": "model.hidden",
    "init_scale": "model.init_scale",
    "wandb_mode": "wandb.mode",
    "wandb_project": "wandb.project",
}
DATA = ("cache", "weights", "columns", "query_tokens", "negatives")  # and pairs: the group `data`
OPTIONAL = (
    "power", "max_tokens", "tokens_path", "cache", "checkpoint", "weights", "columns", "query_tokens", "negatives",
)  # fmt: skip
MAPPINGS: dict[str, Callable[[dict[str, Any]], None]] = {"weights": check_weights, "columns": check_columns}


@dataclass(frozen=True)
class Settings:
    """Everything that `training.train.train` needs; `conf/train.yaml` explains each with its unit and range.

    Raises InputError that names the setting where a value is of the wrong type or out of range.
    """

    pairs: tuple[str, ...]
    out: str
    tokens: str = "minilm"
    tokens_path: str | None = None
    cache: str | None = None
    weights: dict[str, float] | None = None
    columns: dict[str, str | list[str]] | None = None
    query_tokens: int | None = None
    negatives: int | None = None
    max_tokens: int | None = 200
    pooling: str = "oem_radial"
    power: float | None = None
    k: float = 1.0
    hidden: int = 256
    init_scale: float = 2.0
    checkpoint: str | None = None
    loss: str = "inner"
    logit_scale: float = 15.0
    steps: int = 1600
    batch_size: int = 1024
    lr: float = 3e-3
    warmup: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.01
    seed: int = 1
    device: str = "auto"
    log_every: int = 50
    save_every: int = 400
    wandb_mode: str = "offline"
    wandb_project: str = "hyte"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))
        if self.power is not None and self.pooling not in ("trained", *WITH_POWER):
            raise InputError(f"pooling.power={self.power}: pooling={self.pooling} has no P; leave it null")

    def plain(self) -> dict[str, Any]:
        """As nested plain data, in the layout of `conf/train.yaml`."""
        flat = asdict(self)
        nested: dict[str, Any] = {
            "tokens": {"name": flat.pop("tokens"), "path": flat.pop("tokens_path")},
            "data": {"pairs": list(flat.pop("pairs")), **{name: flat.pop(name) for name in DATA}},
            "model": {"hidden": flat.pop("hidden"), "init_scale": flat.pop("init_scale")},
            "pooling": {"name": flat.pop("pooling"), "power": flat.pop("power")},
            "wandb": {"mode": flat.pop("wandb_mode"), "project": flat.pop("wandb_project")},
        }
        return nested | flat


def from_config(config: dict[str, Any]) -> Settings:
    """Settings from the plain data of `conf/train.yaml`. Raises InputError that names a key which is not there."""
    rest = dict(config)
    tokens, data, model, pooling, wandb = (rest.pop(key) for key in ("tokens", "data", "model", "pooling", "wandb"))
    unknown = rest.keys() - {field.name for field in fields(Settings)}
    if unknown:
        raise InputError(f"unknown key {min(unknown)}: conf/train.yaml holds those that there are")
    pairs = data["pairs"]
    return Settings(
        pairs=tuple(pairs or ()) if isinstance(pairs, list | None) else (pairs,),
        **{name: data.get(name) for name in DATA},
        tokens=tokens["name"],
        tokens_path=tokens["path"],
        hidden=model["hidden"],
        init_scale=model["init_scale"],
        pooling=pooling["name"],
        power=pooling["power"],
        wandb_mode=wandb["mode"],
        wandb_project=wandb["project"],
        **rest,
    )


def _check(name: str, value: Any) -> None:
    if value is None and name in OPTIONAL:
        return
    if name in MAPPINGS:
        _check_mapping(name, value)
    elif name in RANGES:
        _check_number(name, value, *RANGES[name])
    elif name in CHOICES and value not in CHOICES[name]:
        raise InputError(f"{_key(name)}={value!r} is unknown: use one of {', '.join(CHOICES[name])}")
    elif name == "pairs" and not all(isinstance(each, str | Path) for each in value):
        raise InputError(f"data.pairs must be a list of file names, not {value!r}")
    elif name not in ("pairs", *CHOICES) and not isinstance(value, str | Path):
        raise InputError(f"{_key(name)} must be text, not {type(value).__name__} {value!r}")


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{_key(name)} must be a mapping, as in {_key(name)}={{a:...,b:...}}, not {value!r}")
    MAPPINGS[name](value)


def _check_number(name: str, value: Any, kind: type, low: float, high: float) -> None:
    numeric = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not numeric:
        expected = "a whole number" if kind is int else "a number"
        raise InputError(f"{_key(name)} must be {expected}, not {type(value).__name__} {value!r} (no quotes in YAML)")
    if not low <= value <= high:
        raise InputError(f"{_key(name)}={value} is out of range: it must be from {low:g} to {high:g}")


def _key(name: str) -> str:
    """The setting's name in `conf/train.yaml`."""
    return PLACES.get(name, name)
