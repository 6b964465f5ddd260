"""The mean of runs."""

import pytest
import torch

from hyte.errors import InputError
from training.average import average, main
from training.checkpoint import load_checkpoint, save_checkpoint

CONFIG = {"k": 1.0, "pooling": {"name": "oem", "power": 1.0}, "tokens": {"name": "minilm"}, "seed": 1}


def write(folder, value, shape=(4, 6), **config):
    folder.mkdir()
    state = {"w1": torch.full(shape, value), "w2": torch.full(shape[::-1], 2 * value), "log_scale": torch.tensor(value)}
    save_checkpoint(folder / "checkpoint.safetensors", state, CONFIG | config)
    return str(folder)


def test_the_mean_of_two_runs_by_hand(tmp_path):
    runs = [write(tmp_path / "a", 1.0), write(tmp_path / "b", 4.0, seed=2)]
    found = load_checkpoint(average(runs, str(tmp_path / "out")))
    assert torch.equal(found.state["w1"], torch.full((4, 6), 2.5))
    assert torch.equal(found.state["w2"], torch.full((6, 4), 5.0))
    assert found.state["log_scale"].item() == 2.5
    assert found.config["average_of"] == [1, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": (2, 6)}, "do not fit"),
        ({"k": 2.0}, "k is 2.0"),
        ({"pooling": {"name": "oem", "power": 3.0}}, "pooling.power is 3.0"),
        ({"tokens": {"name": "bge_small"}}, "tokens.name is bge_small"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(tmp_path, options, said):
    runs = [write(tmp_path / "a", 1.0), write(tmp_path / "b", 4.0, **options)]
    with pytest.raises(InputError, match=said):
        average(runs, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_one_run_is_no_average_and_the_command_says_so(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([write(tmp_path / "a", 1.0), "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "two or more" in capsys.readouterr().err


def test_a_run_comes_once_and_is_not_overwritten(tmp_path):
    one, two = write(tmp_path / "a", 1.0), write(tmp_path / "b", 4.0)
    file = tmp_path / "a" / "checkpoint.safetensors"
    before = file.read_bytes()
    for again in (one, str(file), f"{two}/../a"):
        with pytest.raises(InputError, match="the same run twice; name each once"):
            average([one, two, again], str(tmp_path / "out"))
    for out in (one, f"{two}/../a"):
        with pytest.raises(InputError, match=f"--out {tmp_path / 'a'} is the run .* and would be overwritten"):
            average([two, str(file)], out)
    assert file.read_bytes() == before
    assert not (tmp_path / "out").exists()
