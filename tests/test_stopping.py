"""A training command that is stopped by a signal, as a real process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests.conftest import ROOT
from tests.test_run import without_times
from tests.test_tokens import save_tiny_bert
from tests.test_training import toy_pairs, write_lines
from training import summary
from training.checkpoint import load_checkpoint
from training.logs import read_metrics
from training.settings import from_config
from training.state import load_last
from training.stopping import Stopped, signals
from training.train import train

# Slow enough for a signal to find it between two steps; as the command, with the same settings.
SLOW = """
import sys, time
from training import loop, train
whole = loop.Run.step
def step(self, *arguments):
    time.sleep(0.02 if self.progress.step > 20 else 0)
    return whole(self, *arguments)
loop.Run.step = step
train.main()
"""


@pytest.fixture
def overrides(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setattr(summary, "draw", lambda out: None)  # it takes longer than the run
    monkeypatch.chdir(tmp_path)
    toy = write_lines(tmp_path / "toy.jsonl", toy_pairs())
    (tmp_path / "bert").mkdir()
    return [
        f"data.pairs=[{toy}]", f"data.cache={tmp_path / 'cache'}", "tokens=bge_small", "model.hidden=32",
        f"tokens.path={save_tiny_bert(tmp_path / 'bert')}", "batch_size=24", "average=0.9", "steps=300", "log_every=7",
        "save_every=100000", "wandb.mode=disabled",
    ]  # fmt: skip


def finished(overrides: list[str]) -> None:
    """The same run as of the command, in this process."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        train(from_config(OmegaConf.to_container(compose("train", overrides=overrides), resolve=True)))


def stopped(folder: Path, overrides: list[str], number: int) -> subprocess.CompletedProcess:
    """The command, with the signal sent once it has taken some steps."""
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    command = [sys.executable, "-c", SLOW, *overrides]
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True) as process:
        metrics, until = folder / "run" / "metrics.jsonl", time.monotonic() + 120
        while not (metrics.is_file() and read_metrics(metrics)[3:]) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, "", said)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_where_and_goes_on_to_the_same_end(overrides, tmp_path, number, code):
    done = stopped(tmp_path, [*overrides, "out=run"], number)
    step = load_last(tmp_path / "run").progress["step"]
    assert 20 < step < 300
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == f"stopped at step {step} of 300; go on with resume=true"
    assert "Traceback" not in done.stderr
    assert load_checkpoint(tmp_path / "run").config["step"] == step
    assert not (tmp_path / "run" / "summary.png").exists()
    assert not [*(tmp_path / "run").glob(".*")]
    finished([*overrides, "out=run", "resume=true"])
    finished([*overrides, "out=whole"])
    assert without_times(tmp_path / "run" / "metrics.jsonl") == without_times(tmp_path / "whole" / "metrics.jsonl")
    for name in ("checkpoint.safetensors", "last.safetensors"):
        one, other = (load_checkpoint(tmp_path / run / name).state for run in ("run", "whole"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_second_signal_stops_at_once_and_without_them_all_is_as_before():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(Stopped, match="stopped at once") as error:
            signal.raise_signal(signal.SIGTERM)
    assert error.value.code == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
