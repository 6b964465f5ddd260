"""Writing files: whole or not at all, JSON that every parser takes."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from hyte.errors import InputError

STALE = 3600.0  # seconds after which a temporary file that nobody writes to is a killed process's


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a binary file that takes the place of `path` when the block ends, and vanishes if it fails.

    The bytes are on disk before the old file goes. Missing parent folders are made. Temporary files of the same target
    that a killed process left, an hour ago or earlier, are removed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            sync(file)
        os.chmod(temporary, 0o666 & ~_umask())
        replace(temporary, target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk does not say which
            error.filename = str(target)
        raise


def _remove_stale(target: Path) -> None:
    left = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]+\.tmp")  # as mkstemp names them
    with suppress(OSError):  # another process may be as quick, or the folder another user's
        for each in os.scandir(target.parent):
            if left.fullmatch(each.name) and each.stat().st_mtime < time.time() - STALE:
                os.unlink(each.path)


def check_folder(setting: str, path: str | Path) -> None:
    """Raises InputError, which names the setting, where no folder can be at `path`: it, or one above it, is a file."""
    there = next((each for each in (Path(path), *Path(path).parents) if each.exists()), None)
    if there is not None and not there.is_dir():
        raise InputError(f"{setting}={path}: {there} is a file; name a folder")


def sync(file: IO[bytes]) -> None:
    """Have what was written on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: str | Path) -> None:
    """Have the names in a folder on disk, where the system can do that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(source: str | Path, target: str | Path) -> None:
    """Put a file in the place of another, tried again for a second: Windows refuses while a reader holds the other."""
    for wait in (*[0.1] * 10, 0.0):
        try:
            return os.replace(source, target)
        except PermissionError:
            if not wait:
                raise
            time.sleep(wait)
    return None


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode())


def strict_json(value: Any, indent: int | None = None) -> str:
    """ASCII JSON that every parser takes: numpy values as numbers and lists, NaN as null, infinity as "inf"."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


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
