"""A training run from start to end: resume, validation, averaged weights, the picture, recipes."""

import copy
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import MissingConfigException

from eval.run import run as evaluate
from export.run import export
from hyte import Settings as IndexSettings
from hyte.errors import InputError
from tests.conftest import ROOT
from tests.test_tokens import save_tiny_bert
from tests.test_training import run_command, toy_pairs, write_lines
from training import summary, validation
from training import train as training
from training.batches import batches, collate
from training.checkpoint import load_checkpoint, save_checkpoint
from training.data import load_pairs
from training.logs import read_metrics, start_wandb
from training.loop import Run, train_step
from training.model import optimiser
from training.settings import Settings
from training.state import load_last
from training.tokens import load_tokens
from training.train import train

LAST = "last.safetensors"


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def settings(bert, tmp_path, monkeypatch):
    """Settings for a run of 20 steps on the toy pairs, without a picture; keyword arguments override."""
    monkeypatch.setattr(summary, "draw", lambda out: None)
    toy = write_lines(tmp_path / "toy.jsonl", toy_pairs())
    basic = {
        "pairs": (str(toy),), "out": str(tmp_path / "run"), "cache": str(tmp_path / "cache"), "wandb_mode": "disabled",
        "tokens": "bge_small", "tokens_path": str(bert), "hidden": 32, "steps": 20, "batch_size": 24, "log_every": 1,
    }  # fmt: skip
    return lambda **changes: Settings(**(basic | changes))


class StoppedError(Exception):
    pass


def stop_after(monkeypatch, step: int) -> None:
    """Let the next run end like a crash when this step is done."""
    whole = Run.step

    def step_and_stop(self, *arguments):
        if self.progress.step == step:
            raise StoppedError
        return whole(self, *arguments)

    monkeypatch.setattr(Run, "step", step_and_stop)


def interrupted(monkeypatch, options: Settings, step: int) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        with pytest.raises(StoppedError):
            train(options)


def without_times(path: str | Path) -> list[dict]:
    return [{key: each for key, each in line.items() if key != "pairs_per_s"} for line in read_metrics(Path(path))]


def states(result: dict) -> list[dict[str, torch.Tensor]]:
    """Of checkpoint and last."""
    return [
        load_checkpoint(Path(result["checkpoint"]).with_name(name)).state for name in ("checkpoint.safetensors", LAST)
    ]


def assert_same(one: dict, other: dict) -> None:
    """The same weights, optimiser, metrics and figures, to the last bit."""
    assert without_times(one["metrics"]) == without_times(other["metrics"])
    for left, right in zip(states(one), states(other), strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
    for key in ("steps", "pairs", "batch_size", "loss", "scale", "best_step", "best_score", "stopped_early"):
        assert one[key] == other[key], key


# Resume


@pytest.mark.parametrize("log_every", [1, 7])
def test_a_resumed_run_ends_as_an_uninterrupted_one(settings, monkeypatch, tmp_path, log_every):
    common = {"save_every": 10, "log_every": log_every, "average": 0.9}
    whole = train(settings(out=str(tmp_path / "whole"), **common))
    interrupted(monkeypatch, settings(**common), 13)
    assert load_last(tmp_path / "run").progress["step"] == 10
    if log_every == 1:
        assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [*range(1, 14)]
    assert_same(train(settings(resume=True, **common)), whole)


def test_a_run_killed_before_its_first_checkpoint_begins_anew(settings, monkeypatch, tmp_path):
    whole = train(settings(out=str(tmp_path / "whole")))
    train(settings(steps=5, lr=1e-2))  # an older run in the same folder
    interrupted(monkeypatch, settings(), 13)
    assert load_last(tmp_path / "run").progress["step"] == 0
    assert_same(train(settings(resume=True)), whole)


def test_a_fresh_run_sets_the_checkpoint_of_an_earlier_one_aside(settings, tmp_path, caplog):
    train(settings(steps=5, k=2.0))
    earlier = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"step \d+: .*; this run has saved no weights yet"):
        train(settings(lr=1e30))
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert (tmp_path / "run" / "previous.safetensors").read_bytes() == earlier
    train(settings())  # the same command again works
    assert load_checkpoint(tmp_path / "run").config["k"] == 1.0
    assert (tmp_path / "run" / "previous.safetensors").read_bytes() == earlier
    assert "resume=true" not in caplog.text  # no run there had anything left to do


def test_a_fresh_run_in_the_folder_of_an_unfinished_one_is_one_warning(settings, monkeypatch, tmp_path, caplog):
    interrupted(monkeypatch, settings(save_every=10), 13)
    caplog.clear()
    train(settings())
    expected = f"{tmp_path}/run holds a run that stopped at step 10 of 20: .*resume=true would have gone on with it"
    assert len(re.findall(expected, caplog.text)) == caplog.text.count("resume=true") == 1


def test_a_resumed_run_keeps_its_checkpoint_and_is_not_warned_of_itself(settings, monkeypatch, tmp_path, caplog):
    interrupted(monkeypatch, settings(save_every=10), 13)
    caplog.clear()
    train(settings(resume=True))
    assert not (tmp_path / "run" / "previous.safetensors").exists()
    assert "afresh" not in caplog.text


KILLED = """
import os, signal, sys
from hyte import files
from tests.test_run import Settings
from training import summary
from training.train import train

replace, left = os.replace, [int(sys.argv[1])]

def die(source, target):
    # In the middle of writing last.safetensors: all bytes are there, under another name.
    if str(target).endswith("last.safetensors"):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

files.os.replace = die
train(eval(sys.argv[2]))
"""


def test_a_run_killed_while_it_writes_goes_on_from_the_file_before(settings, tmp_path):
    whole = train(settings(out=str(tmp_path / "whole"), save_every=3))
    saves = int(np.random.default_rng().integers(1, 7))  # of step 0, then one every 3 steps
    options = settings(save_every=3)
    command = [sys.executable, "-c", KILLED, str(saves), repr(options)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert killed.returncode == -9, killed.stderr
    assert load_last(tmp_path / "run").progress["step"] == 3 * (saves - 1)
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 3 * saves
    result = train(settings(save_every=3, resume=True))
    ours, theirs = (read_metrics(Path(each["metrics"])) for each in (result, whole))
    assert [line["step"] for line in ours] == [*range(1, 21)]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=1e-6)
    for left, right in zip(states(result), states(whole), strict=True):
        for name in left:
            torch.testing.assert_close(left[name], right[name], rtol=0, atol=1e-6)


def test_a_line_that_a_kill_cut_short_is_dropped(settings, monkeypatch, tmp_path):
    whole = train(settings(out=str(tmp_path / "whole"), save_every=10))
    interrupted(monkeypatch, settings(save_every=10), 13)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 14, "lo')
    assert_same(train(settings(save_every=10, resume=True)), whole)


def test_resuming_a_finished_run_says_so_and_changes_nothing(settings, tmp_path, caplog):
    caplog.set_level("INFO")
    first = train(settings())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "run").iterdir()}
    again = train(settings(resume=True))
    assert "finished at step 20, nothing to do" in caplog.text
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "run").iterdir()} == before
    for result in (first, again):
        del result["seconds"], result["seconds_to_load"]
    assert again == first
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(InputError, match="of a finished run, whose .*checkpoint.safetensors is missing; put it back"):
        train(settings(resume=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 30}, "steps=20, this run has steps=30"),
        ({"lr": 1e-2}, "lr=0.003, this run has lr=0.01"),
        ({"pooling": "oem"}, "pooling.name=oem_radial, this run has pooling.name=oem"),
        ({"hidden": 16}, "model.hidden=32, this run has model.hidden=16"),
        ({"average": 0.5}, "average=0.0, this run has average=0.5"),
        ({"validation_every": 7}, "validation.every=200, this run has validation.every=7"),
        ({"out": "nowhere"}, "no last.safetensors in out=nowhere"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(settings, monkeypatch, tmp_path, changes, message):
    interrupted(monkeypatch, settings(save_every=4), 9)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=message):
        train(settings(resume=True, save_every=4, **changes))
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -1), ("step", 4.0), ("step", True), ("step", "4"), ("step", None), ("losses", None), ("losses", ["1"]),
        ("losses", [1.0, None]), ("loss", "1"), ("best_score", [1]), ("best_step", 5), ("best_step", -1),
        ("stale", None), ("stale", 5), ("stale", False),
    ],
)  # fmt: skip
def test_a_progress_that_no_run_has_is_called_damaged(settings, monkeypatch, tmp_path, name, value):
    interrupted(monkeypatch, settings(save_every=4), 5)
    last = load_last(tmp_path / "run")
    save_checkpoint(last.path, last.state, last.config, last.progress | {name: value})
    with pytest.raises(InputError, match=f"last.safetensors: damaged: its progress has {name}=.*; start the run again"):
        train(settings(resume=True, save_every=4))
    train(settings(steps=1))  # afresh all is well


def test_a_run_is_resumed_wherever_its_data_are_and_only_with_these(settings, monkeypatch, tmp_path):
    whole = train(settings(out=str(tmp_path / "whole")))
    interrupted(monkeypatch, settings(save_every=4), 9)
    other = write_lines(tmp_path / "other.jsonl", toy_pairs(59))
    with pytest.raises(
        InputError, match=r"pair files differ .*\(60 pairs then, 59 now\); give those, or start another"
    ):
        train(settings(resume=True, pairs=(str(other),)))
    write_lines(other, [*toy_pairs(59), toy_pairs(1)[0]])
    with pytest.raises(InputError, match=r"pair files differ .*\(60 pairs then, 60 now\)"):
        train(settings(resume=True, pairs=(str(other),)))
    moved = (tmp_path / "toy.jsonl").rename(tmp_path / "moved.jsonl")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    result = train(settings(resume=True, pairs=(str(moved),), out=str(tmp_path / "elsewhere"), save_every=8))
    assert_same(result, whole)


def test_a_run_that_began_with_a_checkpoint_is_resumed_without_it(settings, monkeypatch, tmp_path):
    start = train(settings(steps=0, hidden=16, pooling="oem", out=str(tmp_path / "start")))
    options = {"checkpoint": start["checkpoint"], "pooling": "trained", "save_every": 5}
    whole = train(settings(out=str(tmp_path / "whole"), **options))
    interrupted(monkeypatch, settings(**options), 8)
    Path(start["checkpoint"]).unlink()
    assert_same(train(settings(resume=True, **options)), whole)


def test_a_model_copied_and_moved_before_its_optimiser_goes_on_as_the_first(settings, bert, tmp_path):
    options = settings()
    tokens = load_tokens("bge_small", bert)
    pairs = load_pairs(options.pairs, tokens.tokenizer, cache=tmp_path / "cache")
    built, config = training.build(options, tokens, None)
    runs = [Run(model, options, config) for model in (copy.deepcopy(built).to("cpu"), built)]
    order = batches(pairs, 24, 1)
    for _ in range(3):
        rows = next(order)
        for run in runs:
            run.step(collate(pairs, rows), pairs)
    runs[0].save_last()
    fresh = copy.deepcopy(training.build(options, tokens, None)[0])
    runs[0] = Run(fresh, options, config, last=load_last(Path(options.out)))
    rows = next(order)
    for run in runs:
        run.step(collate(pairs, rows), pairs)
    for name, value in runs[1].model.state().items():
        assert torch.equal(value, runs[0].model.state()[name])
        for key, held in runs[1].optimiser.state[value].items():
            assert torch.equal(held, runs[0].optimiser.state[runs[0].model.state()[name]][key])
    assert runs[0].progress == runs[1].progress


def test_a_failed_save_leaves_the_file_before(settings, monkeypatch, tmp_path):
    train(settings())
    before = (tmp_path / "run" / LAST).read_bytes()

    def full(source, target):
        raise OSError(28, "No space left on device")

    run = Run(training.build(settings(), load_tokens("bge_small", settings().tokens_path), None)[0], settings(), {})
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        run.save_last()
    assert (tmp_path / "run" / LAST).read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))


# Averaged weights


def test_averaged_weights_by_hand(settings, bert, tmp_path):
    options = settings(average=0.75, steps=3, warmup=0.0)
    result = train(options)
    tokens = load_tokens("bge_small", bert)
    pairs = load_pairs(options.pairs, tokens.tokenizer, cache=tmp_path / "cache")
    model, _ = training.build(options, tokens, None)
    chosen, order = optimiser(model, 3e-3, 0.01), batches(pairs, 24, 1)
    mean = {name: value.detach().numpy().copy() for name, value in model.state().items()}
    for share in (1.0, 0.75, 0.25):
        train_step(model, chosen, collate(pairs, next(order)), 3e-3 * share, 1.0)
        for name, value in model.state().items():
            mean[name] = 0.75 * mean[name] + 0.25 * value.detach().numpy()
    kept, last = states(result)
    for name, value in model.state().items():
        np.testing.assert_allclose(kept[name], mean[name], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(last[name], value.detach(), rtol=1e-5, atol=1e-7)
        assert not torch.equal(kept[name], last[name])
        assert torch.equal(kept[name], last[f"average.{name}"])
    assert result["scale"] == pytest.approx(kept["log_scale"].exp().item())
    assert read_metrics(Path(result["metrics"]))[-1]["scale"] == result["scale"]  # what is drawn is what is kept


# Validation


def write_dev(folder: Path, seed: int = 0) -> Path:
    """A collection with what can be odd: long, empty and unknown texts, a query that is a document, no positives."""
    rng = np.random.default_rng(seed)
    lines = toy_pairs()
    corpus = [
        {"_id": f"d{i}", "title": "old" if i % 3 == 0 else "", "text": each["positive"]} for i, each in enumerate(lines)
    ]
    corpus[5]["text"] = " ".join(rng.choice(["cat", "dog", "sea", "gene", "zzz"], 700))
    corpus[6]["text"] = corpus[7]["text"] = corpus[8]["text"]  # ties
    corpus += [{"_id": f"e{i}", "title": "", "text": ""} for i in range(3)]
    corpus += [{"_id": "u1", "text": "zzz yyy"}, {"_id": "u2", "text": "qqq zzz zzz"}]
    queries = [{"_id": f"q{i}", "text": each["query"].split()[i % 2]} for i, each in enumerate(lines[:30])]
    queries += [
        {"_id": "d3", "text": corpus[3]["text"]},
        {"_id": "unknown", "text": "qqq"},
        {"_id": "none", "text": "cat"},
    ]
    qrels = [f"q{i}\td{j}\t{grade}" for i in range(30) for j, grade in ((i, 2), ((7 * i) % 60, 1), (i + 1, 0))]
    qrels += ["d3\td4\t1", "unknown\tu2\t1", "none\td1\t0", "q1\tghost\t1", "missing\td1\t1"]
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", corpus)
    write_lines(folder / "queries.jsonl", queries)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(qrels) + "\n")
    return folder


@pytest.fixture
def dev(tmp_path) -> list[str]:
    return [str(write_dev(tmp_path / name, seed)) for seed, name in enumerate(("one", "two"))]


def test_the_best_score_is_what_eval_gives_for_the_exported_checkpoint(settings, dev, tmp_path):
    options = settings(validation_collections=tuple(dev[:1]), validation_every=4, average=0.5, lr=2e-2)
    result = train(options)
    export(result["checkpoint"], str(tmp_path / "artifact"))
    cut = IndexSettings(analyzer="whitespace", fusion="paper", window=300, overlap=60)
    found = evaluate(dev[0], cut, "lorentz", tmp_path / "artifact", out=tmp_path / "eval")
    assert found["queries_without_known_tokens"] == 1
    assert found["queries_unanswered"] == 1
    assert result["best_score"] == pytest.approx(found["ndcg@10"], abs=1e-6)
    assert 0.1 < result["best_score"] < 0.95
    config = load_checkpoint(result["checkpoint"]).config
    assert config["step"] == result["best_step"]


def test_every_validation_is_recorded_and_the_best_is_kept(settings, dev, monkeypatch):
    told, scores = [], iter([0.3, 0.5, 0.5, 0.4, 0.2])
    monkeypatch.setattr(
        validation,
        "_score",
        lambda data, index, encoder, drop_same_id: (
            told.append(encoder) or next(scores) - 0.1 * (data.name == "two") if data.name == "one" else 0.1
        ),
    )
    result = train(settings(validation_collections=tuple(dev), validation_every=4))
    lines = [line for line in read_metrics(Path(result["metrics"])) if "val/mean" in line]
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20]
    assert lines[1] == {"step": 8, "val/one": 0.5, "val/two": 0.1, "val/mean": pytest.approx(0.3)}
    assert (result["best_step"], result["best_score"], result["stopped_early"]) == (8, pytest.approx(0.3), False)
    assert load_checkpoint(result["checkpoint"]).config["step"] == 8
    kept, last = states(result)
    assert not torch.equal(kept["w1"], last["w1"])
    assert len(told) == 5


@pytest.mark.parametrize(("patience", "steps"), [(1, 12), (2, 16), (3, 20), (None, 20)])
def test_training_stops_when_its_patience_ends(settings, dev, monkeypatch, patience, steps):
    scores = iter([0.3, 0.5, 0.4, 0.5, 0.2])  # equal is no improvement
    monkeypatch.setattr(validation, "_score", lambda *arguments: next(scores))
    options = {"validation_collections": tuple(dev[:1]), "validation_every": 4, "validation_patience": patience}
    result = train(settings(**options, log_every=7))
    assert (result["steps"], result["best_step"]) == (steps, 8)
    assert result["stopped_early"] == (steps < 20)
    losses = [line["step"] for line in read_metrics(Path(result["metrics"])) if "loss" in line]
    assert losses == sorted({7, min(14, steps), steps})
    again = train(settings(**options, log_every=7, resume=True))
    assert (again["steps"], again["stopped_early"], again["loss"]) == (steps, steps < 20, result["loss"])


def test_a_resumed_run_keeps_its_best_step_and_its_patience(settings, dev, monkeypatch, tmp_path):
    options = {"validation_collections": tuple(dev), "validation_every": 4, "save_every": 5, "average": 0.8, "lr": 2e-2}
    whole = train(settings(out=str(tmp_path / "whole"), **options))
    interrupted(monkeypatch, settings(**options), 18)
    assert_same(train(settings(resume=True, **options)), whole)


def test_collections_are_cut_and_tokenised_once(settings, dev, monkeypatch):
    counts = []
    whole = validation.token_ids
    monkeypatch.setattr(
        validation, "token_ids", lambda tokenizer, texts: counts.append(len(texts)) or whole(tokenizer, texts)
    )
    train(settings(validation_collections=tuple(dev), validation_every=10))
    first = sum(counts)
    counts.clear()
    train(settings(validation_collections=tuple(dev), validation_every=2))
    assert sum(counts) == first > 60


def test_validation_takes_the_first_queries_with_a_positive_judgement(settings, dev, bert, caplog):
    tokens = load_tokens("bge_small", bert)
    model, _ = training.build(settings(), tokens, None)

    def kept(queries):
        validator = validation.Validator(dev[:1], "test", queries, model.encoder, tokens.tokenizer)
        return list(validator._sets["one"][0].qrels), validator.scores(model.state())["val/mean"]

    everything, score = kept(None)
    assert everything == [*(f"q{i}" for i in range(30)), "d3", "unknown", "missing"]
    assert kept(40) == (everything, score)
    assert kept(5)[0] == everything[:5]
    assert "left out" not in caplog.text


def test_collections_that_cannot_be_used_are_refused_before_anything_is_written(settings, dev, tmp_path):
    twin = write_dev(tmp_path / "twin" / "one")
    with pytest.raises(InputError, match="two are called one"):
        train(settings(validation_collections=(dev[0], str(twin))))
    with pytest.raises(InputError, match="no such folder or zip"):
        train(settings(validation_collections=("nothing",)))
    with pytest.raises(InputError, match="train"):
        train(settings(validation_collections=tuple(dev), validation_split="train"))
    (twin / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t0\n")
    with pytest.raises(InputError, match="no query of split test has a positive"):
        train(settings(validation_collections=(str(twin),)))
    assert not (tmp_path / "run").exists()


def test_a_block_of_empty_documents_has_no_points(bert, settings, tmp_path):
    folder = write_dev(tmp_path / "empty")
    text = (folder / "corpus.jsonl").read_text()
    empty = "".join(json.dumps({"_id": f"z{i}", "text": ""}) + "\n" for i in range(600))
    (folder / "corpus.jsonl").write_text(empty + text)
    result = train(settings(steps=1, validation_collections=(str(folder),)))
    (folder / "corpus.jsonl").write_text(text)
    assert train(settings(steps=1, validation_collections=(str(folder),)))["best_score"] == result["best_score"]


# The picture


def test_the_picture_is_redrawn_from_the_metrics_alone(tmp_path):
    lines = [
        {"step": s, "loss": 1 / s, "lr": 1e-3, "grad_norm": 2.0, "scale": 15.0, "pairs_per_s": 9.0} for s in (5, 10)
    ]
    lines.append({"step": 10, "val/cacm": 0.3, "val/squad": 0.5, "val/mean": 0.4})
    for name, chosen in (("with", lines), ("without", lines[:2])):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "metrics.jsonl", chosen)
        path = summary.draw(tmp_path / name)
        assert path == tmp_path / name / "summary.png"
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "with" / "summary.png").stat().st_size > (tmp_path / "without" / "summary.png").stat().st_size
    with pytest.raises(InputError, match="no such file"):
        summary.draw(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(InputError, match="no line in it"):
        summary.draw(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(InputError, match="not what training wrote"):
        summary.draw(tmp_path)


def test_no_label_of_the_picture_touches_another_or_the_edge(tmp_path, monkeypatch):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **options: drawn.append(self) or save(self, *given, **options)
    )
    lines = [
        {
            "step": s,
            "loss": 1 / s,
            "lr": 1e-5 * s,
            "grad_norm": 1e-5 * s,
            "scale": 15.0 + s / 500,
            "val/mean": 0.4 + s / 1e5,
        }
        for s in range(10, 100, 10)
    ]
    write_lines(tmp_path / "metrics.jsonl", lines)
    summary.draw(tmp_path)
    renderer = FigureCanvasAgg(drawn[0]).get_renderer()
    boxes = [axes.yaxis.label.get_window_extent(renderer) for axes in drawn[0].axes]
    boxes += [each.get_window_extent(renderer) for axes in drawn[0].axes for each in axes.get_yticklabels()]
    assert len(boxes) > 20
    assert all(0 <= box.x0 < box.x1 <= drawn[0].bbox.width for box in boxes)
    labels = boxes[:5]
    assert not any(one.overlaps(other) for one in labels for other in boxes if one is not other)


def test_a_run_that_ends_early_leaves_a_picture_and_matplotlib_is_not_needed(settings, monkeypatch, caplog):
    drawn = []
    monkeypatch.setattr(summary, "draw", drawn.append)
    interrupted(monkeypatch, settings(), 3)
    assert drawn == [Path(settings().out)]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert math.isfinite(train(settings())["loss"])
    assert 'pip install "hyte[train]"' in caplog.text


# Recipes and the command line


def configured(*overrides: str):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def test_a_recipe_of_training_is_not_one_of_evaluation():
    assert configured("experiment=hyte").steps == 300
    assert configured("experiment=hyte", "steps=2").steps == 2
    with pytest.raises(MissingConfigException, match=r"(?s)Available options in 'experiment':\s+hyte\s"):
        configured("experiment=paper_reported")


def test_the_command_takes_a_recipe_and_validates(bert, dev, tmp_path):
    write_lines(tmp_path / "toy.jsonl", toy_pairs(20))
    done = run_command(
        tmp_path, "experiment=hyte", "tokens=bge_small", f"tokens.path={bert}", "model.hidden=32", "steps=2", "out=run",
        "data.pairs=[toy.jsonl]", f"data.cache={tmp_path / 'cache'}", "validation.collections=[one,two]", "average=0.5",
        "log_every=1", "wandb.mode=disabled",
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert (result["steps"], result["best_step"], result["stopped_early"]) == (2, 2, False)
    left = {"checkpoint.safetensors", "config.yaml", LAST, "metrics.jsonl", "summary.png"}
    assert {each.name for each in (tmp_path / "run").iterdir()} == left
    assert "step 2: val/one 0." in done.stderr


def test_wandb_without_a_login_is_one_warning_and_no_question(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert start_wandb("online", "hyte", tmp_path, {}) is None
    ours = [record.getMessage() for record in caplog.records if record.name == "training.logs"]  # wandb keeps a log too
    assert len(ours) == 1
    assert "going on without it" in ours[0]


def test_wandb_gets_the_validation_too(settings, dev, monkeypatch):
    sent = []

    class Wandb:
        Settings = staticmethod(lambda **options: options)
        setup = staticmethod(lambda settings: None)
        log = staticmethod(lambda values, step: sent.append((step, sorted(values))))
        finish = staticmethod(lambda: sent.append("finish"))
        init = staticmethod(lambda **options: Wandb)

    monkeypatch.setitem(sys.modules, "wandb", Wandb)
    train(settings(steps=2, log_every=2, validation_collections=tuple(dev), wandb_mode="offline"))
    assert sent[0] == (2, ["step", "val/mean", "val/one", "val/two"])
    assert sent[1] == (2, ["grad_norm", "loss", "lr", "pairs_per_s", "scale", "step"])
    assert sent[2] == "finish"
