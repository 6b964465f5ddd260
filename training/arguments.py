"""The configuration of a command of few settings as plain values, each key and type checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hyte.errors import InputError
from training.settings import flattened

NAMES: dict[type, str] = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list of file names",
}  # fmt: skip


def arguments(config: DictConfig, kinds: Mapping[str, type], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The values of the keys of `kinds`, such as "data.pairs", in its order.

    Args:
        config: of the command line.
        kinds: type of each key that the command uses. A list is of texts; one text stands for a list of it.
        optional: keys that may be null.

    Raises InputError, with key, value and what is expected, for one that is missing or of another type; for any other
    key where it is unknown, or, in the group `data`, not null: the command does not use it.
    """
    given = flattened(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    for key, value in given.items():
        if key in kinds:
            continue
        if not key.startswith("data."):
            raise InputError(f"unknown key {key}={value!r}: there are {', '.join(kinds)}")
        if value is not None:
            raise InputError(f"{key}={value!r} is not used by this command: leave it null")
    return {key: _typed(key, given.get(key), kind, key in optional) for key, kind in kinds.items()}


def _typed(key: str, value: Any, kind: type, optional: bool) -> Any:
    if value is None and optional:
        return None
    if kind is list:
        value = [value] if isinstance(value, str) else value
        fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
    else:
        # YAML reads 1 for the number 1.0, and true is a whole number to Python.
        kinds = (int, float) if kind is float else (kind,)
        fits = isinstance(value, kinds) and isinstance(value, bool) == (kind is bool)
    if not fits:
        shown = "null" if value is None else repr(value)
        raise InputError(f"{key}={shown}: expected {NAMES[kind]}{' or null' if optional else ''}")
    return value
