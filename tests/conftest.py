"""Fixtures that need no network: a small vocabulary, a small artifact, six documents with known rankings."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from hyte import tokenizer as tokens
from hyte.encoder import TOKENIZER_FILE, WEIGHTS_FILE, Encoder
from hyte.weights import write_weights

# The same examples in every run, and no deadline: the machine may be busy.
settings.register_profile("hyte", deadline=None, derandomize=True)
settings.load_profile("hyte")

ROOT = Path(__file__).parents[1]
WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog bird fish sat ran mat sea blue red old new cell protein gene drug "
    "trial heart vitamin ##s ##ing ##ed , . ?"
).split()
DIM = 8


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of shared data; tests that want it are skipped where it is absent."""
    folder = Path(os.environ.get("HYTE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}: set HYTE_DATA to a folder with beir/, dev/ and train/")
    return folder


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens(WORDS[:5])
    return tokenizer


@pytest.fixture(scope="session")
def tiny_tokenizer_file(tmp_path_factory) -> Path:
    """tokenizer.json of a WordPiece vocabulary of 33 tokens, with truncation and padding on, as MiniLM's."""
    path = tmp_path_factory.mktemp("tokenizer") / TOKENIZER_FILE
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(path))
    return path


def write_artifact(folder: Path, tokenizer_file: Path, pooling="oem_radial", power=1.0, k=1.0, seed=0, dim=DIM) -> Path:
    """An artifact of random rows in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokens.load_tokenizer(tokenizer_file)
    rows = np.random.default_rng(seed).normal(size=(len(WORDS), dim))
    write_weights(folder / WEIGHTS_FILE, rows, k, pooling, power, tokens.fingerprint(tokenizer))
    tokenizer.save(str(folder / TOKENIZER_FILE))
    return folder


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory, tiny_tokenizer_file) -> Path:
    """An artifact folder with 8 space coordinates a token, random rows."""
    return write_artifact(tmp_path_factory.mktemp("artifact"), tiny_tokenizer_file)


@pytest.fixture(scope="session")
def encoder(tiny_artifact) -> Encoder:
    return Encoder.load(tiny_artifact)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory, tiny_tokenizer_file) -> Path:
    """A BERT of random weights, 16 dimensions wide, saved as transformers saves models."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(tokenizer_file=str(tiny_tokenizer_file)).save_pretrained(folder)
    return folder
