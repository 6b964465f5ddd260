"""Okapi BM25 over an inverted index of integers.

Only counts are stored: postings (chunk, term frequency), chunk lengths, and with them document frequencies. IDF and
length norms are computed at query time, so an index that was added to scores bit for bit as one built afresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hyte.geometry import Array

Ints = npt.NDArray[np.int32]


class BM25:
    """Scores of chunks 0..N-1 for a query.

    Args:
        k1: saturation of the term frequency, at least 0.
        b: strength of length normalisation, in [0, 1].
        k3: saturation of a term's frequency in the query, at least 0; None lets it count as often as it stands there.

    Attributes:
        terms: each distinct term and its number, in order of first appearance.
        lengths: (N,) tokens of each chunk.
        starts: (V+1,) where the postings of each term begin in `chunks` and `frequencies`.
        chunks: (postings,) chunk numbers, rising within a term.
        frequencies: (postings,) how often the term stands in that chunk.
    """

    def __init__(self, k1: float = 1.2, b: float = 0.75, k3: float | None = None) -> None:
        self.k1, self.b, self.k3 = float(k1), float(b), None if k3 is None else float(k3)
        self.terms: dict[str, int] = {}
        self.lengths: Ints = np.zeros(0, np.int32)
        self.starts: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self.chunks: Ints = np.zeros(0, np.int32)
        self.frequencies: Ints = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, chunks: Iterable[Sequence[str]]) -> None:
        """Append chunks, given as their tokens. Cost: the new postings and one merge with the old ones."""
        terms = dict(self.terms)  # a failure half-way leaves the index as it was
        term_of: list[int] = []
        chunk_of: list[int] = []
        frequency_of: list[int] = []
        lengths: list[int] = []
        for number, tokens in enumerate(chunks, len(self)):
            counts = Counter(_checked(tokens))
            term_of += [terms.setdefault(term, len(terms)) for term in counts]
            frequency_of += counts.values()
            chunk_of += [number] * len(counts)
            lengths.append(len(tokens))
        self.terms = terms
        self.lengths = np.concatenate([self.lengths, np.array(lengths, np.int32)])
        self._set_postings(
            np.concatenate([self._term_numbers(), np.array(term_of, np.int32)]),
            np.concatenate([self.chunks, np.array(chunk_of, np.int32)]),
            np.concatenate([self.frequencies, np.array(frequency_of, np.int32)]),
        )

    def remove(self, chunks: npt.ArrayLike) -> None:
        """Delete chunks by number; those that follow move up. Terms that no chunk holds any more are dropped."""
        keep = np.ones(len(self), bool)
        keep[np.asarray(chunks, dtype=np.int64)] = False
        alive = keep[self.chunks]
        term_of = self._term_numbers()[alive]
        used = np.zeros(len(self.terms), bool)
        used[term_of] = True
        self.terms = {term: i for i, term in enumerate(t for t, n in self.terms.items() if used[n])}
        moved = np.cumsum(keep, dtype=np.int32) - 1
        self.lengths = self.lengths[keep]
        self._set_postings(
            (np.cumsum(used, dtype=np.int32) - 1)[term_of], moved[self.chunks[alive]], self.frequencies[alive]
        )

    def scores(self, tokens: Sequence[str]) -> Array:
        """BM25 of every chunk for the query's tokens: (N,) float64, at least 0.

        Distinct terms are summed in the order in which the query first has them.

        Term t adds w IDF(t) f (k1+1) / (f + k1 (1 - b + b L/mean L)), with
        IDF(t) = ln(1 + (N - df + 1/2) / (df + 1/2)), which is never negative, and for a query that has the term q times
        w = q (k3+1) / (q + k3), Okapi's factor of the query, or w = q without k3.
        """
        total = np.zeros(len(self))
        mean = self.lengths.sum() / max(len(self), 1)
        if mean == 0:
            return total
        for term, times in Counter(_checked(tokens)).items():
            number = self.terms.get(term)
            if number is None:
                continue
            hits = slice(self.starts[number], self.starts[number + 1])
            chunks, frequency = self.chunks[hits], self.frequencies[hits].astype(np.float64)
            norm = self.k1 * (1.0 - self.b + self.b * (self.lengths[chunks] / mean))
            weight = self._saturated(times) * self.idf(len(chunks))
            total[chunks] += weight * (frequency * (self.k1 + 1.0) / (frequency + norm))
        return total

    def _saturated(self, times: int) -> float:
        return times if self.k3 is None else times * (self.k3 + 1.0) / (times + self.k3)

    def idf(self, document_frequency: int) -> float:
        """ln(1 + (N - df + 1/2) / (df + 1/2)), above 0 for every df <= N (Lucene's form of Okapi's IDF)."""
        return float(np.log1p((len(self) - document_frequency + 0.5) / (document_frequency + 0.5)))

    def document_frequency(self, term: str) -> int:
        """Number of chunks that hold the term."""
        number = self.terms.get(term)
        return 0 if number is None else int(self.starts[number + 1] - self.starts[number])

    def _term_numbers(self) -> Ints:
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))

    def _set_postings(self, term_of: Ints, chunk_of: Ints, frequency_of: Ints) -> None:
        order = np.argsort(term_of, kind="stable")  # chunks stay rising within a term
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(term_of, minlength=len(self.terms)))]).astype(np.int64)
        self.chunks, self.frequencies = chunk_of[order], frequency_of[order]


def _checked(tokens: Sequence[str]) -> Sequence[str]:
    if isinstance(tokens, str):
        raise TypeError("expected a list of tokens, not one string: run the analyzer first")
    return tokens
