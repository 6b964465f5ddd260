"""What an index costs on one core: `python -m eval.latency COLLECTION [--chunks 1500] [--grown 59216]`.

Indexes the first documents of a collection until there are so many chunks, and prints what opening, searching and each
part of it take, the size of each file, and what adding one document takes in memory and on disk, the latter beside a
plain write and fsync of as many bytes. With `--grown` adding is measured in a second index, too, of so many chunks: the
collection's over and over, each time under other names.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eval.collections import Collection, load
from hyte import Encoder, HybridIndex, InputError, Settings, ranking
from hyte.commits import FILES, INDEX_FILE
from hyte.errors import report_errors
from hyte.geometry import Array
from hyte.sections import Index

REOPEN, BM25, RERANK, WHOLE = "reopen", "BM25, all chunks", "re-rank of 50", "whole query"
# A phone, 1,500 chunks.
PAPER = {REOPEN: "under 10 ms", BM25: "under 1 ms", RERANK: "about 2 ms", WHOLE: "about 3 ms"}
DEPTH = 10
CANDIDATES = 50


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: prints a table, and exits with code 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m eval.latency", description=__doc__)
    parser.add_argument("collection", help="BEIR folder or zip, a BEIR name, or pydocs")
    parser.add_argument("--artifact", help="artifact folder (default: the shipped weights)")
    parser.add_argument("--chunks", type=int, default=1500, help="size of the index, 1 or more (default 1500)")
    parser.add_argument("--grown", type=int, help="size of the second index (the paper's FiQA: 59216)")
    parser.add_argument("--repeats", type=int, default=200, help="measurements of each, 1 or more (default 200)")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    with report_errors():
        if min(given.chunks, given.repeats, given.grown or 1) < 1:
            raise InputError("--chunks, --grown and --repeats must be 1 or more")
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        data, encoder = load(given.collection), Encoder.load(given.artifact)
        with tempfile.TemporaryDirectory() as folder:
            index = filled(data, encoder, given.chunks)
            index.save(folder)
            sys.stdout.write(f"{index.n_chunks} chunks of {data.name}, one core, median and 95th percentile\n\n")
            sys.stdout.write(table(measured(folder, encoder, list(data.queries.values()), given.repeats)))
            sys.stdout.write(sizes(Path(folder)))
            for size in [given.chunks, *([given.grown] if given.grown else [])]:
                sys.stdout.write(added(filled(data, encoder, size), folder, data, given.repeats))


def filled(data: Collection, encoder: Encoder, chunks: int) -> HybridIndex:
    """An index of at least so many chunks, of the collection's documents over and over."""
    index = HybridIndex(encoder, Settings(candidates=CANDIDATES))
    documents = list(data.corpus.values())
    for number, (title, text) in enumerate(cycle(documents)):
        index.add(f"{number}", text, title)
        if number % 256 == 255 and index.n_chunks >= chunks:
            break
    for path in index.paths[::-1]:
        if index.n_chunks <= chunks:
            break
        index.remove(path)
    return index


def measured(folder: str, encoder: Encoder, queries: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each step, `repeats` times, for queries in turn."""
    index = HybridIndex.load(folder, encoder)
    allowed = np.arange(index.n_chunks)
    found: dict[str, list[float]] = {step: [] for step in PAPER}
    for query in islice(cycle(queries), 20):  # warm
        index.search(query, DEPTH)
    for query in islice(cycle(queries), repeats):
        scores, point = index._bm25.scores(index.tokens(query)), encoder.encode([query], query=True)[0]
        steps: dict[str, Callable[[], object]] = {
            REOPEN: partial(HybridIndex.load, folder, encoder),
            BM25: partial(_bm25, index, query),
            RERANK: partial(_rerank, index, allowed, scores, point),
            WHOLE: partial(index.search, query, DEPTH),
        }
        for step, call in steps.items():
            found[step].append(timed(call))
    return found


def _bm25(index: HybridIndex, query: str) -> object:
    return index._bm25.scores(index.tokens(query))


def _rerank(index: HybridIndex, allowed: ranking.Numbers, scores: Array, point: npt.NDArray[np.float32]) -> object:
    return ranking.by_both(allowed, scores, ranking.inner_with(point, index._chunks), index.settings)


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def table(found: dict[str, list[float]]) -> str:
    """The measurements beside the paper's, as Markdown."""
    lines = ["| step | ms | 95 % | paper, a phone |", "|---|---|---|---|"]
    for name, took in found.items():
        lines.append(f"| {name} | {statistics.median(took):.2f} | {np.percentile(took, 95):.2f} | {PAPER[name]} |")
    return "\n".join(lines) + "\n\n"


def sizes(folder: Path) -> str:
    """The bytes of each file, and of the matrix in one of them."""
    held = {name: (folder / name).stat().st_size for name in FILES}
    told = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in held.items())
    matrix = Index(folder / INDEX_FILE).points.shape
    return f"{told}; the matrix in idx.bin: {4 * math.prod(matrix) / 1e6:.2f} MB; the paper's idx.bin: 2.3 MB\n\n"


def added(index: HybridIndex, folder: str, data: Collection, repeats: int) -> str:
    """What adding one document takes: in memory, searchable at once; and its durable commit."""
    texts = [text for _, text in data.corpus.values()]
    in_memory, commits, plain = [], [], []
    chunks = index.n_chunks

    def add(number: int) -> None:
        index.add(f"new {number}", texts[number % len(texts)] + f" {number}")
        index.flush()

    for number in range(repeats):
        in_memory.append(timed(partial(add, number)))
    target = Path(folder, "grown")
    index.save(target)
    index = HybridIndex.load(target, index.encoder)  # as hyte add finds it
    for number in range(3):
        add(repeats + number)
        commits.append(timed(partial(index.save, target)))
        content = [(target / name).read_bytes() for name in FILES]
        plain.append(timed(partial(write, target.parent / "plain", content)))
    size = sum(map(len, content)) / 1e6
    return (
        f"adding one document to {chunks} chunks: {statistics.median(in_memory):.2f} ms in memory (95 %: "
        f"{np.percentile(in_memory, 95):.2f}, longest {max(in_memory):.2f}); a commit of {size:.1f} MB "
        f"{statistics.median(commits):.0f} ms, a plain write and fsync of as many {statistics.median(plain):.0f} ms\n"
    )


def write(path: Path, contents: Sequence[bytes]) -> None:
    """Write bytes and have them on disk."""
    with path.open("wb") as file:
        file.writelines(contents)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
