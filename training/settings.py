"""The settings of a training run as plain values, each checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hyte.errors import InputError
from hyte.nn.projection import STARTS
from hyte.pooling import POOLINGS, WITH_POWER
from training.losses import LOSSES
from training.sources import check_columns, check_weights
from training.tokens import LOADERS, WEIGHTINGS

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
    "logit_scale": (float, 1e-3, 100.0),
    "max_tokens": (int, 1, 10**9),
    "query_tokens": (int, 1, 10**9),
    "negatives": (int, 0, 10**9),
    "hidden": (int, 2, 10**6),
    "init_scale": (float, 1e-6, 1e6),
    "distillation_weight": (float, 0.0, 1.0),
    "distillation_temperature": (float, 1e-6, 1e6),
    "hierarchy_weight": (float, 0.0, 1e6),
    "hierarchy_margin": (float, 0.0, 1e6),
    "hierarchy_batch_size": (int, 1, 10**6),
    "seed": (int, 0, 2**63 - 1),
    "average": (float, 0.0, 0.999999),
    "log_every": (int, 1, 10**9),
    "save_every": (int, 1, 10**9),
    "validation_every": (int, 1, 10**9),
    "validation_patience": (int, 1, 10**9),
    "validation_queries": (int, 1, 10**9),
}
CHOICES = {
    "tokens": tuple(LOADERS),
    "weighting": WEIGHTINGS,
    "pooling": (*POOLINGS, "trained"),
    "start": STARTS,
    "loss": LOSSES,
    "wandb_mode": WANDB_MODES,
    "resume": (True, False),
    "distillation_only": (True, False),
    "validation_drop_same_id": (True, False),
}
LISTS = ("pairs", "validation_collections", "hierarchy_pairs")
# Where a setting stands in `conf/train.yaml`, if not under its own name.
PLACES = {
    "pairs": "data.pairs",
    "cache": "data.cache",
    "weights": "data.weights",
    "columns": "data.columns",
    "query_tokens": "data.query_tokens",
    "negatives": "data.negatives",
    "tokens": "tokens.name",
    "tokens_path": "tokens.path",
    "weighting": "tokens.weighting",
    "pooling": "pooling.name",
    "power": "pooling.power",
    "hidden": "model.hidden",
    "init_scale": "model.init_scale",
    "start": "model.start",
    "distillation_cache": "distillation.cache",
    "distillation_weight": "distillation.weight",
    "distillation_temperature": "distillation.temperature",
    "distillation_only": "distillation.only",
    "hierarchy_pairs": "hierarchy.pairs",
    "hierarchy_weight": "hierarchy.weight",
    "hierarchy_margin": "hierarchy.margin",
    "hierarchy_batch_size": "hierarchy.batch_size",
    "validation_collections": "validation.collections",
    "validation_split": "validation.split",
    "validation_every": "validation.every",
    "validation_drop_same_id": "validation.drop_same_id",
    "validation_patience": "validation.patience",
    "validation_queries": "validation.queries",
    "wandb_mode": "wandb.mode",
    "wandb_project": "wandb.project",
}
OPTIONAL = (
    "power", "max_tokens", "tokens_path", "cache", "checkpoint", "weights", "columns", "query_tokens", "negatives",
    "validation_patience", "validation_queries", "distillation_cache",
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
    weighting: str = "none"
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
    start: str = "directions"
    checkpoint: str | None = None
    loss: str = "inner"
    logit_scale: float = 15.0
    steps: int = 1600
    batch_size: int = 1024
    lr: float = 3e-3
    warmup: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.01
    average: float = 0.0
    distillation_cache: str | None = None
    distillation_weight: float = 0.5
    distillation_temperature: float = 0.05
    distillation_only: bool = False
    hierarchy_pairs: tuple[str, ...] = ()
    hierarchy_weight: float = 0.0
    hierarchy_margin: float = 0.1
    hierarchy_batch_size: int = 256
    seed: int = 1
    resume: bool = False
    device: str = "auto"
    log_every: int = 50
    save_every: int = 400
    validation_collections: tuple[str, ...] = ()
    validation_split: str = "test"
    validation_every: int = 200
    validation_patience: int | None = None
    validation_drop_same_id: bool = True
    validation_queries: int | None = None
    wandb_mode: str = "offline"
    wandb_project: str = "hyte"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name))
        if self.power is not None and self.pooling not in ("trained", *WITH_POWER):
            raise InputError(f"pooling.power={self.power}: pooling={self.pooling} has no P; leave it null")
        if self.distillation_only and self.distillation_cache is None:
            raise InputError("distillation.only=true needs a teacher's cache: name one with distillation.cache=FILE")
        if self.hierarchy_weight and not self.hierarchy_pairs:
            raise InputError(f"hierarchy.weight={self.hierarchy_weight}: name pairs with hierarchy.pairs=[FILES]")

    def plain(self) -> dict[str, Any]:
        """As nested plain data, in the layout of `conf/train.yaml`."""
        nested: dict[str, Any] = {}
        for name, value in asdict(self).items():
            group, _, key = PLACES.get(name, name).rpartition(".")
            place = nested.setdefault(group, {}) if group else nested
            place[key] = list(value) if name in LISTS else value
        return nested


def from_config(config: dict[str, Any]) -> Settings:
    """Settings from the plain data of `conf/train.yaml`. Raises InputError that names a key which is not there."""
    names = {PLACES.get(field.name, field.name): field.name for field in fields(Settings)}
    given = flattened(config)
    unknown = given.keys() - names.keys()
    if unknown:
        raise InputError(f"unknown key {min(unknown)}: conf/train.yaml holds those that there are")
    values = {names[key]: value for key, value in given.items()}
    for name in LISTS:
        value = values.get(name)
        values[name] = tuple(value or ()) if isinstance(value, list | None) else (value,)
    return Settings(**values)


def flattened(nested: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Nested plain data with keys such as "data.pairs"; a setting that is itself a mapping stays whole."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        whole = not isinstance(value, dict) or group + key in PLACES.values()
        flat |= {group + key: value} if whole else flattened(value, f"{group}{key}.")
    return flat


def _check(name: str, value: Any) -> None:
    if value is None and name in OPTIONAL:
        return
    if name in MAPPINGS:
        _check_mapping(name, value)
    elif name in RANGES:
        _check_number(name, value, *RANGES[name])
    elif name in CHOICES and value not in CHOICES[name]:
        raise InputError(f"{_key(name)}={value!r} is unknown: use one of {', '.join(map(str, CHOICES[name]))}")
    elif name in LISTS and not all(isinstance(each, str | Path) for each in value):
        raise InputError(f"{_key(name)} must be a list of file names, not {value!r}")
    elif name not in (*LISTS, *CHOICES) and not isinstance(value, str | Path):
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
    return PLACES.get(name, name).removesuffix(".name")
