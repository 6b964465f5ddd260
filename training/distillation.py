"""What a teacher says of training pairs: its cache, made by `training.teacher`, and the lesson for a batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from hyte.errors import InputError
from training.checksum import KEY, checksum
from training.data import Ints, Pairs

Vectors = npt.NDArray[np.float16]
TENSORS = ("queries", "positives", "file", "line")


@dataclass(frozen=True)
class Teacher:
    """Unit embeddings of some training pairs.

    Attributes:
        queries: (n, m) float16; `positives` (n, m).
        file: (n,) number of the pair's file in `digests`; `line` (n,) its line there, from 1.
        digests: sha256 of each file that the pairs were taken from.
    """

    queries: Vectors
    positives: Vectors
    file: Ints
    line: Ints
    digests: tuple[str, ...]

    def rows(self, files: Sequence[str], file: Ints, line: Ints) -> Ints:
        """The row here of each pair (n,), given by its file's number in `files` and its line; -1 where there is none.

        Files are told by their contents, wherever they lie.
        """
        found = np.full(len(line), -1, dtype=np.int64)
        digests = np.array(self.digests)
        for number, name in enumerate(files):
            copies = np.flatnonzero(digests == sha256(name)) if Path(name).is_file() else ()
            mine, theirs = np.flatnonzero(np.isin(self.file, copies)), np.flatnonzero(file == number)
            if len(mine) == 0:  # a cache that is not finished may have none of a file yet
                continue
            order = mine[np.argsort(self.line[mine])]
            places = np.searchsorted(self.line[order], line[theirs]).clip(max=len(order) - 1)
            same = self.line[order[places]] == line[theirs]
            found[theirs[same]] = order[places[same]]
        return found


def load_teacher(path: str | Path, setting: str = "distillation.cache") -> Teacher:
    """Read a cache. Raises InputError where it is missing (then it names `setting`), damaged or of another kind."""
    if not Path(path).is_file():
        raise InputError(f"{setting}={path}: no such file; make it with python -m training.teacher out={path}")
    try:
        with safe_open(path, framework="np") as tensors:
            metadata = json.loads((tensors.metadata() or {})["config"])
            found = {name: tensors.get_tensor(name) for name in TENSORS}
        queries, positives, file, line = found.values()
        digests = tuple(map(str, metadata["digests"]))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: damaged, or not a whole cache of training.teacher ({error}); make it again"
        ) from error
    if metadata.get(KEY, checksum(found)) != checksum(found):  # caches of before have none
        raise InputError(f"{path}: damaged: its checksum does not fit; copy it again, or make it again")
    if not (queries.ndim == 2 and queries.shape == positives.shape and file.shape == line.shape == queries.shape[:1]):
        shapes = f"{queries.shape}, {positives.shape}, {file.shape}, {line.shape}"
        raise InputError(f"{path}: queries, positives, file and line do not fit each other ({shapes}); make it again")
    if not (np.isfinite(queries).all() and np.isfinite(positives).all()):
        raise InputError(f"{path}: an embedding is not finite; make it again")
    return Teacher(queries, positives, file, line, digests)


@dataclass(frozen=True)
class Lesson:
    """What a teacher says of a batch.

    Attributes:
        rows: (n,) the pairs of the batch that it knows, as places in the batch.
        logits: (n, n) float32, its cosines of their queries and positives over the temperature.
        weight: share of its loss in the whole, 0 to 1.
    """

    rows: Ints
    logits: npt.NDArray[np.float32]
    weight: float


class Distillation:
    """Lessons for the batches of some training pairs.

    Args:
        path: the cache.
        pairs: the training pairs.
        weight: share of the teacher's loss, 0 to 1.
        temperature: its cosines are divided by it; above 0.

    Raises InputError where the cache cannot be read, or knows fewer than two of the pairs.
    """

    def __init__(self, path: str | Path, pairs: Pairs, weight: float, temperature: float) -> None:
        self.teacher, self.weight, self.temperature = load_teacher(path), weight, temperature
        self.rows = self.teacher.rows(pairs.files, pairs.file, pairs.line)
        self.sha256 = sha256(path)
        known = len(self.usable(pairs))
        if known < 2:
            names = ", ".join(pairs.files[:3])
            raise InputError(f"{path}: made from other files than {names}: it knows {known} of {len(pairs)} pairs")

    def usable(self, pairs: Pairs) -> Ints:
        """The usable rows of `pairs` that the teacher knows."""
        return pairs.usable[self.rows[pairs.usable] >= 0]

    def narrowed(self, pairs: Pairs) -> Pairs:
        """The pairs, with only those usable that the teacher knows."""
        return replace(pairs, usable=self.usable(pairs))

    def lesson(self, batch_rows: Ints) -> Lesson | None:
        """What the teacher says of these rows (B,) of the pairs; None where it knows fewer than two of them."""
        known = np.flatnonzero(self.rows[batch_rows] >= 0)
        if len(known) < 2:
            return None
        found = self.rows[batch_rows[known]]
        queries, positives = (each[found].astype(np.float32) for each in (self.teacher.queries, self.teacher.positives))
        return Lesson(known, queries @ positives.T / np.float32(self.temperature), self.weight)


def sha256(name: str | Path) -> str:
    """Checksum of a file, as hex digits."""
    with open(name, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
