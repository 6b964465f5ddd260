"""Token ids to points: frozen table, trainable projection, pooling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hyte.geometry import check_k
from hyte.nn.pooling import pool
from hyte.nn.projection import Projection
from hyte.pooling import check_pooling


class HyteEncoder(nn.Module):
    """The trainable encoder. Its table (V, d) is a buffer and never learns; it is not part of `state_dict`.

    Args:
        table: (V, d) unit rows, one a token id.
        projection: eq. 7.
        k: K of the hyperboloid.
        pooling: one of `hyte.pooling.POOLINGS`.
        power: P of eq. 1, finite or inf.
    """

    table: Tensor

    def __init__(
        self,
        table: npt.NDArray[np.float32],
        projection: Projection,
        k: float = 1.0,
        pooling: str = "oem_radial",
        power: float = 1.0,
    ) -> None:
        super().__init__()
        check_pooling(pooling, power)
        if table.shape[1] != projection.w1.shape[1]:
            raise ValueError(f"the table has {table.shape[1]} dimensions, the projection {projection.w1.shape[1]}")
        self.register_buffer("table", torch.from_numpy(table), persistent=False)
        self.projection = projection
        self.k, self.pooling, self.power = check_k(k), pooling, power

    def forward(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Flat token ids (T,) and the starts (B,) of the texts to points (B, d+1) and known flags (B,) bool."""
        distinct, rows = torch.unique(ids, return_inverse=True)
        return self.encode(distinct, rows, offsets)

    def encode(
        self, distinct: Tensor, rows: Tensor, offsets: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, for distinct token ids (U,) that are known already: each is projected once.

        `rows` (T,) point into `distinct`, `counts` (T,) say how often each stands there.
        """
        space = self.projection(self.table.index_select(0, distinct))
        return pool(space, rows, offsets, self.pooling, self.power, self.k, counts)

    @torch.no_grad()
    def baked(self) -> npt.NDArray[np.float32]:
        """Space coordinates (V, d) float32 of every token: all that the runtime needs."""
        return np.asarray(self.projection(self.table).cpu().numpy(), dtype=np.float32)
