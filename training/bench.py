"""Pairs per second of the training step beside the same model trained with padded batches.

`python -m training.bench 'data.pairs=[FILES]' batch_size=1024 --repeats 5 --steps 3`, with any setting of
`training.train`. Both sides get the same pairs, start from the same weights and use the same threads, in turns; a step
is everything from the pairs' token ids to the new weights.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from hyte.errors import InputError, report_errors
from hyte.nn.lorentz import lift, norm, safe_sqrt
from training.batches import Batch, batches, collate
from training.data import Ints
from training.loop import train_step
from training.model import Model, optimiser
from training.settings import Settings, from_config
from training.tokens import load_tokens
from training.train import CONF, build, pairs_of

POOLINGS = ("oem", "oem_radial")
TOLERANCE = 1e-4  # between the losses of both sides with the same weights


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: prints a table, and exits with code 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m training.bench", description=__doc__)
    parser.add_argument("settings", nargs="*", help="settings of training.train, as data.pairs=[FILES] batch_size=256")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each side (default 5)")
    parser.add_argument("--steps", type=int, default=3, help="steps a measurement (default 3)")
    given = parser.parse_intermixed_args(arguments)
    with report_errors(OmegaConfBaseException, HydraException):
        if min(given.repeats, given.steps) < 1:
            raise InputError(f"--repeats {given.repeats} --steps {given.steps}: both must be 1 or more")
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = OmegaConf.to_container(compose("train", overrides=["out=none", *given.settings]), resolve=True)
        sys.stdout.write(bench(from_config(cast(dict[str, object], config)), given.repeats, given.steps))


def bench(settings: Settings, repeats: int, steps: int) -> str:
    """A table of both sides' pairs per second. Raises InputError where their losses are not the same."""
    tokens = load_tokens(settings.tokens, settings.tokens_path)
    ours, _ = build(settings, tokens, None)
    models = {"distinct": ours, "padded": padded(ours)}
    pairs = pairs_of(settings, tokens)
    order = batches(pairs, settings.batch_size, settings.seed)
    taken = [[next(order) for _ in range(steps)] for _ in range(repeats + 1)]
    apart = compare(models.values(), collate(pairs, taken[0][0]))
    sides = {name: _side(model, settings) for name, model in models.items()}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for number, repeat in enumerate(taken):
        for name in sorted(sides, reverse=bool(number % 2)):  # in turns who is first
            started = time.perf_counter()
            for rows in repeat:
                sides[name](collate(pairs, rows))
            speeds[name].append(sum(map(len, repeat)) / (time.perf_counter() - started))
    title = f"{settings.pooling}, batches of {len(taken[0][0])} pairs, {torch.get_num_threads()} thread(s)"
    return f"{title}, losses differ by {apart:.1e}\n{table(speeds)}"


@torch.no_grad()
def compare(models: Iterable[Model], batch: Batch) -> float:
    """By how much the losses of a batch differ. Raises InputError where it is more than `TOLERANCE`."""
    losses = [model(batch).item() for model in models]
    apart = float(np.ptp(losses))
    if not apart <= TOLERANCE:
        raise InputError(f"the losses {losses} of one batch differ by {apart:.2g}, more than {TOLERANCE:g}")
    return apart


def table(speeds: dict[str, list[float]]) -> str:
    """Median and range of pairs per second (the first repeat warms up), and the ratio of the medians."""
    counted = {name: values[1:] for name, values in speeds.items()}
    medians = {name: statistics.median(values) for name, values in counted.items()}
    rows = [
        f"{name:<10}{medians[name]:>10.0f}  ({min(values):.0f} to {max(values):.0f}, {len(values)} repeats)\n"
        for name, values in counted.items()
    ]
    ratio = f"{'ratio':<10}{medians['distinct'] / medians['padded']:>10.1f}\n"
    return f"{'step':<10}{'pairs/s':>10}\n{''.join(rows)}{ratio}"


def _side(model: Model, settings: Settings) -> Callable[[Batch], float]:
    chosen = optimiser(model, settings.lr, settings.weight_decay)
    return lambda batch: train_step(model, chosen, batch, settings.lr, settings.clip)[0]


class PaddedModel(Model):
    """The same parameters and loss, but every token of every text is projected, and texts are padded.

    Queries are padded to the longest query, documents to the longest document, as is usual.
    """

    def points(self, batch: Batch) -> Tensor:
        """Points (2B + N, d+1) of a batch's texts."""
        count = len(batch.rows)
        return torch.cat([self._points(batch, 0, count), self._points(batch, count, len(batch.offsets))])

    def _points(self, batch: Batch, start: int, stop: int) -> Tensor:
        encoder = self.encoder
        ids, lengths = (torch.from_numpy(each).to(self.log_scale.device) for each in pad(batch, start, stop))
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        return pool_padded(encoder.projection(encoder.table[ids]), mask, encoder.pooling, encoder.power, encoder.k)


def padded(model: Model) -> PaddedModel:
    """A copy of a model that trains with padded batches. Raises InputError for a pooling other than `POOLINGS`."""
    if model.encoder.pooling not in POOLINGS:
        raise InputError(f"pooling={model.encoder.pooling}: the padded side only has {', '.join(POOLINGS)}")
    other = PaddedModel(copy.deepcopy(model.encoder), model.loss, 1.0)
    other.log_scale.data.copy_(model.log_scale.data)
    return other.to(model.log_scale.device)


def pad(batch: Batch, start: int, stop: int) -> tuple[Ints, Ints]:
    """Token ids (n, L), every occurrence, of the texts start .. stop-1, filled up with 0; and their lengths (n,)."""
    ends = np.append(batch.offsets, len(batch.ids))[start : stop + 1]
    ids, counts = (each[ends[0] : ends[-1]] for each in (batch.ids, batch.counts))
    lengths = np.add.reduceat(counts, ends[:-1] - ends[0], dtype=np.int64)  # no text of a batch is empty
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded_ids = np.zeros(mask.shape, dtype=np.int64)
    padded_ids[mask] = np.repeat(batch.distinct[ids], counts)
    return padded_ids, lengths


def pool_padded(space: Tensor, mask: Tensor, pooling: str, power: float, k: float) -> Tensor:
    """Points (n, d+1) of the tokens (n, L, d) where `mask` (n, L): OEM (eqs. 1, 2), or direction and radius apart."""
    root, length = math.sqrt(k), norm(space)[..., 0]
    time = torch.sqrt(length.square() + k)
    logs = torch.where(mask, (power + 1.0) * torch.log(time), -torch.inf)
    weights = torch.exp(logs - logs.detach().amax(1, keepdim=True))
    weights = weights / weights.sum(1, keepdim=True)
    x = torch.einsum("nl,nld->nd", weights, space).double()
    mean_time = (weights * time).sum(1, keepdim=True).double()
    mean_radius = root * (weights * torch.asinh(length / root)).sum(1, keepdim=True).double()
    if pooling == "oem":
        pooled = root * x / safe_sqrt(mean_time.square() - x.square().sum(1, keepdim=True))
    else:
        pooled = root * torch.sinh(mean_radius / root) * x / norm(x)
    return lift(pooled, k).to(space.dtype)


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"
    main()
