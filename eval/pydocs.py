"""The built-in collection `pydocs`: docstrings of installed packages as documents, their summaries as queries.

    python -m eval.pydocs --out DIR

Real text that every machine with the training extras has, so nothing needs a download. Packages are read with `ast`,
never imported. DIR gets a collection in BEIR's form (corpus.jsonl, queries.jsonl, qrels/test.tsv), train.jsonl.gz with
the training pairs, and manifest.json with the package versions, the counts and the files' sha256. The same packages
give the same bytes.

What becomes a document: every module, class, function and method with a docstring, except private ones (a name that
starts with an underscore; the modules that they sit in may be private, for there much of numpy is) and everything
under a folder or module called test, tests or conftest. A first paragraph that is a signature, such as
`einsum(equation, *operands) -> Tensor`, is dropped. The next paragraph, on one line, is the summary; what follows is
the text. Objects with a summary of fewer than 4 or more than 60 words, or one that is code, a heading or a parameter's
description, or with a text of fewer than 15 words, are passed over; of those with the same text (white space aside) the
first by name stays.

A document's id and title are its qualified name. A summary that several documents share names none of them, so it is
no query; those documents stay in the corpus. Of the rest, the sha256 of the qualified name decides: about one in ten
is a test query with that one object as relevant, the others are training pairs of the summary and the indexed text.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import importlib.util
import json
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write

log = logging.getLogger(__name__)

# Import name and distribution of what is read where it is installed.
PACKAGES = {
    "numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "torch": "torch", "transformers": "transformers"
}  # fmt: skip
MIN_DOCUMENTS = 5000
SUMMARY_WORDS, MIN_TEXT_WORDS = (4, 60), 15
TEST_SHARE = 10  # one in so many
MAX_POSITIVE = 2000  # characters of a training pair's positive, as in the project's other training files
FORMAT = 1  # raise when the rules change, so that copies in caches are made anew

SIGNATURE = re.compile(r"[\w.]+\s*\(.*\)\s*(->.*)?")
# Code, a section heading or a parameter's description where the summary should be.
NOT_PROSE = re.compile(
    r".*(>>>|```|----)|(args|arguments|parameters|returns?|raises|examples?)\s*:|\w+\s*\(`.*\)\s*:", re.IGNORECASE
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Entry(NamedTuple):
    """One documented object."""

    name: str
    summary: str
    text: str


def ensure(folder: Path) -> Path:
    """The collection's folder, made anew unless its manifest names the versions that are installed now."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError):
        manifest = {}
    if not isinstance(manifest, dict) or manifest.get("made_from") != made_from():
        build(folder)
    return folder


def made_from() -> dict[str, Any]:
    """What decides the content: the rules, Python's version (it cleans docstrings) and those of the packages."""
    packages = {name: metadata.version(distribution) for name, distribution in PACKAGES.items() if _root(name)}
    return {"format": FORMAT, "python": f"{sys.version_info.major}.{sys.version_info.minor}", "packages": packages}


def build(folder: Path) -> dict[str, Any]:
    """Write the collection and return its manifest, which is written last.

    Raises InputError where the packages installed hold too few docstrings.
    """
    entries = select(_read_packages())
    if len(entries) < MIN_DOCUMENTS:
        missing = [distribution for name, distribution in PACKAGES.items() if not _root(name)]
        what = " ".join(missing) or "the packages with their sources"
        raise InputError(f"pydocs: {len(entries)} documents, fewer than {MIN_DOCUMENTS}; install {what}")
    test, train = split(entries)
    qrels = [f"{_query_id(each)}\t{each.name}\t1\n" for each in test]
    contents = {
        "corpus.jsonl": _json_lines({"_id": each.name, "title": each.name, "text": each.text} for each in entries),
        "queries.jsonl": _json_lines({"_id": _query_id(each), "text": each.summary} for each in test),
        "qrels/test.tsv": "".join(["query-id\tcorpus-id\tscore\n", *qrels]),
        "train.jsonl.gz": _json_lines({"query": each.summary, "positive": _positive(each)} for each in train),
    }
    counts = {"documents": len(entries), "test_queries": len(test), "train_pairs": len(train)}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()}
    manifest = {"made_from": made_from(), **counts, "sha256_of_text": hashes}
    (folder / "manifest.json").unlink(missing_ok=True)
    for name, text in {**contents, "manifest.json": json.dumps(manifest, indent=2) + "\n"}.items():
        with atomic_write(folder / name) as file:
            # mtime 0: the same packages give the same bytes
            file.write(gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode())
    return manifest


def select(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that are long enough, one for each name and each text, by name."""
    by_name: dict[str, Entry] = {}
    by_text: dict[str, Entry] = {}
    for each in sorted(entries):
        if _qualifies(each):
            by_name.setdefault(each.name, each)
    for each in by_name.values():
        by_text.setdefault(" ".join(each.text.split()), each)
    return list(by_text.values())


def _qualifies(entry: Entry) -> bool:
    low, high = SUMMARY_WORDS
    long_enough = low <= len(entry.summary.split()) <= high and len(entry.text.split()) >= MIN_TEXT_WORDS
    return long_enough and not NOT_PROSE.match(entry.summary)


def split(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Entries whose summary is a test query, and those whose is a training query; shared summaries are neither."""
    counts = Counter(each.summary.casefold() for each in entries)
    own = [each for each in entries if counts[each.summary.casefold()] == 1]
    test = [each for each in own if is_test(each.name)]
    return test, [each for each in own if not is_test(each.name)]


def is_test(name: str) -> bool:
    """Whether the object's summary is a test query; depends on its qualified name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % TEST_SHARE == 0


def entries_of(source: bytes, module: str) -> list[Entry]:
    """The documented objects of a module's source; none where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [entry for name, node in _documented(tree, module) if (entry := _entry(name, node))]


def _documented(node: ast.AST, name: str) -> Iterator[tuple[str, Documented]]:
    if isinstance(node, Documented):
        yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield from _documented(child, f"{name}.{child.name}")
        elif not isinstance(child, ast.expr):  # under `if` and `try` too
            yield from _documented(child, name)


def _entry(name: str, node: Documented) -> Entry | None:
    paragraphs = re.split(r"\n\s*\n", (ast.get_docstring(node) or "").strip())
    if SIGNATURE.fullmatch(" ".join(paragraphs[0].split())):
        paragraphs = paragraphs[1:]
    if len(paragraphs) < 2:
        return None
    summary, text = " ".join(paragraphs[0].split()), "\n\n".join(paragraphs[1:])
    # Half a surrogate pair, from an escape in a string, cannot be written.
    return Entry(name, *(each.encode("utf-8", "replace").decode() for each in (summary, text)))


def _read_packages() -> list[Entry]:
    files = [file for name in PACKAGES if (root := _root(name)) for file in _modules(root)]
    bar = tqdm(files, "pydocs", unit=" files", disable=None)
    return [entry for path, module in bar for entry in entries_of(path.read_bytes(), module)]


def _root(name: str) -> Path | None:
    """The folder of an installed package, without importing it (find_spec imports only the parents of dotted names)."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _modules(root: Path) -> list[tuple[Path, str]]:
    """The source files of a package with their module names, in a fixed order."""
    modules = []
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        if not {"test", "tests", "conftest"}.intersection(parts):
            modules.append((path, ".".join(parts).removesuffix(".__init__")))
    return sorted(modules, key=lambda each: each[1])


def _query_id(entry: Entry) -> str:
    # Not the document's id: BEIR's rule would take the one relevant document out of the ranking.
    return f"q:{entry.name}"


def _positive(entry: Entry) -> str:
    return f"{entry.name} {entry.text}"[:MAX_POSITIVE]


def _json_lines(rows: Iterable[dict[str, str]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser("python -m eval.pydocs", description="Write the built-in collection pydocs.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; made if it is missing")
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    arguments = parser.parse_args()
    with report_errors():
        manifest = build(arguments.out)
        counts = ", ".join(f"{manifest[key]} {key}" for key in ("documents", "test_queries", "train_pairs"))
        log.info("%s: %s", arguments.out, counts)


if __name__ == "__main__":
    main()
