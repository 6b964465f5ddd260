"""Losses on Lorentz similarities: symmetric in-batch InfoNCE, and a teacher's order of the same texts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hyte.nn.lorentz import pairwise_distance, pairwise_inner, unit

LOSSES = ("inner", "distance", "angle")


def similarities(queries: Tensor, documents: Tensor, loss: str, k: float) -> Tensor:
    """Similarities (n, m) of points (n, d+1) and (m, d+1).

    inner: the Lorentz inner product (eq. 4); distance: minus the geodesic distance (eq. 6); angle: the cosine of the
    angle at the origin, which knows no radius (with pooling=mean that is Euclidean training, a control).

    Raises ValueError where `loss` is not one of `LOSSES`.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss {loss!r} is unknown: use one of {', '.join(LOSSES)}")
    if loss == "angle":
        return unit(queries[:, 1:]) @ unit(documents[:, 1:]).T
    return pairwise_inner(queries, documents) if loss == "inner" else -pairwise_distance(queries, documents, k)


def not_negatives(queries: Tensor, documents: Tensor) -> Tensor:
    """Which documents must not count as negatives of which query: (B, B + N) bool, False on the diagonal.

    `queries` (B,) and `documents` (B + N,) are hashes of the texts: B positives in the order of the queries, then N
    mined negatives. Query i is answered by its own positive and by the positives of its copies in the batch; neither
    these nor copies of them are its negatives, nor is it a negative of theirs.
    """
    same_query = queries[:, None] == queries[None, :]
    same_document = documents[: len(queries), None] == documents[None, :]
    answers = same_query.float() @ same_document.float() > 0  # (i, j): some copy of i has a copy of j as its positive
    answers.diagonal().fill_(False)
    return answers


def info_nce(logits: Tensor, excluded: Tensor) -> Tensor:
    """Mean of the cross entropies query -> document and document -> query: a scalar, at least 0.

    Args:
        logits: (B, B + N) scaled similarities; the diagonal holds the matching pairs.
        excluded: (B, B + N) bool, entries that are left out; never the diagonal. Mined negatives (the last N columns)
            only take part in query -> document.
    """
    masked = logits.masked_fill(excluded, -torch.inf)
    count = len(logits)
    target = torch.arange(count, device=logits.device)
    forward = functional.cross_entropy(masked, target)
    return (forward + functional.cross_entropy(masked[:, :count].T, target)) / 2


def listwise_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """How far the student's distributions over the texts of a batch are from the teacher's: a scalar, at least 0.

    Mean over queries of KL(teacher || student) over documents, and over documents of the same over queries; half of
    each. `logits` and `teacher` are (n, n) scaled similarities of n queries and their n documents.
    """
    return (_kl(logits, teacher) + _kl(logits.T, teacher.T)) / 2


def _kl(logits: Tensor, teacher: Tensor) -> Tensor:
    student, target = functional.log_softmax(logits, dim=1), functional.log_softmax(teacher, dim=1)
    return functional.kl_div(student, target, reduction="batchmean", log_target=True)
