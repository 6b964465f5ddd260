"""Training in several processes: the texts are shared out, and the result is that of one process."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.conftest import ROOT
from tests.test_hierarchy import write_hierarchy
from tests.test_run import write_dev
from tests.test_tokens import save_tiny_bert
from tests.test_training import toy_pairs, write_lines
from training import parallel
from training.batches import Batch
from training.checkpoint import load_checkpoint
from training.logs import read_metrics
from training.settings import Settings
from training.train import train


@pytest.mark.parametrize("sizes", [[3, 1, 4, 1, 5, 9], [1, 90, 1, 1], [1, 1], [2] * 11])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_text_is_encoded_by_one_process_from_its_own_tokens(monkeypatch, sizes, world):
    rng = np.random.default_rng(len(sizes))
    bags = [rng.integers(0, 20, each) for each in sizes]
    distinct, ids = np.unique(np.concatenate(bags), return_inverse=True)
    offsets = np.cumsum([0, *sizes])[:-1]
    counts = np.arange(len(ids), dtype=np.int32)
    batch = Batch(np.arange(1), distinct, ids, counts, offsets, np.arange(len(sizes)))
    monkeypatch.setattr(parallel, "size", lambda: world)
    found = []
    for rank in range(world):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        texts = parallel.share(batch)
        own, rows, starts, many = parallel.bags(batch, texts)
        assert sorted(set(own)) == list(own)
        assert set(rows) == set(range(len(own)))
        ends = [*starts, len(rows)]
        found += [(own[rows[a:b]].tolist(), many[a:b].tolist()) for a, b in pairwise(ends)]
    many = np.split(counts, offsets[1:])
    assert found == [(bag.tolist(), each.tolist()) for bag, each in zip(bags, many, strict=True)]


def test_two_processes_train_as_one(tmp_path, monkeypatch):
    bert = save_tiny_bert(tmp_path)
    lines = [each | {"negatives": ["red fish", "the dog"][: i % 3]} for i, each in enumerate(toy_pairs())]
    write_lines(tmp_path / "toy.jsonl", lines)
    write_dev(tmp_path / "dev")
    write_hierarchy(tmp_path / "hierarchy.jsonl")
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        pairs=("toy.jsonl",), out="one", tokens="bge_small", tokens_path=str(bert), hidden=32, steps=5, batch_size=24,
        log_every=1, wandb_mode="disabled", cache="cache", validation_collections=("dev",), validation_every=2,
        average=0.5, weighting="idf", hierarchy_pairs=("hierarchy.jsonl",), hierarchy_weight=1.0,
        hierarchy_batch_size=7, start="rotated",
    )  # fmt: skip
    # Of the default start some gradients are of the size of rounding, which the first steps of AdamW blow up.
    alone = train(settings)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "training.train",
        "data.pairs=[toy.jsonl]", "out=two", "tokens=bge_small", f"tokens.path={bert}", "model.hidden=32", "steps=5",
        "batch_size=24", "log_every=1", "wandb.mode=disabled", "data.cache=cache", "validation.collections=[dev]",
        "validation.every=2", "average=0.5", "tokens.weighting=idf", "hierarchy.pairs=[hierarchy.jsonl]",
        "hierarchy.weight=1.0", "hierarchy.batch_size=7", "model.start=rotated",
    ]  # fmt: skip
    variables = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    together = json.loads(done.stdout)  # one process prints
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len(one) == len(two) == 10
    for left, right in zip(one, two, strict=True):
        assert left.keys() == right.keys()
        for key in left.keys() - {"pairs_per_s"}:
            size = 1.0 if key == "loss" else max(1.0, abs(left[key]))
            assert left[key] == pytest.approx(right[key], rel=0, abs=5e-5 * size), key
    for name in ("checkpoint.safetensors", "last.safetensors"):
        states = [load_checkpoint(tmp_path / each / name).state for each in ("one", "two")]
        assert states[0].keys() == states[1].keys()
        for key in states[0]:
            torch.testing.assert_close(states[0][key], states[1][key], rtol=0, atol=1e-5)
    assert together["best_score"] == pytest.approx(alone["best_score"], abs=1e-5)
