"""Text to a point of the hyperboloid: WordPiece ids, one baked row a token, pooling. No torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hyte import pooling as pools
from hyte import tokenizer as tokens
from hyte.errors import InputError
from hyte.geometry import at_radius, origin
from hyte.weights import Weights, read_weights

WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.json"
SHIPPED = Path(__file__).parent / "assets"

# What an index records of its encoder, and with it, where in use, the options beyond pooling and P. Numbers that may be
# infinite are text.
RECORD = {"fingerprint": str, "path": str, "pooling": str, "k": float, "power": str}
OPTIONS = ("radius", "query_power")
# In units of sqrt(K): farther out, float32 cannot hold inner products.
MAX_RADIUS = 40.0

# Texts are tokenised this many at a time, which bounds the memory that their tokens take.
BATCH = 512


class Encoder:
    """Encodes texts with an exported artifact.

    Args:
        weights: the baked token rows.
        tokenizer: the tokenizer that they belong to.
        pooling: one of `hyte.pooling.POOLINGS`; None is the trained one.
        power: P; None is the trained one.
        path: the artifact's folder, for the record.
        radius: moves every point there, directions kept, so that inner products order by the angle alone; above 0, at
            most 40 sqrt(K), a length. None leaves points where pooling puts them.
        query_power: P of queries, for poolings with a P; None is that of the documents.

    Raises InputError where tokenizer and rows do not belong together, or an argument is out of range.
    """

    def __init__(
        self,
        weights: Weights,
        tokenizer: Tokenizer,
        pooling: str | None = None,
        power: float | None = None,
        path: Path | None = None,
        radius: float | None = None,
        query_power: float | None = None,
    ) -> None:
        _check_pair(weights, tokenizer, path)
        self.pooling = weights.pooling if pooling is None else pooling
        self.power = weights.power if power is None else float(power)
        self.query_power = self.power if query_power is None else float(query_power)
        for each in (self.power, self.query_power):
            pools.check_pooling(self.pooling, each)
        self.radius = None if radius is None else _checked_radius(float(radius), weights.k)
        self.k, self.tokenizer, self.path = weights.k, tokenizer, path
        self._rows = weights.rows
        self._norms = np.sqrt(np.einsum("vd,vd->v", weights.rows, weights.rows, dtype=np.float64))
        farthest = float(self._norms.max())
        # The inner product of two opposite points is -(2 |x|^2 + K).
        if not 2 * farthest**2 + self.k < float(np.finfo(np.float32).max):
            raise InputError(
                f"{path}: inner products of its points (|x| up to {farthest:.1e}, K {self.k:.1e}) overflow float32; "
                "train again with a lower lr, and export that"
            )
        used = self.power if self.pooling in pools.WITH_POWER else None
        settings = f"{weights.fingerprint} {self.pooling} {used}"
        settings += "".join(f" {name} {value}" for name, value in self.options.items())
        self.fingerprint = hashlib.sha256(settings.encode()).hexdigest()

    @classmethod
    def load(
        cls,
        folder: str | Path | None = None,
        pooling: str | None = None,
        power: float | None = None,
        radius: float | None = None,
        query_power: float | None = None,
    ) -> Encoder:
        """Load an artifact folder (weights.bin, tokenizer.json); without one, the shipped weights.

        Raises InputError where a file is missing, damaged, or not of the other's kind.
        """
        path = SHIPPED if folder is None else Path(folder)
        if folder is None and not (path / WEIGHTS_FILE).is_file():
            raise InputError(
                f"{path}: no shipped weights there: name an artifact folder (python -m export.run makes one)"
            )
        try:
            weights = read_weights(path / WEIGHTS_FILE)
            tokenizer = tokens.load_tokenizer(path / TOKENIZER_FILE)
        except InputError as error:
            if folder is not None:
                raise
            reason = re.sub(r"; (copy or )?export the artifact again.*", "", str(error))
            raise InputError(f"{reason}; it is part of the package: install that again") from error
        return cls(weights, tokenizer, pooling, power, path.resolve(), radius, query_power)

    @property
    def options(self) -> dict[str, str]:
        """The radius and the P of queries, as text, where they are in use."""
        apart = self.pooling in pools.WITH_POWER and self.query_power != self.power
        found = {"radius": self.radius, "query_power": self.query_power if apart else None}
        return {name: str(value) for name, value in found.items() if value is not None}

    @property
    def record(self) -> dict[str, Any]:
        """What an index keeps of its encoder: fingerprint, folder, pooling, K, P and `options`, as plain data."""
        return {
            "fingerprint": self.fingerprint,
            "path": str(self.path or ""),
            "pooling": self.pooling,
            "k": self.k,
            "power": str(self.power),
            **self.options,
        }

    @property
    def dim(self) -> int:
        """Number of space coordinates d; a point has d + 1."""
        return int(self._rows.shape[1])

    def encode(self, texts: Sequence[str], query: bool = False) -> npt.NDArray[np.float32]:
        """Points (n, d+1) float32, time first, of n texts; `query`: with the P of queries.

        A text without known tokens is the origin; `encode_with_flags` tells which those are. The result of a text does
        not depend on the other texts, their number or the threads. Raises TypeError for what is not a list of strings.
        """
        return self.encode_with_flags(texts, query)[0]

    def encode_with_flags(
        self, texts: Sequence[str], query: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """As `encode`, with flags (n,): False where a text has no known token and the point means nothing.

        Nor does a point at the origin, which has no direction, where all points are moved to one radius.
        """
        tokens.check_texts(texts)
        points = np.tile(origin(self.dim, self.k).astype(np.float32), (len(texts), 1))
        known = np.zeros(len(texts), bool)
        for first in range(0, len(texts), BATCH):
            for row, ids in enumerate(tokens.token_ids(self.tokenizer, texts[first : first + BATCH]), first):
                if len(ids):
                    points[row] = self.pool(ids, query)
                    known[row] = self.radius is None or points[row, 1:].any()
        return points, known

    def pool(self, ids: npt.ArrayLike, query: bool = False) -> npt.NDArray[np.float64]:
        """The point (d+1,) of a bag of token ids (T,), all known. Their order does not matter, to the last bit."""
        distinct, counts = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
        if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < len(self._rows):
            raise InputError(
                f"token ids {distinct[0]} to {distinct[-1]}: the weights have rows 0 to {len(self._rows) - 1}"
            )
        rows, norms = self._rows[distinct], self._norms[distinct]
        power = self.query_power if query else self.power
        point = pools.pool(rows, self.pooling, power, self.k, counts, norms)
        return point if self.radius is None else at_radius(point, self.radius, self.k)


def _checked_radius(radius: float, k: float) -> float:
    if not 0 < radius <= MAX_RADIUS * np.sqrt(k):
        raise InputError(f"radius must be above 0 and at most {MAX_RADIUS:g} sqrt(K), K = {k:g}, not {radius:g}")
    return radius


def _check_pair(weights: Weights, tokenizer: Tokenizer, path: Path | None) -> None:
    where = f"{path}: " if path else ""
    ids, rows = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1, len(weights.rows)
    if ids > rows:
        raise InputError(f"{where}the tokenizer has ids up to {ids - 1}, the weights only {rows} rows; export again")
    actual = tokens.fingerprint(tokenizer)
    if actual != weights.tokenizer_sha256:
        raise InputError(
            f"{where}{TOKENIZER_FILE} (sha256 {actual[:12]}...) is not the one that {WEIGHTS_FILE} was made for "
            f"({weights.tokenizer_sha256[:12]}...); copy both from one export"
        )


def check_record(record: dict[str, Any]) -> None:
    """Raises TypeError, KeyError or ValueError where `record` is not what `Encoder.record` gives."""
    wanted = RECORD | {name: str for name in OPTIONS if name in record}
    if {key: type(record[key]) for key in wanted} != wanted:
        raise TypeError(f"made_by is {record}")
    for name in wanted.keys() & {"power", *OPTIONS}:
        float(record[name])


def find_encoder(record: dict[str, Any], given: Encoder | str | Path | None, index: str | Path) -> Encoder:
    """The encoder that an index was built with, by its `Encoder.record`.

    That is `given`, an encoder or an artifact folder, or without it the artifact in the recorded folder, or the shipped
    one; folders are loaded with the recorded pooling, P and `Encoder.options`. Raises InputError, naming the index and
    what was tried, where none has the recorded fingerprint.
    """
    tried = []
    for place in [given] if given else dict.fromkeys([record["path"], str(SHIPPED.resolve())]):
        try:
            options = {name: float(record[name]) for name in ("power", *OPTIONS) if name in record}
            encoder = place if isinstance(place, Encoder) else Encoder.load(place, record["pooling"], **options)
        except (InputError, OSError) as error:  # a folder that may not be read is not at hand either
            tried.append(str(error))
            continue
        if encoder.fingerprint == record["fingerprint"]:
            return encoder
        tried.append(f"{encoder.path} is {encoder.fingerprint[:12]}")
    raise InputError(
        f"{index}: built with artifact {record['fingerprint'][:12]} ({record['pooling']}, P = {record['power']}) from "
        f"{record['path']}, which is not at hand ({'; '.join(tried)}): name it (--artifact A) or build the index anew"
    )
