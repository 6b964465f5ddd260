# ruff: noqa: F811 - fixtures
"""General texts nearer the origin: the loss, its order, the held-out share; WordNet's pairs; weighted token rows."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from export.run import export as run_export
from hyte import Encoder, geometry, pooling
from hyte.errors import InputError
from hyte.tokenizer import token_ids
from hyte.weights import read_weights
from tests.test_training import bert, pair, settings, tokenizer, write_lines  # noqa: F401 - fixtures
from training import train as training_loop
from training import wordnet
from training.checkpoint import load_checkpoint, save_checkpoint
from training.data import load_pairs
from training.hierarchy import Hierarchy, order_loss, read_pairs
from training.logs import read_metrics
from training.tokens import idf_weights, load_tokens
from training.train import train

NOUNS = ["cat", "dog", "bird", "fish", "mat", "sea", "cell", "protein", "gene", "drug", "heart", "vitamin"]


def write_hierarchy(path: Path, count: int = 40) -> Path:
    """A noun alone is more general than with an adjective."""
    kinds = ["red", "old", "new", "blue"]
    lines = [{"general": NOUNS[i % 12], "specific": f"{kinds[i % 4]} {NOUNS[i % 12]}"} for i in range(count)]
    return write_lines(path, lines)


@pytest.fixture
def ordered(tmp_path) -> str:
    return str(write_hierarchy(tmp_path / "hierarchy.jsonl"))


def test_order_loss_by_hand():
    general, specific = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([1.05, 1.0, 3.0])
    assert order_loss(general, specific, 0.1).item() == pytest.approx((0.05 + 1.1 + 0.0) / 3)
    assert order_loss(general, specific, 0.0).item() == pytest.approx(1.0 / 3)


def test_the_term_of_a_step_equals_the_one_computed_with_numpy(settings, tokenizer, bert, ordered):
    options = settings(k=2.0)
    table = load_tokens("bge_small", bert)
    model, _ = training_loop.build(options, table, None)
    hierarchy = Hierarchy([ordered], tokenizer, 0.7, 0.3, 6, seed=5)
    found = hierarchy.at(3)(model).item()
    w1, w2 = (w.detach().double().numpy() for w in (model.encoder.projection.w1, model.encoder.projection.w2))
    space = np.maximum(table.table @ w1.T, 0) @ w2.T

    def radius(text):
        point = pooling.pool(space[token_ids(tokenizer, [text])[0]], "oem_radial", 1.0, 2.0)
        return float(geometry.radius(point, 2.0)) / math.sqrt(2.0)

    # The order is that of the training batches: one permutation an epoch, here of 36 lines, 6 a step.
    kept = [line for number, line in enumerate(Path(ordered).read_text().splitlines(), 1) if number % 10]
    rows = np.random.default_rng([5, 0]).permutation(36)[18:24]
    radii = [(radius(line["general"]), radius(line["specific"])) for line in (json.loads(kept[row]) for row in rows)]
    expected = 0.7 * np.mean([max(0.0, 0.3 + general - specific) for general, specific in radii])
    assert expected > 0
    assert found == pytest.approx(expected, rel=1e-4)
    assert hierarchy.last["hierarchy"] == pytest.approx(expected / 0.7, rel=1e-4)
    assert hierarchy.last["hierarchy_batch_in_order"] == np.mean([general < specific for general, specific in radii])


def test_the_pairs_of_a_step_hang_on_seed_and_step_alone(settings, tokenizer, bert, ordered):
    model, _ = training_loop.build(settings(), load_tokens("bge_small", bert), None)

    def terms(steps, seed=5):
        hierarchy = Hierarchy([ordered], tokenizer, 1.0, 0.3, 6, seed)
        return [hierarchy.at(step)(model).item() for step in steps]

    whole = terms(range(9))  # one epoch has six batches
    assert len(set(whole)) == 9
    assert terms([4, 5, 6, 7, 8]) == whole[4:]
    assert terms([8, 2, 3]) == [whole[8], *whole[2:4]]
    assert terms(range(9), seed=6) != whole


def test_every_tenth_line_is_measured_and_never_trained_on(tokenizer, tmp_path):
    file = write_hierarchy(tmp_path / "h.jsonl", 40)
    hierarchy = Hierarchy([str(file)], tokenizer, 1.0, 0.1, 500, seed=0)
    held = hierarchy.held.line[hierarchy.held.usable]
    assert held.tolist() == [10, 20, 30, 40]
    assert sorted(hierarchy.trained.line[hierarchy.trained.usable]) == [i for i in range(1, 41) if i % 10]
    assert hierarchy.size == 36
    with pytest.raises(InputError, match="9 pairs to train on and 0 to measure"):
        Hierarchy([str(write_hierarchy(tmp_path / "few.jsonl", 9))], tokenizer, 1.0, 0.1, 5, 0)


def test_pairs_without_a_known_token_are_left_out(tokenizer, tmp_path):
    lines = [{"general": "zzz", "specific": "cat"}, {"general": "dog", "specific": "old dog", "id": 1}]
    pairs = read_pairs([str(write_lines(tmp_path / "h.jsonl", lines))], tokenizer)
    assert pairs.usable.tolist() == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"general": "cat"}', r"h.jsonl:2: no column 'specific'; the line has 'general'"),
        ('{"general": "cat", "specific": 5}', "h.jsonl:2: specific must be text, not int"),
        ("[]", "h.jsonl:2: expected an object with general and specific, not list"),
        ("{", "h.jsonl:2: not JSON"),
    ],
)
def test_a_bad_line_is_named(tokenizer, tmp_path, line, message):
    file = write_lines(tmp_path / "h.jsonl", [{"general": "cat", "specific": "old cat"}, line])
    with pytest.raises(InputError, match=message):
        read_pairs([str(file)], tokenizer)


def test_training_brings_held_out_pairs_in_order(settings, ordered):
    results = {}
    for weight in (0.0, 3.0):
        result = train(
            settings(hierarchy_pairs=(ordered,), hierarchy_weight=weight, hierarchy_batch_size=36, steps=60, lr=1e-2)
        )
        lines = read_metrics(Path(result["metrics"]))
        shares = [line for line in lines if "hierarchy_in_order" in line]
        assert [line["step"] for line in shares] == [0, 60]
        assert all(0 <= line["hierarchy_in_order"] <= 1 for line in shares)
        logged = [line["hierarchy"] for line in lines if "hierarchy" in line]
        assert len(logged) == (12 if weight else 0)
        results[weight] = shares[-1]["hierarchy_in_order"], logged
    assert results[3.0][0] > results[0.0][0]
    assert results[3.0][1][-1] < 0.5 * results[3.0][1][0]


def test_weight_zero_only_measures_and_another_weight_changes_the_weights(settings, ordered, tmp_path):
    states = [
        load_checkpoint(train(settings(out=str(tmp_path / str(i)), **options))["checkpoint"]).state
        for i, options in enumerate(
            [{}, {"hierarchy_pairs": (ordered,)}, {"hierarchy_pairs": (ordered,), "hierarchy_weight": 1.0}]
        )
    ]
    assert torch.equal(states[0]["w1"], states[1]["w1"])
    assert not torch.equal(states[0]["w1"], states[2]["w1"])


def test_a_run_with_a_hierarchy_goes_on_to_the_same_end(settings, ordered, tmp_path, monkeypatch):
    from training.loop import train_step

    options = {"hierarchy_weight": 1.0, "hierarchy_batch_size": 7, "save_every": 5}
    whole = train(settings(hierarchy_pairs=(ordered,), **options))
    calls = []

    def stopping(*arguments):
        if len(calls) == 7:
            raise KeyboardInterrupt
        calls.append(1)
        return train_step(*arguments)

    options |= {"out": str(tmp_path / "stopped")}
    monkeypatch.setattr("training.loop.train_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(settings(hierarchy_pairs=(ordered,), **options))
    monkeypatch.setattr("training.loop.train_step", train_step)
    other = str(write_hierarchy(tmp_path / "other.jsonl", 30))
    with pytest.raises(InputError, match=r"hierarchy.digest=\w+, this run has hierarchy.digest="):
        train(settings(hierarchy_pairs=(other,), resume=True, **options))
    moved = Path(ordered).rename(tmp_path / "moved.jsonl")
    result = train(settings(hierarchy_pairs=(str(moved),), resume=True, **options))
    states = [load_checkpoint(each["checkpoint"]).state for each in (whole, result)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    ours, theirs = (read_metrics(Path(each["metrics"])) for each in (whole, result))
    assert [line.get("hierarchy") for line in ours] == [line.get("hierarchy") for line in theirs]
    assert ours[-1] == theirs[-1]


# WordNet

DATABASE = """\
  1 This software and database is being provided to you, the LICENSEE, by
00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | everything
00000002 05 n 02 living_thing 0 animate_thing 0 002 @ 00000001 n 0000 ~ 00000003 n 0000 | one | with a bar
00000003 05 n 01 dog 0 003 @ 00000002 n 0000 + 00000009 v 0101 %p 00000004 n 0000 | a pet
00000004 05 n 0a tail 0 a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 001 @ 00000001 n 0000 | of ten words
00000005 05 n 01 Lassie 0 001 @i 00000003 n 0000 | a dog's name
00000006 05 n 01 Dog 0 002 @ 00000003 n 0000 @ 00000002 n 0000 | spelled alike
"""


def test_wordnet_links_become_pairs(tmp_path):
    (tmp_path / "data.noun").write_text(DATABASE)
    assert wordnet.noun_pairs(tmp_path) == [
        ("entity", "living thing"), ("living thing", "dog"), ("entity", "tail"), ("dog", "Lassie"),
        ("living thing", "Dog"),
    ]  # fmt: skip


def test_the_wordnet_command_writes_what_training_reads(tmp_path, tokenizer, capsys):
    (tmp_path / "data.noun").write_text(DATABASE)
    for name in ("h.jsonl.gz", "h.jsonl"):
        wordnet.main([str(tmp_path), "--out", str(tmp_path / name)])
        assert json.loads(capsys.readouterr().out) == {"out": str(tmp_path / name), "pairs": 5}
    text = (tmp_path / "h.jsonl").read_text()
    assert gzip.decompress((tmp_path / "h.jsonl.gz").read_bytes()).decode() == text
    lines = [json.loads(line) for line in text.splitlines()]
    assert sorted(line["specific"] for line in lines) == ["Dog", "Lassie", "dog", "living thing", "tail"]
    assert len(read_pairs([str(tmp_path / "h.jsonl.gz")], tokenizer).line) == 5


def test_what_is_no_wordnet_is_one_line(tmp_path):
    with pytest.raises(InputError, match="data.noun: no such file; Debian's package wordnet-base"):
        wordnet.noun_pairs(tmp_path)
    for text, message in (
        ("00000001 03 n zz entity", "data.noun:1: not a line"),
        ("00000001 03 n 01 entity 0 002 @ 0", "data.noun:1: not a line"),
        ("00000001 03 n 01 entity 0 001 @ 00000009 n 0000 | x", "points to synset 00000009, which is not there"),
    ):
        (tmp_path / "data.noun").write_text(text + "\n")
        with pytest.raises(InputError, match=message) as error:
            wordnet.noun_pairs(tmp_path)
        assert "\n" not in str(error.value)


def test_a_wordnet_without_a_link_is_one_line_and_the_file_of_before_stays(tmp_path, capsys):
    (tmp_path / "h.jsonl").write_text("before")
    for text in ("", "  only the licence\n", "00000001 03 n 01 entity 0 000 | alone\n"):
        (tmp_path / "data.noun").write_text(text)
        with pytest.raises(SystemExit) as stopped:
            wordnet.main([str(tmp_path), "--out", str(tmp_path / "h.jsonl")])
        assert stopped.value.code == 2
        assert "data.noun: no pairs: none of its" in capsys.readouterr().err
    assert (tmp_path / "h.jsonl").read_text() == "before"


# Weighted token rows


def test_idf_weights_by_hand():
    weights = idf_weights(4, [4, 1, 0, 2], [6, 1, 0, 3])
    idf = np.log([1.0, 5 / 2, 5.0, 5 / 3])
    mean = (6 * idf[0] + 1 * idf[1] + 3 * idf[3]) / 10
    np.testing.assert_allclose(weights, idf / mean, rtol=1e-6)
    with pytest.raises(InputError, match="every token stands in all 3 positives"):
        idf_weights(3, [3, 0], [5, 0])


def test_document_frequencies_count_usable_positives_alone(tokenizer, tmp_path):
    lines = [
        pair("dog", "cat cat dog", "bird"), pair("dog bird", "cat fish"), pair("zzz", "cat sea"), pair("cat", "a fish"),
    ]  # fmt: skip
    pairs = load_pairs(write_lines(tmp_path / "a.jsonl", lines), tokenizer, cache=tmp_path / "cache")
    holding, times = pairs.positive_counts(32)
    vocab = tokenizer.get_vocab()
    found = {word: (holding[vocab[word]], times[vocab[word]]) for word in ("cat", "dog", "fish", "a", "bird", "sea")}
    assert found == {"cat": (2, 3), "dog": (1, 1), "fish": (2, 2), "a": (1, 1), "bird": (0, 0), "sea": (0, 0)}
    assert (len(holding), len(times), holding.sum(), times.sum()) == (32, 32, 6, 7)


CONTROL = {"weighting": "idf", "steps": 0, "start": "pairs", "hidden": 64, "pooling": "mean", "init_scale": 1.0}


def test_the_control_is_the_mean_of_idf_weighted_unit_rows_and_its_export_too(settings, bert, tmp_path):
    result = train(settings(**CONTROL))
    trained = load_checkpoint(result["checkpoint"])
    table = load_tokens("bge_small", bert)
    positives = [json.loads(line)["positive"] for line in Path(settings().pairs[0]).read_text().splitlines()]
    bags = token_ids(table.tokenizer, positives)
    holding, times = (np.zeros(len(table.table)) for _ in range(2))
    for bag in bags:
        holding[np.unique(bag)] += 1
        np.add.at(times, bag, 1)
    idf = np.log((len(bags) + 1) / (holding + 1))
    weights = idf / (idf @ times / times.sum())
    np.testing.assert_allclose(trained.state["token_weights"], weights, rtol=1e-5)
    assert trained.config["tokens"]["weighting"] == "idf"
    run_export(result["checkpoint"], str(tmp_path / "artifact"), onnx=False)
    rows = weights[:, None] * table.table
    np.testing.assert_allclose(read_weights(tmp_path / "artifact" / "weights.bin").rows, rows, atol=1e-5)
    point = Encoder.load(tmp_path / "artifact").encode(["the old cat sat ."])[0]
    (ids,) = token_ids(table.tokenizer, ["the old cat sat ."])
    np.testing.assert_allclose(point[1:], rows[ids].mean(axis=0), atol=1e-5)
    last = load_checkpoint(Path(result["checkpoint"]).with_name("last.safetensors"))
    assert torch.equal(last.state["token_weights"], trained.state["token_weights"])


def test_exported_rows_of_a_trained_weighted_table_are_those_that_torch_bakes(settings, tmp_path):
    options = settings(weighting="idf", steps=20, lr=1e-2)
    result = train(options)
    trained = load_checkpoint(result["checkpoint"])
    model, _ = training_loop.build(options, load_tokens("bge_small", options.tokens_path), trained)
    model.weigh(trained.state["token_weights"].numpy())
    run_export(result["checkpoint"], str(tmp_path / "artifact"), onnx=False)
    np.testing.assert_allclose(
        read_weights(tmp_path / "artifact" / "weights.bin").rows, model.encoder.baked(), rtol=1e-6, atol=1e-7
    )
    assert train(settings(steps=20, lr=1e-2, out=str(tmp_path / "plain")))["loss"] != result["loss"]


def test_a_weighted_run_goes_on_to_the_same_end_and_a_start_with_other_weights_is_told(
    settings, tmp_path, caplog, monkeypatch
):
    from training.loop import train_step

    whole = train(settings(weighting="idf"))
    calls = []

    def stopping(*arguments):
        if len(calls) == 7:
            raise KeyboardInterrupt
        calls.append(1)
        return train_step(*arguments)

    options = {"weighting": "idf", "save_every": 5, "out": str(tmp_path / "stopped")}
    monkeypatch.setattr("training.loop.train_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(settings(**options))
    monkeypatch.setattr("training.loop.train_step", train_step)
    with pytest.raises(InputError, match="tokens.weighting=idf, this run has tokens.weighting=none"):
        train(settings(**(options | {"weighting": "none", "resume": True})))
    result = train(settings(resume=True, **options))
    states = [load_checkpoint(each["checkpoint"]).state for each in (whole, result)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    train(settings(steps=0, checkpoint=whole["checkpoint"], out=str(tmp_path / "second")))
    assert "was trained with tokens.weighting=idf, this run has none" in caplog.text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (None, "tokens.weighting=idf and none token_weights"),
        (torch.ones(31), r"token_weights \(31,\) must be \(32,\)"),
        (torch.ones(32, 1), r"token_weights \(32, 1\) must be"),
        (-torch.ones(32), "must be finite and 0 or more"),
        (torch.ones(32, dtype=torch.int64), "must be finite and 0 or more"),
    ],
)
def test_token_weights_that_do_not_fit_are_refused(settings, tmp_path, changed, message):
    trained = load_checkpoint(train(settings(**CONTROL))["checkpoint"])
    state = trained.state | {"token_weights": changed}
    save_checkpoint(tmp_path / "bad.safetensors", {k: v for k, v in state.items() if v is not None}, trained.config)
    with pytest.raises(InputError, match=message):
        load_checkpoint(tmp_path / "bad.safetensors")
