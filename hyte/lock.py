"""One writer at a time: a lock of the operating system on a file, which ends with the process that holds it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

    The lock's file is empty and stays. Raises InputError where another is still writing after `wait` seconds.
    """
    target = os.path.realpath(folder)
    mine: set[str] = _held.__dict__.setdefault("folders", set())
    if target in mine:
        yield
        return
    os.makedirs(target, exist_ok=True)
    handle = os.open(os.path.join(target, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _acquire(handle, folder, time.monotonic() + wait, wait)
        mine.add(target)
        yield
    finally:
        mine.discard(target)
        os.close(handle)  # and with it goes the lock


def _acquire(handle: int, folder: str | Path, until: float, wait: float) -> None:
    while not _taken(handle):
        if time.monotonic() >= until:
            raise InputError(
                f"{folder}: another process is writing to this index, still after {wait:g} s; try again when it is done"
            )
        time.sleep(TRY_EVERY)


def _taken(handle: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except (BlockingIOError, PermissionError):
        return False
    return True
