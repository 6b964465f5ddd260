"""Overlapping word windows with character spans. Words are what `str.split` gives."""

from __future__ import annotations

import re

from hyte.errors import InputError

WORD = re.compile(r"\S+")
TAILS = ("exact", "paper")


def check_chunking(window: int | None, overlap: int, tail: str = "exact") -> None:
    """Raises InputError unless 0 <= overlap < window (or window is None) and `tail` is known."""
    if tail not in TAILS:
        raise InputError(f"chunking.tail {tail!r} is unknown: use one of {', '.join(TAILS)}")
    if window is not None and not 0 <= overlap < window:
        raise InputError(
            f"chunking: window {window} and overlap {overlap} words do not go together: "
            "the overlap must be at least 0 and below the window"
        )


def chunk_spans(text: str, window: int | None = 300, overlap: int = 60, tail: str = "exact") -> list[tuple[int, int]]:
    """Character spans (start, end) of the chunks of a text, in order.

    A text of L words gives one chunk for 0 < L <= window, otherwise ceil((L - overlap) / (window - overlap)); none lies
    inside another, every word is in one, and L = 0 gives none. `tail="paper"` gives the paper's
    ceil(L / (window - overlap)), which adds tails of pure overlap. `window=None` makes the whole text one chunk.

    Raises InputError unless 0 <= overlap < window.
    """
    check_chunking(window, overlap, tail)
    words = [match.span() for match in WORD.finditer(text)]
    if not words:
        return []
    if window is None:
        return [(words[0][0], words[-1][1])]
    step = window - overlap
    covered = len(words) - overlap if tail == "exact" else len(words)
    starts = range(0, max(covered, 1), step)
    return [(words[first][0], words[min(first + window, len(words)) - 1][1]) for first in starts]
