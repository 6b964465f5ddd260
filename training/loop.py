"""The training loop: steps, log, validation, checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from hyte.errors import InputError
from hyte.files import atomic_write
from training import parallel
from training.batches import Batch, batches, collate
from training.checkpoint import FILE, Checkpoint, save_checkpoint
from training.data import Pairs
from training.distillation import Distillation, Lesson
from training.hierarchy import Hierarchy
from training.logs import Metrics
from training.model import Model, optimiser, rate
from training.settings import Settings
from training.state import Progress, restore, save_last
from training.validation import Validator

log = logging.getLogger(__name__)

SHOWN_LINES = 5


class Run:
    """A training run: the model, everything that changes with its steps, and its folder.

    Args:
        model: on its device.
        settings: of the run.
        config: what is recorded in its checkpoints.
        validator: scores weights; None without validation, and in all processes but the first.
        last: where an earlier run stopped; None starts at step 0.
        distillation: what a teacher says of the pairs; None without one.
        hierarchy: pairs of a general and a specific text; None without any.
    """

    def __init__(
        self,
        model: Model,
        settings: Settings,
        config: dict[str, Any],
        validator: Validator | None = None,
        last: Checkpoint | None = None,
        distillation: Distillation | None = None,
        hierarchy: Hierarchy | None = None,
    ) -> None:
        self.model, self.settings, self.config, self.validator = model, settings, config, validator
        self.out, self.distillation, self.hierarchy = Path(settings.out), distillation, hierarchy
        self.optimiser = optimiser(model, settings.lr, settings.weight_decay)
        averaged = model.state() if settings.average else {}
        self.average = {name: parameter.detach().clone() for name, parameter in averaged.items()}
        self.progress = Progress()
        if last is not None:
            restore(last, model, self.optimiser, self.average)
            self.progress = Progress(**last.progress)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """What is validated and exported: the averaged weights, where there are any."""
        return self.average or self.model.state()

    @property
    def scale(self) -> float:
        """Factor on the similarities that belongs to `weights`."""
        return self.weights["log_scale"].exp().item()

    def go(self, pairs: Pairs, metrics: Metrics, stop: Callable[[], bool] = lambda: False) -> None:
        """Take the steps that are left, or those until `stop` is true, and keep their results.

        Raises InputError where loss or gradient stop being finite.
        """
        settings, progress = self.settings, self.progress
        # The order depends on seed and epoch alone, so the batches of steps already taken are passed over unread.
        order = batches(pairs, settings.batch_size, settings.seed, progress.step)
        hidden = None if parallel.first() else True
        bar = tqdm(total=settings.steps, initial=progress.step, desc="training", unit="step", disable=hidden)
        busy = 0.0
        if progress.step == 0:
            self._log_order(metrics)
        while not (progress.finished(settings) or stop()):
            since = time.perf_counter()
            batch = collate(pairs, next(order))
            lr, norm = self.step(batch, pairs)
            busy += time.perf_counter() - since
            bar.update()
            if settings.validation_collections and self._due(settings.validation_every):
                self.validate(metrics)
            if self._due(settings.log_every):
                speed, busy = len(progress.losses) * len(batch.rows) / busy, 0.0
                self._log(metrics, lr=lr, grad_norm=norm, scale=self.scale, pairs_per_s=speed)
                if progress.finished(settings):
                    self._log_order(metrics)
                bar.set_postfix(loss=f"{progress.loss:.4f}", refresh=False)
            if progress.step % settings.save_every == 0 and not progress.finished(settings):
                self.save()
        bar.close()
        self.save()

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.finished(self.settings)

    def step(self, batch: Batch, pairs: Pairs) -> tuple[float, float]:
        """One step; returns its learning rate and the gradient's norm before clipping."""
        settings, progress = self.settings, self.progress
        lr = settings.lr * rate(progress.step, settings.steps, settings.warmup)
        lesson = None if self.distillation is None else self.distillation.lesson(batch.rows)
        order = None if self.hierarchy is None else self.hierarchy.at(progress.step)
        loss, norm = train_step(self.model, self.optimiser, batch, lr, settings.clip, lesson, order)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise InputError(explain(progress.step + 1, loss, norm, pairs.where(batch.rows), self.out))
        progress.step += 1
        progress.losses.append(loss)
        with torch.no_grad():
            for name, value in self.average.items():
                value.lerp_(self.model.state()[name], 1.0 - settings.average)
        return lr, norm

    def _log(self, metrics: Metrics, **values: float) -> None:
        progress = self.progress
        progress.loss = float(np.mean(progress.losses))
        last = {} if self.hierarchy is None else self.hierarchy.last
        metrics.write(step=progress.step, loss=progress.loss, **values, **last)
        progress.losses = []

    def _log_order(self, metrics: Metrics) -> None:
        """How many of the held-out pairs of the hierarchy are in order, before the first and after the last step."""
        if self.hierarchy is not None and parallel.first():
            share = self.hierarchy.in_order(self.model.encoder, self.weights)
            metrics.write(step=self.progress.step, hierarchy_in_order=share)
            log.info("step %d: %.4f of the held-out pairs are in order", self.progress.step, share)

    def validate(self, metrics: Metrics) -> None:
        """Score the weights, and keep them in `checkpoint.safetensors` if they are the best so far."""
        progress, score = self.progress, 0.0
        if self.validator is not None:
            scores = self.validator.scores(self.weights)
            score = scores["val/mean"]
            metrics.write(step=progress.step, **scores)
            log.info("step %d: %s", progress.step, "  ".join(f"{key} {value:.4f}" for key, value in scores.items()))
        score = parallel.of_first(score, self.model.log_scale.device)
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.best_step, progress.stale = score, progress.step, 0
            self._save_weights()
        else:
            progress.stale += 1

    def save(self) -> None:
        """Keep everything that the run needs to go on; and its weights for export, unless a best step's are kept."""
        if self.progress.best_step is None:
            self._save_weights()
        self.save_last()

    def save_last(self) -> None:
        """Keep everything that the run needs to go on."""
        if parallel.first():
            save_last(self.out, self.model, self.optimiser, self.average, self.progress, self.config)

    def _save_weights(self) -> None:
        if parallel.first():
            state = {**self.model.constants(), **self.weights}
            save_checkpoint(self.out / FILE, state, self.config | {"step": self.progress.step})


def train_step(
    model: Model,
    chosen: torch.optim.Optimizer,
    batch: Batch,
    lr: float,
    clip: float,
    lesson: Lesson | None = None,
    order: Callable[[Model], Tensor] | None = None,
) -> tuple[float, float]:
    """One step: the loss and the gradient's norm before clipping. The weights only change if both are finite.

    `order` gives what is added to the loss of the batch, a scalar.
    """
    for group in chosen.param_groups:
        group["lr"] = lr
    chosen.zero_grad(set_to_none=True)
    loss = model(batch, lesson)
    if order is not None:
        loss = loss + order(model)
    (loss / parallel.size()).backward()  # every process has the whole loss, and the gradients are summed
    parallel.sum_gradients(model.parameters())
    value, norm = loss.item(), float(nn.utils.clip_grad_norm_(model.parameters(), clip))
    if math.isfinite(norm) and math.isfinite(value):
        chosen.step()
        model.limit_scale()
    return value, norm


def explain(step: int, loss: float, norm: float, places: Sequence[str], out: Path) -> str:
    """One line about a step that is not finite; the complete list of its lines goes to a file in `out`."""
    name = out / "nonfinite_batch.txt"
    if parallel.first():
        with atomic_write(name) as file:
            file.write("".join(f"{place}\n" for place in places).encode("utf-8", "replace"))
    kept = (
        f"{FILE} there is what this run last saved" if (out / FILE).is_file() else "this run has saved no weights yet"
    )
    more = f" and {len(places) - SHOWN_LINES} more" if len(places) > SHOWN_LINES else ""
    return (
        f"step {step}: loss {loss:g}, gradient norm {norm:g}; the batch is {', '.join(places[:SHOWN_LINES])}{more} "
        f"(all in {name}); lower lr, or look at these lines; {kept}"
    )
