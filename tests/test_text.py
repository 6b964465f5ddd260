"""Chunks, analyzers, token ids and snippets."""

import math
import re
from itertools import pairwise

import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from hyte import tokenizer as tokens
from hyte.analyzers import ANALYZERS, STOP_WORDS, get_analyzer
from hyte.chunking import chunk_spans
from hyte.errors import InputError
from hyte.snippets import snippet

SEPARATORS = ["\u00a0", "\u3000", "\u001c", "\u0085", "\u2028", "\t"]
NOT_SEPARATORS = ["\u200b", "\ufeff", "\0"]


def words(n: int) -> str:
    return " ".join(f"w{i}" for i in range(n))


def chunk_words(n, *args, **kwargs) -> list[tuple[int, int]]:
    """Chunks of a text of n numbered words as (first, last + 1) word."""
    text = words(n)
    found = [text[a:b].split() for a, b in chunk_spans(text, *args, **kwargs)]
    return [(int(chunk[0][1:]), int(chunk[-1][1:]) + 1) for chunk in found]


def test_windows_by_hand():
    assert chunk_words(8, 5, 2) == [(0, 5), (3, 8)]
    assert chunk_words(5, 5, 2) == [(0, 5)]
    assert chunk_words(6, 5, 2) == [(0, 5), (3, 6)]
    assert chunk_words(12, 5, 4) == [(i, i + 5) for i in range(8)]
    assert chunk_words(3, 1, 0) == [(0, 1), (1, 2), (2, 3)]
    assert chunk_words(0, 5, 2) == []
    assert chunk_words(9, None) == [(0, 9)]


def test_the_paper_keeps_tails_of_pure_overlap():
    assert chunk_words(8, 5, 2, tail="paper") == [(0, 5), (3, 8), (6, 8)]
    assert len(chunk_words(250, 300, 60, tail="paper")) == 2


@given(st.integers(1, 400), st.integers(1, 50), st.data())
def test_chunks_cover_every_word_and_none_lies_in_another(length, window, data):
    overlap = data.draw(st.integers(0, window - 1))
    found = chunk_words(length, window, overlap)
    expected = 1 if length <= window else math.ceil((length - overlap) / (window - overlap))
    assert len(found) == expected
    assert set().union(*(range(*chunk) for chunk in found)) == set(range(length))
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))
    paper = chunk_words(length, window, overlap, tail="paper")
    assert len(paper) == math.ceil(length / (window - overlap))


@given(st.text(alphabet="ab \n\t\u00a0\u200b\u001c\u3000é漢"), st.integers(1, 4))
def test_spans_begin_and_end_at_the_words_of_str_split(text, window):
    found = [text[a:b].split() for a, b in chunk_spans(text, window, 0)]
    assert sum(found, []) == text.split()


@pytest.mark.parametrize(("window", "overlap"), [(5, 5), (5, 6), (0, 0), (5, -1)])
def test_windows_that_would_not_advance_are_refused_with_both_numbers(window, overlap):
    with pytest.raises(InputError, match=f"window {window} and overlap {overlap}"):
        chunk_spans("a b c", window, overlap)


def test_analyzers_by_hand(tiny_tokenizer_file):
    text = "The CELLS of Vitamin-D, naïve: 3.5 cats' a\u00a0b"
    assert get_analyzer("whitespace")(text) == ["the", "cells", "of", "vitamin-d,", "naïve:", "3.5", "cats'", "a", "b"]
    assert get_analyzer("alnum")(text) == ["the", "cells", "of", "vitamin", "d", "na", "ve", "3", "5", "cats", "a", "b"]
    assert get_analyzer("english")(text) == ["cell", "vitamin", "naïv", "cat"]
    wordpiece = get_analyzer("wordpiece", tokens.load_tokenizer(tiny_tokenizer_file))
    assert wordpiece("Cats ran, proteins") == ["cat", "##s", "ran", ",", "protein", "##s"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vitamin d deficiency", ["vitamin", "ddeficiency"]),
        ("a b cd", ["ab", "cd"]),
        ("A-1 x", ["a1"]),
        ("naïve", ["na", "ve"]),
        ("", []),
    ],
)
def test_published_tokens_run_single_bytes_into_what_follows(text, expected):
    assert get_analyzer("published")(text) == expected


@given(st.text())
def test_published_tokens_equal_a_byte_by_byte_reading(text):
    expected, collected = [], b""
    for byte in text.encode("utf-8", "replace") + b" ":
        if chr(byte).isascii() and chr(byte).isalnum():
            collected += bytes([byte]).lower()
        elif len(collected) >= 2:
            expected.append(collected.decode())
            collected = b""
    assert get_analyzer("published")(text) == expected


@given(st.text())
def test_english_is_words_then_stop_words_then_snowball(text):
    stemmer = Stemmer.Stemmer("english")
    clean = text.encode("utf-8", "replace").decode().lower()
    words = [word for word in re.findall(r"\b\w\w+\b", clean) if word not in STOP_WORDS]
    assert get_analyzer("english")(text) == [stemmer.stemWord(word) for word in words]
    assert len(STOP_WORDS) == 33


@pytest.mark.parametrize("name", ANALYZERS)
def test_analyzers_take_any_string(name, tiny_tokenizer_file):
    analyze = get_analyzer(name, tokens.load_tokenizer(tiny_tokenizer_file))
    for text in ("", " \n", "\ud800 lone surrogate", "\0", "🙂", "日本語", "x" * 300):
        assert all(isinstance(token, str) for token in analyze(text))


@given(st.text(st.characters() | st.sampled_from("\n\r\u2028 aB")))
def test_no_analyzer_gives_a_token_with_a_line_feed(tiny_tokenizer_file, text):
    """An index stores its terms line by line."""
    tokenizer = tokens.load_tokenizer(tiny_tokenizer_file)
    for name in ANALYZERS:
        assert not any("\n" in token for token in get_analyzer(name, tokenizer)(text))


@pytest.mark.parametrize("separator", SEPARATORS)
def test_words_are_split_where_str_split_does(separator):
    assert get_analyzer("whitespace")(f"a{separator}b") == ["a", "b"]
    assert len(chunk_spans(f"a{separator}b", 1, 0)) == 2


@pytest.mark.parametrize("joiner", NOT_SEPARATORS)
def test_invisible_characters_do_not_split_words(joiner):
    assert get_analyzer("whitespace")(f"a{joiner}b") == [f"a{joiner}b"]
    assert len(chunk_spans(f"a{joiner}b", 1, 0)) == 1


def test_unknown_analyzers_are_refused():
    with pytest.raises(InputError, match="'lucene' is unknown: use one of whitespace"):
        get_analyzer("lucene")
    with pytest.raises(InputError, match="wordpiece needs a tokenizer"):
        get_analyzer("wordpiece")


def test_token_ids_leave_out_specials_and_unknowns_and_are_never_truncated(tiny_tokenizer_file):
    tokenizer = tokens.load_tokenizer(tiny_tokenizer_file)
    assert tokens.special_ids(tokenizer) == {0, 1, 2, 3, 4}
    ids = tokens.token_ids(tokenizer, ["the cat", "[CLS] the ☃ cat [SEP] [PAD]", "", "☃☃", "cat " * 5000])
    assert [list(each) for each in ids[:4]] == [[5, 7], [5, 7], [], []]
    assert len(ids[4]) == 5000


def test_token_ids_name_what_is_not_a_string(tiny_tokenizer_file):
    tokenizer = tokens.load_tokenizer(tiny_tokenizer_file)
    with pytest.raises(TypeError, match="text 1 is NoneType"):
        tokens.token_ids(tokenizer, ["a", None])
    with pytest.raises(TypeError, match="not one string"):
        tokens.token_ids(tokenizer, "a text")


def test_snippets_mark_what_the_analyzer_matches_and_show_where_most_is():
    analyze = get_analyzer("english")
    text = "x " * 50 + "Running\ncells, here " + "y " * 50
    shown = snippet(text, "cell runs", analyze, words=4)
    assert "**Running** **cells,**" in shown
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert snippet("nothing here", "cell", analyze) == "nothing here"
