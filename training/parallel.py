"""Training in several processes: `torchrun --nproc-per-node N -m training.train ...`.

Every process reads the same batch, projects and pools a share of its texts, and sees the points of all: the loss is
that of one process with the whole batch, and so are the gradients once they are summed. Only the first process writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from training.batches import Batch
from training.data import Ints


@contextmanager
def processes(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, if it did: nccl on cuda, else gloo."""
    if not _several():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _several() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def size() -> int:
    """How many processes train together, from within `processes`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def first() -> bool:
    """Whether this is the process that writes."""
    return not _several() or os.environ["RANK"] == "0"


@contextmanager
def in_turn() -> Iterator[None]:
    """Let the first process go before the others, which then find what it left in a cache."""
    if size() > 1 and not first():
        dist.barrier()
    yield
    if size() > 1 and first():
        dist.barrier()


def share(batch: Batch) -> range:
    """The texts of a batch that this process encodes, cut so that all have about as many tokens."""
    if size() == 1:
        return range(len(batch.offsets))
    start, end = (len(batch.ids) * part // size() for part in (dist.get_rank(), dist.get_rank() + 1))
    return range(*np.searchsorted(batch.offsets, [start, end]))


def bags(batch: Batch, texts: range) -> tuple[Ints, Ints, Ints, npt.NDArray[np.int32]]:
    """Of these texts alone: distinct ids, ids, offsets and counts, as `Batch` has them of all."""
    if len(texts) == len(batch.offsets):
        return batch.distinct, batch.ids, batch.offsets, batch.counts
    ends = np.append(batch.offsets, len(batch.ids))
    start, end = ends[texts.start], ends[texts.stop]
    used, ids = np.unique(batch.ids[start:end], return_inverse=True)
    return batch.distinct[used], ids, batch.offsets[texts.start : texts.stop] - start, batch.counts[start:end]


def gather(points: Tensor, texts: range, count: int) -> Tensor:
    """The points (count, d+1) of all processes, of which this one gives those (n, d+1) of its `texts`."""
    if size() == 1:
        return points
    return _sum(functional.pad(points, (0, 0, texts.start, count - texts.stop)))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ARG004 - it keeps nothing
        return _reduced(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return _reduced(gradients[0])


def _sum(values: Tensor) -> Tensor:
    """Sum over the processes, as the gradient is."""
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


def _reduced(values: Tensor) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Put in place of each gradient its sum over the processes."""
    for parameter in parameters if size() > 1 else ():
        assert parameter.grad is not None  # the loss depends on every parameter
        dist.all_reduce(parameter.grad)


def of_first(value: float, device: torch.device) -> float:
    """The first process's value."""
    if size() == 1:
        return value
    held = torch.tensor(value, dtype=torch.float64, device=device)
    dist.broadcast(held, 0)
    return held.item()
