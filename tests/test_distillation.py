# ruff: noqa: F811 - fixtures
"""A teacher's cache, its lessons, and runs that learn from it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hyte.errors import InputError
from tests.test_training import bert, pair, settings, tokenizer, toy_pairs, write_lines  # noqa: F401 - fixtures
from training import teacher
from training.checkpoint import load_checkpoint
from training.data import load_pairs
from training.distillation import Distillation, load_teacher, sha256
from training.losses import listwise_kl
from training.teacher import chosen_rows, embed_pairs, sample
from training.train import train


def unit(values) -> np.ndarray:
    rows = np.asarray(values, dtype=np.float64)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def write_cache(path: Path, files: list, places: list, width: int = 4, seed: int = 0) -> Path:
    """A cache of random unit rows for these (file, line), without a model."""
    rng = np.random.default_rng(seed)
    queries, positives = (unit(rng.normal(size=(len(places), width))) for _ in range(2))
    file, line = np.array(places, dtype=np.int64).reshape(-1, 2).T.copy()
    tensors = {"queries": queries, "positives": positives, "file": file.copy(), "line": line.copy()}
    save_file(tensors, path, {"config": json.dumps({"digests": [sha256(name) for name in files]})})
    return path


# The loss


def test_listwise_kl_by_hand():
    student, told = np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([[3.0, 1.0], [1.0, 4.0]])

    def kl(own, other):
        own, other = own / own.sum(1, keepdims=True), other / other.sum(1, keepdims=True)
        return (other * np.log(other / own)).sum(1).mean()

    expected = (kl(student, told) + kl(student.T, told.T)) / 2
    first = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)  # row 0: 3/4 and 1/4 told, 1/4 and 3/4 thought
    second = 0.2 * math.log(0.4) + 0.8 * math.log(1.6)
    assert kl(student, told) == pytest.approx((first + second) / 2)
    logits = (torch.tensor(np.log(each)) for each in (student, told))
    assert listwise_kl(*logits).item() == pytest.approx(expected, rel=1e-12)


def test_listwise_kl_is_zero_for_the_teacher_itself_and_its_gradient_reaches_only_the_student():
    told = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = told.clone().requires_grad_()
    loss = listwise_kl(own + 3.0, told)  # a constant changes no distribution
    assert loss.item() == pytest.approx(0.0, abs=1e-15)
    loss.backward()
    assert own.grad.abs().max() < 1e-15


# The cache


def test_rows_are_found_by_content_and_line_whatever_the_order_of_the_files(tmp_path, tokenizer):
    a = write_lines(tmp_path / "a.jsonl", [pair("cat", "a cat"), "", pair("dog", "a dog"), pair("fish", "sea")])
    b = write_lines(tmp_path / "b.jsonl", [pair("gene", "cell"), pair("drug", "trial")])
    c = write_lines(tmp_path / "c.jsonl", [pair("heart", "red")])
    cache = write_cache(tmp_path / "t.safetensors", [a, b], [(1, 2), (0, 4), (0, 1)])
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_bytes(a.read_bytes())
    for files, expected in (
        ([a, b, c], [2, -1, 1, -1, 0, -1]),
        ([c, b, moved], [-1, -1, 0, 2, -1, 1]),
        ([c], [-1]),
    ):
        pairs = load_pairs(files, tokenizer, cache=tmp_path / "cache")
        assert load_teacher(cache).rows(pairs.files, pairs.file, pairs.line).tolist() == expected


def test_rows_of_equal_files_and_of_a_file_without_a_row_yet(tmp_path):
    a, b = (write_lines(tmp_path / f"{name}.jsonl", [pair("cat", "a cat")] * 3) for name in "ab")
    c = write_lines(tmp_path / "c.jsonl", [pair("dog", "a dog")])
    known = load_teacher(write_cache(tmp_path / "t.safetensors", [a, b, c], [(0, 1), (1, 2)]))
    file, line = np.array([0, 0, 0, 1]), np.array([1, 2, 3, 1])
    assert known.rows([str(b), str(c)], file, line).tolist() == [0, 1, -1, -1]


def test_a_lesson_holds_the_cosines_of_the_known_pairs_over_the_temperature(tmp_path, tokenizer):
    lines = [pair("cat", "a cat"), pair("dog", "a dog"), pair("fish", "sea"), pair("gene", "cell")]
    file = write_lines(tmp_path / "a.jsonl", lines)
    cache = write_cache(tmp_path / "t.safetensors", [file], [(0, 4), (0, 1), (0, 3)])
    pairs = load_pairs(file, tokenizer, cache=tmp_path / "cache")
    distillation = Distillation(cache, pairs, 0.25, 0.1)
    lesson = distillation.lesson(np.array([3, 1, 0]))  # lines 4, 2, 1
    tensors = load_file(cache)
    queries, positives = (tensors[name][[0, 1]].astype(np.float64) for name in ("queries", "positives"))
    assert lesson.rows.tolist() == [0, 2]
    assert lesson.weight == 0.25
    np.testing.assert_allclose(lesson.logits, queries @ positives.T / 0.1, rtol=1e-5)
    assert distillation.lesson(np.array([1, 0])) is None
    assert distillation.narrowed(pairs).usable.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a whole cache"),
        (b"\xff" * 300, "not a whole cache"),
        ("cut", "not a whole cache"),
        ("foreign", "not a whole cache of training.teacher"),
        ("shapes", r"do not fit each other \(\(2, 4\), \(3, 4\)"),
        ("scalar", "do not fit each other"),
        ("nan", "an embedding is not finite"),
        ("digests", "not a whole cache"),
    ],
)
def test_a_cache_that_is_damaged_or_something_else_is_one_line(tmp_path, content, message):
    file = write_lines(tmp_path / "a.jsonl", [pair("cat", "a cat")] * 3)
    path = write_cache(tmp_path / "t.safetensors", [file], [(0, 1), (0, 2), (0, 3)])
    tensors, metadata = load_file(path), {"config": json.dumps({"digests": [sha256(file)]})}
    if content == "foreign":
        save_file({"w1": np.zeros((2, 2))}, path, {"config": "{}"})
    elif content == "shapes":
        save_file(tensors | {"queries": tensors["queries"][:2].copy()}, path, metadata)
    elif content == "scalar":
        save_file(tensors | {"file": np.array(0)}, path, metadata)
    elif content == "nan":
        tensors["positives"][1, 1] = np.nan
        save_file(tensors, path, metadata)
    elif content == "digests":
        save_file(tensors, path, {"config": json.dumps({"digests": 5})})
    else:
        path.write_bytes(path.read_bytes()[:-7] if content == "cut" else content)
    with pytest.raises(InputError, match=message) as error:
        load_teacher(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_cache_and_one_of_other_files_are_named(tmp_path, settings):
    with pytest.raises(InputError, match=r"distillation.cache=nowhere: no such file; make it with"):
        train(settings(distillation_cache="nowhere"))
    other = write_lines(tmp_path / "other.jsonl", [pair("cat", "a cat")])
    cache = write_cache(tmp_path / "t.safetensors", [other], [(0, 1)])
    with pytest.raises(InputError, match=r"made from other files than .*toy.jsonl: it knows 0 of 60 pairs"):
        train(settings(distillation_cache=str(cache)))


# Runs


@pytest.fixture
def cache(tmp_path, settings) -> Path:
    """A cache of two thirds of the toy pairs."""
    places = [(0, line) for line in range(1, 61) if line % 3]
    return write_cache(tmp_path / "teacher.safetensors", [settings().pairs[0]], places)


def test_a_teacher_changes_the_loss_by_its_share(settings, cache, tmp_path):
    plain = train(settings())
    results = {
        weight: train(
            settings(distillation_cache=str(cache), distillation_weight=weight, out=str(tmp_path / str(weight)))
        )
        for weight in (0.0, 0.5, 1.0)
    }
    assert results[0.0]["loss"] == plain["loss"]
    assert len({result["loss"] for result in results.values()}) == 3
    recorded = load_checkpoint(results[0.5]["checkpoint"]).config["distillation"]
    assert recorded == {
        "cache": str(cache), "weight": 0.5, "temperature": 0.05, "only": False, "sha256": sha256(cache),
    }  # fmt: skip


def test_a_teacher_is_learned(settings, cache):
    options = {"steps": 150, "batch_size": 40, "lr": 2e-2, "log_every": 25, "distillation_only": True}
    result = train(
        settings(distillation_cache=str(cache), distillation_weight=1.0, distillation_temperature=0.3, **options)
    )
    losses = [json.loads(line)["loss"] for line in Path(result["metrics"]).read_text().splitlines()]
    assert result["pairs"] == 40
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_with_a_teacher_goes_on_to_the_same_end_with_the_same_cache_wherever_it_lies(
    settings,
    cache,
    tmp_path,
    monkeypatch,
):
    whole = train(settings(distillation_cache=str(cache)))
    options = {"out": str(tmp_path / "stopped"), "save_every": 5}
    real, calls = teacher_free_step(), []

    def stopping(*arguments):
        if len(calls) == 7:
            raise KeyboardInterrupt
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr("training.loop.train_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(settings(distillation_cache=str(cache), **options))
    monkeypatch.setattr("training.loop.train_step", real)
    other = write_cache(tmp_path / "other.safetensors", settings().pairs, [(0, line) for line in range(1, 20)], seed=1)
    with pytest.raises(InputError, match=r"distillation.sha256=[0-9a-f]{64}, this run has distillation.sha256="):
        train(settings(distillation_cache=str(other), resume=True, **options))
    with pytest.raises(InputError, match=r"distillation.sha256=None"):
        train(settings(resume=True, **options))
    moved = cache.rename(tmp_path / "moved.safetensors")
    result = train(settings(distillation_cache=str(moved), resume=True, **options))
    states = [load_checkpoint(each["checkpoint"]).state for each in (whole, result)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def teacher_free_step():
    from training.loop import train_step

    return train_step


# training.teacher


@pytest.fixture
def sources(tmp_path) -> list[str]:
    lines = toy_pairs(12)
    files = write_lines(tmp_path / "a.jsonl", lines[:9]), write_lines(tmp_path / "b.jsonl", lines[9:])
    return [str(file) for file in files]


def test_embeddings_are_the_masked_mean_of_transformers(sources, tiny_bert, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    out = tmp_path / "t.safetensors"
    result = embed_pairs(sources, str(out), str(tiny_bert), max_tokens=8, batch_size=5, device="cpu")
    made = load_teacher(out)
    assert (result["pairs"], result["sha256"], result["bytes"]) == (12, sha256(out), out.stat().st_size)
    assert made.digests == tuple(sha256(name) for name in sources)
    np.testing.assert_allclose(np.linalg.norm(made.queries.astype(np.float64), axis=1), 1.0, atol=2e-3)
    model, words = AutoModel.from_pretrained(tiny_bert).eval(), AutoTokenizer.from_pretrained(tiny_bert)
    for row, (file, line) in enumerate(zip(made.file, made.line, strict=True)):
        entry = json.loads(Path(sources[file]).read_text().splitlines()[line - 1])
        for text, found in ((entry["query"], made.queries), (entry["positive"], made.positives)):
            given = words(text, return_tensors="pt", truncation=True, max_length=8, padding=False)
            with torch.no_grad():
                expected = model(**given).last_hidden_state[0].mean(0).double().numpy()
            np.testing.assert_allclose(found[row], expected / np.linalg.norm(expected), atol=0.02)


def test_a_flipped_bit_of_an_embedding_is_called_damaged(sources, tiny_bert, tmp_path):
    out = tmp_path / "t.safetensors"
    embed_pairs(sources, str(out), str(tiny_bert), max_tokens=8, device="cpu")
    good = out.read_bytes()
    for place in range(len(good) - 20, len(good)):
        out.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(InputError, match=f"{out}: damaged: its checksum does not fit; copy it again"):
            load_teacher(out)


def test_it_goes_on_from_what_an_interrupted_call_left(sources, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher, "PART", 5)
    options = {"model": str(tiny_bert), "max_tokens": 8, "device": "cpu"}
    whole, out = tmp_path / "whole.safetensors", tmp_path / "t.safetensors"
    embed_pairs(sources, str(whole), **options)
    real, texts = teacher._encoder, []

    def breaking(*arguments):
        encode = real(*arguments)

        def broken(given):
            texts.extend(given)
            if len(texts) > 15:  # queries and positives of the first part, the queries of the second
                raise RuntimeError("the power went")
            return encode(given)

        return broken

    monkeypatch.setattr(teacher, "_encoder", breaking)
    with pytest.raises(RuntimeError, match="power"):
        embed_pairs(sources, str(out), **options)
    assert len(load_teacher(out).queries) == 5
    texts.clear()
    monkeypatch.setattr(
        teacher, "_encoder", lambda *arguments: lambda given: texts.extend(given) or real(*arguments)(given)
    )
    assert embed_pairs(sources, str(out), **options)["pairs"] == 12
    assert len(texts) == 2 * 7
    assert out.read_bytes() == whole.read_bytes()
    monkeypatch.setattr(teacher, "_encoder", None)  # nothing is left to do, so no model is loaded
    assert embed_pairs(sources, str(out), **options)["pairs"] == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 9}, "made with max_tokens=8, now max_tokens=9; name another out"),
        ({"seed": 8}, "made with seed=7, now seed=8"),
        ({"per_source": 2}, "made with per_source=6000, now per_source=2"),
        ({"model": "other"}, "made with model=.*, now model=other"),
    ],
)
def test_a_cache_of_other_settings_is_not_gone_on_with(sources, tmp_path, changes, message):
    out = write_cache(tmp_path / "t.safetensors", sources, [(0, 1)])
    recorded = {
        "model": "tiny", "per_source": 6000, "max_tokens": 8, "seed": 7, "files": ["a.jsonl", "b.jsonl"],
        "digests": [sha256(name) for name in sources],
    }  # fmt: skip
    save_file(load_file(out), out, {"config": json.dumps(recorded)})
    before = out.read_bytes()
    with pytest.raises(InputError, match=message):
        embed_pairs(sources, str(out), **({"model": "tiny", "max_tokens": 8} | changes))
    Path(sources[1]).write_text(json.dumps(pair("new", "old")) + "\n")
    with pytest.raises(InputError, match="made with digests="):
        embed_pairs(sources, str(out), "tiny", max_tokens=8)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_source": 0}, "per_source=0 must be a whole number, 1 or more"),
        ({"per_source": "all"}, "per_source='all' must be a whole number"),
        ({"max_tokens": 0}, "max_tokens=0 must be"),
        ({"batch_size": 1.5}, "batch_size=1.5 must be"),
        ({"seed": -1}, "seed=-1 must be a whole number, 0 or more"),
        ({"max_tokens": 513}, "max_tokens=513: the model of .* reads at most 512 tokens"),
        ({"model": "nowhere"}, "model=nowhere: sentence-transformers cannot load it"),
        ({"device": "nonsense"}, "cannot load it"),
    ],
)
def test_bad_settings_of_the_teacher_are_one_line(sources, tiny_bert, tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as error:
        embed_pairs(sources, str(tmp_path / "t.safetensors"), **({"model": str(tiny_bert)} | changes))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "t.safetensors").exists()


def test_a_sample_has_so_many_of_each_file_and_hangs_on_the_seed(sources):
    file, line = sample(sources, 2, 7)
    assert sorted(file.tolist()) == [0, 0, 1, 1]
    assert len(set(zip(file.tolist(), line.tolist(), strict=True))) == 4
    again, other = sample(sources, 2, 7), sample(sources, 2, 8)
    assert (again[0].tolist(), again[1].tolist()) == (file.tolist(), line.tolist())
    assert (other[0].tolist(), other[1].tolist()) != (file.tolist(), line.tolist())
    assert sorted(zip(*(each.tolist() for each in sample(sources, None, 7)), strict=True)) == [
        *((0, line) for line in range(1, 10)), *((1, line) for line in range(1, 4)),
    ]  # fmt: skip


def test_a_smaller_sample_is_part_of_a_larger_one():
    file = np.repeat([0, 1, 2], [50, 5, 30])
    small, large = (set(chosen_rows(file, 3, size, 7).tolist()) for size in (4, 20))
    assert len(small) == 12
    assert small < large
