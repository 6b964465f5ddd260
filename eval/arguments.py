"""From the configuration of conf/eval.yaml, as plain data, to the arguments of `eval.run.run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyte import InputError, Settings
from hyte.pooling import WITH_POWER

# The keys of conf/eval.yaml with the type of each. A misspelt key in a file must not pass for a default.
KEYS: dict[str, dict[str, type]] = {
    "retrieval": {
        "mode": str, "analyzer": str, "k1": float, "b": float, "k3": float, "fusion": str, "alpha": float,
        "candidates": int, "fill": bool, "k": int, "drop_same_id": bool, "tokenizer": str, "feedback": float,
        "feedback_docs": int,
    },
    "chunking": {"window": int, "overlap": int, "titled": bool, "tail": str},
    "pooling": {"name": str, "power": float, "query_power": float, "radius": float},
}  # fmt: skip
OPTIONAL = ("retrieval.k3", "pooling.power", "pooling.query_power", "pooling.radius")  # may be null
TOP = ("artifact", "collection", "split", "out")
WORDS = {"retrieval.candidates": "all", "chunking.window": "none"}  # what may stand instead of a count
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def arguments(config: Any) -> dict[str, Any]:
    """Keyword arguments of `eval.run.run`. Raises InputError, naming the key, for one that is unknown or mistyped."""
    _check_keys("", config, {*TOP, *KEYS})
    if config["collection"] is None:
        raise InputError("collection is not set: give collection=PATH (BEIR folder or zip), a BEIR name, or pydocs")
    found = {group: _group(group, config[group]) for group in KEYS}
    retrieval, chunking, pooling = found["retrieval"], found["chunking"], found["pooling"]
    for key in ("power", "query_power"):
        if pooling["name"] not in ("trained", *WITH_POWER) and pooling[key] is not None:
            where = f"pooling.{key}={pooling[key]:g}: pooling={pooling['name']}"
            raise InputError(f"{where} has no P; set pooling.{key}=null")
    own = {key: retrieval.pop(key) for key in ("mode", "k", "drop_same_id", "tokenizer")}
    return {
        **own,
        "collection": str(config["collection"]),
        "artifact": _text_or_none(config["artifact"]),
        "split": str(config["split"]),
        "out": _text_or_none(config["out"]),
        "settings": Settings(**retrieval, **chunking),
        "pooling": None if pooling.pop("name") == "trained" else config["pooling"]["name"],
        **pooling,
    }


def _group(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(f"{group}.", values, set(KEYS[group]))
    return {key: _typed(f"{group}.{key}", values[key], kind) for key, kind in KEYS[group].items()}


def _check_keys(where: str, values: Mapping[str, Any], known: set[str]) -> None:
    for what, keys in (("unknown", values.keys() - known), ("missing", known - values.keys())):
        if keys:
            raise InputError(f"{what} key {where}{min(keys)}; those of conf/eval.yaml are {', '.join(sorted(known))}")


def _typed(key: str, value: Any, kind: type) -> Any:
    word = WORDS.get(key)
    if word and value in (word, None):
        return "all" if word == "all" else None
    if key in OPTIONAL and value is None:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise InputError(f"{key}={value!r}: expected {NAMES[kind]}" + (f" or {word}" if word else ""))
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)
