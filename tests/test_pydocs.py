"""The built-in collection: what becomes a document, a query, a pair; nothing is imported."""

import gzip
import json
import time

import pytest

from eval import pydocs
from eval.collections import load
from eval.pydocs import Entry, build, ensure, entries_of, is_test, select, split
from hyte import InputError

BODY = "It is explained here in words that are many enough to make a document worth the searching for anybody at all."
SOURCE = f'''
"""Tools of a small kind here.

{BODY} One."""
import nothing_there

class Box:
    r"""Hold things of any shape.

    {BODY} Two.
    """

    def open(self):
        """open(self) -> Thing

        Lift the lid of
        the box.

        {BODY} Three.
        """

    def _hidden(self):
        """Lift the floor of the box.

        {BODY} Four."""

    async def close(self): "Shut the lid at once."

if True:
    try:
        def under_if():
            """Stand under a condition here.\\ud800

            {BODY} Five."""
            def inner():
                """Stand inside of another one.

                {BODY} Six."""
    except E:
        pass
'''


def test_the_documented_objects_of_a_module():
    found = {each.name: each for each in entries_of(SOURCE.encode(), "pkg.mod")}
    assert list(found) == ["pkg.mod", "pkg.mod.Box", "pkg.mod.Box.open", "pkg.mod.under_if", "pkg.mod.under_if.inner"]
    assert found["pkg.mod.Box.open"] == ("pkg.mod.Box.open", "Lift the lid of the box.", f"{BODY} Three.")
    assert found["pkg.mod.under_if"].summary == "Stand under a condition here.?"


@pytest.mark.parametrize("source", [b"def f(:", b"\xff\xfe", b"\0", b"x = " + b"(" * 10_000])
def test_what_does_not_parse_has_none(source):
    assert entries_of(source, "x") == []


def test_one_document_for_each_name_and_each_text():
    entries = [
        Entry("b", "A summary of four words", BODY),
        Entry("a", "Another summary of five words", BODY.replace(" ", "\n  ")),
        Entry("c", "One summary of four words", BODY + " Other."),
        Entry("c", "A summary of the same name", BODY + " Yet another."),
    ]
    assert [(each.name, each.summary) for each in select(entries)] == [
        ("a", "Another summary of five words"), ("c", "A summary of the same name"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        ("Only three words", BODY),
        ("word " * 61, BODY),
        ("A summary of five words", "Too short a text."),
        ("Returns: a number of things", BODY),
        ("size (`int`, *optional*): How many things", BODY),
        ("Use it thus: >>> f(x) and so on", BODY),
    ],
)
def test_what_is_no_document(summary, text):
    assert select([Entry("a", summary, text)]) == []


def test_a_summary_that_is_shared_is_no_query():
    entries = [Entry(f"m.f{i}", f"Do the thing number {i // 2 if i < 4 else i}", BODY + str(i)) for i in range(400)]
    entries[1] = entries[1]._replace(summary=entries[0].summary.upper())
    test, train = split(entries)
    assert {each.name for each in entries} - {each.name for each in test + train} == {"m.f0", "m.f1", "m.f2", "m.f3"}
    assert {each.name for each in test} == {each.name for each in entries[4:] if is_test(each.name)}
    assert 20 <= len(test) <= 60  # 10 % of 396, give or take three standard deviations and some


def test_the_split_is_fixed():
    # The first 16 hex digits of sha256sum's output, modulo 10, worked out in a shell.
    assert [i for i in range(30) if is_test(f"m.f{i}")] == [2, 7, 11, 14, 16, 22, 29]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that cannot be imported, and the only one that pydocs reads."""
    root = tmp_path / "site" / "pydocs_sample"
    (root / "_core").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "__init__.py").write_text("raise RuntimeError('imported')")
    functions = "\n".join(
        f'def f{i}():\n    """Do the thing number {i}.\n\n    {BODY} {i}.\n    """' for i in range(50)
    )
    (root / "_core" / "work.py").write_text(functions)
    (root / "tests" / "test_work.py").write_text(functions.replace("def f", "def g"))
    info = tmp_path / "site" / "pydocs_sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydocs-sample\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(pydocs, "PACKAGES", {"pydocs_sample": "pydocs-sample", "not_there_at_all": "not-there"})
    monkeypatch.setattr(pydocs, "MIN_DOCUMENTS", 50)
    return tmp_path / "site"


def pairs(folder):
    with gzip.open(folder / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def check(folder):
    """The collection reads as one, its query ids are no document ids, and no test query is among the training pairs."""
    found = load(folder)
    assert found.notes == {}
    assert not found.corpus.keys() & found.queries.keys()
    relevant = [document for grades in found.qrels.values() for document in grades]
    assert len(relevant) == len(set(relevant)) == len(found.queries)
    train = pairs(folder)
    assert not {each["query"].casefold() for each in train} & {each.casefold() for each in found.queries.values()}
    positives = {" ".join(found.corpus[each])[: pydocs.MAX_POSITIVE] for each in relevant}
    assert not {each["positive"] for each in train} & positives
    return found, train


def test_a_package_is_read_and_not_imported(package, tmp_path):
    manifest = build(tmp_path / "out")
    found, train = check(tmp_path / "out")
    assert manifest["made_from"]["packages"] == {"pydocs_sample": "1.0"}
    assert set(found.corpus) == {f"pydocs_sample._core.work.f{i}" for i in range(50)}
    assert (manifest["documents"], manifest["test_queries"], manifest["train_pairs"]) == (
        50,
        len(found.queries),
        len(train),
    )
    assert len(found.queries) + len(train) == 50
    document = found.corpus["pydocs_sample._core.work.f7"]
    assert document == ("pydocs_sample._core.work.f7", f"{BODY} 7.")
    assert {each["query"] for each in train} | set(found.queries.values()) == {
        f"Do the thing number {i}." for i in range(50)
    }
    assert all(each["positive"].startswith("pydocs_sample._core.work.f") for each in train)


def test_the_same_packages_give_the_same_bytes(package, tmp_path):
    for name in ("one", "two"):
        build(tmp_path / name)
    files = ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "train.jsonl.gz", "manifest.json"]
    assert [(tmp_path / "one" / each).read_bytes() for each in files] == [
        (tmp_path / "two" / each).read_bytes() for each in files
    ]


def test_it_is_built_once_and_anew_for_another_version(package, tmp_path, monkeypatch):
    monkeypatch.setenv("HYTE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "pydocs"
    first = load("pydocs")
    assert (first.name, len(first.corpus)) == ("pydocs", 50)
    written = (folder / "corpus.jsonl").stat().st_mtime_ns
    assert load("pydocs") == first
    assert (folder / "corpus.jsonl").stat().st_mtime_ns == written
    metadata = package / "pydocs_sample-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    ensure(folder)
    assert (folder / "corpus.jsonl").stat().st_mtime_ns != written
    assert json.loads((folder / "manifest.json").read_text())["made_from"]["packages"] == {"pydocs_sample": "1.1"}
    (folder / "manifest.json").write_text("[]")
    ensure(folder)
    assert json.loads((folder / "manifest.json").read_text())["documents"] == 50


def test_too_few_documents_is_an_error(package, tmp_path, monkeypatch):
    monkeypatch.setattr(pydocs, "MIN_DOCUMENTS", 51)
    with pytest.raises(InputError, match="50 documents, fewer than 51; install not-there"):
        build(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_real_packages(tmp_path):
    missing = [name for name in pydocs.PACKAGES if pydocs._root(name) is None]
    if missing:
        pytest.skip(f"not installed: {missing}")
    start = time.process_time()
    manifest = build(tmp_path)
    assert time.process_time() - start < 120  # about 25 s of an idle core
    found, _ = check(tmp_path)
    assert len(found.corpus) == manifest["documents"] >= 5000
    assert 0.08 < len(found.queries) / (len(found.queries) + manifest["train_pairs"]) < 0.12
    assert "numpy._core.fromnumeric.sum" in found.corpus
