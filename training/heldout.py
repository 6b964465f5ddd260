"""Make BEIR folders from pairs, to choose settings on: `python -m training.heldout FILE... --out DIR`.

Train without a source (data.weights={NAME: 0}), and its pairs ask what the collections of `validation` ask: how good is
the model for texts that it never saw? A folder holds the distinct positives of one file as its corpus, and a seeded
sample of its queries. With `--halves` the second half of every positive is a document, and first halves are queries.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write
from training.lines import find_files, read_lines
from training.sources import short_name

HALF_WORDS = 60  # a text of fewer than twice as many words is not cut in halves


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: writes the folders and prints their sizes; exits with code 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m training.heldout", description=__doc__)
    parser.add_argument("files", nargs="*", help="JSON lines of pairs, as of data.pairs")
    parser.add_argument("--halves", nargs="*", default=[], help="files whose positives are cut in halves")
    parser.add_argument("--out", required=True, help="folder of the folders")
    parser.add_argument("--queries", type=int, default=1000, help="queries of each at most, 1 or more (default 1000)")
    parser.add_argument("--documents", type=int, default=20000, help="documents of each at most (default 20000)")
    parser.add_argument("--seed", type=int, default=3, help="of the samples, 0 or more (default 3)")
    given = parser.parse_args(arguments)
    with report_errors():
        if not given.files and not given.halves:
            raise InputError("no file given: name JSON lines of pairs, or some after --halves")
        if min(given.queries, given.documents) < 1 or given.seed < 0:
            raise InputError("--queries and --documents must be 1 or more, --seed 0 or more")
        for make, names, ending in ((pairs_of, given.files, ""), (halves_of, given.halves, "_halves")):
            for file in find_files(names) if names else ():
                queries = make(file, given.documents, given.seed)
                folder = Path(given.out, short_name(file) + ending)
                docs, asked = write_collection(folder, queries, given.queries, given.seed)
                sys.stdout.write(f"{folder}: {docs} documents, {asked} queries\n")


def pairs_of(file: str, documents: int, seed: int) -> dict[str, set[str]]:
    """The positives of each query, for a seeded sample of at most so many positives."""
    answers: dict[str, set[str]] = {}
    for entry in read_lines([file]):
        answers.setdefault(entry["positive"], set()).add(entry["query"])
    found: dict[str, set[str]] = {}
    for positive in _sample(answers, documents, seed):
        for query in sorted(answers[positive]):
            found.setdefault(query, set()).add(positive)
    return found


def halves_of(file: str, documents: int, seed: int) -> dict[str, set[str]]:
    """First halves of positives with their second halves, for a seeded sample of at most so many."""
    texts = dict.fromkeys(entry["positive"].strip() for entry in read_lines([file]))
    halves = [words for words in (text.split() for text in texts) if len(words) >= 2 * HALF_WORDS]
    found: dict[str, set[str]] = {}
    for words in _sample([" ".join(each) for each in halves], documents, seed):
        parts = words.split()
        middle = len(parts) // 2
        found.setdefault(" ".join(parts[:middle]), set()).add(" ".join(parts[middle:]))
    return found


def write_collection(folder: Path, answers: dict[str, set[str]], queries: int, seed: int) -> tuple[int, int]:
    """Write corpus.jsonl, queries.jsonl and qrels/test.tsv; returns how many documents and queries they hold."""
    texts = dict.fromkeys(text for found in answers.values() for text in sorted(found))
    names = {text: f"d{number}" for number, text in enumerate(texts)}
    asked = {f"q{number}": query for number, query in enumerate(_sample(answers, queries, seed))}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    _write(folder / "corpus.jsonl", (json.dumps({"_id": names[text], "title": "", "text": text}) for text in texts))
    _write(folder / "queries.jsonl", (json.dumps({"_id": name, "text": query}) for name, query in asked.items()))
    judged = (f"{name}\t{names[text]}\t1" for name, query in asked.items() for text in sorted(answers[query]))
    _write(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    return len(texts), len(asked)


def _sample(values: Iterable[str], count: int, seed: int) -> list[str]:
    every = list(values)
    return [every[number] for number in np.random.default_rng(seed).permutation(len(every))[:count]]


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_write(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


if __name__ == "__main__":
    main()
