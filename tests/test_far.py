"""Points far from the origin, where the two big terms of the inner product cancel: the engine keeps the exact order."""

import numpy as np
import pytest

from hyte import Encoder, HybridIndex, Settings
from hyte import tokenizer as tokens
from hyte.encoder import TOKENIZER_FILE, WEIGHTS_FILE
from hyte.tokenizer import load_tokenizer, token_ids
from hyte.weights import write_weights
from tests.conftest import WORDS

DIM = 8


def exact_order(rows: np.ndarray, bags: list[np.ndarray], query: np.ndarray) -> np.ndarray:
    """Documents by eq. 4 in long double, each the mean of its tokens lifted to K = 1."""
    x, y = (np.array([rows[ids].mean(0) for ids in each], np.longdouble) for each in (bags, [query]))
    t, s = (np.sqrt((z * z).sum(1) + 1) for z in (x, y))
    return np.argsort(-((x @ y[0]) - t * s[0]), kind="stable")


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_two_hundred_documents_of_norms_1e3_to_1e4_keep_their_order(tmp_path, tiny_tokenizer_file, spread):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=DIM) + spread * rng.normal(size=(len(WORDS), DIM)) * 3  # a cone, and nearly all directions
    rows *= 10 ** rng.uniform(3.3, 4, size=(len(WORDS), 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows.astype(np.float32)
    tokenizer = load_tokenizer(tiny_tokenizer_file)
    write_weights(tmp_path / WEIGHTS_FILE, rows, 1.0, "mean", 1.0, tokens.fingerprint(tokenizer))
    tokenizer.save(str(tmp_path / TOKENIZER_FILE))
    index = HybridIndex(Encoder.load(tmp_path), Settings(analyzer="whitespace"))
    texts = [" ".join(rng.choice([word for word in WORDS[5:] if word.isalpha()], 3)) for _ in range(200)]
    for number, text in enumerate(texts):
        index.add(str(number), text)
    bags = [ids.astype(int) for ids in token_ids(tokenizer, [*texts, "protein"])]
    exact = exact_order(rows.astype(np.float64), bags[:-1], bags[-1])
    found = np.array([int(hit.path) for hit in index.search("protein", 200, mode="lorentz")])
    assert len(found) == 200
    correlation = np.corrcoef(np.argsort(exact), np.argsort(found))[0, 1]  # Spearman's
    assert correlation > 0.999
