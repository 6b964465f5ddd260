"""Training pairs as text: JSON lines files, plain or gzipped, every line checked.

A line is `{"query": str, "positive": str, "negatives": [str, ...]}`; `negatives` (mined hard negatives) may be absent,
other keys are ignored. Empty lines are skipped.
"""

from __future__ import annotations

import glob
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hyte.errors import InputError
from hyte.tokenizer import utf8

HUB = "hub:"  # how `training.sources` writes a set of the Hugging Face hub
GZIP_MAGIC = b"\x1f\x8b"
COLUMNS = ("query", "positive")


def find_files(patterns: str | Path | Sequence[str | Path], setting: str = "data.pairs") -> list[str]:
    """Paths of the files that names and glob patterns stand for, each once.

    Raises InputError, which names `setting`, where one finds none.
    """
    found: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        if str(pattern).startswith(HUB):
            raise InputError(f"{setting}: {pattern}: only local files are supported here, no set of the hub")
        # A name that exists is taken as it stands, even with * or [ in it.
        names = [str(pattern)] if Path(pattern).exists() else sorted(glob.glob(str(pattern), recursive=True))
        names = [name for name in names if Path(name).is_file()]
        if not names:
            raise InputError(f"{setting}: no file {pattern} (looked from {Path.cwd()})")
        found.update(dict.fromkeys(names))
    if not found:
        raise InputError(f"{setting} is empty: give {setting}=[FILE.jsonl.gz,...] with lines of query and positive")
    return list(found)


def read_lines(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The lines of the files as dicts of query, positive, negatives (a list), file (its number) and line (from 1).

    Raises InputError, with file and line, for a damaged file, bad JSON, or a text that is missing, no string, or empty;
    and where there is no line at all.
    """
    line = 0
    for number, name in enumerate(files):
        for line, raw in _numbered(name):
            yield {**parse_line(raw, f"{name}:{line}"), "file": number, "line": line}
    if line == 0:
        raise InputError(f"{', '.join(files[:3])}: no pairs in {len(files)} file(s), every line is empty")


def read_texts(files: Sequence[str], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """As `read_lines`, of lines with other columns, each a text: dicts of these, file and line."""
    for number, name in enumerate(files):
        for line, raw in _numbered(name):
            where = f"{name}:{line}"
            entry = _object(raw, where, columns)
            yield {**{column: _text(entry[column], column, where) for column in columns}, "file": number, "line": line}


def _numbered(name: str) -> Iterator[tuple[int, bytes]]:
    with open(name, "rb") as file:
        zipped = file.read(2) == GZIP_MAGIC
    line = 0
    try:
        with gzip.open(name, "rb") if zipped else open(name, "rb") as file:
            for line, raw in enumerate(file, 1):
                if raw.strip():
                    yield line, raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{name}: damaged gzip file after line {line} ({error}); copy it again") from error


def parse_line(raw: bytes, where: str) -> dict[str, Any]:
    """One line as a dict of query, positive and negatives; `where` names it in the InputError for a bad one."""
    return check_entry(_object(raw, where, COLUMNS), where)


def _object(raw: bytes, where: str, columns: Sequence[str]) -> dict[str, Any]:
    """A JSON object that has these columns."""
    try:
        entry = json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:  # bytes that are not UTF-8 end here too
        raise InputError(f"{where}: not JSON in UTF-8 ({error}); every line must be one JSON object") from error
    except ValueError as error:
        digits = sys.get_int_max_str_digits()
        raise InputError(f"{where}: a number of more than {digits} digits; shorten it or remove the line") from error
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected an object with {' and '.join(columns)}, not {type(entry).__name__}")
    _check_columns(entry, where, columns)
    return entry


def _check_columns(entry: dict[str, Any], where: str, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in entry:
            raise InputError(f"{where}: no column {column!r}; the line has {', '.join(map(repr, entry)) or 'none'}")


def check_entry(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """A dict of query, positive and negatives, all of them texts; `where` names it in the InputError for a bad one."""
    _check_columns(entry, where, COLUMNS)
    negatives = entry.get("negatives") or []
    if not isinstance(negatives, list):
        raise InputError(f"{where}: negatives must be a list of texts, not {type(negatives).__name__}")
    return {
        "query": _text(entry["query"], "query", where),
        "positive": _text(entry["positive"], "positive", where),
        "negatives": [_text(each, f"negatives[{i}]", where) for i, each in enumerate(negatives)],
    }


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: {column} must be text, not {type(value).__name__}")
    if not value.strip():
        raise InputError(f"{where}: {column} is empty; remove the line or fill it in")
    return utf8(value)
