"""Test collections: a BEIR folder, a BEIR zip, a name that BEIR can download, or the built-in `pydocs`."""

from __future__ import annotations

import logging
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eval import pydocs
from eval.beirfiles import CORPUS, Doc, Files, Qrels, read_corpus, read_qrels, read_queries
from hyte.errors import InputError

log = logging.getLogger(__name__)

BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{}.zip"
BEIR_NAMES = (
    "arguana", "climate-fever", "cqadupstack", "dbpedia-entity", "fever", "fiqa", "germanquad", "hotpotqa", "msmarco",
    "nfcorpus", "nq", "nq-train", "quora", "scidocs", "scifact", "trec-covid", "webis-touche2020",
)  # fmt: skip
# What a damaged zip raises; RuntimeError: it wants a password, NotImplementedError: it is packed in another way.
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
# Bounds what a damaged or malicious zip can ask for; the largest BEIR collections unpack to under 10 GiB.
MAX_UNZIPPED = 32 << 30

NOTES = {
    "duplicate_documents": "documents repeat an id; the last one of each counts",
    "duplicate_queries": "queries repeat an id; the last one of each counts",
    "duplicate_judgements": "judgements repeat a pair; the last one of each counts",
    "dangling_judgements": "judgements name a document that the corpus lacks; they count as not found",
    "queries_without_text": "judged queries are not in queries.jsonl; they count as unanswered",
}


@dataclass(frozen=True)
class Collection:
    """A corpus with the queries and judgements of one split.

    Attributes:
        corpus: documents by id, in the order of the file.
        queries: texts of the judged queries, in the order of the judgements.
        qrels: grades by query id, then document id; also those of queries without text and of documents that the corpus
            lacks: they count against the system, as in trec_eval.
        name: what the folder, zip or download is called.
        split: name of the judgement file.
        notes: how often each oddity of `NOTES` was met; only what is not 0.
        sha256: hash of the bytes of the three files, which tells versions of a data set apart.
    """

    corpus: dict[str, Doc]
    queries: dict[str, str]
    qrels: Qrels
    name: str
    split: str
    notes: dict[str, int]
    sha256: str


def load(collection: str | Path, split: str = "test") -> Collection:
    """Load a collection; each oddity that does not stop it is logged once, with its count.

    Args:
        collection: a folder or zip in BEIR's form (corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv), a BEIR name (fetched
            once into the cache folder), or `pydocs`. A path that exists goes before a name.
        split: which judgements.

    Raises InputError for what is missing, malformed or ambiguous, and where the judgements share no id with the queries
    or the documents.
    """
    if Path(collection).stem.lower() == "msmarco" and split == "test":
        log.warning("MS MARCO: split=test is TREC DL 2019, 43 queries; the figures in BEIR's table are of split=dev")
    with _open(_locate(str(collection))) as (files, name):
        qrels, queries, corpus = read_qrels(files, split), read_queries(files), read_corpus(files)
    _check_overlap(files.place, "queries", set(qrels), set(queries))
    _check_overlap(files.place, "documents", {each for grades in qrels.values() for each in grades}, set(corpus))
    notes = files.notes | {
        "dangling_judgements": sum(each not in corpus for grades in qrels.values() for each in grades),
        "queries_without_text": sum(each not in queries for each in qrels),
    }
    notes = {kind: count for kind, count in notes.items() if count}
    for kind, count in notes.items():
        log.warning("%s: %d %s", name, count, NOTES[kind])
    judged = {each: queries[each] for each in qrels if each in queries}
    return Collection(corpus, judged, qrels, name, split, notes, files.digest.hexdigest())


def cache_folder() -> Path:
    """Where collections that are fetched or built stay: $HYTE_CACHE, else `outputs` of the clone."""
    return Path(os.environ.get("HYTE_CACHE") or Path(__file__).resolve().parents[1] / "outputs")


def _locate(collection: str) -> Path:
    path = Path(collection)
    if path.exists():
        return path
    if collection == "pydocs":
        return pydocs.ensure(cache_folder() / "pydocs")
    if collection in BEIR_NAMES:
        return _fetch(collection)
    raise InputError(f"collection {collection!r}: no such folder or zip; names are pydocs, {', '.join(BEIR_NAMES)}")


def _fetch(name: str) -> Path:
    """The folder or zip of a BEIR collection in the cache, downloaded if it is not there."""
    cache, url = cache_folder() / "beir", BEIR_URL.format(name)
    folder, archive = cache / name, cache / f"{name}.zip"
    for path in (folder, archive):
        if path.exists():
            return path
    from beir.util import download_and_unzip  # noqa: PLC0415 - it imports torch

    cache.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own first: after a broken download BEIR would take what is left for the collection.
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        try:
            os.replace(download_and_unzip(url, temporary), folder)
        except (OSError, zipfile.BadZipFile) as error:
            why = f"cannot fetch {url} ({type(error).__name__})"
            raise InputError(f"{why}; put the zip at {archive}, or give collection=PATH.zip") from error
    return folder


@contextmanager
def _open(path: Path) -> Iterator[tuple[Files, str]]:
    """The files of a folder or zip with the collection's name; a zip is read in place, nothing of it is unpacked."""
    if path.is_dir():
        yield _folder_files(path), path.resolve().name
        return
    try:
        with zipfile.ZipFile(path) as archive:
            yield _zip_files(path, archive), path.stem
    except UNREADABLE as error:
        raise InputError(f"{path}: not a readable zip ({error}); fetch it again") from error


def _folder_files(path: Path) -> Files:
    folder = path
    if not (path / CORPUS).is_file():
        inside = sorted(each.parent.name for each in path.glob(f"*/{CORPUS}"))
        folder = path / _the_one(str(path), inside)
    found = [*folder.glob("*.jsonl"), *folder.glob("qrels/*.tsv")]
    names = frozenset(each.relative_to(folder).as_posix() for each in found)
    return Files(str(folder), names, lambda name: (folder / name).open("rb"))


def _zip_files(path: Path, archive: zipfile.ZipFile) -> Files:
    size = sum(each.file_size for each in archive.infolist())
    if size > MAX_UNZIPPED:
        sizes = f"unpacks to {size >> 20} MiB, more than {MAX_UNZIPPED >> 20}"
        raise InputError(f"{path}: {sizes}; unzip it and give the folder")
    found = {each[: -len(CORPUS)] for each in archive.namelist() if f"/{each}".endswith(f"/{CORPUS}")}
    top = _the_one(str(path), sorted(found))
    names = frozenset(each.removeprefix(top) for each in archive.namelist() if each.startswith(top))
    return Files(str(path), names, lambda name: archive.open(top + name))


def _the_one(place: str, folders: list[str]) -> str:
    if not folders:
        raise InputError(f"{place}: no {CORPUS} in it; a collection in BEIR's form needs one")
    if len(folders) > 1:
        some = ", ".join(folders[:3])
        raise InputError(f"{place}: {len(folders)} collections in it ({some}, ...); give the folder of one")
    return folders[0]


def _check_overlap(place: str, kind: str, judged: set[str], present: set[str]) -> None:
    if judged & present:
        return
    some = " and ".join(repr(min(ids)) for ids in (judged, present) if ids)
    counts = f"{len(judged)} judged {kind}, {len(present)} {kind}"
    raise InputError(f"{place}: {counts}, and no id in common (such as {some}); are the files of one collection?")
