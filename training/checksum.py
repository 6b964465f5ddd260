"""A checksum over what a safetensors file holds: the format itself has none, and a flipped bit is a number too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

KEY = "sha256"


def checksum(tensors: Mapping[str, npt.NDArray[Any]], *texts: str) -> str:
    """sha256, as hex digits, over names, types, shapes and bytes of the tensors, by name, and over the texts."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {value.shape}\n".encode())
        found.update(np.ascontiguousarray(value).data)
    for text in texts:
        found.update(f"{len(text)} {text}\n".encode())
    return found.hexdigest()
