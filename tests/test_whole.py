"""The stages joined up: from training pairs to ranked documents."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eval.run import run as evaluate
from export.run import export
from hyte import Settings
from tests.conftest import ROOT
from training.settings import Settings as TrainingSettings
from training.train import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def artifacts(shared_data, tmp_path_factory) -> dict[str, str]:
    """Artifacts of a short training (a minute together) with each of the two poolings."""
    made = {}
    for pooling in ("oem_radial", "oem"):
        folder = tmp_path_factory.mktemp(pooling)
        pairs = (str(shared_data / "train" / "asreview.jsonl.gz"),)
        settings = TrainingSettings(
            pairs, str(folder), pooling=pooling, steps=100, batch_size=512, wandb_mode="disabled", cache=str(folder)
        )
        train(settings)
        export(str(folder), str(folder / "artifact"))
        made[pooling] = str(folder / "artifact")
        export(str(folder), str(folder / "int8"), rows="int8", onnx=False)
        made[f"{pooling} int8"] = str(folder / "int8")
    return made


@pytest.mark.parametrize("name", ["cacm", "medline1033"])
def test_trained_points_retrieve_and_the_hybrid_beats_both_its_halves(artifacts, shared_data, tmp_path, name):
    def ndcg(mode, pooling="oem_radial"):
        collection = shared_data / "dev" / f"{name}.zip"
        settings = Settings(analyzer="whitespace", fusion="paper", alpha=0.2)
        return evaluate(collection, settings, mode, artifacts[pooling], out=tmp_path / mode)["ndcg@10"]

    assert ndcg("hybrid") > max(ndcg("bm25"), ndcg("lorentz")) + 0.01
    assert ndcg("lorentz") > ndcg("lorentz", "oem") + 0.05  # plain OEM collapses


# MEDLINE has 30 queries: rounding errors of this size, drawn at random, move its NDCG@10 by up to 0.005 either way.
@pytest.mark.parametrize("mode", ["lorentz", "hybrid"])
@pytest.mark.parametrize(("name", "bound"), [("cacm", 0.002), ("medline1033", 0.005)])
def test_int8_rows_rank_as_well_as_float32_rows(artifacts, shared_data, tmp_path, name, bound, mode):
    collection = shared_data / "dev" / f"{name}.zip"
    exact, rounded = (
        evaluate(collection, Settings(), mode, artifacts[kind], out=tmp_path / kind)
        for kind in ("oem_radial", "oem_radial int8")
    )
    assert rounded["fingerprint"] != exact["fingerprint"]
    assert rounded["ndcg@10"] == pytest.approx(exact["ndcg@10"], abs=bound)


def test_the_demo_leaves_what_it_says(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bm25, lorentz, hybrid = json.loads((tmp_path / "metrics.json").read_text())
    assert [each["mode"] for each in (bm25, lorentz, hybrid)] == ["bm25", "lorentz", "hybrid"]
    assert bm25["docs"] >= 5000
    assert hybrid["ndcg@10"] > max(bm25["ndcg@10"], lorentz["ndcg@10"])
    for line in done.stdout.split("it left:")[1].split():
        assert Path(line).exists()
    assert "1. " in done.stdout
    assert "numpy.linalg" in done.stdout
