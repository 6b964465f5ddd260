"""NDCG@10, MAP@100 and Recall@100 as trec_eval computes them, in the order that the ranking has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytrec_eval

from hyte.errors import InputError

log = logging.getLogger(__name__)

# Our names, those that pytrec_eval is asked with, and those that it answers with.
METRICS = {
    "ndcg@10": ("ndcg_cut.10", "ndcg_cut_10"),
    "map@100": ("map_cut.100", "map_cut_100"),
    "recall@100": ("recall.100", "recall_100"),
}


@dataclass(frozen=True)
class Evaluation:
    """Scores in [0, 1].

    Attributes:
        mean: each metric's mean over the queries with at least one positive judgement.
        per_query: the metrics of each of those, by query id, in the order of the judgements.
        left_out: how many queries have no positive judgement; no metric is defined for them.
        unanswered: how many of the queries that count had an empty ranking or none; they score 0.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    left_out: int
    unanswered: int


def evaluate(qrels: Mapping[str, Mapping[str, float]], rankings: Mapping[str, Sequence[str]]) -> Evaluation:
    """Score rankings (document ids, best first) against graded judgements, with linear gain.

    Judged documents that no ranking holds, found in the corpus or not, stay in the denominators. The order given is the
    order scored: trec_eval would sort equal scores by document id. Rankings of queries without judgements are ignored.
    The mean does not depend on the order of the queries in `rankings`.

    Raises InputError where no query has a positive judgement, a grade is not a whole number, or a ranking repeats a
    document.
    """
    judged = {query: {each: _whole(grade) for each, grade in grades.items()} for query, grades in qrels.items()}
    # pytrec_eval goes wrong on empty judgement sets, for the queries after them too, so it never sees one.
    judged = {query: grades for query, grades in judged.items() if any(grade > 0 for grade in grades.values())}
    left_out = len(qrels) - len(judged)
    if not judged:
        raise InputError(f"none of the {len(qrels)} judged queries has a positive judgement; is it the right split?")
    if left_out:
        log.warning("%d of %d judged queries have no positive judgement and are left out", left_out, len(qrels))
    run = {query: _falling(query, rankings.get(query, ())) for query in judged}
    answered = {query: scores for query, scores in run.items() if scores}
    found = pytrec_eval.RelevanceEvaluator(judged, {asked for asked, _ in METRICS.values()}).evaluate(answered)
    per_query = {query: _named(found.get(query, {})) for query in judged}
    mean = {name: sum(scores[name] for scores in per_query.values()) / len(per_query) for name in METRICS}
    return Evaluation(mean, per_query, left_out, len(run) - len(answered))


def _named(found: Mapping[str, float]) -> dict[str, float]:
    return {name: float(found.get(key, 0.0)) for name, (_, key) in METRICS.items()}


def _falling(query: str, ranking: Sequence[str]) -> dict[str, float]:
    """Scores that fall strictly with rank."""
    if isinstance(ranking, str):
        raise TypeError(f"query {query!r}: expected a list of document ids, not one string")
    scores = {document: float(len(ranking) - rank) for rank, document in enumerate(ranking)}
    if len(scores) < len(ranking):
        raise InputError(f"query {query!r}: {len(ranking)} documents ranked, only {len(scores)} distinct")
    return scores


def _whole(grade: float) -> int:
    if not float(grade).is_integer():
        raise InputError(f"grade {grade!r} is not a whole number")
    return int(grade)
