"""Mine hard negatives: `python -m training.mine data.pairs=[FILES] artifact=DIR out=DIR` (settings: conf/mine.yaml).

The positives of all pairs are the corpus. A query's candidates are what BM25 and the artifact find there for it. What
is left in `out` are files of pairs with `negatives`, to be named in `data.pairs` of training.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from hyte.encoder import Encoder
from hyte.errors import InputError, report_errors
from hyte.files import atomic_write, check_folder
from training.arguments import arguments
from training.candidates import Numbers, Points, Words, merged
from training.data import Ints
from training.distillation import load_teacher
from training.lines import find_files, read_lines
from training.sources import short_name
from training.teacher import check_numbers, chosen_rows

CONF = Path(__file__).resolve().parents[1] / "conf"
# The keys of conf/mine.yaml that are used.
KEYS = {
    "data.pairs": list, "artifact": str, "out": str, "teacher": str, "per_source": int, "depth": int, "skip": int,
    "count": int, "margin": float, "seed": int,
}  # fmt: skip
OPTIONAL = ("artifact", "teacher", "per_source")


@dataclass(frozen=True)
class Corpus:
    """The pairs, and their positives as a corpus. Texts that differ in case or white space alone are copies.

    Attributes:
        texts: distinct positives, as they stand first.
        queries: (n,) of the pairs; `answers` (n,) the number of the pair's positive in `texts`.
        file: (n,) number of the pair's file; `line` (n,) its line there.
        excluded: for each query's key, the numbers of the texts that answer it or are a copy of it.
    """

    texts: list[str]
    queries: list[str]
    answers: Ints
    file: Ints
    line: Ints
    excluded: dict[str, set[int]]


def mine(
    patterns: list[str],
    artifact: str | None,
    out: str,
    teacher: str | None = None,
    per_source: int | None = 2000,
    depth: int = 50,
    skip: int = 5,
    count: int = 4,
    margin: float = 0.95,
    seed: int = 7,
) -> dict[str, Any]:
    """Write for at most `per_source` pairs of each file `count` negatives each: OUT/NAME.jsonl.gz of every NAME.

    Args:
        patterns: files of pairs, or glob patterns of files.
        artifact: folder of an exported artifact; None is the shipped one.
        out: folder; none of the files may be overwritten.
        teacher: cache of `training.teacher`; only candidates that it knows are kept, and of these none whose cosine
            with the query is above `margin` times that of the positive. None keeps all.
        per_source: None is all.
        depth: texts that each of the two rankings contributes.
        skip: the first candidates that are left out, since unlabelled positives are found first.
        count: negatives a pair.
        margin: see `teacher`, above 0.
        seed: of the sample; with the one of the teacher's cache the pairs are among those it knows.

    Returns plain data: `out`, `files`, `corpus` (texts), `pairs` (written), `without` (pairs left out because they have
    no negative), `negatives`, and of the stages `seconds` and `per_second`. Raises InputError for bad input.
    """
    check_numbers({"depth": depth, "count": count, "per_source": 1 if per_source is None else per_source}, 1)
    check_numbers({"skip": skip, "seed": seed}, 0)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin < np.inf:
        raise InputError(f"margin={margin!r} must be a number above 0")
    files = find_files(patterns)
    targets, encoder, watch = _targets(files, out), Encoder.load(artifact), Watch()
    corpus = read_corpus(files)
    rows = np.sort(chosen_rows(corpus.file, len(files), per_source, seed))
    queries = [corpus.queries[row] for row in rows]
    allowed = _everything if teacher is None else _scored_by(teacher, files, corpus, margin)
    watch.stop("read", len(corpus.queries))
    rankings = _rankings(corpus.texts, queries, encoder, depth, watch)
    negatives = [
        [each for each in merged(*both) if each not in _known(corpus, row) and allowed(row, each)][skip:][:count]
        for row, both in zip(rows.tolist(), rankings, strict=True)
    ]
    written = sum(map(bool, negatives))
    if not written:
        raise InputError(
            f"out={out}: none of {len(rows)} pairs has a negative, so nothing is written; raise depth or margin, lower "
            "skip, or give more pairs"
        )
    for number, target in enumerate(targets):
        own = [pair for pair in zip(rows.tolist(), negatives, strict=True) if corpus.file[pair[0]] == number]
        _write(target, corpus, own)
    return {
        "out": out, "files": [str(target) for target in targets], "corpus": len(corpus.texts), "pairs": written,
        "without": len(rows) - written, "negatives": sum(map(len, negatives)),
        "seconds": watch.seconds, "per_second": watch.per_second,
    }  # fmt: skip


class Watch:
    """Seconds of the stages of a run, and how many things a second each worked off."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.per_second: dict[str, float] = {}
        self._since = time.perf_counter()

    def stop(self, stage: str, things: int) -> None:
        """End a stage; the next one begins."""
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._since, 2)
        self.per_second[stage] = round(things / (now - self._since), 1)
        self._since = now


def _rankings(
    texts: list[str], queries: list[str], encoder: Encoder, depth: int, watch: Watch
) -> list[tuple[Numbers, Numbers]]:
    """What BM25 finds for each query, and what the encoder does."""

    def found(name: str, index: Words | Points) -> list[Numbers]:
        watch.stop(f"{name}_index", len(texts))
        bar = tqdm(index.best(queries, depth), total=len(queries), desc=name, unit=" queries", disable=None)
        best = list(bar)
        watch.stop(f"{name}_queries", len(queries))
        return best

    lexical = found("bm25", Words(texts))  # one index after the other: they are large
    return list(zip(lexical, found("lorentz", Points(encoder, texts)), strict=True))


def read_corpus(files: list[str]) -> Corpus:
    """Read all pairs. Raises InputError as `read_lines` does."""
    numbers: dict[str, int] = {}
    texts: list[str] = []
    queries: list[str] = []
    places: list[tuple[int, int, int]] = []
    excluded: defaultdict[str, set[int]] = defaultdict(set)
    for entry in tqdm(read_lines(files), desc="reading", unit=" pairs", disable=None):
        number = numbers.setdefault(key(entry["positive"]), len(numbers))
        if number == len(texts):
            texts.append(entry["positive"])
        queries.append(entry["query"])
        excluded[key(entry["query"])].add(number)
        places.append((number, entry["file"], entry["line"]))
    for query in excluded.keys() & numbers.keys():
        excluded[query].add(numbers[query])
    answers, file, line = np.array(places, dtype=np.int64).T
    return Corpus(texts, queries, answers, file, line, dict(excluded))


def key(text: str) -> str:
    """What copies of a text share."""
    return " ".join(text.casefold().split())


def _known(corpus: Corpus, row: int) -> set[int]:
    return corpus.excluded[key(corpus.queries[row])]


def _everything(row: int, candidate: int) -> bool:  # noqa: ARG001 - of the same kind as the teacher's
    return True


def _scored_by(cache: str, files: list[str], corpus: Corpus, margin: float) -> Callable[[int, int], bool]:
    """Whether a text is no more than `margin` times as good an answer to a pair's query as its positive is."""
    teacher = load_teacher(cache, "teacher")
    rows = teacher.rows(files, corpus.file, corpus.line)
    known = np.flatnonzero(rows >= 0)
    if len(known) == 0:
        raise InputError(
            f"teacher={cache}: made from other files than {', '.join(files[:3])}: it knows none of the pairs"
        )
    of_text = dict(zip(corpus.answers[known].tolist(), rows[known].tolist(), strict=True))

    def allowed(row: int, candidate: int) -> bool:
        if rows[row] < 0 or candidate not in of_text:
            return False
        query = teacher.queries[rows[row]].astype(np.float32)
        positive, other = teacher.positives[[rows[row], of_text[candidate]]].astype(np.float32)
        return bool(query @ other <= margin * (query @ positive))

    return allowed


def _targets(files: list[str], out: str) -> list[Path]:
    """The file to write for each input. Raises InputError where two are one, or one is an input."""
    folder = Path(out)
    check_folder("out", folder)
    found: dict[Path, str] = {}
    for name in files:
        target = folder / f"{short_name(name)}.jsonl.gz"
        if target in found:
            raise InputError(f"{found[target]} and {name} would both become {target}; rename one of them")
        if any(target.resolve() == Path(each).resolve() for each in files):
            raise InputError(f"out={out}: {target} is one of data.pairs and would be overwritten; name another folder")
        found[target] = name
    return list(found)


def _write(target: Path, corpus: Corpus, pairs: list[tuple[int, Numbers]]) -> None:
    text = "".join(json.dumps(each) + "\n" for each in _lines(corpus, pairs))
    with atomic_write(target) as file:
        file.write(gzip.compress(text.encode(), mtime=0))


def _lines(corpus: Corpus, pairs: list[tuple[int, Numbers]]) -> Iterator[dict[str, Any]]:
    for row, negatives in pairs:
        if negatives:
            positive = corpus.texts[corpus.answers[row]]
            found = [corpus.texts[number] for number in negatives]
            yield {"query": corpus.queries[row], "positive": positive, "negatives": found}


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="mine")
def main(config: DictConfig) -> None:
    """Hydra's entry point: mines, prints the result as JSON."""
    with report_errors(OmegaConfBaseException):
        given = arguments(config, KEYS, OPTIONAL)
        sys.stdout.write(json.dumps(mine(given.pop("data.pairs"), **given), indent=2) + "\n")


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with report_errors(HydraException):
        main()
