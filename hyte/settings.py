"""How an index cuts and scores documents."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal

from hyte.analyzers import check_analyzer
from hyte.chunking import check_chunking
from hyte.errors import InputError
from hyte.fusion import FUSIONS

Candidates = int | Literal["all"]


@dataclass(frozen=True)
class Settings:
    """Settings of an index; saved with it. Raises InputError where a value is out of range.

    Attributes:
        analyzer: one of `hyte.analyzers.ANALYZERS`.
        window: words of a chunk; None makes a document one chunk.
        overlap: words shared by neighbouring chunks, 0 <= overlap < window.
        titled: put the title before every chunk (otherwise title and text are cut as one field).
        tail: "exact", or "paper" to keep the paper's tails of pure overlap.
        k1: BM25's saturation of the term frequency, at least 0.
        b: BM25's length normalisation, 0 to 1.
        fusion: one of `hyte.fusion.FUSIONS`.
        alpha: weight of BM25 in [0, 1]; 1 is BM25 alone, 0 is Lorentz alone.
        candidates: M, the chunks that BM25 hands to fusion, or "all" for exhaustive search.
        feedback: weight of the first hits' directions against the query's (`hyte.ranking.fed_back`), finite, at least
            0; 0 is off. It moves Lorentz scores only.
        feedback_docs: from how many of the first documents that direction comes, at least 1.
        k3: BM25's saturation of a term's frequency in the query, at least 0; None is off, as in the paper.
        fill: where BM25 finds fewer than M chunks, fuse the nearest others as well; the paper does not.
    """

    analyzer: str = "english"
    window: int | None = 300
    overlap: int = 60
    titled: bool = False
    tail: str = "exact"
    k1: float = 1.2
    b: float = 0.75
    fusion: str = "zscore"
    alpha: float = 0.6
    candidates: Candidates = 200
    feedback: float = 0.0
    feedback_docs: int = 5
    k3: float | None = None
    fill: bool = True

    def __post_init__(self) -> None:
        for name in ("k1", "b", "alpha", "feedback", *(["k3"] if self.k3 is not None else [])):
            self._make_plain(name, Real, float)
        for name in ("overlap", "feedback_docs", *(["window"] if self.window is not None else [])):
            self._make_plain(name, Integral, int)
        if self.candidates != "all":
            self._make_plain("candidates", Integral, int)
        if not isinstance(self.fill, bool):
            raise InputError(f"fill must be true or false, not {self.fill!r}")
        check_analyzer(self.analyzer)
        check_chunking(self.window, self.overlap, self.tail)
        if not (0 <= self.k1 < math.inf and 0 <= self.b <= 1):
            raise InputError(f"BM25 needs finite k1 >= 0 and 0 <= b <= 1, not k1 = {self.k1}, b = {self.b}")
        if self.k3 is not None and not 0 <= self.k3 < math.inf:
            raise InputError(f"BM25 needs a finite k3 >= 0, or None for none, not {self.k3}")
        self._check_ranking()

    def _check_ranking(self) -> None:
        if self.fusion not in FUSIONS:
            raise InputError(f"fusion {self.fusion!r} is unknown: use one of {', '.join(FUSIONS)}")
        if not 0.0 <= self.alpha <= 1.0:
            raise InputError(f"alpha must be in [0, 1] (1 is BM25 alone, 0 is Lorentz alone), not {self.alpha}")
        if self.candidates != "all" and self.candidates < 1:
            raise InputError(f"candidates must be a count above 0 or 'all', not {self.candidates}")
        if not (0.0 <= self.feedback < math.inf and self.feedback_docs >= 1):
            raise InputError(
                "feedback needs a finite weight of at least 0 and 1 document or more, not "
                f"feedback = {self.feedback}, feedback_docs = {self.feedback_docs}"
            )

    def _make_plain(self, name: str, kind: type, plain: type) -> None:
        """Numbers of numpy as Python's own, which can be saved. Raises InputError for what is no such number."""
        value = getattr(self, name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{name} must be a number{' without a fraction' if plain is int else ''}, not {value!r}")
        object.__setattr__(self, name, plain(value))

    def override(self, **asked: Any) -> Settings:
        """A copy in which each value that is not None takes the place of the old one."""
        return replace(self, **{name: value for name, value in asked.items() if value is not None})
