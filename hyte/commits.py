r"""Three files that change together: how a new generation takes the place of the old one.

`idx.bin` is the only commit point. A commit writes all three files anew beside the old ones, under names that end in
`.new`, and has them on disk; then `idx.bin.new` takes the place of `idx.bin`, and with that the new generation is the
one that counts; then the other two take their places. `idx.bin` holds length and sha256 of the other two, so whoever
reads knows which of `texts.z` and `texts.z.new` is meant, and the next writer finishes, or clears away, what a dead one
left. Readers write nothing, and keep the generation that they opened. `hyte.lock` keeps a second writer out.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hyte.errors import InputError
from hyte.files import replace, sync, sync_folder
from hyte.lock import writing
from hyte.sections import BUILD_AGAIN, Index

INDEX_FILE, TEXTS_FILE, PATHS_FILE = "idx.bin", "texts.z", "paths.txt"
FILES = (INDEX_FILE, TEXTS_FILE, PATHS_FILE)
NEW = ".new"
TRIES = 100  # to read three files of one generation while others commit
READ = 1 << 20

Buffer = bytes | memoryview
Digest = dict[str, Any]  # length and sha256 of a file
Read = TypeVar("Read")


def commit(
    folder: Path,
    beside: Mapping[str, Iterable[Buffer]],
    index: Callable[[int, dict[str, Digest]], Iterable[Buffer]],
    opened: int | None = None,
) -> int:
    """Write a new generation and return its number; until then the old one stays, and so it does if that fails.

    Args:
        folder: made if missing.
        beside: what `texts.z` and `paths.txt` will hold.
        index: what `idx.bin` will hold, of the new number and the digests of the other two.
        opened: the generation that this goes on from; None replaces whatever is there.

    Raises InputError where the folder is at another generation than `opened`, and OSError, naming a file, where it
    cannot be written.
    """
    with writing(folder):
        recover(folder)
        held = generation(folder)
        if opened is not None and held != opened:
            raise InputError(
                f"{folder}: it is at generation {held} now and was opened at {opened}, so another writer changed it "
                "meanwhile: open it again and repeat the change"
            )
        number = (held or 0) + 1
        try:
            digests = {name: _write(folder / (name + NEW), parts) for name, parts in beside.items()}
            _write(folder / (INDEX_FILE + NEW), index(number, digests))
            sync_folder(folder)
            replace(folder / (INDEX_FILE + NEW), folder / INDEX_FILE)
        except BaseException:
            recover(folder)  # an interrupt may have come when the new one was in place already
            raise
        sync_folder(folder)
        with suppress(PermissionError):  # Windows, where a reader holds one: it is found under its other name
            for name in beside:
                replace(folder / (name + NEW), folder / name)
            sync_folder(folder)
        return number


def _write(path: Path, parts: Iterable[Buffer]) -> Digest:
    """Write a file, have it on disk, and return its length and sha256."""
    sha256, length = hashlib.sha256(), 0
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
                sha256.update(part)
                length += len(part)
            sync(file)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say which
        raise
    return {"length": length, "sha256": sha256.hexdigest()}


def recover(folder: Path) -> None:
    """Finish the commit of a writer that died, or clear away what it wrote. The caller is the only writer.

    A second death during this changes nothing: what `idx.bin` wants is found under either name.
    """
    if not any((folder / (name + NEW)).exists() for name in FILES):
        return
    try:
        wanted = Index(folder / INDEX_FILE).head["files"]
    except InputError:  # there never was a commit, or the index is damaged beyond what is done here
        wanted = {}
    for name, expected in wanted.items():
        if not _is(folder / name, expected) and _is(folder / (name + NEW), expected):
            replace(folder / (name + NEW), folder / name)
    sync_folder(folder)
    _clear(folder)


def _clear(folder: Path) -> None:
    for name in FILES:
        (folder / (name + NEW)).unlink(missing_ok=True)


def _is(path: Path, expected: dict[str, Any]) -> bool:
    """Whether a file has the length and the sha256 that `idx.bin` wants."""
    with suppress(OSError):
        if path.stat().st_size == expected["length"]:
            return _sha256(path) == str(expected["sha256"])
    return False


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(READ):
            found.update(part)
    return found.hexdigest()


def generation(folder: Path) -> int | None:
    """The generation in a folder, None where there is none that can be read."""
    try:
        return int(Index(folder / INDEX_FILE).head["generation"])
    except (InputError, ValueError, KeyError, TypeError):
        return None


def read(folder: Path, reader: Callable[[Path], Read]) -> Read:
    """What `reader` makes of one generation; it is asked again where a writer committed another one meanwhile."""
    for _ in range(TRIES):
        before = _identity(folder)
        try:
            return reader(folder)
        except InputError:
            if _identity(folder) == before:
                raise
            time.sleep(0.01)
    raise InputError(f"{folder}: it changed {TRIES} times while it was read; try again")


def _identity(source: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = (source / INDEX_FILE).stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def opened(folder: Path, name: str, expected: dict[str, Any]) -> memoryview:
    """What a file holds that `idx.bin` wants, under whichever name it is."""
    length, sha256 = int(expected["length"]), str(expected["sha256"])
    tried: list[str] = []
    new = folder / (name + NEW)
    for path in (folder / name, new, folder / name):  # twice, for the new one may take its place after the first look
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size != length:
                    tried.append(f"{path}: {size} bytes, {INDEX_FILE} says {length}: truncated, or of another save")
                    continue
                held = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except FileNotFoundError:
            continue
        if hashlib.sha256(held).hexdigest() == sha256:
            return held
        tried.append(f"{path}: damaged, or of another save than {INDEX_FILE}: checksum differs")
    told = tried[0] if tried else f"{folder / name}: missing, {INDEX_FILE} beside it needs it"
    raise InputError(f"{told}; {BUILD_AGAIN}")
