"""The weights in hyte/assets, those that a user gets without an artifact."""

import json

import numpy as np
import pytest

from eval.run import run as evaluate
from hyte import Encoder, Settings
from hyte.encoder import SHIPPED, WEIGHTS_FILE

pytestmark = pytest.mark.skipif(
    not (SHIPPED / WEIGHTS_FILE).is_file(),
    reason=f"{SHIPPED} holds no weights: python -m export.run checkpoint=RUN out=hyte/assets rows=int8 onnx=false",
)


@pytest.fixture(scope="module")
def encoder():
    return Encoder.load()


def test_they_are_small_and_complete():
    files = {file.name: file.stat().st_size for file in SHIPPED.iterdir()}
    assert files.keys() == {"README.md", "config.json", "tokenizer.json", "weights.bin"}
    assert sum(files.values()) <= 13_000_000


def test_the_record_belongs_to_them(encoder):
    config = json.loads((SHIPPED / "config.json").read_text(), parse_constant=pytest.fail)
    assert (config["k"], config["pooling"], config["power"]) == (encoder.k, encoder.pooling, encoder.power)
    assert (config["kind"], config["dim"]) == ("int8", encoder.dim)
    assert max(config["parity"].values()) <= 1e-4
    assert config["quantisation"] <= 0.03


def test_points_of_like_texts_are_near_each_other(encoder):
    texts = [
        "the heart pumps blood",
        "cardiac circulation of blood",
        "stars and galaxies",
        "astronomy of a distant galaxy",
    ]
    points = encoder.encode(texts).astype(float)
    inner = points[:, 1:] @ points[:, 1:].T - np.outer(points[:, 0], points[:, 0])
    np.fill_diagonal(inner, -np.inf)
    assert inner.argmax(axis=1).tolist() == [1, 0, 3, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cacm", "medline1033"])
def test_they_are_what_an_evaluation_without_an_artifact_takes(encoder, shared_data, tmp_path, name):
    collection = shared_data / "dev" / f"{name}.zip"
    found = {
        mode: evaluate(collection, Settings(), mode, out=tmp_path / mode) for mode in ("bm25", "lorentz", "hybrid")
    }
    assert found["hybrid"]["artifact"] == str(SHIPPED.resolve())
    assert found["hybrid"]["fingerprint"] == encoder.fingerprint
    assert found["hybrid"]["ndcg@10"] > max(found["bm25"]["ndcg@10"], found["lorentz"]["ndcg@10"])
