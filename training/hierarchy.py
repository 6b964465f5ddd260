"""A hierarchy of texts as radii: of each pair the more general text is to lie nearer the origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from hyte.errors import InputError
from hyte.nn.encoder import HyteEncoder
from hyte.nn.lorentz import radius
from hyte.nn.pooling import pool
from hyte.nn.projection import Projection
from hyte.tokenizer import token_ids
from training.batches import batch_size, batches, collate
from training.data import Ints, Pairs, distinct_tokens, starts
from training.lines import find_files, read_texts
from training.model import Model
from training.state import digest

COLUMNS = ("general", "specific")
HELD_OUT = 10  # every so manieth line is measured and not trained on
AT_ONCE = 4096  # pairs encoded together when they are measured


class Hierarchy:
    """Pairs of a general and a specific text, and the loss of the batch of a step.

    Args:
        patterns: files of JSON lines with `general` and `specific`, plain or gzipped, or glob patterns of files.
        tokenizer: the token table's.
        weight: factor on the loss; 0 gives none.
        margin: by how much the radii of a pair are to differ, in units of sqrt(K).
        size: pairs a batch; where there are fewer, all of them.
        seed: of their order.

    Attributes:
        digest: of the tokens of all pairs and their lines.
        last: `hierarchy` (the loss without weight) and `hierarchy_batch_in_order` (share in [0, 1]) of the last batch.

    Raises InputError for a bad line, and where pairs to train on or to measure are missing.
    """

    def __init__(
        self, patterns: Sequence[str], tokenizer: Tokenizer, weight: float, margin: float, size: int, seed: int
    ) -> None:
        files = find_files(patterns, "hierarchy.pairs")
        pairs = read_pairs(files, tokenizer)
        held = pairs.line[pairs.usable] % HELD_OUT == 0
        self.trained, self.held = (replace(pairs, usable=pairs.usable[kept]) for kept in (~held, held))
        if len(self.trained) < 2 or len(self.held) < 1:
            raise InputError(
                f"hierarchy.pairs: {', '.join(files[:3])}: {len(self.trained)} pairs to train on and {len(self.held)} "
                f"to measure (of every {HELD_OUT}th line) have known tokens; there must be at least 2 and 1"
            )
        self.weight, self.margin, self.size, self.seed = weight, margin, batch_size(self.trained, size), seed
        self.digest = digest(pairs.ids, pairs.counts, pairs.offsets, pairs.line)
        self.last: dict[str, float] = {}
        self._next = -1
        self._order: Iterator[Ints] = iter(())

    def at(self, step: int) -> Callable[[Model], Tensor] | None:
        """The weighted loss, a scalar, of this step's batch: which pairs it has depends on seed and step alone."""
        if not self.weight:
            return None
        if step != self._next:
            self._order = batches(self.trained, self.size, self.seed, step)
        rows, self._next = next(self._order), step + 1
        return lambda model: self.weight * self._loss(model, rows)

    def _loss(self, model: Model, rows: Ints) -> Tensor:
        points, k = model.points(collate(self.trained, rows)), model.encoder.k
        general, specific = _radii(points, k)
        loss = order_loss(general, specific, self.margin)
        share = (general < specific).double().mean()
        self.last = {"hierarchy": loss.item(), "hierarchy_batch_in_order": share.item()}
        return loss

    @torch.no_grad()
    def in_order(self, encoder: HyteEncoder, weights: Mapping[str, Tensor]) -> float:
        """Share, in [0, 1], of the held-out pairs whose general text lies nearer the origin, with these W1 and W2."""
        projection, found = Projection(weights["w1"], weights["w2"]), 0
        for first in range(0, len(self.held), AT_ONCE):
            batch = collate(self.held, self.held.usable[first : first + AT_ONCE])
            distinct, ids, offsets, counts = (
                torch.from_numpy(each).to(encoder.table.device)
                for each in (batch.distinct, batch.ids, batch.offsets, batch.counts)
            )
            space = projection(encoder.table.index_select(0, distinct))
            points, _ = pool(space, ids, offsets, encoder.pooling, encoder.power, encoder.k, counts)
            general, specific = _radii(points, encoder.k)
            found += int((general < specific).sum())
        return found / len(self.held)


def _radii(points: Tensor, k: float) -> tuple[Tensor, Tensor]:
    """Distances from the origin, in units of sqrt(K), of points (2B, d+1): of the first B, of the others."""
    radii = radius(points, k) / k**0.5
    return radii[: len(radii) // 2], radii[len(radii) // 2 :]


def order_loss(general: Tensor, specific: Tensor, margin: float) -> Tensor:
    """Mean of relu(margin + general - specific) of radii (B,): a scalar, 0 where all differ by the margin or more."""
    return functional.relu(margin + general - specific).mean()


def read_pairs(files: Sequence[str], tokenizer: Tokenizer) -> Pairs:
    """The pairs as `Pairs`, the general text as the query. Raises InputError, with file and line, for a bad line."""
    lines = list(read_texts(files, COLUMNS))
    texts = [line[column] for line in lines for column in COLUMNS]
    ids, counts, sizes = distinct_tokens(token_ids(tokenizer, texts))
    known = (sizes[::2] > 0) & (sizes[1::2] > 0)
    file, line = (np.array([each[name] for each in lines], dtype=np.int64) for name in ("file", "line"))
    first = np.arange(0, len(texts) + 1, 2)
    hashes = np.zeros(len(texts), np.int64)  # nothing here looks for copies
    return Pairs(ids, counts, starts(sizes), hashes, first, file, line, tuple(files), np.flatnonzero(known))
