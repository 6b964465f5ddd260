"""HyTE-H's projection of frozen word embeddings to space coordinates (eq. 7)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

STARTS = ("directions", "rotated", "pairs")


class Projection(nn.Module):
    """x = W2 ReLU(W1 e), without bias.

    Args:
        w1: (hidden, d) W1.
        w2: (d, hidden) W2.

    Raises ValueError where the shapes do not fit each other.
    """

    def __init__(self, w1: Tensor, w2: Tensor) -> None:
        super().__init__()
        if w1.ndim != 2 or w2.shape != w1.shape[::-1]:
            raise ValueError(f"W1 {tuple(w1.shape)} and W2 {tuple(w2.shape)} must be (hidden, d) and (d, hidden)")
        self.w1 = nn.Parameter(w1.detach().clone())
        self.w2 = nn.Parameter(w2.detach().clone())

    @classmethod
    def from_directions(
        cls,
        table: npt.NDArray[np.float32],
        hidden: int = 256,
        scale: float = 2.0,
        start: str = "directions",
        seed: int = 0,
    ) -> Projection:
        """Start from the principal directions U of a table (V, d), so that training begins with an encoder that works.

        "pairs" takes hidden/2 of them, W1 = [U; -U] and W2 = scale W1^T: opposite ReLUs pass both signs, so that
        x = scale U^T U e exactly. "directions" takes `hidden` of them, W1 = U and W2 = 2 scale U^T: as
        2 ReLU(a) = a + |a|, x is scale U^T U e and a part that is even in e; twice as many features can be learned.
        "rotated" turns these: W1 = Q U with a random orthogonal Q, so that every feature has the same share of the
        table's variance.

        Raises ValueError unless `hidden` is even and at most 2 d (d, without "pairs"), and `start` one of `STARTS`.
        """
        most = table.shape[1] * (2 if start == "pairs" else 1)
        if hidden % 2 or not 2 <= hidden <= most:
            raise ValueError(f"hidden must be even and at most {most} for start={start}, not {hidden}")
        if start not in STARTS:
            raise ValueError(f"start {start!r} is unknown: use one of {', '.join(STARTS)}")
        if start == "pairs":
            directions = principal_directions(table, hidden // 2)
            both = torch.from_numpy(np.concatenate([directions, -directions]).astype(np.float32))
            return cls(both, scale * both.T)
        directions = principal_directions(table, hidden)
        if start == "rotated":
            turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(hidden, hidden)))
            directions = turn @ directions
        rows = torch.from_numpy(directions.astype(np.float32))
        return cls(rows, 2.0 * scale * rows.T)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Word embeddings (n, d) to space coordinates (n, d)."""
        return functional.linear(functional.relu(functional.linear(embeddings, self.w1)), self.w2)


def principal_directions(table: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float64]:
    """The `count` strongest directions (count, d) of the rows (V, d), as unit rows, strongest first.

    The sign of each is fixed by its largest entry, which eigensolvers leave open.
    """
    rows = table.astype(np.float64)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    directions = vectors[:, ::-1][:, :count].T
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], axis=1)
    return np.asarray(directions * np.sign(largest), dtype=np.float64)
