"""Reading collections: what is odd is counted or refused with its place, never passed over in silence."""

import json
import zipfile
from pathlib import Path

import pytest

from eval import beirfiles, collections
from eval.collections import Collection, load
from hyte import InputError
from hyte.chunking import chunk_spans

CORPUS = [{"_id": "d1", "title": "A cat", "text": "sat"}, {"_id": "d2", "text": "a dog ran"}]
QUERIES = [{"_id": "q1", "text": "cat"}, {"_id": "q2", "text": "dog"}]
QRELS = ["q1\td1\t1", "q2\td2\t2"]
HEADER = "query-id\tcorpus-id\tscore"


def lines(rows) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def write(folder: Path, corpus=CORPUS, queries=QUERIES, **splits) -> Path:
    """A collection in BEIR's form; rows are objects or raw lines, `splits` are lists of judgement lines."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_bytes(lines(corpus))
    (folder / "queries.jsonl").write_bytes(lines(queries))
    for split, qrels in (splits or {"test": QRELS}).items():
        (folder / "qrels" / f"{split}.tsv").write_bytes(lines([HEADER, *qrels]))
    return folder


def zipped(path: Path, members: dict[str, bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def members(top="") -> dict[str, bytes]:
    return {
        f"{top}corpus.jsonl": lines(CORPUS),
        f"{top}queries.jsonl": lines(QUERIES),
        f"{top}qrels/test.tsv": lines([HEADER, *QRELS]),
    }


def content(collection: Collection):
    return collection.corpus, collection.queries, collection.qrels, collection.notes


def test_a_folder(tmp_path):
    found = load(write(tmp_path / "tiny"))
    assert found.corpus == {"d1": ("A cat", "sat"), "d2": ("", "a dog ran")}
    assert found.queries == {"q1": "cat", "q2": "dog"}
    assert found.qrels == {"q1": {"d1": 1}, "q2": {"d2": 2}}
    assert (found.name, found.split, found.notes) == ("tiny", "test", {})


def test_the_hash_tells_versions_apart(tmp_path):
    first, same = load(write(tmp_path / "a")), load(write(tmp_path / "b"))
    other = load(write(tmp_path / "c", corpus=[*CORPUS, {"_id": "d3", "text": ""}]))
    assert first.sha256 == same.sha256 != other.sha256


def test_numbers_as_ids_join_with_text(tmp_path):
    found = load(write(tmp_path, [{"_id": 12, "text": "x"}], [{"_id": 7, "text": "y"}], test=["7\t12\t1"]))
    assert (found.corpus.keys(), found.queries, found.qrels) == ({"12"}, {"7": "y"}, {"7": {"12": 1}})


def test_no_id_in_common_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"2 judged queries, 2 queries, and no id in common \(such as 'x1' and 'q1'\)"):
        load(write(tmp_path, test=["x1\td1\t1", "x2\td2\t1"]))
    with pytest.raises(
        InputError, match=r"1 judged documents, 2 documents, and no id in common \(such as 'y' and 'd1'\)"
    ):
        load(write(tmp_path, test=["q1\ty\t1", "q2\ty\t1"]))


def test_judged_queries_without_text_are_counted_and_stay_judged(tmp_path, caplog):
    found = load(write(tmp_path, test=["q1\td1\t1", "lost\td2\t1"]))
    assert found.notes == {"queries_without_text": 1}
    assert list(found.queries) == ["q1"]
    assert list(found.qrels) == ["q1", "lost"]
    assert caplog.messages == [f"{tmp_path.name}: 1 judged queries are not in queries.jsonl; they count as unanswered"]


def test_judged_documents_missing_from_the_corpus_are_reported_once(tmp_path, caplog):
    found = load(write(tmp_path, test=["q1\td1\t1", "q1\tghost\t1", "q2\tghost\t1"]))
    assert found.notes == {"dangling_judgements": 2}
    assert found.qrels["q1"] == {"d1": 1, "ghost": 1}
    assert len(caplog.messages) == 1
    assert "2 judgements" in caplog.messages[0]


def test_of_a_repeated_id_the_last_counts_and_repeats_are_counted(tmp_path):
    corpus = [*CORPUS, {"_id": "d1", "text": "second"}]
    queries = [*QUERIES, {"_id": "q2", "text": "second"}]
    found = load(write(tmp_path, corpus, queries, test=["q1\td1\t1", "q1\td1\t2", "q2\td2\t1"]))
    assert found.corpus == {"d1": ("", "second"), "d2": ("", "a dog ran")}
    assert (found.queries["q2"], found.qrels["q1"]) == ("second", {"d1": 2})
    assert found.notes == {"duplicate_documents": 1, "duplicate_queries": 1, "duplicate_judgements": 1}


def test_quotes_in_judgements_are_plain_characters(tmp_path):
    queries = [{"_id": each, "text": "x"} for each in ('"q1', "q2", "q3")]
    corpus = [{"_id": each, "text": "x"} for each in ("d1", 'd"2', "d3")]
    qrels = ['"q1\td1\t1', '"q1\td"2\t1', "q2\td3\t1", 'q3\td"2\t1', "q3\td3\t0"]
    found = load(write(tmp_path, corpus, queries, test=qrels))
    assert found.qrels == {'"q1': {"d1": 1, 'd"2': 1}, "q2": {"d3": 1}, "q3": {'d"2': 1, "d3": 0}}


def test_whole_numbers_as_grades(tmp_path):
    assert load(write(tmp_path, test=["q1\td1\t1.0", "q2\td2\t2"])).qrels == {"q1": {"d1": 1}, "q2": {"d2": 2}}


@pytest.mark.parametrize("grade", ["0.5", "nan", "inf", "1e9", "x", ""])
def test_other_grades_are_refused_with_file_and_line(tmp_path, grade):
    with pytest.raises(InputError, match=r"qrels/test\.tsv, line 3: grade"):
        load(write(tmp_path, test=["q1\td1\t1", f"q2\td2\t{grade}"]))


@pytest.mark.parametrize("line", ["q1 0 d1 1", "q1\td1", "q1\t0\td1\t1", "\td1\t1", "q1\t\t1"])
def test_judgements_need_three_fields(tmp_path, line):
    with pytest.raises(InputError, match=r"qrels/test\.tsv, line 2: .* fields; expected 3"):
        load(write(tmp_path, test=[line]))


def test_the_header_is_optional_and_line_ends_do_not_matter(tmp_path):
    expected = content(load(write(tmp_path)))
    (tmp_path / "qrels" / "test.tsv").write_bytes(b"\xef\xbb\xbfq1\td1\t1\r\n\r\nq2\td2\t2")
    assert content(load(tmp_path)) == expected
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(b"\xef\xbb\xbf" + corpus.read_bytes().replace(b"\n", b"\r\n\n").rstrip())
    assert content(load(tmp_path)) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"}', "_id is missing"),
        ('{"_id": null, "text": "x"}', "_id is None"),
        ('{"_id": true, "text": "x"}', "_id is True"),
        ('{"_id": 1.5, "text": "x"}', "_id is 1.5"),
        ('{"_id": "", "text": "x"}', "_id is ''"),
        ('{"_id": "\\ud800", "text": "x"}', ".*surrogate"),
        ('{"_id": "x"}', "text is missing"),
        ('{"_id": "x", "text": null}', "text is None"),
        ('{"_id": "x", "text": ["x"]}', "text is"),
        ('{"_id": "x", "text": "x", "title": 5}', "title is 5"),
        ('["x"]', "list where an object"),
        ('{"_id": "x", ', "not JSON"),
        ("[" * 10**5, "not JSON"),
    ],
)
def test_malformed_lines_are_refused_with_file_and_line(tmp_path, line, message):
    with pytest.raises(InputError, match=rf"corpus\.jsonl, line 3: {message}") as caught:
        load(write(tmp_path, [*CORPUS, line]))
    assert "\n" not in str(caught.value)


def test_no_title_is_an_empty_title(tmp_path):
    assert load(write(tmp_path, [{"_id": "d1", "text": "", "title": None}])).corpus == {"d1": ("", "")}


def test_bytes_that_are_not_utf8(tmp_path):
    write(tmp_path)
    (tmp_path / "queries.jsonl").write_bytes(lines(QUERIES) + b'{"_id": "q3", "text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"queries\.jsonl, line 3: not UTF-8 at byte 26"):
        load(tmp_path)


def test_lines_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(beirfiles, "MAX_LINE", 100)
    with pytest.raises(InputError, match=r"corpus\.jsonl, line 3: longer than"):
        load(write(tmp_path, [*CORPUS, {"_id": "d3", "text": "x" * 200}]))


def test_one_split_after_another(tmp_path):
    write(tmp_path, test=["q1\td1\t1"], train=["q2\td2\t1"])
    first, train, third = load(tmp_path), load(tmp_path, "train"), load(tmp_path, split="test")
    assert content(first) == content(third)
    assert train.queries == {"q2": "dog"}


def test_a_missing_split_names_those_there(tmp_path):
    write(tmp_path, dev=QRELS, train=QRELS)
    with pytest.raises(InputError, match=r"no qrels/test\.tsv; choose split=dev or train"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"no qrels/\.\./qrels/dev\.tsv"):
        load(tmp_path, "../qrels/dev")


def test_missing_files(tmp_path):
    write(tmp_path)
    (tmp_path / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"no queries\.jsonl"):
        load(tmp_path)
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"no corpus\.jsonl"):
        load(tmp_path)
    with pytest.raises(InputError, match="no such folder or zip"):
        load(tmp_path / "nothing")


def test_empty_files(tmp_path):
    with pytest.raises(InputError, match="2 judged documents, 0 documents"):
        load(write(tmp_path, corpus=[]))
    with pytest.raises(InputError, match="0 judged queries, 2 queries"):
        load(write(tmp_path, test=[]))


def test_a_folder_with_one_collection_in_it(tmp_path):
    write(tmp_path / "one")
    assert len(load(tmp_path).corpus) == 2
    write(tmp_path / "two")
    with pytest.raises(InputError, match=r"2 collections in it \(one, two"):
        load(tmp_path)


@pytest.mark.parametrize("top", ["", "tiny/", "a/b/"])
def test_a_zip_is_the_folder(tmp_path, top):
    found, folder = load(zipped(tmp_path / "tiny.zip", members(top))), load(write(tmp_path / "tiny"))
    assert found == folder


def test_nothing_of_a_zip_is_unpacked(tmp_path):
    path = zipped(tmp_path / "x.zip", {**members("x/"), "../evil.txt": b"evil", "/tmp/evil.txt": b"evil"})
    assert len(load(path).corpus) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["x.zip"]


def test_zips_without_and_with_several_collections(tmp_path):
    with pytest.raises(InputError, match=r"none\.zip: no corpus\.jsonl"):
        load(zipped(tmp_path / "none.zip", {"readme.txt": b""}))
    with pytest.raises(InputError, match=r"several\.zip: 2 collections in it \(a/, b/"):
        load(zipped(tmp_path / "several.zip", members("a/") | members("b/")))


def test_damaged_zips(tmp_path):
    whole = zipped(tmp_path / "whole.zip", members()).read_bytes()
    flipped = whole.replace(b"a dog ran", b"a dog rat")
    for name, data in {"cut.zip": whole[:-40], "empty.zip": b"", "flipped.zip": flipped}.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InputError, match=rf"{name}: not a readable zip") as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_a_zip_that_declares_too_much_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(collections, "MAX_UNZIPPED", 10 << 20)
    path = zipped(tmp_path / "bomb.zip", members() | {"zeros": bytes(11 << 20)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match=r"unpacks to 11 MiB, more than 10"):
        load(path)


def test_the_split_hint_of_ms_marco(tmp_path, caplog):
    write(tmp_path / "msmarco", test=QRELS, dev=QRELS)
    load(tmp_path / "msmarco", "dev")
    assert not caplog.messages
    load(tmp_path / "msmarco", "test")
    assert "split=dev" in caplog.text


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HYTE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def downloads(monkeypatch, content: bytes | None) -> list[str]:
    """Replace BEIR's download by one that writes these bytes, or fails as without a network."""
    import requests
    from beir import util

    asked = []

    def download_url(url, save_path, chunk_size):
        asked.append(url)
        if content is None:
            raise requests.exceptions.ConnectionError("no network")
        Path(save_path).write_bytes(content)

    monkeypatch.setattr(util, "download_url", download_url)
    return asked


def test_a_beir_name_is_fetched_once(tmp_path, cache, monkeypatch):
    asked = downloads(monkeypatch, zipped(tmp_path / "x.zip", members("scifact/")).read_bytes())
    first, again = load("scifact"), load("scifact")
    assert first == again
    assert first.name == "scifact"
    assert asked == ["https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/scifact.zip"]


@pytest.mark.parametrize("content", [None, b"<html>404</html>"])
def test_a_failed_download_leaves_nothing_and_says_where_the_zip_goes(tmp_path, cache, monkeypatch, content):
    downloads(monkeypatch, content)
    with pytest.raises(InputError, match=rf"cannot fetch .*put the zip at {cache}/beir/scifact\.zip"):
        load("scifact")
    assert not any((cache / "beir").iterdir())
    zipped(cache / "beir" / "scifact.zip", members("scifact/"))
    assert len(load("scifact").corpus) == 2


def generic(folder: Path, split: str):
    from beir.datasets.data_loader import GenericDataLoader

    corpus, queries, qrels = GenericDataLoader(str(folder)).load(split)
    return {each: (doc["title"] or "", doc["text"]) for each, doc in corpus.items()}, queries, qrels


def test_the_same_as_beirs_loader(tmp_path):
    write(tmp_path, corpus=[*CORPUS, {"_id": "d 3", "title": "Ü\u2028", "text": '"quoted"\t\x0b'}])
    found = load(tmp_path)
    assert (found.corpus, found.queries, found.qrels) == generic(tmp_path, "test")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scifact", "nfcorpus", "arguana"])
def test_the_same_as_beirs_loader_on_beir(shared_data, tmp_path, name):
    path = shared_data / "beir" / f"{name}.zip"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    found = load(path)
    assert (found.corpus, found.queries, found.qrels) == generic(tmp_path / name, "test")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "documents", "queries", "positive", "dangling"),
    [("scifact", 5183, 300, 339, 0), ("nfcorpus", 3633, 323, 12334, 0), ("arguana", 8674, 1406, 1406, 5)],
)
def test_the_counts_of_beir(shared_data, name, documents, queries, positive, dangling):
    found = load(shared_data / "beir" / f"{name}.zip")
    count = sum(grade > 0 for grades in found.qrels.values() for grade in grades.values())
    assert (len(found.corpus), len(found.queries), count) == (documents, queries, positive)
    assert found.notes.get("dangling_judgements", 0) == dangling


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "exact", "paper"), [("scifact", 5227, 5302), ("nfcorpus", 3663, 3696), ("arguana", 8748, 8851)]
)
def test_the_chunks_of_beir_at_500_90(shared_data, name, exact, paper):
    fields = [f"{title} {text}" for title, text in load(shared_data / "beir" / f"{name}.zip").corpus.values()]
    counts = [sum(len(chunk_spans(field, 500, 90, tail)) for field in fields) for tail in ("exact", "paper")]
    assert counts == [exact, paper]
