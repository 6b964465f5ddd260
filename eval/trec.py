"""TREC run files: `query Q0 document rank score tag`, one line a hit, fields parted by white space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from hyte.errors import InputError
from hyte.files import atomic_write

# White space as str.split and C's isspace see it, other control characters, and the escape itself.
UNSAFE = re.compile(r"[\s\x00-\x1f\x7f-\x9f%]")


def write_run(path: str | Path, rankings: Mapping[str, Sequence[str]], tag: str = "hyte") -> None:
    """Write rankings (document ids by query id, best first), whole or not at all.

    In ids, white space, control characters and % are written as %XX of their UTF-8 bytes. The score column counts down
    to 1, so that trec_eval, which sorts by it, keeps this order. Raises InputError for an empty id.
    """
    with atomic_write(path) as file:
        for query, ranking in rankings.items():
            for rank, document in enumerate(ranking, 1):
                line = f"{escape(query)} Q0 {escape(document)} {rank} {len(ranking) - rank + 1} {tag}\n"
                file.write(line.encode())


def read_run(path: str | Path) -> dict[str, list[str]]:
    """Read rankings back, ordered by score, then as written. Raises InputError with file and line."""
    scored: dict[str, list[tuple[float, str]]] = {}
    for number, line in enumerate(Path(path).read_text("utf-8").split("\n"), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            query, _, document, _, score, _ = fields
            scored.setdefault(unquote(query), []).append((-float(score), unquote(document)))
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not `query Q0 document rank score tag`") from error
    return {query: [document for _, document in sorted(hits, key=lambda hit: hit[0])] for query, hits in scored.items()}


def escape(identifier: str) -> str:
    """The id without white space; `urllib.parse.unquote` undoes it. Raises InputError where it is empty."""
    if not identifier:
        raise InputError("an empty id cannot stand in a TREC run file; give every query and document an id")
    return UNSAFE.sub(lambda found: quote(found.group(), safe=""), identifier)
