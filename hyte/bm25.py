"""Okapi BM25 over an inverted index of integers.

Only counts are stored: postings (chunk, term frequency), chunk lengths, and with them document frequencies. IDF and
length norms are computed at query time, so an index that was added to scores bit for bit as one built afresh.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyte.geometry import Array
from hyte.growing import Growing

Ints = npt.NDArray[np.int32]


class Postings(NamedTuple):
    """An inverted index of some of the chunks.

    Attributes:
        terms: each distinct term and its number, in order of first appearance.
        starts: (V+1,) where the postings of each term begin in `chunks` and `frequencies`.
        chunks: (postings,) chunk numbers, rising within a term.
        frequencies: (postings,) how often the term stands in that chunk.
    """

    terms: dict[str, int]
    starts: npt.NDArray[np.int64]
    chunks: Ints
    frequencies: Ints

    @classmethod
    def of(cls, counts: Iterable[Counter[str]], first: int) -> tuple[Postings, Ints]:
        """Those of chunks numbered from `first`, given as the counts of their terms; and the chunks' lengths (n,)."""
        terms: dict[str, int] = {}
        term_of, frequency_of, distinct, lengths = (array("i") for _ in range(4))
        for each in counts:
            term_of.extend([terms.setdefault(term, len(terms)) for term in each])
            frequency_of.extend(each.values())
            distinct.append(len(each))
            lengths.append(each.total())
        chunk_of = np.repeat(np.arange(first, first + len(distinct), dtype=np.int32), distinct)
        return _by_term(terms, _ints(term_of), chunk_of, _ints(frequency_of)), _ints(lengths)

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Postings:
        """Those of all parts, each of which holds higher chunk numbers than the one before it."""
        terms = dict(parts[0].terms)
        numbers = [np.array([terms.setdefault(t, len(terms)) for t in part.terms], np.int32) for part in parts]
        return _by_term(
            terms,
            np.concatenate([number[part.term_of()] for number, part in zip(numbers, parts, strict=True)]),
            np.concatenate([part.chunks for part in parts]),
            np.concatenate([part.frequencies for part in parts]),
        )

    def kept(self, keep: npt.NDArray[np.bool_]) -> Postings:
        """Those of the chunks where `keep` (N,) is true, which move up. Terms that none of them holds are dropped."""
        alive = keep[self.chunks]
        term_of = self.term_of()[alive]
        used = np.zeros(len(self.terms), bool)
        used[term_of] = True
        terms = {term: i for i, term in enumerate(t for t, n in self.terms.items() if used[n])}
        moved = np.cumsum(keep, dtype=np.int32) - 1
        return _by_term(
            terms, (np.cumsum(used, dtype=np.int32) - 1)[term_of], moved[self.chunks[alive]], self.frequencies[alive]
        )

    def term_of(self) -> Ints:
        """(postings,) the number of the term of each."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))


NONE = Postings({}, np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))


def _ints(numbers: array[int]) -> Ints:
    return np.array(numbers, np.int32)


def _by_term(terms: dict[str, int], term_of: Ints, chunk_of: Ints, frequency_of: Ints) -> Postings:
    order = np.argsort(term_of, kind="stable")  # chunks stay rising within a term
    starts = np.concatenate([[0], np.cumsum(np.bincount(term_of, minlength=len(terms)))]).astype(np.int64)
    return Postings(terms, starts, chunk_of[order], frequency_of[order])


class BM25:
    """Scores of chunks 0..N-1 for a query.

    Args:
        k1: saturation of the term frequency, at least 0.
        b: strength of length normalisation, in [0, 1].
        k3: saturation of a term's frequency in the query, at least 0; None lets it count as often as it stands there.
        lengths: (N,) tokens of each chunk, where there are some already.
        postings: theirs.

    Attributes:
        parts: the postings. A new part is joined with the one before as soon as it is half as large, so that adding a
            chunk costs the same in a large index as in a small one and there are never many parts.
        lengths: (N,) tokens of each chunk.
        dead: (N,) True where a chunk was removed. It keeps its number until `settle` and counts in nothing.
    """

    def __init__(
        self,
        k1: float = 1.2,
        b: float = 0.75,
        k3: float | None = None,
        lengths: Ints | None = None,
        postings: Postings = NONE,
    ) -> None:
        self.k1, self.b, self.k3 = float(k1), float(b), None if k3 is None else float(k3)
        self.parts = [postings]
        self._start(np.zeros(0, np.int32) if lengths is None else lengths)

    def _start(self, lengths: Ints) -> None:
        self.lengths, self.dead = Growing(lengths), Growing(np.zeros(len(lengths), bool))
        self.n_dead, self._tokens = 0, int(lengths.sum(dtype=np.int64))

    def __len__(self) -> int:
        """Number of chunks, the dead included."""
        return len(self.lengths)

    def add(self, chunks: Iterable[Sequence[str]]) -> None:
        """Append chunks, given as their tokens. A failure among them leaves the index as it was."""
        part, lengths = Postings.of((Counter(_checked(tokens)) for tokens in chunks), len(self))
        self.parts = _balanced([*self.parts, part])
        self.lengths.append(lengths)
        self.dead.append(np.zeros(len(lengths), bool))
        self._tokens += int(lengths.sum(dtype=np.int64))

    def remove(self, chunks: npt.ArrayLike) -> None:
        """Let chunks count no more, given by their numbers (n,), each alive and once."""
        numbers = np.asarray(chunks, dtype=np.intp)
        self.dead.put(numbers, True)
        self.n_dead += len(numbers)
        self._tokens -= int(self.lengths[numbers].sum(dtype=np.int64))

    def settle(self) -> None:
        """Drop the dead chunks, so that those that follow move up, and make the postings one part."""
        one = Postings.joined(self.parts) if len(self.parts) > 1 else self.parts[0]
        if self.n_dead:
            keep = ~self.dead.whole()
            self.parts = [one.kept(keep)]
            self._start(self.lengths.whole()[keep])
        else:
            self.parts = [one]

    def scores(self, tokens: Sequence[str]) -> Array:
        """BM25 of every chunk for the query's tokens: (N,) float64, at least 0, and 0 for the dead.

        Distinct terms are summed in the order in which the query first has them.

        Term t adds w IDF(t) f (k1+1) / (f + k1 (1 - b + b L/mean L)), with
        IDF(t) = ln(1 + (N - df + 1/2) / (df + 1/2)), which is never negative, and for a query that has the term q times
        w = q (k3+1) / (q + k3), Okapi's factor of the query, or w = q without k3.
        """
        total = np.zeros(len(self))
        mean = self._tokens / max(len(self) - self.n_dead, 1)
        if mean == 0:
            return total
        for term, times in Counter(_checked(tokens)).items():
            found = list(self._hits(term))
            weight = self._saturated(times) * self.idf(sum(len(chunks) for chunks, _ in found))
            for chunks, counts in found:
                frequency = counts.astype(np.float64)
                norm = self.k1 * (1.0 - self.b + self.b * (self.lengths[chunks] / mean))
                total[chunks] += weight * (frequency * (self.k1 + 1.0) / (frequency + norm))
        return total

    def _hits(self, term: str) -> Iterator[tuple[Ints, Ints]]:
        """The living chunks (n,) that hold a term and how often each does, part after part."""
        for part in self.parts:
            number = part.terms.get(term)
            if number is None:
                continue
            held = slice(part.starts[number], part.starts[number + 1])
            chunks, counts = part.chunks[held], part.frequencies[held]
            if self.n_dead:
                alive = ~self.dead[chunks]
                chunks, counts = chunks[alive], counts[alive]
            yield chunks, counts

    def _saturated(self, times: int) -> float:
        return times if self.k3 is None else times * (self.k3 + 1.0) / (times + self.k3)

    def idf(self, document_frequency: int) -> float:
        """ln(1 + (N - df + 1/2) / (df + 1/2)), above 0 for every df <= N (Lucene's form of Okapi's IDF)."""
        alive = len(self) - self.n_dead
        return float(np.log1p((alive - document_frequency + 0.5) / (document_frequency + 0.5)))

    def document_frequency(self, term: str) -> int:
        """Number of chunks that hold the term."""
        return sum(len(chunks) for chunks, _ in self._hits(term))


def _balanced(parts: list[Postings]) -> list[Postings]:
    """Join the last part with the one before while that is less than twice as large."""
    while len(parts) > 1 and len(parts[-2].chunks) < 2 * len(parts[-1].chunks):
        parts = [*parts[:-2], Postings.joined(parts[-2:])]
    return parts


def _checked(tokens: Sequence[str]) -> Sequence[str]:
    if isinstance(tokens, str):
        raise TypeError("expected a list of tokens, not one string: run the analyzer first")
    return tokens
