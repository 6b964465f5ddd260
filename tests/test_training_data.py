"""Sources of training pairs, their weights, arrays on disk, the order of the batches, and the padded benchmark."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from hyte.errors import InputError
from hyte.tokenizer import token_ids
from tests.conftest import WORDS, make_tokenizer
from tests.test_tokens import save_tiny_bert
from training import arrays, bench, data, sources
from training.batches import batch_size, batches, check_enough, collate, epoch_rows
from training.data import load_pairs
from training.settings import Settings
from training.sources import HubSet, columns_of, find_sources, parse_hub, short_name, weights_of
from training.train import train

ROOT = Path(__file__).parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_lines(path: Path, lines: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def numbered(count: int, word: str = "cat") -> list[dict]:
    """Pairs that differ: the query repeats the word once more each time."""
    return [{"query": f"{word} " * (i + 1), "positive": f"a {word} sat"} for i in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def load(tokenizer, tmp_path):
    return lambda items, max_tokens=None, **options: load_pairs(
        items, tokenizer, max_tokens, tmp_path / "cache", **options
    )


def texts_of(pairs, tokenizer) -> list[list[tuple[str, int]]]:
    """Of each text its words with their counts."""
    return [
        [
            (tokenizer.id_to_token(i), n)
            for i, n in zip(pairs.ids[a:b].tolist(), pairs.counts[a:b].tolist(), strict=True)
        ]
        for a, b in zip(pairs.offsets, pairs.offsets[1:], strict=False)
    ]


# Hub sets


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("hub:a/b", ("a/b", None, None, "train")),
        ("hub:b", ("b", None, None, "train")),
        ("hub:a/b-c.d@v1.0", ("a/b-c.d", "v1.0", None, "train")),
        ("hub:a/b@refs/pr/3:pair:dev", ("a/b", "refs/pr/3", "pair", "dev")),
        ("hub:a/b:pair", ("a/b", None, "pair", "train")),
        ("hub:a/b::test[5:10]", ("a/b", None, None, "test[5:10]")),
        ("hub:.", (".", None, None, "train")),
    ],
)
def test_hub_names_are_taken_apart(item, expected):
    assert parse_hub(item) == HubSet(item, *expected)


@pytest.mark.parametrize("item", ["hub:", "hub:a/b/c", "hub:a b", "hub:@main", "hub:https://x/y"])
def test_hub_names_of_another_form_are_refused(item):
    with pytest.raises(InputError, match="write hub:OWNER/NAME"):
        parse_hub(item)


def test_folder_is_never_mistaken_for_a_set_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="for it write hub:./owner/name"):
        parse_hub("hub:owner/name")
    assert parse_hub("hub:./owner/name").is_folder
    with pytest.raises(InputError, match="no folder ./other"):
        parse_hub("hub:./other")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_folder_goes_through_datasets_and_beside_files(tmp_path, load, tokenizer, form):
    rows = {
        "question": ["cat", "dog"],
        "answer": ["a cat", "a dog"],
        "bad": ["bird", None],
        "worse": [["fish"], ["sea", ""]],
    }
    (tmp_path / "set").mkdir()
    table = datasets.Dataset.from_dict(rows)
    table.to_json(tmp_path / "set" / "train.jsonl") if form == "jsonl" else table.to_parquet(
        tmp_path / "set" / "x.parquet"
    )
    file = write_lines(tmp_path / "a.jsonl", [{"query": "mat", "positive": "the mat"}])
    columns = {"query": ["anchor", "question"], "positive": "answer", "negatives": ["worse", "bad", "none"]}
    hub = f"hub:{tmp_path}/set"
    pairs = load([hub, str(file)], columns=columns)
    assert pairs.files == (str(file), hub)  # files first
    assert pairs.where(np.arange(3)) == [f"{file}:1", f"{hub}:1", f"{hub}:2"]
    words = [[word for word, _ in text] for text in texts_of(pairs, tokenizer)]
    ours = [["mat"], ["the", "mat"], ["cat"], ["a", "cat"], ["fish"], ["bird"], ["dog"], ["a", "dog"], ["sea"]]
    assert words == ours
    assert pairs.first.tolist() == [0, 2, 6, 9]
    assert pairs.describe() == [
        {"name": str(file), "pairs": 1, "weight": 1.0},
        {"name": hub, "pairs": 2, "weight": 1.0},
    ]


def test_split_and_slice_of_a_folder(tmp_path, load):
    write_lines(tmp_path / "set" / "train.jsonl", numbered(7))
    write_lines(tmp_path / "set" / "test.jsonl", numbered(3))
    sizes = [len(load(f"hub:{tmp_path}/set{rest}")) for rest in ("", "::test", "::train[2:6]")]
    assert sizes == [7, 3, 4]
    with pytest.raises(InputError, match=r'cannot be loaded \(Unknown split "dev".*its form is hub:NAME@REV') as error:
        load(f"hub:{tmp_path}/set::dev")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="BuilderConfig 'nope' not found"):
        load(f"hub:{tmp_path}/set:nope")


def test_changed_folder_is_read_anew(tmp_path, load):
    file = write_lines(tmp_path / "set" / "train.jsonl", numbered(3))
    assert len(load(f"hub:{tmp_path}/set")) == 3
    write_lines(file, numbered(5))
    assert len(load(f"hub:{tmp_path}/set")) == 5
    other = write_lines(tmp_path / "other" / "set" / "train.jsonl", numbered(5, "dog"))  # another folder of that name
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    assert file.stat().st_size == other.stat().st_size
    assert load(f"hub:{tmp_path}/set").ids.tolist() != load(f"hub:{tmp_path}/other/set").ids.tolist()


def test_rows_of_a_set_without_text_are_left_out_and_counted(tmp_path, load, caplog):
    lines = [{"query": "cat", "positive": None}, {"query": " ", "positive": "dog"}, {"query": "dog", "positive": "dog"}]
    write_lines(tmp_path / "set" / "train.jsonl", lines)
    pairs = load(f"hub:{tmp_path}/set")
    assert pairs.line.tolist() == [3]
    assert "left out 2 of 3 rows without query or positive" in caplog.text
    write_lines(tmp_path / "none" / "train.jsonl", lines[:2])
    with pytest.raises(InputError, match=r"no pairs: 2 row\(s\), 2 of them"):
        load(f"hub:{tmp_path}/none")
    write_lines(tmp_path / "numbers" / "train.jsonl", [{"query": 5, "positive": "dog"}])
    with pytest.raises(InputError, match="numbers:1: query must be text, not int"):
        load(f"hub:{tmp_path}/numbers")


def test_columns_that_are_not_there_are_named(tmp_path, load):
    write_lines(tmp_path / "set" / "train.jsonl", [{"anchor": "cat", "positive": "cat"}])
    folder = f"hub:{tmp_path}/set"
    with pytest.raises(InputError, match=r"no column 'query'; the set has 'anchor', 'positive'.*data.columns="):
        load(folder)
    assert len(load(folder, columns={"query": "anchor"})) == 1
    with pytest.raises(InputError, match="no set has a column 'negative'"):
        load(folder, columns={"query": "anchor", "negatives": "negative"})
    with pytest.raises(InputError, match="data.columns is for hub sets"):
        load(write_lines(tmp_path / "a.jsonl", numbered(1)), columns={"query": "anchor"})
    with pytest.raises(InputError, match="no column 'querry'; did you mean 'query'"):
        columns_of("hub:x", ["query"], {"querry": "anchor"})
    with pytest.raises(InputError, match="must be a column's name or a list of names, not 5"):
        columns_of("hub:x", ["query"], {"query": 5})


@pytest.fixture
def no_hub(monkeypatch):
    """A hub that refuses every connection, at once."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


def test_without_a_network_a_set_is_one_line_in_seconds(load, no_hub):
    started = time.perf_counter()
    with pytest.raises(
        InputError, match=r"hub:owner/name is neither in the local cache nor.*data.pairs=\[hub:./FOLDER"
    ) as error:
        load("hub:owner/name")
    assert time.perf_counter() - started < 5
    assert "\n" not in str(error.value)
    assert (os.environ.get("HF_HUB_OFFLINE") == "1") == datasets.config.HF_HUB_OFFLINE  # as it was


def test_cached_set_is_taken_without_a_network_with_its_commit(tmp_path, load, no_hub, caplog):
    """The cache is made from a folder, and put where `datasets` keeps sets of the hub."""
    write_lines(tmp_path / "name" / "train.jsonl", numbered(3))
    load(f"hub:{tmp_path}/name")
    made = next((tmp_path / "cache" / "name" / "default" / "0.0.0").glob("*/dataset_info.json")).parent
    shutil.copytree(made, tmp_path / "cache" / "owner___name" / "default" / "0.0.0" / COMMIT)
    pairs = load("hub:owner/name", weights={"name": 2})
    assert pairs.describe() == [{"name": "hub:owner/name", "pairs": 3, "weight": 2.0, "commit": COMMIT}]
    assert f"the cached commit {COMMIT} is taken" in caplog.text
    assert len(load(f"hub:owner/name@{COMMIT[:8]}")) == 3
    with pytest.raises(InputError, match=f"the cache holds commit {COMMIT}; name that commit"):
        load("hub:owner/name@v2")


def test_revision_is_handed_on_and_code_is_never_trusted(load, monkeypatch):
    asked = []

    def load_dataset(name, config, **options):
        asked.append((name, config, options))
        return datasets.Dataset.from_dict({"query": ["cat", "dog"], "positive": ["cat", "dog"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(sources, "_ask_hub", lambda spec: (COMMIT, ""))
    pairs = load("hub:owner/name@v1:pair:dev")
    name, config, options = asked[0]
    assert (name, config, options["split"], options["revision"]) == ("owner/name", "pair", "dev", "v1")
    assert "trust_remote_code" not in options
    assert pairs.commits == (COMMIT,)


# Weights


def test_names_of_sources():
    names = ["x/arxiv.jsonl.gz", "b.c.jsonl", "d.json", "e", "hub:owner/gooaq-x@v1:pair", "f.gz"]
    assert [short_name(name) for name in names] == ["arxiv", "b.c", "d", "e", "gooaq-x", "f"]
    assert weights_of(["x/a.jsonl", "y/a.jsonl.gz", "hub:o/b"], {"a": 2, "b": 0}) == (2.0, 2.0, 0.0)
    with pytest.raises(InputError, match=r"no source 'arxvi'; did you mean 'arxiv'\? \(there are arxiv, b\)"):
        weights_of(["arxiv.jsonl.gz", "b.jsonl"], {"arxvi": 2})
    for bad in (-1, "2", True, float("nan"), float("inf"), None):
        with pytest.raises(InputError, match=r"data.weights.b=.* must be a number from 0 to 1000"):
            weights_of(["b.jsonl"], {"b": bad})


def test_wrong_weight_is_known_before_anything_is_read(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("not json")
    with pytest.raises(InputError, match="no source 'b'"):
        find_sources([file], {"b": 1})


@pytest.fixture
def three(tmp_path, load):
    """Sources of 20, 7 and 12 pairs."""
    names = [
        write_lines(tmp_path / f"{name}.jsonl", numbered(count)) for name, count in (("a", 20), ("b", 7), ("c", 12))
    ]
    return lambda **weights: load(names, weights=weights)


def old_batches(pairs, size, seed):
    """The order as it was before there were weights; results depend on it."""
    size, epoch = min(size, len(pairs)), 0
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(pairs.usable)
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]
        epoch += 1


@pytest.mark.parametrize("size", [2, 8, 39, 100])
def test_order_without_weights_is_what_it_was(three, size):
    for pairs in (three(), three(a=1, b=1.0), replace(three(), weights=())):
        before, now = old_batches(pairs, size, 5), batches(pairs, size, 5)
        for _ in range(40):
            np.testing.assert_array_equal(next(now), next(before))


def counts_of(pairs, epochs, seed=3):
    rows = [epoch_rows(pairs, seed, epoch) for epoch in epochs]
    return np.bincount(np.concatenate(rows), minlength=len(pairs.file))


def test_weights_are_how_often_an_epoch_has_each_pair(three):
    pairs = three(a=2, b=0, c=0.5)
    assert counts_of(pairs, [0]).tolist()[:27] == [2] * 20 + [0] * 7
    half = counts_of(pairs, [0])[27:]
    assert sorted(half) == [0] * 6 + [1] * 6
    assert (half + counts_of(pairs, [1])[27:]).tolist() == [1] * 12  # another half
    assert counts_of(pairs, [2])[27:].tolist() != half.tolist()  # halved anew
    assert counts_of(pairs, [0], seed=4)[27:].tolist() != half.tolist()


def test_odd_weights_use_all_pairs_equally_often(three):
    pairs = three(a=1.5, b=0.3, c=2.25)
    used = counts_of(pairs, range(20))
    assert set(used[:20]) == {30}
    assert set(used[20:27]) == {6}
    assert set(used[27:]) == {45}
    lengths = [len(epoch_rows(pairs, 3, epoch)) for epoch in range(20)]
    assert sum(lengths) == 20 * (30 + 2.1 + 27)
    assert max(lengths) - min(lengths) <= 3


@pytest.mark.parametrize("weights", [{}, {"a": 0.3, "b": 2.5, "c": 0.7}])
@pytest.mark.parametrize("size", [4, 16, 1000])
def test_skipped_batches_are_those_that_were_used(three, weights, size):
    pairs = three(**weights)
    whole = batches(pairs, size, 9)
    used = [next(whole) for _ in range(60)]
    for skip in (0, 1, 2, 5, 8, 9, 10, 31, 59):
        np.testing.assert_array_equal(next(batches(pairs, size, 9, skip)), used[skip])


def test_a_skip_draws_only_the_epoch_that_it_ends_in(three, monkeypatch):
    drawn = []
    generator = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda key: drawn.append(key) or generator(key))
    next(batches(three(), 39, 1, skip=100_000))
    assert drawn == [[1, 100_000]]


def test_every_epoch_has_a_batch_of_the_promised_size(three):
    pairs = three(a=0.13, b=0.3, c=0)
    size = batch_size(pairs, 1000)
    assert size == int(20 * 0.13) + int(7 * 0.3)
    source = batches(pairs, 1000, 0)
    assert {len(next(source)) for _ in range(50)} == {size}
    with pytest.raises(InputError, match="data.weights leave 1 of 39 pairs an epoch"):
        check_enough(three(a=0, b=0, c=0.1))
    one = replace(three(a=0, b=0), weights=(0.0, 0.0, 0.0))
    with pytest.raises(InputError, match="data.weights leave 0 of 39"):
        check_enough(one)


def test_copies_of_one_pair_are_not_enough(tmp_path, load):
    files = [write_lines(tmp_path / "a.jsonl", numbered(1)), write_lines(tmp_path / "b.jsonl", numbered(5))]
    with pytest.raises(InputError, match="data.weights leave 1 of 6 pairs"):
        next(batches(load(files, weights={"a": 50, "b": 0}), 8, 0))


# Tokens and negatives


def test_queries_may_keep_fewer_tokens_than_other_texts(tmp_path, load, tokenizer):
    text = "cat dog bird fish sat ran"
    lines = [{"query": text, "positive": text, "negatives": [text]}] * 2
    file = write_lines(tmp_path / "a.jsonl", lines)
    sizes = lambda **options: np.diff(load(file, **options).offsets).tolist()  # noqa: E731
    assert sizes(max_tokens=4) == [4, 4, 4] * 2
    assert sizes(max_tokens=4, query_tokens=2) == [2, 4, 4] * 2
    assert sizes(query_tokens=2) == [2, 6, 6] * 2
    assert sizes(max_tokens=2, query_tokens=5) == [5, 2, 2] * 2
    assert texts_of(load(file, query_tokens=2), tokenizer)[0] == [("cat", 1), ("dog", 1)]


@pytest.fixture
def mined(tmp_path, load):
    """Pairs with 0, 3000, 2 and 1 negatives."""
    many = [" ".join(WORDS[5 + i % 12] for i in range(n % 50 + 1)) for n in range(3000)]
    lines = [
        {"query": "cat", "positive": "a cat"},
        {"query": "dog", "positive": "a dog", "negatives": many},
        {"query": "sea", "positive": "blue sea", "negatives": ["zzz", "red"]},
        {"query": "gene", "positive": "new gene", "negatives": ["old"]},
    ]
    file = write_lines(tmp_path / "mined.jsonl", lines)
    return lines, lambda negatives: load(file, negatives=negatives)


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 5000])
def test_batch_has_the_first_negatives_of_each_pair(mined, tokenizer, limit):
    lines, load_mined = mined
    rows = [3, 1, 0, 2]
    batch = collate(load_mined(limit), np.array(rows))
    texts = [lines[i]["query"] for i in rows] + [lines[i]["positive"] for i in rows]
    texts += [each for i in rows for each in lines[i].get("negatives", [])[:limit] if each != "zzz"]
    assert len(batch.offsets) == len(texts) == 8 + {None: 3002, 0: 0, 1: 2, 2: 4, 5000: 3002}[limit]
    for text, start, end in zip(texts, batch.offsets, [*batch.offsets[1:], len(batch.ids)], strict=True):
        found = np.repeat(batch.distinct[batch.ids[start:end]], batch.counts[start:end])
        assert found.tolist() == sorted(token_ids(tokenizer, [text])[0])


def test_groups_are_cut_by_characters(monkeypatch):
    monkeypatch.setattr(data, "CHARACTERS_AT_ONCE", 10)
    line = lambda query, *negatives: {"query": query, "positive": "pp", "negatives": list(negatives)}  # noqa: E731
    lines = [line("q"), line("q", "n" * 50), line("q"), line("qqq"), line("q" * 8), line("q")]
    assert [len(group) for group in data._groups(lines)] == [2, 3, 1]
    assert [each for group in data._groups(lines) for each in group] == lines


def test_groups_do_not_change_what_is_read(tmp_path, tokenizer, monkeypatch):
    lines = [each | {"negatives": ["a dog", "red"][: i % 3]} for i, each in enumerate(numbered(40))]
    file = write_lines(tmp_path / "a.jsonl", lines)
    whole = load_pairs(file, tokenizer, 12, tmp_path / "one")
    monkeypatch.setattr(data, "CHARACTERS_AT_ONCE", 1)
    single = load_pairs(file, tokenizer, 12, tmp_path / "two")
    for name in ("ids", "counts", "offsets", "hashes", "first", "file", "line", "usable"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(single, name))


# Arrays on disk


def test_arrays_come_back_as_they_were_written(tmp_path):
    rng = np.random.default_rng(0)
    pieces = [{"a": rng.integers(0, 9, n).astype("int32"), "b": rng.integers(0, 9, 2 * n)} for n in (5, 0, 100_000, 1)]
    arrays.write_arrays(tmp_path / "x" / "y", {"a": "int32", "b": "int64"}, iter(pieces))
    a, b = arrays.open_arrays(tmp_path / "x" / "y", ["a", "b"])
    np.testing.assert_array_equal(a, np.concatenate([piece["a"] for piece in pieces]))
    np.testing.assert_array_equal(b, np.concatenate([piece["b"] for piece in pieces]))
    assert (a.dtype, b.dtype, a.flags.writeable) == (np.int32, np.int64, False)
    np.testing.assert_array_equal(np.load(tmp_path / "x" / "y" / "b.npy"), b)
    assert sorted(path.name for path in (tmp_path / "x").rglob("*")) == ["a.npy", "b.npy", "y"]
    arrays.write_arrays(tmp_path / "empty", {"a": "int32"}, [])
    assert arrays.open_arrays(tmp_path / "empty", ["a"])[0].shape == (0,)


def test_arrays_appear_whole_or_not_at_all(tmp_path):
    def pieces():
        yield {"a": np.arange(1000)}
        raise InputError("bad line")

    with pytest.raises(InputError, match="bad line"):
        arrays.write_arrays(tmp_path / "x", {"a": "int64"}, pieces())
    assert list(tmp_path.iterdir()) == []

    def slower():  # another process is done first
        arrays.write_arrays(tmp_path / "x", {"a": "int64"}, [{"a": np.arange(3)}])
        yield {"a": np.arange(3)}

    arrays.write_arrays(tmp_path / "x", {"a": "int64"}, slower())
    assert arrays.open_arrays(tmp_path / "x", ["a"])[0].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_full_disk_is_named(tmp_path):
    def pieces():
        yield {"a": np.arange(3)}
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/x'"):
        arrays.write_arrays(tmp_path / "x", {"a": "int64"}, pieces())


def test_damaged_arrays_are_one_line(tmp_path, load):
    file = write_lines(tmp_path / "a.jsonl", numbered(50))
    pairs = load(file)
    folder = next((tmp_path / "cache").glob("hyte-pairs-*"))
    ids = (folder / "ids.npy").read_bytes()
    for content, message in ((ids[:-40], "damaged cache"), (b"", "damaged cache"), (None, "damaged cache")):
        (folder / "ids.npy").unlink()
        if content is not None:
            (folder / "ids.npy").write_bytes(content)
        with pytest.raises(InputError, match=f"{message}.*remove this folder"):
            load(file)
        (folder / "ids.npy").touch()
    np.save(folder / "ids.npy", pairs.counts[:-1])
    with pytest.raises(InputError, match="lengths do not fit"):
        load(file)
    shutil.rmtree(folder)
    assert len(load(file)) == 50


def test_second_run_reads_no_line(tmp_path, load, tokenizer, monkeypatch):
    file = write_lines(tmp_path / "a.jsonl", numbered(5))
    first = load(file, 3)
    monkeypatch.setattr(data, "_read", None)
    again = load(file, 3, query_tokens=3)  # the same
    np.testing.assert_array_equal(first.ids, again.ids)
    assert not isinstance(again.ids, np.memmap)
    assert not again.ids.flags.owndata  # mapped, not read
    with pytest.raises(TypeError):
        load(file, 3, query_tokens=2)


def test_memory_does_not_grow_with_the_arrays(tmp_path):
    piece = {"a": np.arange(250_000, dtype=np.int64)}  # 2 MB
    tracemalloc.start()
    try:
        arrays.write_arrays(tmp_path / "x", {"a": "int64"}, (piece for _ in range(50)))
        found = arrays.open_arrays(tmp_path / "x", ["a"])[0]
        assert found[123::250_000].tolist() == [123] * 50
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


LOADER = """
import json, sys, threading, time
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from training import data
tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(20_000)} | {"[UNK]": 20_000}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024
peak, before = [0.0], anonymous()
def watch():
    while True:
        peak[0] = max(peak[0], anonymous() - before)
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
pairs = data.load_pairs(sys.argv[1], tokenizer, None, sys.argv[2])
flat = (pairs.ids.nbytes + pairs.counts.nbytes) / 2**20
print(json.dumps([peak[0], flat, len(pairs), int(pairs.ids[-400:].sum()), int(pairs.counts.sum(dtype=np.int64))]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_less_memory_than_the_arrays(tmp_path):
    rng = np.random.default_rng(0)
    with gzip.open(tmp_path / "big.jsonl.gz", "wt", compresslevel=1) as file:
        for _ in range(1000):
            for ids in rng.permutation(20_000).reshape(50, 400):
                file.write(json.dumps({"query": "w1", "positive": " ".join(f"w{i}" for i in ids)}) + "\n")
    command = [sys.executable, "-c", LOADER, str(tmp_path / "big.jsonl.gz"), str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):  # built, then opened
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
        peak, flat, pairs, last, tokens = json.loads(done.stdout)
        assert flat > 150
        assert peak < 100, f"{peak:.0f} MiB of memory for {flat:.0f} MiB of arrays"
        assert (pairs, tokens, last) == (50_000, 50_000 * 401, int(ids.sum()))
    assert peak < 10


# A whole run, and the benchmark


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def settings(bert, tmp_path):
    names = [write_lines(tmp_path / f"{name}.jsonl", numbered(9, name)) for name in ("cat", "dog")]
    basic = {
        "pairs": tuple(map(str, names)), "out": str(tmp_path / "run"), "cache": str(tmp_path / "cache"),
        "wandb_mode": "disabled", "tokens": "bge_small", "tokens_path": str(bert), "hidden": 32, "steps": 2,
        "batch_size": 8,
    }  # fmt: skip
    return lambda **changes: Settings(**(basic | changes))


def test_run_records_its_sources(settings, tmp_path):
    from omegaconf import OmegaConf

    write_lines(tmp_path / "set" / "x.jsonl", [{"anchor": "fish", "positive": "a fish", "query": "sea"}])
    hub = f"hub:{tmp_path}/set"
    pairs = (str(tmp_path / "cat.jsonl"), hub)
    result = train(
        settings(pairs=pairs, weights={"cat": 0.5}, columns={"query": "anchor"}, query_tokens=5, negatives=1)
    )
    config = OmegaConf.to_container(OmegaConf.load(result["config"]))
    assert config["data"]["sources"] == [
        {"name": pairs[0], "pairs": 9, "weight": 0.5},
        {"name": hub, "pairs": 1, "weight": 1.0},
    ]
    assert config["data"]["weights"] == {"cat": 0.5}
    assert (result["pairs"], result["batch_size"]) == (10, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [2]}, r"data.weights must be a mapping, as in data.weights=\{a:...,b:...\}, not \[2\]"),
        ({"weights": {"cat": "2"}}, "data.weights.cat='2' must be a number"),
        ({"columns": {"anchor": "query"}}, "data.columns: no column 'anchor'"),
        ({"query_tokens": 0}, "data.query_tokens=0 is out of range"),
        ({"negatives": -1}, "data.negatives=-1 is out of range"),
    ],
)
def test_bad_settings_of_data_are_named(settings, changes, message):
    with pytest.raises(InputError, match=message):
        settings(**changes)


def test_command_line_takes_weights_columns_and_hub_sets():
    from hydra import compose, initialize_config_dir

    given = [
        "out=run", "data.pairs=[hub:a/b@v1:pair,x.jsonl]", "data.weights={b:0.5,x:2}",
        "data.columns={query:[anchor,question],positive:answer}", "data.query_tokens=64", "data.negatives=3",
    ]  # fmt: skip
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", overrides=given)
    assert config.data.pairs == ["hub:a/b@v1:pair", "x.jsonl"]
    assert config.data.weights == {"b": 0.5, "x": 2}
    assert config.data.columns == {"query": ["anchor", "question"], "positive": "answer"}
    assert (config.data.query_tokens, config.data.negatives) == (64, 3)


@pytest.mark.parametrize(("pooling", "power"), [("oem", 1.0), ("oem_radial", 1.0), ("oem_radial", 2.5), ("oem", -1.0)])
@pytest.mark.parametrize("loss", ["inner", "distance"])
def test_padded_model_has_the_loss_and_gradient_of_ours(settings, bert, pooling, power, loss):
    options = settings(pooling=pooling, power=power, loss=loss, k=2.0)
    tokens = bench.load_tokens("bge_small", bert)
    ours, _ = bench.build(options, tokens, None)
    other = bench.padded(ours)
    batch = collate(bench.pairs_of(options, tokens), np.arange(2, 17))
    losses = [model(batch) for model in (ours, other)]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-5)
    for each in losses:
        each.backward()
    torch.testing.assert_close(ours.encoder.projection.w1.grad, other.encoder.projection.w1.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours.log_scale.grad, other.log_scale.grad, rtol=1e-3, atol=1e-5)


def test_padded_ids_by_hand(tmp_path, load, tokenizer):
    lines = [{"query": "dog cat cat", "positive": "sea"}, {"query": "fish", "positive": "a a red mat"}]
    batch = collate(load(write_lines(tmp_path / "a.jsonl", lines)), np.array([1, 0]))
    ids, lengths = bench.pad(batch, 0, 2)
    words = [[tokenizer.id_to_token(i) for i in row] for row in ids]
    assert words == [["fish", "[PAD]", "[PAD]"], ["cat", "cat", "dog"]]
    assert lengths.tolist() == [1, 3]
    ids, lengths = bench.pad(batch, 2, 4)
    assert [tokenizer.id_to_token(i) for i in ids[0]] == ["a", "a", "mat", "red"]
    assert lengths.tolist() == [4, 1]


def test_benchmark_prints_both_sides(settings, capsys):
    options = settings()
    given = [f"data.pairs=[{','.join(options.pairs)}]", f"data.cache={options.cache}", "tokens=bge_small"]
    given += [f"tokens.path={options.tokens_path}", "model.hidden=32", "batch_size=4", "--repeats", "2", "--steps", "1"]
    bench.main(given)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("oem_radial, batches of 4 pairs")
    assert [line.split()[0] for line in lines[1:]] == ["step", "distinct", "padded", "ratio"]
    for bad, message in ((["pooling=mean"], "the padded side only has oem"), (["--repeats", "0"], "must be 1 or more")):
        with pytest.raises(SystemExit) as stopped:
            bench.main([*given, *bad])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err


def test_benchmark_table_by_hand():
    speeds = {"distinct": [1.0, 400.0, 300.0, 500.0], "padded": [9000.0, 10.0, 20.0, 40.0]}
    lines = bench.table(speeds).splitlines()
    assert lines[1].split() == ["distinct", "400", "(300", "to", "500,", "3", "repeats)"]
    assert lines[3].split() == ["ratio", "20.0"]


def test_models_that_differ_are_no_benchmark(settings, bert):
    tokens = bench.load_tokens("bge_small", bert)
    ours, _ = bench.build(settings(init_scale=0.2), tokens, None)  # near the origin no pair is learned yet
    other = bench.padded(ours)
    other.encoder.projection.w2.data *= 1.1
    with pytest.raises(InputError, match="of one batch differ by"):
        bench.compare([ours, other], collate(bench.pairs_of(settings(), tokens), np.arange(10)))
