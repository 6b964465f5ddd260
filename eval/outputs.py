"""Result files: strict JSON, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hyte.files import atomic_write


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode())


def strict_json(value: Any, indent: int | None = None) -> str:
    """JSON that every parser takes: numpy values as numbers and lists, NaN as null, infinity as "inf" or "-inf"."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else str(value)
    return value
