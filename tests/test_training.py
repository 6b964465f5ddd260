"""Training: pairs, masks, loss by hand, the loop, checkpoints, and what happens when something goes wrong."""

import gzip
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hyte import geometry, pooling
from hyte.errors import InputError
from hyte.nn import lorentz
from hyte.tokenizer import load_tokenizer, token_ids
from hyte.weights import write_matrix
from tests.test_tokens import save_tiny_bert
from training import model as training_model
from training import summary
from training import train as training_loop
from training.batches import batches, collate
from training.checkpoint import load_checkpoint, save_checkpoint
from training.data import distinct_tokens, load_pairs
from training.lines import find_files, read_lines
from training.loop import train_step
from training.losses import info_nce, not_negatives, similarities
from training.model import rate
from training.settings import Settings, from_config
from training.state import digest
from training.tokens import load_tokens
from training.train import train

ROOT = Path(__file__).parents[1]
NOUNS = ["cat", "dog", "bird", "fish", "mat", "sea", "cell", "protein", "gene", "drug", "heart", "vitamin"]
OTHERS = ["ran", "sat", "blue", "red", "old", "new", "trial", "a", "the", "."]


def write_lines(path: Path, lines: list) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def pair(query: str, positive: str, *negatives: str) -> dict:
    return {"query": query, "positive": positive} | ({"negatives": list(negatives)} if negatives else {})


def toy_pairs(count: int = 60) -> list[dict]:
    """Two nouns as the query; the same two among other words as the positive. All queries differ."""
    rng = np.random.default_rng(0)
    combinations = [(a, b) for i, a in enumerate(NOUNS) for b in NOUNS[i + 1 :]]
    chosen = rng.permutation(len(combinations))[:count]
    fill = rng.choice(OTHERS, size=(count, 4))
    return [
        pair(" ".join(combinations[i]), " ".join([*words, *combinations[i]]))
        for i, words in zip(chosen, fill, strict=True)
    ]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def tokenizer(bert):
    return load_tokens("bge_small", bert).tokenizer


@pytest.fixture
def settings(bert, tmp_path, monkeypatch):
    """Settings for a run on the toy pairs with the tiny BERT, without a picture; keyword arguments override."""
    monkeypatch.setattr(summary, "draw", lambda out: None)  # it takes longer than the run
    toy = write_lines(tmp_path / "toy.jsonl", toy_pairs())
    basic = {
        "pairs": (str(toy),), "out": str(tmp_path / "run"), "cache": str(tmp_path / "cache"), "wandb_mode": "disabled",
        "tokens": "bge_small", "tokens_path": str(bert), "hidden": 32, "steps": 10, "batch_size": 32, "log_every": 5,
    }  # fmt: skip
    return lambda **changes: Settings(**(basic | changes))


# Lines


def test_plain_and_gzipped_files_are_read_with_their_line_numbers(tmp_path):
    plain = write_lines(tmp_path / "a.jsonl", [pair("q1", "p1"), "", {**pair("q2", "p2", "n1", "n2"), "id": 7}])
    zipped = tmp_path / "b.jsonl.gz"
    zipped.write_bytes(gzip.compress('{"query": "caf\\u00e9", "positive": "日本"}\r\n'.encode()))
    found = list(read_lines([str(plain), str(zipped)]))
    assert [line["query"] for line in found] == ["q1", "q2", "café"]
    assert [(line["file"], line["line"]) for line in found] == [(0, 1), (0, 3), (1, 1)]
    assert found[1]["negatives"] == ["n1", "n2"]
    assert found[2]["positive"] == "日本"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "q", "positive": "p"', "not JSON"),
        ("not json", "not JSON"),
        ('{"query": "q", "positive": "p", "id": ' + "7" * 5000 + "}", "a number of more than 4300 digits; shorten it"),
        ('["q", "p"]', "expected an object"),
        ('{"query": "q", "positives": "p"}', "no column 'positive'; the line has 'query', 'positives'"),
        ('{"positive": "p"}', "no column 'query'"),
        ('{"query": 5, "positive": "p"}', "query must be text, not int"),
        ('{"query": "q", "positive": null}', "positive must be text, not NoneType"),
        ('{"query": " \\u00a0", "positive": "p"}', "query is empty"),
        ('{"query": "q", "positive": "p", "negatives": "n"}', "negatives must be a list"),
        ('{"query": "q", "positive": "p", "negatives": ["n", 3]}', r"negatives\[1\] must be text"),
    ],
)
def test_bad_line_is_one_line_of_error_with_file_and_line(tmp_path, tokenizer, line, message):
    file = write_lines(tmp_path / "bad.jsonl", [pair("the cat", "a cat sat"), line])
    with pytest.raises(InputError, match=message) as error:
        load_pairs([file], tokenizer, cache=tmp_path / "cache")
    assert str(error.value).startswith(f"{file}:2: ")
    assert "\n" not in str(error.value)


def test_bytes_that_are_not_utf8_and_damaged_gzip_are_errors(tmp_path, tokenizer):
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"query": "caf\xe9", "positive": "p"}\n'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.jsonl:1: not JSON in UTF-8"):
        load_pairs(latin, tokenizer, cache=tmp_path / "cache")
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(b'{"query": "q", "positive": "p"}\n' * 1000)[:-20])
    with pytest.raises(InputError, match=r"short.jsonl.gz: damaged gzip"):
        load_pairs(short, tokenizer, cache=tmp_path / "cache")


def test_lone_surrogate_is_read_as_a_question_mark(tmp_path, tokenizer):
    file = write_lines(tmp_path / "a.jsonl", ['{"query": "cat \\ud800", "positive": "dog"}'])
    assert next(read_lines([str(file)]))["query"] == "cat ?"
    assert len(load_pairs(file, tokenizer, cache=tmp_path / "cache")) == 1


def test_files_are_found_by_name_before_pattern(tmp_path, monkeypatch):
    names = ["a b,c=d%e", "x[1].jsonl", "x1.jsonl", "y.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert find_files(["a b,c=d%e", "x[1].jsonl"]) == ["a b,c=d%e", "x[1].jsonl"]
    assert find_files("*.jsonl") == ["x1.jsonl", "x[1].jsonl", "y.jsonl"]
    assert find_files(["y.jsonl", "*.jsonl"]) == ["y.jsonl", "x1.jsonl", "x[1].jsonl"]
    with pytest.raises(InputError, match=r"no file none.*looked from"):
        find_files(["none*"])
    with pytest.raises(InputError, match="is empty"):
        find_files([])


# Bags


def test_distinct_tokens_by_hand():
    texts = [np.array(each, dtype=np.int32) for each in ([5, 3, 5], [], [3])]
    ids, counts, sizes = distinct_tokens(texts)
    assert (ids.tolist(), counts.tolist(), sizes.tolist()) == ([3, 5, 3], [1, 2, 1], [2, 0, 1])


def test_pairs_hold_the_tokens_of_the_texts(tmp_path, tokenizer):
    lines = [pair("the cat", "cat sat , the CAT"), pair("dog", "a dog", "a bird", "zzz", "fish fish")]
    pairs = load_pairs(write_lines(tmp_path / "a.jsonl", lines), tokenizer, cache=tmp_path / "cache")
    texts = [text for line in lines for text in (line["query"], line["positive"], *line.get("negatives", []))]
    assert len(pairs) == 2
    assert pairs.first.tolist() == [0, 2, 7]
    for text, start, end in zip(texts, pairs.offsets, pairs.offsets[1:], strict=False):
        ids, counts = np.unique(token_ids(tokenizer, [text])[0], return_counts=True)
        assert pairs.ids[start:end].tolist() == ids.tolist()
        assert pairs.counts[start:end].tolist() == counts.tolist()


def test_every_pair_knows_its_file_and_line(tmp_path, tokenizer):
    first = write_lines(tmp_path / "a.jsonl", [pair("cat", "cat"), "", pair("dog", "dog")])
    second = write_lines(tmp_path / "b.jsonl", [pair("fish", "fish")])
    pairs = load_pairs([second, first], tokenizer, cache=tmp_path / "cache")
    assert pairs.where(np.array([2, 0, 1])) == [f"{first}:3", f"{second}:1", f"{first}:1"]
    assert pairs.ids[pairs.offsets[4]] == tokenizer.token_to_id("dog")


def test_max_tokens_cuts_known_tokens_from_the_end(tmp_path, tokenizer):
    file = write_lines(tmp_path / "a.jsonl", [pair("cat", "cat zzz cat dog bird"), pair("cat", "cat cat dog fish")])
    cut = load_pairs(file, tokenizer, 3, tmp_path / "cache")
    vocab = tokenizer.get_vocab()
    assert cut.ids[cut.offsets[1] : cut.offsets[2]].tolist() == [vocab["cat"], vocab["dog"]]
    assert cut.counts[cut.offsets[1] : cut.offsets[2]].tolist() == [2, 1]
    assert cut.hashes[1] == cut.hashes[3]  # equal in what is kept, so equal points
    whole = load_pairs(file, tokenizer, None, tmp_path / "cache")
    assert whole.hashes[1] != whole.hashes[3]
    assert len(whole.ids) > len(cut.ids)


def test_pairs_without_known_tokens_are_dropped_and_counted(tmp_path, tokenizer, caplog):
    lines = [pair("the cat", "zzz"), pair("a dog", "dog"), pair("\u200b", "dog"), pair("fish", "a fish")]
    pairs = load_pairs(write_lines(tmp_path / "a.jsonl", lines), tokenizer, cache=tmp_path / "cache")
    assert pairs.usable.tolist() == [1, 3]
    assert f"dropped 2 of 4 pairs without a known token ({tmp_path}/a.jsonl:1)" in caplog.text
    with pytest.raises(InputError, match=r"no usable pair in 1 file\(s\), 1 line\(s\) read"):
        load_pairs(write_lines(tmp_path / "b.jsonl", lines[:1]), tokenizer, cache=tmp_path / "cache")


def test_files_without_lines_are_refused(tmp_path, tokenizer):
    empty, blank = write_lines(tmp_path / "a.jsonl", []), write_lines(tmp_path / "b.jsonl", ["", " "])
    with pytest.raises(InputError, match=r"a.jsonl, .*b.jsonl: no pairs in 2 file\(s\)"):
        load_pairs([empty, blank], tokenizer, cache=tmp_path / "cache")


def test_cache_notices_a_changed_file(tmp_path, tokenizer):
    file = write_lines(tmp_path / "a.jsonl", [pair("cat", "cat")])
    cat = load_pairs(file, tokenizer, cache=tmp_path / "cache").ids
    before = file.stat()
    write_lines(file, [pair("dog", "dog")])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert file.stat().st_size == before.st_size
    dog = load_pairs(file, tokenizer, cache=tmp_path / "cache").ids
    assert cat.tolist() != dog.tolist()


# Batches


def many_pairs(tmp_path, tokenizer, count):
    file = write_lines(tmp_path / f"{count}.jsonl", (toy_pairs(60) * 2)[:count])
    return load_pairs(file, tokenizer, cache=tmp_path / "cache")


def test_every_epoch_is_shuffled_anew_and_drops_its_rest(tmp_path, tokenizer):
    pairs = many_pairs(tmp_path, tokenizer, 33)
    source = batches(pairs, 16, seed=3)
    first, second = (np.concatenate([next(source), next(source)]) for _ in range(2))
    assert len(set(first)) == len(set(second)) == 32
    assert first.tolist() != second.tolist()
    again = batches(pairs, 16, seed=3)
    assert np.concatenate([next(again) for _ in range(4)]).tolist() == [*first, *second]
    other = batches(pairs, 16, seed=4)
    assert np.concatenate([next(other), next(other)]).tolist() != first.tolist()


def test_fewer_pairs_than_a_batch_are_all_used_and_one_is_refused(tmp_path, tokenizer):
    source = batches(many_pairs(tmp_path, tokenizer, 5), 32, seed=0)
    assert sorted(next(source)) == sorted(next(source)) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="1 usable pair, training needs at least 2"):
        next(batches(many_pairs(tmp_path, tokenizer, 1), 32, seed=0))


def test_batch_lists_each_distinct_token_once_and_keeps_every_text(tmp_path, tokenizer):
    lines = [pair("cat", "cat cat dog", "bird", "zzz"), pair("fish", "a fish"), pair("dog", "dog", "red cat")]
    pairs = load_pairs(write_lines(tmp_path / "a.jsonl", lines), tokenizer, cache=tmp_path / "cache")
    batch = collate(pairs, np.array([2, 0]))
    texts = ["dog", "cat", "dog", "cat cat dog", "red cat", "bird"]  # queries, positives, negatives without "zzz"
    ends = np.append(batch.offsets, len(batch.ids))
    assert len(batch.offsets) == len(batch.hashes) == len(texts)
    assert batch.distinct.tolist() == sorted(set(batch.distinct.tolist()))
    for text, start, end in zip(texts, ends, ends[1:], strict=False):
        found = np.repeat(batch.distinct[batch.ids[start:end]], batch.counts[start:end])
        assert found.tolist() == sorted(token_ids(tokenizer, [text])[0])
    assert batch.hashes[0] == batch.hashes[2]  # the same text
    assert len(set(batch.hashes.tolist())) == 5


# Loss


def test_similarities_are_the_inner_product_or_minus_the_distance():
    x, y = np.random.default_rng(0).normal(size=(2, 4, 3))
    p, q = geometry.lift(x, 2.0), geometry.lift(y, 2.0)
    inner = similarities(torch.tensor(p), torch.tensor(q), "inner", 2.0)
    np.testing.assert_allclose(inner, geometry.inner(p[:, None], q[None]), rtol=1e-13)
    distance = similarities(torch.tensor(p), torch.tensor(q), "distance", 2.0)
    np.testing.assert_allclose(distance, -geometry.distance(p[:, None], q[None], 2.0), rtol=1e-12)
    with pytest.raises(ValueError, match="unknown"):
        similarities(torch.tensor(p), torch.tensor(q), "cosine", 2.0)


def test_info_nce_by_hand():
    logits = torch.log(torch.tensor([[3.0, 1.0, 4.0], [2.0, 5.0, 1.0]], dtype=torch.float64))
    none = torch.zeros(2, 3, dtype=torch.bool)
    queries = -(math.log(3 / 8) + math.log(5 / 8)) / 2  # rows, the mined negative included
    documents = -(math.log(3 / 5) + math.log(5 / 6)) / 2  # the first two columns
    assert info_nce(logits, none).item() == pytest.approx((queries + documents) / 2, rel=1e-14)
    masked = none.clone()
    masked[0, 1] = masked[1, 2] = True
    queries = -(math.log(3 / 7) + math.log(5 / 7)) / 2
    documents = -(math.log(3 / 5) + math.log(5 / 5)) / 2
    assert info_nce(logits, masked).item() == pytest.approx((queries + documents) / 2, rel=1e-14)


def test_copies_are_not_negatives_in_either_direction():
    #            query hash   positive hash
    # pair 0         1             10
    # pair 1         2             10      the same positive as pair 0
    # pair 2         1             30      the same query as pair 0
    # pair 3         4             40      nothing in common
    queries = torch.tensor([1, 2, 1, 4])
    documents = torch.tensor([10, 10, 30, 40, 30, 99])  # mined negatives: a copy of an answer to query 1; nothing known
    excluded = not_negatives(queries, documents)
    expected = torch.tensor(
        [
            [0, 1, 1, 0, 1, 0],
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 1, 0],
            [0, 0, 0, 0, 0, 0],
        ],
        dtype=torch.bool,
    )
    assert torch.equal(excluded, expected)


def test_a_copy_of_a_pair_does_not_change_the_loss_of_the_others():
    points = lorentz.lift(torch.tensor(np.random.default_rng(1).normal(size=(6, 4))))
    queries, positives = torch.tensor([1, 2, 3]), torch.tensor([11, 12, 13])

    def loss(rows):
        scores = similarities(points[:3][rows], points[3:][rows], "inner", 1.0)
        return info_nce(scores, not_negatives(queries[rows], positives[rows])).item()

    one, twice = loss([0]), loss([0, 0])
    assert one == twice == 0.0  # a pair and its copy: no negatives at all
    assert loss([0, 1, 2]) > 0


@pytest.mark.parametrize("loss", ["inner", "distance"])
def test_gradient_is_finite_when_query_and_positive_are_one_text(loss, settings, tmp_path):
    lines = [pair("cat", "cat"), pair("dog", "a dog"), pair("red fish", "fish ran")]
    result = train(settings(pairs=(str(write_lines(tmp_path / "same.jsonl", lines)),), loss=loss, steps=20))
    assert math.isfinite(result["loss"])


def test_batch_loss_equals_the_loss_computed_with_numpy(settings, tokenizer, bert, tmp_path):
    options = settings(pooling="oem", power=2.0, loss="distance", k=2.0)
    table = load_tokens("bge_small", bert)
    model, _ = training_loop.build(options, table, None)
    pairs = load_pairs(options.pairs, tokenizer, cache=tmp_path / "cache")
    rows = np.arange(10)
    ours = model(collate(pairs, rows)).item()
    w1, w2 = (w.detach().double().numpy() for w in (model.encoder.projection.w1, model.encoder.projection.w2))
    space = np.maximum(table.table @ w1.T, 0) @ w2.T
    lines = toy_pairs()[:10]
    points = {
        name: np.stack([pooling.pool(space[token_ids(tokenizer, [x[name]])[0]], "oem", 2.0, 2.0) for x in lines])
        for name in ("query", "positive")
    }
    logits = -15.0 * geometry.distance(points["query"][:, None], points["positive"][None], 2.0)
    both = [each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (logits, logits.T)]
    assert ours == pytest.approx(-np.mean([each.diagonal().mean() for each in both]), rel=1e-4)


# The loop


def test_learning_rate_rises_then_falls_to_zero():
    rates = [rate(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[99] < 0.001
    assert [rate(0, 1, 0.0), rate(0, 1, 1.0)] == [1.0, 1.0]


@pytest.mark.parametrize("name", pooling.POOLINGS)
def test_sixty_pairs_are_learned_by_heart(settings, name):
    result = train(settings(pooling=name, steps=150, batch_size=60, lr=2e-2, log_every=50))
    losses = [json.loads(line)["loss"] for line in Path(result["metrics"]).read_text().splitlines()]
    assert len(losses) == 3
    # One token a text is too little to tell sixty pairs apart.
    assert result["loss"] == losses[-1] < math.log(60) * (0.6 if name == "max" else 0.1)
    assert losses[0] > losses[1]


def test_run_leaves_its_files_and_returns_plain_data(settings):
    result = train(settings())
    out = Path(result["checkpoint"]).parent
    left = ["checkpoint.safetensors", "config.yaml", "last.safetensors", "metrics.jsonl"]
    assert sorted(file.name for file in out.iterdir()) == left
    assert json.loads(json.dumps(result)) == result
    assert (result["steps"], result["pairs"], result["batch_size"]) == (10, 60, 32)
    lines = [json.loads(line) for line in Path(result["metrics"]).read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10]
    assert set(lines[0]) == {"step", "loss", "lr", "grad_norm", "scale", "pairs_per_s"}
    assert all(isinstance(value, int | float) for line in lines for value in line.values())


def test_checkpoint_holds_weights_and_plain_configuration(settings, bert):
    result = train(settings(pooling="oem", power=math.inf, k=2.0))
    for place in (result["checkpoint"], Path(result["checkpoint"]).parent):
        loaded = load_checkpoint(place)
        assert loaded.state["w1"].shape == (32, 32)
        assert loaded.state["w2"].shape == (32, 32)
        assert loaded.config["pooling"] == {"name": "oem", "power": math.inf}
        assert loaded.config["k"] == 2.0
        assert loaded.config["step"] == 10
        tokens = load_tokens("bge_small", bert)
        assert loaded.config["tokens"] == tokens.describe() | {
            "path": str(bert), "weighting": "none", "digest": digest(tokens.table),
        }  # fmt: skip
        assert loaded.state["log_scale"].exp().item() == pytest.approx(result["scale"])


def test_same_seed_gives_the_same_weights_and_another_seed_others(settings, tmp_path):
    states = []
    for number, seed in enumerate((1, 1, 2)):
        result = train(settings(seed=seed, out=str(tmp_path / f"run{number}")))
        states.append(load_checkpoint(result["checkpoint"]).state)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["w1"], states[2]["w1"])


def test_a_run_that_cannot_start_leaves_the_records_of_the_last_one(settings, tmp_path):
    train(settings())
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    write_lines(tmp_path / "one.jsonl", ['{"query": "cat", "positive": "dog"}'])
    with pytest.raises(InputError, match="training needs at least 2"):
        train(settings(pairs=(str(tmp_path / "one.jsonl"),)))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    with pytest.raises(InputError, match="is a file; name a folder"):
        train(settings(out=str(tmp_path / "one.jsonl")))


def test_no_steps_save_the_starting_point(settings):
    result = train(settings(steps=0))
    assert result["loss"] is None
    state = load_checkpoint(result["checkpoint"]).state
    torch.testing.assert_close(state["w2"], 4.0 * state["w1"].T)  # 2 init_scale, of start=rotated
    pairs = train(settings(steps=0, start="pairs", hidden=64, out=str(Path(result["checkpoint"]).parents[1] / "pairs")))
    state = load_checkpoint(pairs["checkpoint"]).state
    torch.testing.assert_close(state["w2"], 2.0 * state["w1"].T)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_step_that_is_not_finite_stops_and_keeps_the_last_checkpoint(settings, monkeypatch, tmp_path, broken):
    calls = []

    def poisoned(logits, excluded):
        calls.append(1)
        if len(calls) < 5:
            return info_nce(logits, excluded)
        if broken == "loss":
            return info_nce(logits, excluded) * math.nan
        return info_nce(logits, excluded) + torch.sqrt(0.0 * logits.sum())  # finite, but not its derivative

    monkeypatch.setattr(training_model, "info_nce", poisoned)
    options = settings(save_every=2, steps=10)
    with pytest.raises(InputError, match="step 5: loss") as error:
        train(options)
    message = str(error.value)
    assert "\n" not in message
    assert f"{tmp_path}/toy.jsonl:" in message
    assert "and 27 more" in message
    assert message.endswith("checkpoint.safetensors there is what this run last saved")
    listed = (Path(options.out) / "nonfinite_batch.txt").read_text().split()
    assert len(listed) == 32
    assert all(line.startswith(f"{tmp_path}/toy.jsonl:") for line in listed)
    kept = load_checkpoint(options.out)
    assert kept.config["step"] == 4
    assert all(torch.isfinite(value).all() for value in kept.state.values())


@pytest.mark.parametrize(("log_scale", "scale"), [(-100.0, 1e-3), (100.0, 100.0), (2.0, math.exp(2.0))])
def test_the_logit_scale_stays_in_its_range(settings, bert, log_scale, scale):
    model, _ = training_loop.build(settings(), load_tokens("bge_small", bert), None)
    model.log_scale.data.fill_(log_scale)
    model.limit_scale()
    assert model.log_scale.exp().item() == pytest.approx(scale)


def test_learning_rate_that_explodes_is_reported_and_nothing_is_saved(settings):
    options = settings(lr=1e30)
    with pytest.raises(InputError, match=r"step \d+: .*lower lr"):
        train(options)
    assert not (Path(options.out) / "checkpoint.safetensors").exists()


def test_the_last_incomplete_batch_is_dropped_and_the_schedule_ends_with_the_last_step(settings, tmp_path):
    lines = write_lines(tmp_path / "33.jsonl", toy_pairs(33))
    result = train(settings(pairs=(str(lines),), batch_size=32, steps=3, log_every=1, warmup=0.0))
    rows = [json.loads(line) for line in Path(result["metrics"]).read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(math.isfinite(row["loss"]) and row["loss"] > 0 for row in rows)
    assert [row["lr"] / 3e-3 for row in rows] == pytest.approx([1.0, 0.75, 0.25])  # (1 + cos(pi s / 3)) / 2
    last = load_checkpoint(Path(result["checkpoint"]).with_name("last.safetensors"))
    assert last.state["adamw.w1.step"].item() == 3


@pytest.mark.parametrize("loss", ["inner", "distance"])
def test_float64_goes_through_training_without_a_float32_number(settings, tokenizer, bert, tmp_path, loss):
    from torch.overrides import TorchFunctionMode

    kinds = set()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            found = function(*arguments, **(options or {}))
            if isinstance(found, torch.Tensor) and found.requires_grad:
                kinds.add(found.dtype)
            return found

    options = settings(loss=loss)
    model = training_loop.build(options, load_tokens("bge_small", bert), None)[0].double()
    pairs = load_pairs(options.pairs, tokenizer, cache=tmp_path / "cache")
    chosen = training_model.optimiser(model, 1e-2, 0.0)
    with Watch():
        value, norm = train_step(model, chosen, collate(pairs, np.arange(20)), 1e-2, 1.0)
    assert math.isfinite(value)
    assert kinds == {torch.float64}
    assert norm > 0
    rows = np.maximum(model.encoder.table.numpy() @ model.encoder.projection.w1.detach().numpy().T, 0)
    rows = rows @ model.encoder.projection.w2.detach().numpy().T
    assert rows.dtype == np.float64
    np.testing.assert_allclose(model.encoder.baked(), rows.astype(np.float32), rtol=2e-7, atol=1e-12)


# Starting points


def test_training_goes_on_from_a_checkpoint(settings, tmp_path):
    first = train(settings(steps=100, lr=2e-2, batch_size=60))
    second = train(settings(steps=0, checkpoint=first["checkpoint"], out=str(tmp_path / "second")))
    states = [load_checkpoint(result["checkpoint"]).state for result in (first, second)]
    assert torch.equal(states[0]["w1"], states[1]["w1"])
    again = {"checkpoint": str(tmp_path / "run"), "out": str(tmp_path / "third")}
    third = train(settings(steps=5, lr=1e-4, batch_size=60, **again))
    assert third["loss"] < 0.5


def test_published_pair_is_a_checkpoint(settings, tmp_path):
    rng = np.random.default_rng(5)
    w1, w2 = rng.normal(size=(6, 32)).astype(np.float32), rng.normal(size=(32, 6)).astype(np.float32)
    write_matrix(tmp_path / "published" / "proj_weight.bin", w1)
    write_matrix(tmp_path / "published" / "proj_out.bin", w2)
    loaded = load_checkpoint(tmp_path / "published")
    np.testing.assert_array_equal(loaded.state["w1"], w1)
    np.testing.assert_array_equal(loaded.state["w2"], w2)
    assert loaded.config["pooling"] == {"name": "oem", "power": 1.0}
    result = train(settings(checkpoint=str(tmp_path / "published"), steps=0, pooling="trained"))
    state = load_checkpoint(result["checkpoint"])
    np.testing.assert_array_equal(state.state["w1"], w1)
    assert state.config["pooling"] == {"name": "oem", "power": 1.0}
    assert state.config["model"]["hidden"] == 6
    write_matrix(tmp_path / "published" / "proj_out.bin", w2.T)
    with pytest.raises(InputError, match="do not fit"):
        load_checkpoint(tmp_path / "published")


def test_checkpoint_of_other_tokens_is_reported(settings, tmp_path, caplog):
    first = train(settings(steps=0, k=2.0, pooling="mean"))
    train(settings(steps=0, checkpoint=first["checkpoint"], out=str(tmp_path / "second")))
    assert "was trained with k=2.0, this run has 1.0" in caplog.text
    assert "was trained with pooling.name=mean, this run has oem_radial" in caplog.text
    table_of_16 = {"w1": torch.zeros(4, 16), "w2": torch.zeros(16, 4)}
    save_checkpoint(tmp_path / "other.safetensors", table_of_16, load_checkpoint(first["checkpoint"]).config)
    with pytest.raises(InputError, match="W1 takes 16 dimensions, the table of bge_small has 32"):
        train(settings(checkpoint=str(tmp_path / "other.safetensors")))


def test_damaged_checkpoints_are_one_line(settings, tmp_path):
    result = train(settings(steps=0))
    good = Path(result["checkpoint"]).read_bytes()
    bad = tmp_path / "bad.safetensors"
    for content in (b"", good[:100], good[:-5], b"\xff" * 200):
        bad.write_bytes(content)
        with pytest.raises(InputError, match="not a whole safetensors file") as error:
            load_checkpoint(bad)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="train one first"):
        load_checkpoint(tmp_path / "none")
    with pytest.raises(InputError, match="not finite"):
        save_checkpoint(bad, {"w1": torch.tensor([math.nan])}, {})
    assert bad.read_bytes() == b"\xff" * 200


def test_every_flipped_bit_of_a_checkpoint_is_refused_and_a_file_of_before_is_read(tmp_path):
    rng = np.random.default_rng(3)
    state = {
        "w1": torch.tensor(rng.normal(size=(2, 3)), dtype=torch.float32), "w2": torch.ones(3, 2),
        "log_scale": torch.tensor(1.0),
    }  # fmt: skip
    config = {"k": 1.0, "pooling": {"name": "oem", "power": 3.0}, "tokens": {"name": "minilm"}}
    path, bad = tmp_path / "c.safetensors", tmp_path / "bad.safetensors"
    save_checkpoint(path, state, config, {"step": 1})
    good = path.read_bytes()
    first = 8 + int.from_bytes(good[:8], "little")  # of the tensors' bytes
    for place in (good.index(b"3.0"), *range(first, len(good))):
        bad.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(InputError, match=f"{bad}: damaged: its checksum does not fit; copy it again, or train"):
            load_checkpoint(bad)
    before = {"format": "1", "config": json.dumps(config)}  # as earlier versions wrote it
    save_file(state, bad, before)
    assert torch.equal(load_checkpoint(bad).state["w1"], state["w1"])


# Settings and the command line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": "1e-5"}, "lr must be a number, not str"),
        ({"lr": -1.0}, "lr=-1.0 is out of range"),
        ({"lr": 1e38}, r"lr=1e\+38 is out of range"),
        ({"lr": math.nan}, "lr=nan is out of range"),
        ({"steps": 1.5}, "steps must be a whole number, not float"),
        ({"steps": True}, "steps must be a whole number, not bool"),
        ({"batch_size": 1}, "batch_size=1 is out of range: it must be from 2"),
        ({"k": 0.0}, "k=0.0 is out of range"),
        ({"k": None}, "k must be a number"),
        ({"power": -math.inf}, "pooling.power=-inf is out of range"),
        ({"pooling": "mean", "power": 2.0}, "pooling=mean has no P"),
        ({"pooling": "sum"}, "pooling='sum' is unknown: use one of oem"),
        ({"loss": "cosine"}, "loss='cosine' is unknown: use one of inner, distance"),
        ({"tokens": "glove"}, "tokens='glove' is unknown"),
        ({"wandb_mode": "on"}, "wandb.mode='on' is unknown"),
        ({"out": 5}, "out must be text"),
        ({"max_tokens": 0}, "max_tokens=0 is out of range"),
        ({"pairs": (5,)}, "data.pairs must be a list of file names"),
        ({"average": 1.0}, "average=1.0 is out of range"),
        ({"average": -0.5}, "average=-0.5 is out of range"),
        ({"resume": "yes"}, "resume='yes' is unknown: use one of True, False"),
        ({"validation_every": 0}, "validation.every=0 is out of range"),
        ({"validation_patience": 0}, "validation.patience=0 is out of range"),
        ({"validation_queries": 1.5}, "validation.queries must be a whole number"),
        ({"validation_collections": (5,)}, "validation.collections must be a list of file names"),
        ({"validation_split": None}, "validation.split must be text"),
        ({"start": "random"}, "model.start='random' is unknown: use one of directions, rotated, pairs"),
        ({"weighting": "tfidf"}, "tokens.weighting='tfidf' is unknown: use one of none, idf"),
        ({"distillation_weight": 1.5}, "distillation.weight=1.5 is out of range"),
        ({"distillation_only": True}, "distillation.only=true needs a teacher's cache"),
        ({"hierarchy_weight": 0.5}, "hierarchy.weight=0.5: name pairs with hierarchy.pairs"),
        ({"hierarchy_margin": -1.0}, "hierarchy.margin=-1.0 is out of range"),
        ({"hierarchy_pairs": (5,)}, "hierarchy.pairs must be a list of file names"),
    ],
)
def test_bad_setting_is_named_before_anything_starts(settings, changes, message):
    with pytest.raises(InputError, match=message):
        settings(**changes)


def test_settings_survive_the_configuration(settings):
    options = settings(power=math.inf, max_tokens=None, validation_collections=("a", "b"), validation_patience=3)
    config = options.plain()
    assert from_config(config) == options
    with pytest.raises(InputError, match="unknown key stepz"):
        from_config(config | {"stepz": 5})


def test_some_settings_only_show_when_the_model_is_built(settings):
    with pytest.raises(InputError, match="pooling=trained takes the pooling of a checkpoint"):
        train(settings(pooling="trained"))
    for start, most in (("rotated", 32), ("directions", 32), ("pairs", 64)):
        with pytest.raises(InputError, match=rf"model.hidden=66 must be even and at most {most} \(start={start}\)"):
            train(settings(hidden=66, start=start))
    with pytest.raises(InputError, match="device=nonsense cannot be used"):
        train(settings(device="nonsense"))


def run_command(folder: Path, *overrides: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """The real command, started in `folder` with no writable home and no hub."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-m", "training.train", *overrides]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_command_runs_from_another_folder_and_leaves_nothing_else(bert, tmp_path):
    write_lines(tmp_path / "toy.jsonl", toy_pairs(20))
    cache = tmp_path / "cache"
    common = ("tokens=bge_small", f"tokens.path={bert}", "model.hidden=32", f"data.cache={cache}", "steps=4")
    own = ("data.pairs=[toy.jsonl]", "out=run", "pooling=oem", "pooling.power=2", "lr=1e-3")
    done = run_command(tmp_path, *common, *own)
    result = json.loads(done.stdout)
    assert result["steps"] == 4
    assert "\r" not in done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"toy.jsonl", "cache", "run"}
    config = load_checkpoint(tmp_path / "run").config
    assert config["pooling"] == {"name": "oem", "power": 2.0}
    assert config["wandb"]["mode"] == "offline"
    assert (config["lr"], config["seed"]) == (0.001, 1)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))


@pytest.mark.slow
def test_command_reports_bad_input_in_one_line_and_code_2(bert, tmp_path):
    write_lines(tmp_path / "toy.jsonl", ["{}"])
    common = ("tokens=bge_small", f"tokens.path={bert}", "model.hidden=32", f"data.cache={tmp_path / 'cache'}")
    done = run_command(tmp_path, *common, "data.pairs=[toy.jsonl]", "out=run", code=2)
    assert done.stderr.splitlines()[-1].startswith("error: toy.jsonl:1: no column 'query'")
    assert done.stdout == ""


def test_default_configuration_has_every_setting_with_its_default_and_a_comment():
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = OmegaConf.to_container(compose("train", overrides=["out=run"]), resolve=True)
        named = compose("train", overrides=["pooling=trained", "tokens=bge_small", "pooling.power=inf"])
    assert from_config(config) == Settings(pairs=(), out="run")
    assert (named.pooling.name, named.pooling.power, named.tokens.name) == ("trained", math.inf, "bge_small")
    for name in pooling.POOLINGS:
        assert OmegaConf.load(ROOT / "conf" / "pooling" / f"{name}.yaml") == {"name": name, "power": None}
    lines = (ROOT / "conf" / "train.yaml").read_text().splitlines()
    for name in Settings(pairs=(), out="run").plain():
        places = [i for i, line in enumerate(lines) if line.startswith(f"{name}:")]
        grouped = name in ("tokens", "data", "model", "pooling", "wandb")  # in files of their own
        assert grouped or lines[places[0] - 1].startswith(("#", "log_every")), name


# wandb


def test_offline_wandb_starts_quickly_and_gets_plain_data(settings):
    pytest.importorskip("wandb")
    started = time.perf_counter()
    result = train(settings(wandb_mode="offline", steps=5))
    assert time.perf_counter() - started < 15
    plain = train(settings(wandb_mode="disabled", steps=5, out=str(Path(settings().out).parent / "plain")))
    assert result["loss"] == plain["loss"]
    assert list((Path(settings().out) / "wandb").glob("offline-run-*"))


@pytest.mark.parametrize("failure", ["not installed", "init", "log"])
def test_training_goes_on_without_wandb(settings, monkeypatch, caplog, failure):
    class Run:
        def log(self, values, step):
            raise RuntimeError("disk\nfull")

    class Wandb:
        @staticmethod
        def Settings(**options):  # noqa: N802
            return options

        @staticmethod
        def setup(settings):
            pass

        @staticmethod
        def init(config, **options):
            assert type(config) is dict
            assert type(config["data"]["pairs"]) is list
            if failure == "init":
                raise RuntimeError("no service")
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", None if failure == "not installed" else Wandb)
    result = train(settings(wandb_mode="offline"))
    assert math.isfinite(result["loss"])
    expected = {"not installed": "wandb is not installed", "init": "no service", "log": "disk full"}
    assert expected[failure] in caplog.text


def test_tokenizer_of_training_is_the_runtime_tokenizer(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["The cat, sat?", "", "\u200b zzz", "running dogs"]
    for ours, runtime in zip(
        token_ids(tokenizer, texts), token_ids(load_tokenizer(tmp_path / "tokenizer.json"), texts), strict=True
    ):
        np.testing.assert_array_equal(ours, runtime)
