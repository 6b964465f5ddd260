"""Tokens for BM25, by name. An analyzer turns a text, document or query, into the list of its tokens."""

from __future__ import annotations

import re
from collections.abc import Callable

import Stemmer
from tokenizers import Tokenizer

from hyte.errors import InputError
from hyte.tokenizer import utf8

Analyzer = Callable[[str], list[str]]

ANALYZERS = ("whitespace", "alnum", "english", "wordpiece", "published")

ALNUM = re.compile(r"[a-z0-9]+")
WORD = re.compile(r"(?u)\b\w\w+\b")
ASCII_RUN = re.compile(rb"[a-z0-9]+")

# The stop words of Lucene's EnglishAnalyzer.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)


def whitespace(text: str) -> list[str]:
    """The paper's tokens: lower case, split at white space (that of `str.split`)."""
    return text.lower().split()


def alnum(text: str) -> list[str]:
    """Runs of ASCII letters and digits in lower case."""
    return ALNUM.findall(text.lower())


def published(text: str) -> list[str]:
    """The tokens of the authors' published code, odd as they are: BM25 over them gives the paper's figures.

    ASCII letters and digits are collected in lower case; at any other byte, and at the end, what was collected is a
    token if it has two bytes or more, and only then is it cleared: single bytes run into what follows.
    """
    tokens: list[str] = []
    collected = b""
    for run in ASCII_RUN.findall(text.encode("utf-8", "replace").lower()):
        collected += run
        if len(collected) > 1:
            tokens.append(collected.decode("ascii"))
            collected = b""
    return tokens


def _english() -> Analyzer:
    stemmer = Stemmer.Stemmer("english")

    def english(text: str) -> list[str]:
        words = WORD.findall(utf8(text).lower())
        return list(stemmer.stemWords([word for word in words if word not in STOP_WORDS]))

    return english


def _wordpiece(tokenizer: Tokenizer) -> Analyzer:
    def wordpiece(text: str) -> list[str]:
        return list(tokenizer.encode(utf8(text), add_special_tokens=False).tokens)

    return wordpiece


def check_analyzer(name: str) -> None:
    """Raises InputError unless `name` is one of `ANALYZERS`."""
    if name not in ANALYZERS:
        raise InputError(f"analyzer {name!r} is unknown: use one of {', '.join(ANALYZERS)}")


def get_analyzer(name: str, tokenizer: Tokenizer | None = None) -> Analyzer:
    """The analyzer called `name`.

    `english`: two or more word characters, lower case, Lucene's 33 English stop words removed, Snowball stems.
    `wordpiece` needs the encoder's tokenizer.

    Raises InputError for an unknown name, or for `wordpiece` without a tokenizer.
    """
    check_analyzer(name)
    if name == "english":
        return _english()
    if name == "wordpiece":
        if tokenizer is None:
            raise InputError("analyzer wordpiece needs a tokenizer: give an artifact, or a tokenizer.json")
        return _wordpiece(tokenizer)
    return {"whitespace": whitespace, "alnum": alnum, "published": published}[name]
