"""Make BEIR folders from pairs, to choose settings on: `python -m training.heldout FILE... --out DIR`.

Train without a source (data.weights={NAME: 0}), and its pairs ask what the collections of `validation` ask: how good is
the model for texts that it never saw? A folder holds the distinct positives of one file as its corpus, and a seeded
sample of its queries. With `--halves` the second half of every positive is a document, and first halves are queries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write, check_folder
from training.lines import find_files, read_lines
from training.sources import short_name

WRITTEN = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
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
        for folder, answers in _collections(given.files, given.halves, Path(given.out), given.documents, given.seed):
            docs, asked = write_collection(folder, answers, given.queries, given.seed)
            sys.stdout.write(f"{folder}: {docs} documents, {asked} queries\n")


def _collections(
    files: Sequence[str], halves: Sequence[str], out: Path, documents: int, seed: int
) -> list[tuple[Path, dict[str, set[str]]]]:
    """Folder and contents of each collection, all made before one is written.

    Raises InputError where two have one folder, one is empty, or a folder holds something else.
    """
    check_folder("--out", out)
    makers = [(pairs_of, file, "") for file in (find_files(files, "FILE") if files else ())]
    makers += [(halves_of, file, "_halves") for file in (find_files(halves, "--halves") if halves else ())]
    places: dict[Path, str] = {}
    for _, file, ending in makers:
        folder = out / (short_name(file) + ending)
        if folder in places:
            raise InputError(f"{places[folder]} and {file} would both become {folder}; rename one of them")
        _check_replaceable(folder)
        places[folder] = file
    made = [(folder, make(file, documents, seed)) for folder, (make, file, _) in zip(places, makers, strict=True)]
    for folder, answers in made:
        if not answers:
            long = f" of {2 * HALF_WORDS} words or more" if folder.name.endswith("_halves") else ""
            raise InputError(f"{places[folder]}: no positive{long}, so {folder} would be empty; nothing is written")
    return made


def _check_replaceable(folder: Path) -> None:
    """Raises InputError where a folder holds what `write_collection` does not write."""
    if not folder.exists():
        return
    check_folder("--out", folder)
    for path in folder.rglob("*"):
        if not path.is_dir() and str(path.relative_to(folder)) not in WRITTEN:
            raise InputError(f"{folder} holds {path.name}, and would be replaced; name another --out")


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
    """Write corpus.jsonl, queries.jsonl and qrels/test.tsv, the folder whole or not at all, in place of an earlier one.

    Returns how many documents and queries they hold.
    """
    texts = dict.fromkeys(text for found in answers.values() for text in sorted(found))
    names = {text: f"d{number}" for number, text in enumerate(texts)}
    asked = {f"q{number}": query for number, query in enumerate(_sample(answers, queries, seed))}
    judged = (f"{name}\t{names[text]}\t1" for name, query in asked.items() for text in sorted(answers[query]))
    corpus = (json.dumps({"_id": names[text], "title": "", "text": text}) for text in texts)
    lines = (json.dumps({"_id": name, "text": query}) for name, query in asked.items())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        new = Path(scratch, "new")
        for name, each in zip(WRITTEN, (corpus, lines, ["query-id\tcorpus-id\tscore", *judged]), strict=True):
            _write(new / name, each)
        if folder.exists():  # a folder with something in it cannot be replaced
            os.replace(folder, Path(scratch, "old"))
        os.replace(new, folder)
    return len(texts), len(asked)


def _sample(values: Iterable[str], count: int, seed: int) -> list[str]:
    every = list(values)
    return [every[number] for number in np.random.default_rng(seed).permutation(len(every))[:count]]


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_write(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


if __name__ == "__main__":
    main()
