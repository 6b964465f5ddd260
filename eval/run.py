"""Score one configuration on one collection.

    python -m eval.run artifact=DIR collection=PATH [split=test] [out=DIR] [retrieval.mode=bm25] ...

Every key stands in conf/eval.yaml with its unit and range. Exported weights are scored through the code that a device
runs, `hyte.HybridIndex`; nothing is scored here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tokenizers import Tokenizer
from tqdm import tqdm

from eval.arguments import arguments
from eval.collections import Collection, load
from eval.metrics import Evaluation, evaluate
from eval.trec import write_run
from hyte import Encoder, HybridIndex, InputError, Settings
from hyte.encoder import TOKENIZER_FILE
from hyte.errors import report_errors
from hyte.files import strict_json, write_text
from hyte.pooling import WITH_POWER
from hyte.ranking import MODES
from hyte.tokenizer import load_tokenizer, minilm_folder

log = logging.getLogger(__name__)

CONF = Path(__file__).resolve().parents[1] / "conf"
OmegaConf.register_new_resolver("conf", lambda: str(CONF), replace=True)  # for hydra.searchpath


class Answers(NamedTuple):
    """Rankings (document ids, best first) and wall milliseconds, by query id, in the order of the judgements."""

    rankings: dict[str, list[str]]
    milliseconds: dict[str, float]


def run(
    collection: str | Path,
    settings: Settings,
    mode: str = "hybrid",
    artifact: str | Path | None = None,
    pooling: str | None = None,
    power: float | None = None,
    query_power: float | None = None,
    radius: float | None = None,
    split: str = "test",
    out: str | Path | None = None,
    k: int = 100,
    drop_same_id: bool = True,
    tokenizer: str | Path = "minilm",
) -> dict[str, Any]:
    """Index a collection, answer its queries, score the rankings, and leave the result in a folder.

    Args:
        collection: folder, zip or name, as `eval.collections.load` takes it.
        settings: analyzer, chunking and fusion.
        mode: "hybrid", "bm25" or "lorentz".
        artifact: exported folder; None is the shipped weights. Mode "bm25" takes no more than its tokenizer.
        pooling: None is the trained one.
        power: P; None is the trained one.
        query_power: P of queries; None is that of the documents.
        radius: where all points are moved, a length; None leaves them where pooling puts them.
        split: which judgements.
        out: folder for metrics.json, run.trec and per_query.jsonl; None is one under outputs/eval.
        k: documents per query, at least the 100 that the metrics look at.
        drop_same_id: BEIR's rule, a document with the query's id is taken out before anything is ranked.
        tokenizer: tokenizer.json, or "minilm", for analyzer "wordpiece" in mode "bm25" without an artifact.

    Returns what metrics.json holds. Times are wall times. What plays no part is None: `alpha`, `fusion`, `candidates`,
    `fill` unless the mode is "hybrid"; `analyzer`, `k1`, `b`, `k3` in mode "lorentz"; `pooling`, `P`, `query_P`,
    `radius`, `artifact`, `fingerprint` in mode "bm25"; `P` for a pooling that has none, `query_P` where it is `P`;
    `feedback` and `feedback_docs` without feedback.

    Raises InputError for everything that is wrong with the input.
    """
    _check(mode, k, settings)
    encoder = None if mode == "bm25" else Encoder.load(artifact, pooling, power, radius, query_power)
    words = _tokenizer(artifact, tokenizer) if encoder is None and settings.analyzer == "wordpiece" else None
    index = HybridIndex(encoder, settings, words)
    data = load(collection, split)
    folder = Path(out) if out else Path("outputs", "eval", f"{data.name}-{split}-{mode}-{_digest(index)}")
    folder.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    seconds = _fill(index, data)
    answers = _answer(index, data, mode, k, drop_same_id)
    scores = evaluate(data.qrels, answers.rankings)
    metrics = (
        _of_data(data, index, scores)
        | _of_method(index, mode, k)
        | {"drop_same_id": drop_same_id, "relevant_dropped": _relevant_dropped(data) if drop_same_id else 0}
        | scores.mean
        | _of_time(seconds, answers)
        | {"version": metadata.version("hyte")}
    )
    _write(folder, metrics, scores, answers)
    log.info("%s", "  ".join(f"{name} {value:.4f}" for name, value in scores.mean.items()) + f"  ({folder})")
    return metrics


def _check(mode: str, k: int, settings: Settings) -> None:
    if mode not in MODES:
        raise InputError(f"retrieval.mode={mode!r} is unknown: use one of {', '.join(MODES)}")
    if k < 100:
        raise InputError(f"retrieval.k={k}: recall@100 and map@100 need at least 100 documents a query")
    if mode == "hybrid" and settings.candidates != "all" and settings.candidates < k:
        log.warning(
            "fusion orders BM25's best %d chunks; what follows them, up to %d documents, is in BM25's order, and so is "
            "much of recall@100 (retrieval.candidates=%d or all fuses more)", settings.candidates, k, k
        )  # fmt: skip


def _tokenizer(artifact: str | Path | None, source: str | Path) -> Tokenizer:
    """The artifact's tokenizer; else a tokenizer.json, or that of the installed MiniLM package (not imported)."""
    if artifact is not None:
        return load_tokenizer(Path(artifact) / TOKENIZER_FILE)
    if source != "minilm":
        return load_tokenizer(source)
    return load_tokenizer(minilm_folder() / TOKENIZER_FILE)


def _digest(index: HybridIndex) -> str:
    """Eight hex digits that tell settings and artifacts apart."""
    settings = strict_json([asdict(index.settings), index.made_by])
    return hashlib.sha256(settings.encode()).hexdigest()[:8]


def _fill(index: HybridIndex, data: Collection) -> float:
    """Index the corpus; returns the seconds it took."""
    start = time.perf_counter()
    for document, (title, text) in data.corpus.items():
        index.add(document, text, title)
    with tqdm(total=len(data.corpus), desc="index", unit=" documents", disable=None) as bar:
        index.flush(bar.update)
    return time.perf_counter() - start


def _answer(index: HybridIndex, data: Collection, mode: str, k: int, drop_same_id: bool) -> Answers:
    """Answer the queries that count: those with a text and a positive judgement."""
    answers = Answers({}, {})
    asked = [each for each in data.queries if any(grade > 0 for grade in data.qrels[each].values())]
    for query in tqdm(asked, desc="search", unit=" queries", disable=None):
        start = time.perf_counter()
        hits = index.search(data.queries[query], k=k, mode=mode, exclude=query if drop_same_id else None)
        answers.milliseconds[query] = 1000 * (time.perf_counter() - start)
        answers.rankings[query] = [hit.path for hit in hits]
    return answers


def _relevant_dropped(data: Collection) -> int:
    """For how many queries BEIR's rule takes out a document that is judged relevant; logged."""
    count = sum(query in data.corpus and data.qrels[query].get(query, 0) > 0 for query in data.queries)
    if count:
        log.warning(
            "%s: %d queries have the id of a document that is judged relevant to them, and which BEIR's rule drops; if "
            "the two kinds of id have nothing to do with each other, set retrieval.drop_same_id=false", data.name, count
        )  # fmt: skip
    return count


def _of_data(data: Collection, index: HybridIndex, scores: Evaluation) -> dict[str, Any]:
    return {
        "collection": data.name,
        "split": data.split,
        "sha256": data.sha256,
        "fields": "title + text",
        "docs": len(index),
        "empty_docs": index.n_empty,
        "chunks": index.n_chunks,
        "queries": len(scores.per_query),
        "queries_left_out": scores.left_out,
        "queries_unanswered": scores.unanswered,
        "queries_without_known_tokens": _without_known_tokens(index, data),  # those BM25 answers, in every mode
        "dangling_judgements": 0,
        **data.notes,
    }


def _without_known_tokens(index: HybridIndex, data: Collection) -> int | None:
    """How many queries the encoder knows nothing of; None without an encoder."""
    if index.encoder is None:
        return None
    return int((~index.encoder.encode_with_flags(list(data.queries.values()))[1]).sum())


def _of_method(index: HybridIndex, mode: str, k: int) -> dict[str, Any]:
    encoder, used = index.encoder, asdict(index.settings)
    fusing, feeding = ("alpha", "fusion", "candidates", "fill"), ("feedback", "feedback_docs")
    unused = {"bm25": (*fusing, *feeding), "lorentz": ("analyzer", "k1", "b", "k3", *fusing)}.get(mode, ())
    return {
        "mode": mode,
        "artifact": str(encoder.path) if encoder else None,
        "fingerprint": encoder.fingerprint if encoder else None,
        "pooling": encoder.pooling if encoder else None,
        "P": encoder.power if encoder and encoder.pooling in WITH_POWER else None,
        "query_P": encoder.query_power if encoder and "query_power" in encoder.options else None,
        "radius": encoder.radius if encoder else None,
        **used,
        **dict.fromkeys(unused),
        **({} if used["feedback"] else dict.fromkeys(feeding)),
        "k": k,
    }


def _of_time(seconds: float, answers: Answers) -> dict[str, float | None]:
    times = list(answers.milliseconds.values())
    return {
        "seconds_to_index": seconds,
        "ms_per_query": statistics.fmean(times) if times else None,
        "ms_per_query_median": statistics.median(times) if times else None,
    }


def _write(folder: Path, metrics: Mapping[str, Any], scores: Evaluation, answers: Answers) -> None:
    write_run(folder / "run.trec", answers.rankings)
    rows = [
        {"query": query, **each, "results": len(answers.rankings.get(query, ())), "ms": answers.milliseconds.get(query)}
        for query, each in scores.per_query.items()
    ]
    write_text(folder / "per_query.jsonl", "".join(f"{strict_json(row)}\n" for row in rows))
    write_text(folder / "metrics.json", strict_json(metrics, indent=2) + "\n")


@hydra.main(config_path=str(CONF), config_name="eval", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Command line."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    with report_errors(OmegaConfBaseException):
        run(**arguments(OmegaConf.to_container(cfg, resolve=True)))


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its own errors instead of printing them at length
    with report_errors(HydraException):
        main()
