"""What a search gives: documents, each at its best chunk."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hyte.chunks import Chunks
from hyte.documents import Documents
from hyte.ranking import Ranking, best_of_each


class Hit(NamedTuple):
    """A document at its best chunk.

    Attributes:
        path: the document.
        chunk: number of the chunk in it, from 0.
        span: characters (start, end) of the chunk in what was indexed: the text, or title + space + text where there is
            a title that does not stand before every chunk.
        text: the chunk's text.
        score: what the ranking went by, falling down the list: fused, in [0, 1]; the BM25 score in mode "bm25" and for
            a query without known tokens; the inner product in mode "lorentz", None for a chunk without known tokens.
        bm25: BM25 score, at least 0, or None in mode "lorentz".
        lorentz: inner product with the query's point (with feedback the moved one), at most -K, or None where the chunk
            has no such score.
    """

    path: str
    chunk: int
    span: tuple[int, int]
    text: str
    score: float | None
    bm25: float | None
    lorentz: float | None


def folded(ranked: Ranking, k: int, chunks: Chunks, documents: Documents) -> list[Hit]:
    """Ranked chunks as documents, each at its best chunk, until `k` are full."""
    first = best_of_each(chunks.document[ranked.chunks])[:k]
    found = ranked.chunks[first]
    columns = (chunks.document[found], chunks.number[found], chunks.span[found])
    return [
        _hit(ranked, int(i), documents, int(document), int(number), (int(start), int(end)))
        for i, document, number, (start, end) in zip(first, *columns, strict=True)
    ]


def _hit(ranked: Ranking, i: int, documents: Documents, document: int, number: int, span: tuple[int, int]) -> Hit:
    score, bm25, inner = float(ranked.score[i]), float(ranked.bm25[i]), float(ranked.inner[i])
    return Hit(
        path=documents.path(document),
        chunk=number,
        span=span,
        text=documents.texts[document][slice(*span)],
        score=score if np.isfinite(score) else None,
        bm25=None if np.isnan(bm25) else bm25,
        lorentz=inner if np.isfinite(inner) else None,
    )
