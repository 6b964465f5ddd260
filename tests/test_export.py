"""Export: torch, onnxruntime and the runtime give the same points, or nothing is written."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import save

import export.run
from export.onnx import BakedEncoder, _check_shapes, flat, run_onnx, write_onnx
from export.run import PARITY_TEXTS
from export.run import export as run_export
from hyte import Encoder, InputError
from hyte.nn.encoder import HyteEncoder
from hyte.nn.projection import Projection
from hyte.pooling import pool
from hyte.tokenizer import token_ids
from hyte.weights import KINDS, read_matrix, read_weights
from tests.conftest import ROOT, WORDS
from training.checkpoint import load_checkpoint, save_checkpoint
from training.tokens import load_tokens


def write_checkpoint(folder, bert, pooling="oem_radial", power=1.0, k=1.0, dim=16):
    generator = torch.Generator().manual_seed(1)
    state = {
        "w1": torch.randn(12, dim, generator=generator),
        "w2": torch.randn(dim, 12, generator=generator),
        "log_scale": torch.tensor(1.0),
    }
    tokens = {"name": "bge_small", "path": str(bert)}
    path = folder / "checkpoint.safetensors"
    save_checkpoint(path, state, {"k": k, "pooling": {"name": pooling, "power": power}, "tokens": tokens})
    return path


@pytest.fixture
def checkpoint(tmp_path, tiny_bert):
    return write_checkpoint(tmp_path, tiny_bert)


@pytest.mark.parametrize("pooling", ["oem", "oem_radial", "max"])
def test_the_artifact_gives_the_points_of_the_definition(tmp_path, tiny_bert, pooling):
    checkpoint = write_checkpoint(tmp_path, tiny_bert, pooling, power=0.5, k=2.0)
    config = run_export(str(checkpoint), str(tmp_path / "artifact"))
    assert sorted(p.name for p in (tmp_path / "artifact").iterdir()) == [
        "config.json", "model.onnx", "tokenizer.json", "weights.bin",
    ]  # fmt: skip
    encoder = Encoder.load(tmp_path / "artifact")
    assert (encoder.k, encoder.pooling, encoder.power) == (2.0, pooling, 0.5)
    # x = W2 ReLU(W1 e) of the words' unit embeddings, pooled, in numpy alone (eqs. 7, 8, 1, 2).
    state, table = load_checkpoint(checkpoint).state, load_tokens("bge_small", tiny_bert).table
    words = table[[WORDS.index(word) for word in "the cat sat".split()]]
    space = np.maximum(words @ state["w1"].numpy().T, 0) @ state["w2"].numpy().T
    np.testing.assert_allclose(encoder.encode(["The cat sat"])[0], pool(space, pooling, 0.5, 2.0), rtol=1e-4)
    assert max(config["parity"].values()) <= 1e-4


def test_the_config_is_strict_json_and_says_what_is_never_pooled(checkpoint, tmp_path, tiny_bert):
    write_checkpoint(tmp_path, tiny_bert, power=float("inf"))
    run_export(str(checkpoint), str(tmp_path / "a"))
    config = json.loads((tmp_path / "a" / "config.json").read_text(), parse_constant=pytest.fail)
    assert config["power"] == "inf"
    assert config["never_pooled_ids"] == [0, 1, 2, 3, 4]
    assert Encoder.load(tmp_path / "a").power == float("inf")


def test_the_exported_tokenizer_neither_cuts_nor_pads(checkpoint, tmp_path):
    run_export(str(checkpoint), str(tmp_path / "a"))
    written = json.loads((tmp_path / "a" / "tokenizer.json").read_text())
    assert written["truncation"] is None
    assert written["padding"] is None


def test_parity_texts_cover_what_goes_wrong():
    assert "" in PARITY_TEXTS
    assert max(len(text.split()) for text in PARITY_TEXTS) >= 5000
    assert any(ord(c) > 0x1F000 for text in PARITY_TEXTS for c in text)
    assert any("一" <= c <= "龯" for text in PARITY_TEXTS for c in text)


def test_backends_that_disagree_stop_the_export_and_leave_nothing(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(export.run, "run_onnx", lambda path, bags: 1.001 * run_onnx(path, bags))
    with pytest.raises(RuntimeError, match="backends differ by 1.0e-03"):
        run_export(str(checkpoint), str(tmp_path / "a"))
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("pooling", ["oem", "oem_radial"])
def test_int8_rows_give_the_same_points_in_every_backend_and_a_small_graph(tmp_path, tiny_bert, pooling):
    checkpoint = write_checkpoint(tmp_path, tiny_bert, pooling, power=0.5, k=2.0)
    run_export(str(checkpoint), str(tmp_path / "int8"), rows="int8")
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert config["kind"] == "int8"
    assert config["parity"].keys() == {"torch", "onnxruntime", "onnxruntime_one_by_one"}
    assert max(config["parity"].values()) <= 1e-6
    encoder = Encoder.load(tmp_path / "int8")
    bags = token_ids(encoder.tokenizer, PARITY_TEXTS)
    np.testing.assert_allclose(
        run_onnx(tmp_path / "int8" / "model.onnx", bags), encoder.encode(PARITY_TEXTS), rtol=1e-6, atol=1e-6
    )
    (rows,) = (
        onnx.numpy_helper.to_array(each)
        for each in onnx.load(tmp_path / "int8" / "model.onnx").graph.initializer
        if list(each.dims) == [len(WORDS), 16]
    )
    assert rows.dtype == np.int8


@pytest.mark.parametrize("pooling", ["oem", "oem_radial", "mean"])
def test_the_config_says_how_far_int8_points_are_from_the_trained_ones(tmp_path, tiny_bert, pooling):
    checkpoint = write_checkpoint(tmp_path, tiny_bert, pooling)
    config = {kind: run_export(str(checkpoint), str(tmp_path / kind), rows=kind, onnx=False) for kind in KINDS}
    assert config["float32"]["quantisation"] is None
    exact, rounded = (Encoder.load(tmp_path / kind).encode(PARITY_TEXTS).astype(float) for kind in KINDS)
    expected = max(np.linalg.norm(rounded - exact, axis=1) / np.linalg.norm(exact, axis=1))
    assert config["int8"]["quantisation"] == pytest.approx(expected, rel=1e-3)
    assert 1e-4 < expected < 0.02


def test_without_the_graph_only_what_a_device_needs_is_written(checkpoint, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.onnx").write_text("of an earlier export, whose weights are replaced")
    (tmp_path / "a" / "README.md").write_text("stays")
    config = run_export(str(checkpoint), str(tmp_path / "a"), rows="int8", onnx=False)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "README.md", "config.json", "tokenizer.json", "weights.bin",
    ]  # fmt: skip
    assert config["parity"].keys() == {"torch"}
    assert Encoder.load(tmp_path / "a").encode(["the cat"]).shape == (1, 17)


def test_the_command_takes_rows_and_onnx(checkpoint, tmp_path):
    settings = [f"checkpoint={checkpoint}", f"out={tmp_path / 'a'}", "rows=int8", "onnx=false"]
    command = [sys.executable, "-m", "export.run", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert f"{len(WORDS)} int8 rows, parity" in done.stdout
    assert len((tmp_path / "a" / "weights.bin").read_bytes()) == 256 + len(WORDS) * (4 + 16)
    assert not (tmp_path / "a" / "model.onnx").exists()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_onnx(path, BakedEncoder(rows, "oem_radial", 1.0, 1.0).train())
    return path, rows


@pytest.mark.parametrize("texts", [0, 1, 3, 64])
@pytest.mark.parametrize("length", [0, 1, 7, 600])
def test_the_graph_takes_any_number_of_texts_and_tokens(graph, texts, length):
    path, rows = graph
    bags = [np.arange(length, dtype=np.int32) * 7 % 50 for _ in range(texts)]
    points = run_onnx(path, bags)
    assert points.shape == (texts, 7)
    for point in points:
        np.testing.assert_allclose(point, pool(rows[bags[0]], "oem_radial"), rtol=1e-5, atol=1e-6)


def test_three_backends_rank_alike(checkpoint, tmp_path, tiny_bert):
    run_export(str(checkpoint), str(tmp_path / "a"))
    encoder = Encoder.load(tmp_path / "a")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS[5:26], generator.integers(1, 30))) for _ in range(250)]
    bags = token_ids(encoder.tokenizer, texts)
    trained, table = load_checkpoint(checkpoint), load_tokens("bge_small", tiny_bert).table
    model = HyteEncoder(table, Projection(trained.state["w1"], trained.state["w2"]), 1.0, "oem_radial", 1.0).double()
    with torch.no_grad():
        framework = model(*map(torch.from_numpy, flat(bags)))[0].numpy()
    lists = []
    for points in (encoder.encode(texts), run_onnx(tmp_path / "a" / "model.onnx", bags), framework):
        np.testing.assert_allclose(points, framework, rtol=0, atol=1e-5 * framework[:, 0].max())
        documents, queries = points[:200].astype(np.float64), points[200:].astype(np.float64)
        inner = queries[:, 1:] @ documents[:, 1:].T - queries[:, :1] @ documents[:, :1].T
        lists.append(np.argsort(-np.round(inner, 3), axis=1, kind="stable")[:, :10])
    np.testing.assert_array_equal(lists[0], lists[1])
    np.testing.assert_array_equal(lists[0], lists[2])


def test_a_size_that_the_exporter_fixed_is_noticed(tmp_path):
    def value(name, kind, *shape):
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    for shapes in ((5, "b", "b", 7), ("t", 3, 3, 7), ("t", "b", "b", "w")):
        tokens, texts, points, width = shapes
        inputs = [value("ids", onnx.TensorProto.INT64, tokens), value("offsets", onnx.TensorProto.INT64, texts)]
        outputs = [value("points", onnx.TensorProto.FLOAT, points, width), value("known", onnx.TensorProto.BOOL, texts)]
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", inputs, outputs)), tmp_path / "m.onnx")
        with pytest.raises(RuntimeError, match="must be free"):
            _check_shapes(tmp_path / "m.onnx", 7)


def test_an_empty_text_among_others_is_the_origin_and_flagged(graph):
    path, _ = graph
    ids, offsets = flat([np.array([3, 4]), np.array([], int), np.array([3]), np.array([], int)])
    points, known = onnxruntime.InferenceSession(str(path)).run(None, {"ids": ids, "offsets": offsets})
    assert list(known) == [True, False, True, False]
    np.testing.assert_array_equal(points[[1, 3]], [[1, 0, 0, 0, 0, 0, 0]] * 2)


def test_published_files_round_trip_through_training(checkpoint, tmp_path, tiny_bert):
    run_export(str(checkpoint), str(tmp_path / "a"), artifact_format="published")
    state = load_checkpoint(checkpoint).state
    np.testing.assert_array_equal(read_matrix(tmp_path / "a" / "proj_weight.bin"), state["w1"])
    np.testing.assert_array_equal(read_matrix(tmp_path / "a" / "proj_out.bin"), state["w2"])
    np.testing.assert_array_equal(
        read_matrix(tmp_path / "a" / "word_embeds.bin"), load_tokens("bge_small", tiny_bert).table
    )
    run_export(str(tmp_path / "a"), str(tmp_path / "b"), tokens_path=str(tiny_bert))
    rows = [read_weights(tmp_path / name / "weights.bin").rows for name in "ab"]
    np.testing.assert_array_equal(*rows)
    assert Encoder.load(tmp_path / "b").pooling == "oem"  # the published pair does not say; the paper does


def test_a_checkpoint_goes_before_a_published_pair_in_its_folder(checkpoint, tmp_path):
    run_export(str(checkpoint), str(tmp_path), artifact_format="published")
    assert load_checkpoint(tmp_path).config["pooling"]["name"] == "oem_radial"
    run_export(str(checkpoint), str(tmp_path))
    assert not (tmp_path / "proj_weight.bin").exists()


@pytest.mark.parametrize("cores", [{0}, {0, 1}])
def test_a_container_with_few_cores_sees_no_error_line(graph, cores):
    path, _ = graph
    code = (
        "import sys; from pathlib import Path; import numpy as np; from export.onnx import run_onnx;"
        "print(run_onnx(Path(sys.argv[1]), [np.array([3, 4, 3])]).tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=ROOT,
        preexec_fn=lambda: os.sched_setaffinity(0, cores & os.sched_getaffinity(0)),
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.strip() == run_onnx(path, [np.array([3, 4, 3])]).tobytes().hex()


def test_many_texts_take_little_memory(graph):
    path, _ = graph
    bags = [np.arange(150) % 50] * 2000  # a table of tokens x texts would take 600 million entries
    started = time.perf_counter()
    assert run_onnx(path, bags).shape == (2000, 7)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "config", ["x", "{}", "[]", '{"k": "x", "pooling": {"name": "oem", "power": 1}, "tokens": {}}']
)
def test_a_checkpoint_whose_configuration_is_damaged_is_named(checkpoint, config):
    checkpoint.write_bytes(save(load_checkpoint(checkpoint).state, {"format": "1", "config": config}))
    with pytest.raises(InputError, match=f"{checkpoint}: its configuration is not that of a training run"):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("weight", [torch.full((12, 16), torch.nan), torch.ones((12, 16), dtype=torch.int32)])
def test_weights_that_are_no_finite_numbers_are_named_with_their_checkpoint(checkpoint, weight):
    state = load_checkpoint(checkpoint).state | {"w1": weight}
    config = '{"k": 1.0, "pooling": {"name": "oem", "power": 1.0}, "tokens": {"name": "bge_small"}}'
    checkpoint.write_bytes(save(state, {"format": "1", "config": config}))
    with pytest.raises(InputError, match=f"{checkpoint}: W1 is not all finite floating-point numbers; train again"):
        load_checkpoint(checkpoint)


def test_mistakes_are_named(checkpoint, tmp_path, tiny_bert):
    with pytest.raises(InputError, match="format=onnx is unknown"):
        run_export(str(checkpoint), str(tmp_path / "a"), artifact_format="onnx")
    with pytest.raises(InputError, match="rows=int4 is unknown: use one of float32, int8"):
        run_export(str(checkpoint), str(tmp_path / "a"), rows="int4")
    with pytest.raises(InputError, match="onnx=no: expected true or false"):
        run_export(str(checkpoint), str(tmp_path / "a"), onnx="no")
    with pytest.raises(InputError, match="checkpoint="):
        run_export(str(tmp_path / "none"), str(tmp_path / "a"))
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    with pytest.raises(InputError, match="trained on 8 dimensions, the rows of .* have 16"):
        run_export(str(write_checkpoint(narrow, tiny_bert, dim=8)), str(tmp_path / "a"))
