"""Reads the three files of a collection in BEIR's form: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.

BEIR's GenericDataLoader does not do it, although every well-formed collection reads the same here (a test compares
them). It keeps ids that are JSON numbers as numbers, so that they match no judgement; it reads the judgements with CSV
quoting on, so that a field that starts with a quote swallows lines; it takes the first line for a header whatever it
holds; `int("1.0")` stops it; duplicates vanish without a word; a judged query without text is a KeyError; and one
object cannot load two splits. All of that sits in its three line readers, which leaves nothing to wrap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from hyte.errors import InputError

Qrels = dict[str, dict[str, int]]

CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"

# Bounds the memory that a damaged file can ask for; the longest documents of BEIR are well under 1 MiB.
MAX_LINE = 64 << 20
# trec_eval allocates a table with one entry for each grade up to the largest.
MAX_GRADE = 1000


class Doc(NamedTuple):
    """A document; what is indexed is title + space + text."""

    title: str
    text: str


@dataclass
class Files:
    """The files of one collection, in a folder or in a zip.

    Attributes:
        place: the folder or zip, for messages.
        names: which files there are, relative to the place, with `/`.
        open: opens one of them for reading bytes.
        digest: takes in every byte read.
        notes: counts of what was odd but readable.
    """

    place: str
    names: frozenset[str]
    open: Callable[[str], IO[bytes]]
    digest: Any = field(default_factory=hashlib.sha256)
    notes: dict[str, int] = field(default_factory=dict)


def read_corpus(files: Files) -> dict[str, Doc]:
    """Documents by id, in the order of the file; of a repeated id the last line counts, as in BEIR.

    Raises InputError, with file and line, for a line that is not an object with a text `text` and a usable `_id`.
    """
    corpus: dict[str, Doc] = {}
    rows = tqdm(_rows(files, CORPUS), desc=CORPUS, unit=" documents", disable=None, leave=False)
    for where, row in rows:
        document = Doc(_text(row, "title", where), _text(row, "text", where))
        _put(files, "duplicate_documents", corpus, _id(row, where), document)
    return corpus


def read_queries(files: Files) -> dict[str, str]:
    """Query texts by id; otherwise as `read_corpus`."""
    queries: dict[str, str] = {}
    for where, row in _rows(files, QUERIES):
        _put(files, "duplicate_queries", queries, _id(row, where), _text(row, "text", where))
    return queries


def read_qrels(files: Files, split: str) -> Qrels:
    """Grades by query id, then document id, from qrels/SPLIT.tsv: three fields a line, no quoting, header optional.

    A grade is a whole number (`1.0` is one). Raises InputError where the split, a field or a whole number is missing.
    """
    qrels: Qrels = {}
    for number, line in _lines(files, _split_file(files, split)):
        where = f"{files.place}: qrels/{split}.tsv, line {number}"
        fields = line.split("\t")
        if len(fields) != 3 or not fields[0] or not fields[1]:
            raise InputError(f"{where}: {len(fields)} fields; expected 3 with tabs between: query-id, corpus-id, score")
        if number == 1 and not _is_number(fields[2]):
            continue
        query, document, grade = fields
        _put(files, "duplicate_judgements", qrels.setdefault(query, {}), document, _grade(grade, where))
    return qrels


def _put(files: Files, kind: str, table: dict[str, Any], key: str, value: Any) -> None:
    if key in table:
        files.notes[kind] = files.notes.get(kind, 0) + 1
    table[key] = value


def _split_file(files: Files, split: str) -> str:
    name = f"qrels/{split}.tsv"
    if name not in files.names:
        splits = sorted(each[len("qrels/") : -len(".tsv")] for each in files.names if each.startswith("qrels/"))
        there = f"choose split={' or '.join(splits)}" if splits else "it has no qrels/*.tsv at all"
        raise InputError(f"{files.place}: no {name}; {there}")
    return name


def _rows(files: Files, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file, each with the words that say where it stands."""
    if name not in files.names:
        raise InputError(f"{files.place}: no {name}; a collection in BEIR's form needs one")
    for number, line in _lines(files, name):
        where = f"{files.place}: {name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{where}: {type(row).__name__} where an object with _id and text should be")
        yield where, row


def _lines(files: Files, name: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1; blank ones are passed over."""
    with files.open(name) as file:
        number = 0
        while raw := file.readline(MAX_LINE + 1):
            number += 1
            where = f"{files.place}: {name}, line {number}"
            if len(raw) > MAX_LINE:
                raise InputError(f"{where}: longer than {MAX_LINE >> 20} MiB; is every object on a line of its own?")
            files.digest.update(raw)
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: not UTF-8 at byte {error.start} of it; convert the file") from error
            if line.strip():
                yield number, line.rstrip("\r\n")


def _id(row: dict[str, Any], where: str) -> str:
    value = row.get("_id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: _id is {_shown(row, '_id')}; expected text that is not empty, or a whole number")
    if value.encode("utf-8", "replace").decode() != value:
        raise InputError(f"{where}: _id {value!r} holds half a surrogate pair and cannot be written to a file")
    return value


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if value is None and key == "title":  # many collections have none
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} is {_shown(row, key)}; expected text")
    return value


def _shown(row: dict[str, Any], key: str) -> str:
    return repr(row[key])[:40] if key in row else "missing"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _grade(text: str, where: str) -> int:
    value = float(text) if _is_number(text) else float("nan")
    if not abs(value) <= MAX_GRADE or value != int(value):
        raise InputError(f"{where}: grade {text!r}; expected a whole number from {-MAX_GRADE} to {MAX_GRADE}")
    return int(value)
