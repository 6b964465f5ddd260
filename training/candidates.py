"""Candidates for hard negatives: the best texts of a corpus by BM25 and by Lorentz scores, for many queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from hyte.analyzers import get_analyzer
from hyte.bm25 import BM25
from hyte.encoder import Encoder

Numbers = list[int]

SCORES_AT_ONCE = 2**24  # of queries and texts in one matrix product: 64 MiB
ENCODED_AT_ONCE = 1024


class Words:
    """BM25 over whole texts, with English stems.

    Args:
        texts: the corpus, n texts.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._analyzer, self._bm25 = get_analyzer("english"), BM25()
        self._bm25.add(self._analyzer(text) for text in tqdm(texts, desc="BM25", unit=" texts", disable=None))

    def best(self, queries: Sequence[str], depth: int) -> Iterator[Numbers]:
        """Of each query the numbers of at most `depth` texts that share a word with it, best first, ties by number."""
        for query in queries:
            yield [int(number) for number in highest(self._bm25.scores(self._analyzer(query)), depth, 0.0)]


class Points:
    """Lorentz inner products over whole texts.

    Args:
        encoder: of an artifact.
        texts: the corpus, n texts.
    """

    def __init__(self, encoder: Encoder, texts: Sequence[str]) -> None:
        self._encoder = encoder
        self._points = np.empty((len(texts), encoder.dim + 1), np.float32)
        self._known = np.empty(len(texts), bool)
        with tqdm(total=len(texts), desc="points", unit=" texts", disable=None) as bar:
            for first in range(0, len(texts), ENCODED_AT_ONCE):
                part = slice(first, first + ENCODED_AT_ONCE)
                self._points[part], self._known[part] = encoder.encode_with_flags(texts[part])
                bar.update(len(self._known[part]))

    def best(self, queries: Sequence[str], depth: int) -> Iterator[Numbers]:
        """Of each query the numbers of the `depth` texts nearest by inner product (eq. 4), best first.

        Texts without known tokens are none of them, and a query without known tokens has none.
        """
        block = max(1, SCORES_AT_ONCE // max(1, len(self._points)))
        for first in range(0, len(queries), block):
            points, known = self._encoder.encode_with_flags(queries[first : first + block], query=True)
            points[:, 0] *= -1
            products = points @ self._points.T
            products[:, ~self._known] = -np.inf
            for row, answered in zip(products, known, strict=True):
                yield [int(number) for number in highest(row, depth, -np.inf)] if answered else []


def highest(scores: npt.NDArray[np.floating], depth: int, above: float) -> npt.NDArray[np.intp]:
    """Numbers of the `depth` largest scores (n,) that are larger than `above`, largest first, ties by number."""
    found = np.flatnonzero(scores > above)
    if len(found) > depth:
        least = np.partition(scores[found], len(found) - depth)[len(found) - depth]
        found = found[scores[found] >= least]
    return found[np.argsort(-scores[found], kind="stable")][:depth]


def merged(first: Numbers, second: Numbers) -> Numbers:
    """The numbers of two rankings in turns, the first one's best first, each once."""
    turns = chain.from_iterable(zip_longest(first, second))
    return list(dict.fromkeys(number for number in turns if number is not None))
