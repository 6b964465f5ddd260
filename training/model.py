"""The model that is trained: encoder, logit scale, and the loss of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hyte.nn.encoder import HyteEncoder
from training import parallel
from training.batches import Batch
from training.distillation import Lesson
from training.losses import info_nce, listwise_kl, not_negatives, similarities

MIN_SCALE = 1e-3  # below it there is nothing left to learn from
MAX_SCALE = 100.0  # of the logits, as in CLIP: above it a batch is learned by heart


class Model(nn.Module):
    """Encoder and logit scale, and the loss of a batch.

    Args:
        encoder: gives points.
        loss: one of `training.losses.LOSSES`.
        logit_scale: the scale's value at the start.
    """

    def __init__(self, encoder: HyteEncoder, loss: str, logit_scale: float) -> None:
        super().__init__()
        self.encoder, self.loss = encoder, loss
        self.log_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.token_weights: Tensor | None = None

    def forward(self, batch: Batch, lesson: Lesson | None = None) -> Tensor:
        """Loss of a batch, a scalar: InfoNCE, mixed with what a teacher says of it."""
        points, hashes, count = self.points(batch), self._tensor(batch.hashes), len(batch.rows)
        logits = self.log_scale.exp() * similarities(points[:count], points[count:], self.loss, self.encoder.k)
        loss = info_nce(logits, not_negatives(hashes[:count], hashes[count:]))
        if lesson is None:
            return loss
        rows = self._tensor(lesson.rows)
        own = listwise_kl(logits[rows][:, rows], self._tensor(lesson.logits))
        return (1.0 - lesson.weight) * loss + lesson.weight * own

    def points(self, batch: Batch) -> Tensor:
        """Points (2B + N, d+1) of a batch's texts, whichever process encodes them."""
        texts = parallel.share(batch)
        distinct, ids, offsets, counts = (self._tensor(each) for each in parallel.bags(batch, texts))
        points, _ = self.encoder.encode(distinct, ids, offsets, counts)
        return parallel.gather(points, texts, len(batch.offsets))

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.log_scale.device)

    @torch.no_grad()
    def limit_scale(self) -> None:
        """Keep the factor from `MIN_SCALE` to `MAX_SCALE`."""
        self.log_scale.clamp_(math.log(MIN_SCALE), math.log(MAX_SCALE))

    def weigh(self, weights: npt.NDArray[np.float32]) -> None:
        """Multiply each token's row by its weight (V,), once; they go into checkpoints as `constants`."""
        self.token_weights = self._tensor(weights)
        self.encoder.table = self.encoder.table * self.token_weights[:, None]

    def constants(self) -> dict[str, Tensor]:
        """What does not learn, by the name that it has in a checkpoint."""
        return {} if self.token_weights is None else {"token_weights": self.token_weights}

    def state(self) -> dict[str, nn.Parameter]:
        """What learns, by the name that it has in a checkpoint."""
        return {"w1": self.encoder.projection.w1, "w2": self.encoder.projection.w2, "log_scale": self.log_scale}


def optimiser(model: Model, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; the logit scale does not decay. The model must be on its device already."""
    projection = {"params": list(model.encoder.projection.parameters()), "weight_decay": weight_decay}
    return torch.optim.AdamW([projection, {"params": [model.log_scale], "weight_decay": 0.0}], lr=lr)


def rate(step: int, steps: int, warmup: float) -> float:
    """Share of the full learning rate, in [0, 1], of step 0 .. steps-1: linear warm-up, then half a cosine to 0."""
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
