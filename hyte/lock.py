"""One writer at a time: a lock of the operating system on a file, which ends with the process that holds it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hyte.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

LOCK_FILE = ".lock"
WAIT = 10.0  # seconds for another writer to finish
TRY_EVERY = 0.05

_held = threading.local()  # the folders that this thread holds, so that it may enter again


@contextmanager
def writing(folder: str | Path, wait: float = WAIT) -> Iterator[None]:
    """Be the only writer of an index; who is it already may enter again. The folder is made if missing.

    The lock is on an empty file, which a killed process leaves behind, but not locked. Raises InputError where another
    is still writing after `wait` seconds.
    """
    target = os.path.realpath(folder)
    mine: set[str] = _held.__dict__.setdefault("folders", set())
    if target in mine:
        yield
        return
    os.makedirs(target, exist_ok=True)
    path = os.path.join(target, LOCK_FILE)
    handle = _acquire(path, time.monotonic() + wait)
    if handle is None:
        raise InputError(
            f"{folder}: another process is writing to this index, still after {wait:g} s; try again when it is done"
        )
    mine.add(target)
    try:
        yield
    finally:
        mine.discard(target)
        with suppress(OSError):
            os.unlink(path)
        os.close(handle)  # and with it goes the lock


def _acquire(path: str, until: float) -> int | None:
    """A handle of the locked file, None where another held it until then."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if _taken(handle) and _is_there(path, handle):
            return handle
        os.close(handle)
        if time.monotonic() >= until:
            return None
        time.sleep(TRY_EVERY)


def _is_there(path: str, handle: int) -> bool:
    """Whether the file is still the one of that name: who held it before may have removed it."""
    with suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(handle))
    return False


def _taken(handle: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    return True
