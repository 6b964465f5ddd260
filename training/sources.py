"""Where pairs come from: JSON lines files and data sets of the Hugging Face hub; and how much each source counts.

A hub set is written `hub:OWNER/NAME`, with a revision `hub:OWNER/NAME@REVISION`, and then `:CONFIG` and `:SPLIT`. What
is left out is the set's own default, and the split `train`; an empty part is left out too: `hub:OWNER/NAME::test`. The
split may be a slice: `hub:OWNER/NAME::train[:1000]`. A folder of parquet, CSV or JSON files is read in the same way:
`hub:./FOLDER` or `hub:/FOLDER`.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from hyte.errors import InputError
from training.lines import HUB, check_entry, find_files

log = logging.getLogger(__name__)

HUB_TIMEOUT = 5.0
ROWS_AT_ONCE = 100  # a row may have many negatives
COLUMNS = {"query": ["query"], "positive": ["positive"], "negatives": ["negatives"]}
MAX_WEIGHT = 1e3  # an epoch of more copies of each pair would not fit in memory
SUFFIX = re.compile(r"\.jsonl?(\.gz)?$|\.gz$")
COMMIT = re.compile(r"[0-9a-f]{40}")

Patterns = str | Path | Sequence[str | Path]
Columns = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class HubSet:
    """A set on the hub, or a folder.

    Attributes:
        item: as it stands in `data.pairs`.
        name: OWNER/NAME, or a path that starts with . or /.
        revision: branch, tag or commit, or None.
        config: name of the set's configuration, or None.
        split: name of the split, or a slice of it.
    """

    item: str
    name: str
    revision: str | None
    config: str | None
    split: str

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.name.startswith((".", "/"))


@dataclass(frozen=True)
class LoadedSet:
    """A hub set's rows: `dataset`, the columns of each of ours in it, and its commit where that is known."""

    item: str
    dataset: datasets.Dataset
    columns: dict[str, list[str]]
    commit: str | None


def find_sources(items: Patterns, weights: Mapping[str, float] | None = None) -> tuple[list[str], list[HubSet]]:
    """The files and the hub sets that `data.pairs` names, each once. Nothing is loaded, so it takes no time.

    Raises InputError for a file that is not there, a hub set written wrongly, a weight of no source, and no item.
    """
    names = [str(item) for item in ([items] if isinstance(items, str | Path) else items)]
    hub = [parse_hub(name) for name in dict.fromkeys(names) if name.startswith(HUB)]
    local = [name for name in names if not name.startswith(HUB)]
    files = find_files(local) if local or not hub else []
    weights_of([*files, *(each.item for each in hub)], weights)
    return files, hub


def parse_hub(item: str) -> HubSet:
    """What `hub:OWNER/NAME@REVISION:CONFIG:SPLIT` says. Raises InputError where it is not of this form."""
    place, config, split = (*item.removeprefix(HUB).split(":", 2), "", "")[:3]
    path = place.startswith((".", "/"))
    name, _, revision = (place, "", "") if path else place.partition("@")
    if path and not Path(place).is_dir():
        raise InputError(f"data.pairs: {item}: no folder {place} (looked from {Path.cwd()})")
    if not path and ("//" in item or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)):
        raise InputError(f"data.pairs: {item}: write {HUB}OWNER/NAME, {HUB}OWNER/NAME@REVISION:CONFIG:SPLIT")
    if not path and Path(name).is_dir():  # `datasets` would take the folder
        raise InputError(f"data.pairs: {item}: there is a folder {name} here; for it write {HUB}./{name}, or rename it")
    return HubSet(item, name, revision or None, config or None, split or "train")


def load_sets(specs: Sequence[HubSet], columns: Columns | None, cache: str | Path | None) -> list[LoadedSet]:
    """Each set as `load_set` loads it. Raises InputError where `columns` names something that no set has, too."""
    loaded = [load_set(spec, columns, cache) for spec in specs]
    if columns and not specs:
        raise InputError(f"data.columns is for hub sets, and data.pairs names none ({HUB}OWNER/NAME); leave it null")
    if columns and "negatives" in columns and not any(each.columns["negatives"] for each in loaded):
        raise InputError(f"data.columns: no set has a column {columns['negatives']!r}; leave negatives out")
    return loaded


def load_set(spec: HubSet, columns: Columns | None = None, cache: str | Path | None = None) -> LoadedSet:
    """Load a hub set through `datasets`, or from its cache where the hub does not answer within 5 seconds.

    Args:
        spec: which set.
        columns: see `columns_of`.
        cache: folder for the cache of `datasets`; None is its own default.

    Raises InputError where the set cannot be had or lacks a column, and where the cache holds another revision.
    """
    commit, reason = (None, "") if spec.is_folder else _ask_hub(spec)
    try:
        with _offline(bool(reason)):
            dataset = datasets.load_dataset(
                str(Path(spec.name).resolve()) if spec.is_folder else spec.name,
                spec.config,
                split=spec.split,
                revision=spec.revision,
                cache_dir=None if cache is None else str(cache),
            )
    except Exception as error:  # the kinds differ between versions and formats
        raise InputError(_not_loaded(spec, reason, error)) from error
    if not spec.is_folder:
        commit = _commit(dataset) or commit
        if reason:
            _check_cached(spec, commit, reason)
    return LoadedSet(spec.item, dataset, columns_of(spec.item, dataset.column_names, columns), commit)


def _ask_hub(spec: HubSet) -> tuple[str | None, str]:
    """The commit that the revision stands for, and why it is not known. `datasets` itself would try for 24 s."""
    from huggingface_hub import HfApi  # noqa: PLC0415 - takes a while, and files do without

    try:
        return HfApi().dataset_info(spec.name, revision=spec.revision, timeout=HUB_TIMEOUT).sha, ""
    except Exception as error:  # the kinds differ between versions of the hub's library
        return None, _short(error)


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Have `datasets` look only into its cache: it has no option for that, and reads the variable once."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _not_loaded(spec: HubSet, reason: str, error: Exception) -> str:
    if reason:
        return (
            f"data.pairs: {spec.item} is neither in the local cache nor to be had from the hub ({reason}); "
            f"check the name and the network, or download it elsewhere and give data.pairs=[{HUB}./FOLDER]"
        )
    cause = error.__cause__ or error
    return f"data.pairs: {spec.item} cannot be loaded ({_short(cause)}); its form is {HUB}NAME@REVISION:CONFIG:SPLIT"


def _commit(dataset: datasets.Dataset) -> str | None:
    """The commit of a set from the hub: `datasets` names the folder of its cache so."""
    folders = {Path(file["filename"]).parent.name for file in dataset.cache_files}
    return next((name for name in folders if COMMIT.fullmatch(name)), None)


def _check_cached(spec: HubSet, commit: str | None, reason: str) -> None:
    """Offline `datasets` takes what is cached last, whatever revision was asked for."""
    if spec.revision is not None and not (commit or "").startswith(spec.revision):
        raise InputError(
            f"data.pairs: {spec.item}: the hub does not answer ({reason}), and the cache holds commit {commit}; "
            f"name that commit, or come back with a network"
        )
    log.warning("%s: the hub does not answer (%s); the cached commit %s is taken", spec.item, reason, commit)


def check_columns(columns: Columns) -> None:
    """Raises InputError where `data.columns` is no mapping of our columns to names."""
    for ours, names in columns.items():
        if ours not in COLUMNS:
            raise InputError(f"data.columns: no column {ours!r}{_nearest(ours, COLUMNS)}")
        several = names if isinstance(names, list | tuple) else [names]
        if not several or not all(isinstance(name, str) and name for name in several):
            raise InputError(f"data.columns.{ours} must be a column's name or a list of names, not {names!r}")


def columns_of(item: str, there: Sequence[str], columns: Columns | None = None) -> dict[str, list[str]]:
    """Which of a hub set's columns are query, positive (one each) and negatives (any number).

    Args:
        item: the set, for the error.
        there: names of its columns.
        columns: of each of our columns the name in the sets, or several: the first that is there counts, and of the
            negatives all that are there. What is not named has our name.

    Raises InputError where query or positive has no column.
    """
    check_columns(columns or {})
    named = {ours: [each] if isinstance(each, str) else list(each) for ours, each in (columns or {}).items()}
    found = {ours: [name for name in names if name in there] for ours, names in (COLUMNS | named).items()}
    for ours in ("query", "positive"):
        if not found[ours]:
            tried = " or ".join(repr(name) for name in (COLUMNS | named)[ours])
            raise InputError(
                f"{item}: no column {tried}; the set has {', '.join(map(repr, there)) or 'none'}: "
                f"say which is which, as in data.columns={{query:anchor,positive:answer}}"
            )
    return {"query": found["query"][:1], "positive": found["positive"][:1], "negatives": found["negatives"]}


def read_rows(loaded: LoadedSet, number: int) -> Iterator[dict[str, Any]]:
    """The rows of a hub set as `training.lines.read_lines` gives lines; `line` is the row, from 1.

    Rows whose query or positive is empty are left out and counted, as nobody can mend them there. Raises InputError,
    with the row, for what is no text.
    """
    names, row, empty = [name for each in loaded.columns.values() for name in each], 0, 0
    for batch in loaded.dataset.select_columns(list(dict.fromkeys(names))).iter(ROWS_AT_ONCE):
        for values in zip(*(batch[name] for name in names), strict=True):
            row += 1
            entry = {"query": values[0], "positive": values[1], "negatives": _flat(values[2:])}
            if any(text is None or (isinstance(text, str) and not text.strip()) for text in values[:2]):
                empty += 1
                continue
            yield {**check_entry(entry, f"{loaded.item}:{row}"), "file": number, "line": row}
    if empty == row:
        raise InputError(f"{loaded.item}: no pairs: {row} row(s), {empty} of them without query or positive")
    if empty:
        log.warning("%s: left out %d of %d rows without query or positive", loaded.item, empty, row)


def _flat(values: Sequence[Any]) -> list[Any]:
    """Negatives from columns of one text or a list of texts, without the empty ones."""
    texts = [text for each in values for text in (each if isinstance(each, list) else [each])]
    return [text for text in texts if text is not None and not (isinstance(text, str) and not text.strip())]


def short_name(source: str) -> str:
    """What `data.weights` calls a source: NAME of a hub set OWNER/NAME, a file's name without .jsonl.gz."""
    if source.startswith(HUB):
        return Path(parse_hub(source).name).name
    return SUFFIX.sub("", Path(source).name)


def check_weights(weights: Mapping[str, Any]) -> None:
    """Raises InputError where `data.weights` is no mapping of names to numbers from 0 to 1000."""
    for name, weight in weights.items():
        numeric = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not numeric or not 0 <= weight <= MAX_WEIGHT:
            raise InputError(f"data.weights.{name}={weight!r} must be a number from 0 to {MAX_WEIGHT:g}")


def weights_of(sources: Sequence[str], weights: Mapping[str, float] | None) -> tuple[float, ...]:
    """The weight of each source, 1 where `data.weights` does not name it; a name counts for all sources that have it.

    Raises InputError for a name that no source has.
    """
    check_weights(weights or {})
    names = [short_name(source) for source in sources]
    for name in weights or {}:
        if name not in names:
            raise InputError(f"data.weights: no source {name!r}{_nearest(str(name), names)}")
    return tuple(float((weights or {}).get(name, 1.0)) for name in names)


def _nearest(name: str, names: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}? (there are {', '.join(dict.fromkeys(names))})" if near else ""


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
