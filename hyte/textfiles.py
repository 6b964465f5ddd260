"""Text files: which there are below some folders, and what one holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hyte.errors import InputError

SUFFIXES = {".txt", ".md"}


def text_files(paths: list[Path], index: Path, skipped: list[str]) -> Iterator[Path]:
    """The named files, and the .txt and .md files below the named folders, each once, by name.

    The index's own folder is left out; a folder that cannot be read is told in `skipped`.
    """
    seen = {os.path.realpath(index)}
    for path in paths:
        if not os.path.lexists(path):
            raise InputError(f"{path}: no such file or folder")
        for file in _below(path, seen, skipped) if path.is_dir() else [path]:
            if (real := os.path.realpath(file)) not in seen:
                seen.add(real)
                yield file


def _below(folder: Path, leave_out: set[str], skipped: list[str]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=lambda error: skipped.append(f"skipped: {error}")):
        folders[:] = sorted(name for name in folders if os.path.realpath(os.path.join(parent, name)) not in leave_out)
        yield from (Path(parent, name) for name in sorted(names) if Path(name).suffix.lower() in SUFFIXES)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, a byte order mark dropped.

    Raises InputError where it is not a regular file, is binary, or is not UTF-8.
    """
    if not path.is_file():
        raise InputError(f"{path}: not a regular file")
    content = path.read_bytes()
    if b"\0" in content:
        raise InputError(
            f"{path}: binary (a zero byte at offset {content.index(0)}); index a .txt or .md version of it"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = content[error.start]
        raise InputError(f"{path}: not UTF-8 (byte 0x{bad:02x} at offset {error.start}); convert it first") from error
