"""What a user can get wrong on the command lines of the clone: one line on stderr, exit code 2."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("eval.run alhpa=0.3", "alhpa"),
        ("eval.run collection=x retrieval.fusion=sum", "fusion 'sum' is unknown"),
        ("eval.run", "collection is not set"),
        ("training.train +stepz=1", "stepz"),
        ("training.train pooling=sum", "Available options in 'pooling': einstein max"),
        ("training.train data.pairs=[nowhere.jsonl] steps=1 wandb.mode=disabled", "nowhere.jsonl"),
        ("training.teacher data.pairs=[nowhere.jsonl]", "nowhere.jsonl"),
        ("training.mine data.pairs=[nowhere.jsonl]", "nowhere.jsonl"),
        ("training.wordnet nowhere --out x", "data.noun: no such file"),
        ("export.run out=x", "checkpoint"),
        ("export.run checkpoint=nowhere out=OUT format=onnx", "format=onnx is unknown"),
        ("eval.compare nowhere nowhere", "nowhere: no metrics.json of eval.run"),
        ("eval.collect nowhere.json", "nowhere.json"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(command, named, tmp_path):
    module, *arguments = command.replace("OUT", str(tmp_path)).split()
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name not in (".cache", ".config")] == []
