"""Text to a point of the hyperboloid: WordPiece ids, one baked row a token, pooling. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hyte import pooling as pools
from hyte import tokenizer as tokens
from hyte.errors import InputError
from hyte.geometry import origin
from hyte.weights import Weights, read_weights

WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.json"
SHIPPED = Path(__file__).parent / "assets"

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

    Raises InputError where tokenizer and rows do not belong together.
    """

    def __init__(
        self,
        weights: Weights,
        tokenizer: Tokenizer,
        pooling: str | None = None,
        power: float | None = None,
        path: Path | None = None,
    ) -> None:
        _check_pair(weights, tokenizer, path)
        self.pooling = weights.pooling if pooling is None else pooling
        self.power = weights.power if power is None else float(power)
        pools.check_pooling(self.pooling, self.power)
        self.k, self.tokenizer, self.path = weights.k, tokenizer, path
        self._rows = weights.rows
        self._norms = np.sqrt(np.einsum("vd,vd->v", weights.rows, weights.rows, dtype=np.float64))
        if not np.hypot(self._norms.max(), np.sqrt(self.k)) < np.finfo(np.float32).max:
            raise InputError(f"{path}: its points (|x| up to {self._norms.max():.1e}, K {self.k:.1e}) overflow float32")
        used = self.power if self.pooling in pools.WITH_POWER else None
        settings = f"{weights.fingerprint} {self.pooling} {used}"
        self.fingerprint = hashlib.sha256(settings.encode()).hexdigest()

    @classmethod
    def load(cls, folder: str | Path | None = None, pooling: str | None = None, power: float | None = None) -> Encoder:
        """Load an artifact folder (weights.bin, tokenizer.json); without one, the shipped weights.

        Raises InputError where a file is missing, damaged, or not of the other's kind.
        """
        path = SHIPPED if folder is None else Path(folder)
        if folder is None and not (path / WEIGHTS_FILE).is_file():
            raise InputError(
                f"{path}: no shipped weights there: name an artifact folder (python -m export.run makes one)"
            )
        weights = read_weights(path / WEIGHTS_FILE)
        return cls(weights, tokens.load_tokenizer(path / TOKENIZER_FILE), pooling, power, path.resolve())

    @property
    def record(self) -> dict[str, Any]:
        """What an index keeps of its encoder: fingerprint, folder, pooling, K and P, as plain data."""
        return {
            "fingerprint": self.fingerprint,
            "path": str(self.path or ""),
            "pooling": self.pooling,
            "k": self.k,
            "power": str(self.power),  # text: JSON has no infinity
        }

    @property
    def dim(self) -> int:
        """Number of space coordinates d; a point has d + 1."""
        return int(self._rows.shape[1])

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Points (n, d+1) float32, time first, of n texts.

        A text without known tokens is the origin; `encode_with_flags` tells which those are. The result of a text does
        not depend on the other texts, their number or the threads. Raises TypeError for what is not a list of strings.
        """
        return self.encode_with_flags(texts)[0]

    def encode_with_flags(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """As `encode`, with flags (n,): False where a text has no known token and the point means nothing."""
        tokens.check_texts(texts)
        points = np.tile(origin(self.dim, self.k).astype(np.float32), (len(texts), 1))
        known = np.zeros(len(texts), bool)
        for first in range(0, len(texts), BATCH):
            for row, ids in enumerate(tokens.token_ids(self.tokenizer, texts[first : first + BATCH]), first):
                if len(ids):
                    points[row], known[row] = self.pool(ids), True
        return points, known

    def pool(self, ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The point (d+1,) of a bag of token ids (T,), all known. Their order does not matter, to the last bit."""
        distinct, counts = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
        if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < len(self._rows):
            raise InputError(
                f"token ids {distinct[0]} to {distinct[-1]}: the weights have rows 0 to {len(self._rows) - 1}"
            )
        rows, norms = self._rows[distinct], self._norms[distinct]
        return pools.pool(rows, self.pooling, self.power, self.k, counts, norms)


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


def find_encoder(record: dict[str, Any], given: Encoder | str | Path | None, index: str | Path) -> Encoder:
    """The encoder that an index was built with, by its `Encoder.record`.

    That is `given`, an encoder or an artifact folder, or without it the artifact in the recorded folder, or the shipped
    one; folders are loaded with the recorded pooling and P. Raises InputError, naming the index and what was tried,
    where none has the recorded fingerprint.
    """
    tried = []
    for place in [given] if given else dict.fromkeys([record["path"], str(SHIPPED.resolve())]):
        try:
            pooling = record["pooling"], float(record["power"])
            encoder = place if isinstance(place, Encoder) else Encoder.load(place, *pooling)
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
