r"""Paths as an index holds them: those of files from its own folder on, and as lines of bytes that any comes back from.

A backslash is written `\\`, a line feed `\n`, a carriage return `\r`, and a byte that is not UTF-8 `\xNN`; the rest is
UTF-8.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path


def from_folder(file: str | Path, folder: str | Path) -> str:
    """The way from an index's folder to a file, so that both can be moved together; links are resolved."""
    real = os.path.realpath(file)
    try:
        return os.path.relpath(real, os.path.realpath(folder))
    except ValueError:  # Windows, where it is on another drive
        return real


def to_file(path: str, folder: str | Path) -> str:
    """The file, absolute, that `from_folder` named."""
    return os.path.normpath(os.path.join(os.path.realpath(folder), path))


def escape_path(path: str) -> bytes:
    """A path as one line of bytes without its line feed."""
    plain = path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    try:
        return plain.encode()
    except UnicodeEncodeError:
        return b"".join(_escaped_characters(plain))


def _escaped_characters(text: str) -> Iterator[bytes]:
    for part in re.split("([\ud800-\udfff])", text):
        if len(part) == 1 and "\udc80" <= part <= "\udcff":  # how Python holds a byte that is not UTF-8
            yield f"\\x{ord(part) - 0xDC00:02x}".encode()
        else:
            yield part.encode("utf-8", "surrogatepass")


def read_paths(lines: bytes) -> list[str]:
    """The paths of lines that each end in a line feed."""
    if b"\\" not in lines:
        return lines.decode("utf-8", "surrogatepass").split("\n")[:-1]
    return [unescape_path(line) for line in lines.split(b"\n")[:-1]]


def unescape_path(line: bytes) -> str:
    """Inverse of `escape_path`."""
    plain = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
    text = line.decode("utf-8", "surrogatepass")
    return re.sub(r"\\(?:[\\nr]|x[0-9a-f]{2})", lambda m: plain.get(m[0]) or chr(0xDC00 + int(m[0][2:], 16)), text)
