"""A short piece of a chunk with the query's words marked."""

from __future__ import annotations

from collections.abc import Callable

from hyte.chunking import WORD

WORDS = 30
LONGEST = 60  # characters shown of one word


def printable(text: str) -> str:
    """The text on one line, with escapes for what a terminal would obey instead of showing."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def snippet(
    text: str, query: str, analyze: Callable[[str], list[str]], mark: tuple[str, str] = ("**", "**"), words: int = WORDS
) -> str:
    """At most `words` neighbouring words of the text, those that hold most of the query's words, on one line.

    A word is marked if the analyzer gives it a token that the query has too.
    """
    wanted = set(analyze(query))
    found = [match.group() for match in WORD.finditer(text)]
    hits = [not wanted.isdisjoint(analyze(word)) for word in found]
    start = max(range(max(len(found) - words, 0) + 1), key=lambda i: (sum(hits[i : i + words]), -i))
    shown = [
        mark[0] + _short(word) + mark[1] if hit else _short(word)
        for word, hit in zip(found[start : start + words], hits[start : start + words], strict=True)
    ]
    before, after = "... " if start else "", " ..." if start + words < len(found) else ""
    return before + " ".join(shown) + after


def _short(word: str) -> str:
    return printable(word if len(word) <= LONGEST else word[:LONGEST] + "...")
