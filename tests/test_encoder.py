"""The torch-free encoder."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyte.encoder
from hyte import geometry
from hyte import tokenizer as tokens
from hyte.encoder import Encoder, find_encoder
from hyte.errors import InputError
from hyte.pooling import POOLINGS, _weighted_sum, pool
from hyte.weights import read_weights, write_weights
from tests.conftest import DIM, WORDS, make_tokenizer, write_artifact

texts = st.lists(st.lists(st.sampled_from([*WORDS[5:20], "☃", "[CLS]"]), max_size=9).map(" ".join), max_size=6)


def test_a_one_token_text_is_its_row_lifted(encoder, tiny_artifact):
    rows = read_weights(tiny_artifact / "weights.bin").rows
    for text in ("cat", "[CLS] cat ☃ [SEP] [PAD] [UNK]"):
        expected = geometry.lift(rows[WORDS.index("cat")])
        np.testing.assert_allclose(encoder.encode([text])[0], expected, rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("power", [None, 0.0, np.inf])
def test_points_are_the_pooled_rows(tiny_artifact, pooling, power):
    encoder = Encoder.load(tiny_artifact, pooling, power)
    rows = read_weights(tiny_artifact / "weights.bin").rows
    bag = rows[[WORDS.index(w) for w in ["the", "cat", "sat", "the"]]]
    expected = pool(bag, pooling, 1.0 if power is None else power)
    np.testing.assert_allclose(encoder.encode(["The cat sat the"])[0], expected, rtol=1e-5)


@given(texts, st.randoms())
def test_a_text_gives_the_same_bits_in_any_company_and_order(encoder, batch, random):
    together = encoder.encode(batch)
    alone = [encoder.encode([text])[0] for text in batch]
    assert together.tobytes() == np.array(alone, np.float32).reshape(-1, DIM + 1).tobytes()
    for text, point in zip(batch, together, strict=True):
        words = text.split()
        random.shuffle(words)
        assert encoder.encode([" ".join(words)])[0].tobytes() == point.tobytes()


def test_thread_count_does_not_change_a_bit(tmp_path):
    code = (
        "import hashlib, numpy as np; from hyte.pooling import pool;"
        "x = np.random.default_rng(0).normal(size=(20000, 384)).astype(np.float32);"
        "print([hashlib.sha256(pool(x, p).tobytes()).hexdigest() for p in ('oem', 'oem_radial', 'mean')])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"OPENBLAS_NUM_THREADS": n}, capture_output=True, text=True, check=True
        ).stdout
        for n in ("1", "2", "8")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("columns", [7, 128, 383])
def test_a_coordinate_is_summed_alone(columns):
    # A BLAS product sums in blocks that depend on shapes and threads: cut off some columns and bits change.
    generator = np.random.default_rng(1)
    weights, x = generator.random(500), generator.normal(size=(500, 384))
    whole, part = _weighted_sum(weights, x), _weighted_sum(weights, np.ascontiguousarray(x[:, :columns]))
    np.testing.assert_array_equal(whole[:columns], part)


@given(texts)
def test_a_concatenation_pools_as_the_sum_of_its_parts_does(encoder, batch):
    joined = encoder.encode([" ".join(batch)])[0]
    ids = [i for each in tokens.token_ids(encoder.tokenizer, batch) for i in each] if batch else []
    expected = encoder.pool(ids) if ids else geometry.origin(DIM)
    np.testing.assert_allclose(joined, expected, rtol=1e-6)


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "🫥", "☃☃☃", "[CLS][SEP]", "x" * 300])
def test_a_text_without_known_tokens_is_the_origin_and_flagged(encoder, text):
    points, known = encoder.encode_with_flags(["cat", text])
    assert list(known) == [True, False]
    np.testing.assert_array_equal(points[1], geometry.origin(DIM).astype(np.float32))


def test_lone_surrogates_are_replaced_and_do_not_stop_the_batch(encoder):
    np.testing.assert_array_equal(*encoder.encode(["cat \ud800", "cat ?"]))


def test_nothing_to_encode_gives_no_points(encoder):
    assert encoder.encode([]).shape == (0, DIM + 1)
    assert encoder.encode([]).dtype == np.float32


@pytest.mark.parametrize("bad", [[None], ["a", 5], ["a", "b", ["x"]], "text"])
def test_what_is_not_a_text_is_named(encoder, bad):
    with pytest.raises(TypeError, match="one string" if bad == "text" else f"text {len(bad) - 1} is"):
        encoder.encode(bad)


@pytest.mark.parametrize("invisible", ["\u200b", "\ufeff", "\u00ad", "\u200d"])
def test_invisible_characters_inside_a_word_do_not_change_its_point(encoder, invisible):
    np.testing.assert_array_equal(*encoder.encode([f"pro{invisible}tein", "protein"]))


@pytest.mark.parametrize("ids", [[5, 7], np.array([5, 7], np.int32), np.array([5, 7], np.uint16)])
def test_ids_of_any_integer_kind(encoder, ids):
    np.testing.assert_array_equal(encoder.pool(ids), encoder.pool(np.array([5, 7], np.int64)))


def test_a_fork_after_encoding_does_not_hang(tiny_artifact):
    code = (
        "import os, sys; from hyte import Encoder; e = Encoder.load(sys.argv[1]); e.encode(['cat'] * 2000);"
        "child = os.fork(); p = e.encode(['cat sat'] * 2000); os._exit(0) if child == 0 else None;"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_artifact)], timeout=60, capture_output=True, check=False
    )
    assert done.returncode == 0


def test_long_texts_are_not_cut(encoder):
    assert not np.array_equal(*encoder.encode(["cat " * 300 + "sea", "cat " * 300]))


@pytest.mark.parametrize("ids", [[-1], [5, len(WORDS)]])
def test_ids_without_a_row_are_refused(encoder, ids):
    with pytest.raises(InputError, match="the weights have rows 0 to"):
        encoder.pool(ids)


# 2 (8 scale^2) = 3.4e38, the largest float32, at scale = 4.61e18.
@pytest.mark.parametrize(("scale", "k"), [(3e38, 1.0), (1e20, 1.0), (4.63e18, 1.0), (1.0, 1e300), (4.6e18, 3e36)])
def test_points_that_would_overflow_are_refused(tmp_path, tiny_tokenizer_file, scale, k):
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    digest = tokens.fingerprint(tokens.load_tokenizer(tiny_tokenizer_file))
    write_weights(folder / "weights.bin", np.full((len(WORDS), DIM), scale), k, "oem", 1.0, digest)
    with pytest.raises(InputError, match=r"\|x\| up to .* overflow float32; train again with a lower lr"):
        Encoder.load(folder)


def test_the_farthest_points_that_are_taken_have_finite_inner_products(tmp_path, tiny_tokenizer_file):
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    digest = tokens.fingerprint(tokens.load_tokenizer(tiny_tokenizer_file))
    rows = np.full((len(WORDS), DIM), 4.6e18) * np.where(np.arange(len(WORDS)) % 2, 1, -1)[:, None]
    write_weights(folder / "weights.bin", rows, 1.0, "oem", 1.0, digest)
    points = Encoder.load(folder).encode(["cat", "dog"])
    flipped = points * np.array([-1, *[1] * DIM], dtype=np.float32)
    assert points[0, 1] * points[1, 1] < 0
    assert np.isfinite(flipped @ points.T).all()


def test_more_tokens_than_rows_are_refused(tmp_path, tiny_tokenizer_file):
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["extra"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(InputError, match=rf"ids up to {len(WORDS)}, the weights only {len(WORDS)} rows"):
        Encoder.load(folder)


def test_more_rows_than_tokens_are_fine(tmp_path, tiny_tokenizer_file):
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    digest = tokens.fingerprint(tokens.load_tokenizer(tiny_tokenizer_file))
    write_weights(folder / "weights.bin", np.ones((len(WORDS) + 9, DIM)), 1.0, "oem", 1.0, digest)
    assert Encoder.load(folder).encode(["cat"]).shape == (1, DIM + 1)


def test_another_tokenizer_is_refused(tmp_path, tiny_tokenizer_file):
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    text = (folder / "tokenizer.json").read_text()
    assert '"cat":' in text
    (folder / "tokenizer.json").write_text(text.replace('"cat":', '"cot":'))
    with pytest.raises(InputError, match="is not the one that weights.bin was made for"):
        Encoder.load(folder)


def test_missing_and_broken_files_are_named(tmp_path, tiny_tokenizer_file):
    with pytest.raises(InputError, match="no weights there"):
        Encoder.load(tmp_path)
    folder = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer.json"):
        Encoder.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="no tokenizer file there"):
        Encoder.load(folder)


@pytest.fixture
def shipped(tmp_path, tiny_tokenizer_file, monkeypatch):
    """A function that makes a folder hold the shipped weights."""

    def ship(name, seed=7):
        folder = write_artifact(tmp_path / name, tiny_tokenizer_file, seed=seed)
        monkeypatch.setattr(hyte.encoder, "SHIPPED", folder)
        return folder

    return ship


def test_without_a_folder_the_shipped_weights_are_loaded(shipped, tmp_path, monkeypatch):
    folder = shipped("assets")
    assert Encoder.load().fingerprint == Encoder.load(folder).fingerprint
    assert Encoder.load(power=3.0).power == 3.0
    assert Encoder.load().record["path"] == str(folder)
    monkeypatch.setattr(hyte.encoder, "SHIPPED", tmp_path / "none")
    with pytest.raises(InputError, match=r"none: no shipped weights there: name an artifact folder \(python -m export"):
        Encoder.load()


@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["empty", "foreign", "cut", "changed"])
def test_damage_in_the_shipped_weights_says_to_install_again(shipped, name, damage):
    path = shipped("assets") / name
    whole = path.read_bytes()
    changed = whole[:60] + b"\xff" + whole[61:]
    path.write_bytes({"empty": b"", "foreign": b"{}", "cut": whole[:-9], "changed": changed}[damage])
    with pytest.raises(InputError, match=f"^{path}: .*; it is part of the package: install that again$") as error:
        Encoder.load()
    assert "export" not in str(error.value)
    with pytest.raises(InputError) as error:
        Encoder.load(path.parent)
    assert "install that" not in str(error.value)


# The package moves: to another folder, or from a machine whose folder cannot be read, or even be named, on this one.
@pytest.mark.parametrize("recorded", [None, "", "x" * 5000, "nul\0byte"])
def test_an_index_finds_the_shipped_weights_by_fingerprint_wherever_they_are(shipped, recorded):
    folder = shipped("here")
    record = Encoder.load(power=3.0).record
    shutil.rmtree(folder)
    shipped("there")
    record["path"] = record["path"] if recorded is None else recorded
    assert find_encoder(record, None, "idx").fingerprint == record["fingerprint"]


def test_other_shipped_weights_are_told_from_those_of_the_index(shipped):
    record = Encoder.load(shipped("assets")).record
    shipped("assets", seed=8)
    with pytest.raises(InputError, match="which is not at hand") as caught:
        find_encoder(record, None, "idx")
    assert str(caught.value).count(f"assets is {Encoder.load().fingerprint[:12]}") == 1  # one folder, tried once


@pytest.mark.parametrize("pooling", ["einstein", "mean", "max"])
def test_a_power_that_plays_no_part_does_not_change_the_fingerprint(tiny_artifact, pooling):
    assert len({Encoder.load(tiny_artifact, pooling, power).fingerprint for power in (0.0, 1.0, np.inf)}) == 1


@pytest.mark.parametrize(
    "override",
    [{"pooling": "oem"}, {"power": 3.0}, {"radius": 1.0}, {"query_power": np.inf}, {"radius": 2, "power": 0}],
)
def test_the_fingerprint_tells_settings_apart_and_finds_its_artifact(tiny_artifact, encoder, override):
    other = Encoder.load(tiny_artifact, **override)
    assert other.fingerprint != encoder.fingerprint
    assert find_encoder(other.record, None, "idx").fingerprint == other.fingerprint
    with pytest.raises(InputError, match=r"idx: built with artifact .*--artifact"):
        find_encoder(other.record, encoder, "idx")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("k", [0.5, 1.0, 2.0])
def test_at_one_radius_the_inner_product_is_that_of_the_angle_and_orders_as_the_cosine(
    tmp_path, tiny_tokenizer_file, pooling, k
):
    artifact = write_artifact(tmp_path / "a", tiny_tokenizer_file, pooling, k=k)
    generator = np.random.default_rng(0)
    batch = [" ".join(generator.choice(WORDS[5:25], generator.integers(1, 9))) for _ in range(60)]
    x = Encoder.load(artifact).encode(batch)[:, 1:].astype(np.float64)
    cosine = x @ x[0] / (np.linalg.norm(x, axis=1) * np.linalg.norm(x[0]))
    points = Encoder.load(artifact, radius=2.0).encode(batch).astype(np.float64)
    inner = points[:, 1:] @ points[0, 1:] - points[:, 0] * points[0, 0]
    t, s = (np.sqrt(k) * each(2.0 / np.sqrt(k)) for each in (np.cosh, np.sinh))
    np.testing.assert_allclose(points[:, 0], t, rtol=1e-6)
    np.testing.assert_allclose(inner, s * s * cosine - t * t, atol=4e-6 * t * t)
    apart = np.abs(cosine[:, None] - cosine) > 1e-5  # closer ones float32 may swap
    np.testing.assert_array_equal((inner[:, None] > inner)[apart], (cosine[:, None] > cosine)[apart])


def test_texts_without_a_direction_stay_at_the_origin_and_are_flagged(tmp_path, tiny_tokenizer_file):
    artifact = write_artifact(tmp_path / "a", tiny_tokenizer_file)
    rows = read_weights(artifact / "weights.bin").rows.copy()
    rows[WORDS.index("dog")] = -rows[WORDS.index("cat")]
    digest = tokens.fingerprint(tokens.load_tokenizer(tiny_tokenizer_file))
    write_weights(artifact / "weights.bin", rows, 1.0, "oem_radial", 1.0, digest)
    points, known = Encoder.load(artifact, radius=1.0).encode_with_flags(["cat dog", "☃", "cat"])
    assert list(known) == [False, False, True]
    np.testing.assert_array_equal(points[:2], np.tile(geometry.origin(DIM), (2, 1)))
    assert list(Encoder.load(artifact).encode_with_flags(["cat dog", "☃", "cat"])[1]) == [True, False, True]


@pytest.mark.parametrize("power", [-3.0, 0.0, 4.0, np.inf])
def test_queries_may_have_another_power(tiny_artifact, power):
    apart = Encoder.load(tiny_artifact, "oem", 1.0, query_power=power)
    text = ["the cat sat the"]
    np.testing.assert_array_equal(apart.encode(text), Encoder.load(tiny_artifact, "oem", 1.0).encode(text))
    np.testing.assert_array_equal(
        apart.encode(text, query=True), Encoder.load(tiny_artifact, "oem", power).encode(text)
    )


@pytest.mark.parametrize("pooling", ["mean", "oem"])
def test_a_query_power_that_plays_no_part_does_not_change_the_fingerprint(tiny_artifact, pooling):
    assert (
        Encoder.load(tiny_artifact, pooling, 1.0, query_power=1.0 if pooling == "oem" else 7.0).record
        == Encoder.load(tiny_artifact, pooling, 1.0).record
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, "radius must be above 0 and at most 40 sqrt"),
        ({"radius": -1.0}, "not -1"),
        ({"radius": np.nan}, "not nan"),
        ({"radius": 40.1}, "not 40.1"),
        ({"query_power": np.nan}, "pooling power"),
    ],
)
def test_options_out_of_range_are_refused(tiny_artifact, options, message):
    with pytest.raises(InputError, match=message):
        Encoder.load(tiny_artifact, **options)


def test_at_the_largest_radius_float32_still_holds_inner_products(tiny_artifact):
    point = Encoder.load(tiny_artifact, radius=40.0).encode(["cat"])[0]
    assert np.isfinite(point * point).all()
