"""What a run needs to go on where it stopped: `last.safetensors`, and whether it fits the settings asked for.

Beside w1, w2 and log_scale it holds `adamw.NAME.KEY`, the optimiser's state of each, and with averaging `average.NAME`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hyte.errors import InputError
from training.checkpoint import LAST, Checkpoint, load_checkpoint, save_checkpoint
from training.data import Pairs
from training.model import Model
from training.settings import Settings, flattened

# Settings that may change when a run goes on: they do not change what it computes. `data.pairs` is compared by content.
FREE = (
    "out", "device", "log_every", "save_every", "validation.patience", "wandb.mode", "wandb.project",
    "data.pairs", "data.cache", "data.sources", "distillation.cache", "hierarchy.pairs", "tokens.path", "tokens.source",
)  # fmt: skip
# What the pair files alone decide, once all settings agree.
OF_PAIRS = ("data.batch", "data.count", "data.digest")


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        step: steps done.
        losses: of the steps since the last line of metrics.jsonl.
        loss: their mean in that line; None before the first.
        best_score: highest `val/mean` so far, of step `best_step`; None before the first validation.
        stale: validations since then.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    loss: float | None = None
    best_score: float | None = None
    best_step: int | None = None
    stale: int = 0

    def finished(self, settings: Settings) -> bool:
        """Whether nothing is left to do: all steps are done, or the patience is at its end."""
        patience = settings.validation_patience
        return self.step >= settings.steps or (patience is not None and self.stale >= patience)


def save_last(
    out: Path,
    model: Model,
    optimiser: torch.optim.Optimizer,
    average: dict[str, Tensor],
    progress: Progress,
    config: dict[str, Any],
) -> None:
    """Write `last.safetensors` whole or not at all. Raises InputError where a value is not finite."""
    state: dict[str, Tensor] = model.constants() | model.state()
    for name, parameter in model.state().items():
        state |= {f"adamw.{name}.{key}": value for key, value in optimiser.state[parameter].items()}
    state |= {f"average.{name}": value for name, value in average.items()}
    save_checkpoint(out / LAST, state, config | {"step": progress.step}, asdict(progress))


def load_last(out: Path) -> Checkpoint:
    """Read what `save_last` wrote. Raises InputError where there is none, or it is no such file."""
    path = out / LAST
    if not path.is_file():
        raise InputError(f"resume=true: no {LAST} in out={out}; name the folder of a run, or start one without resume")
    last = load_checkpoint(path)
    if last.progress.keys() != {each.name for each in fields(Progress)}:
        raise InputError(f"{path}: it does not say how far the run had come; start it again without resume")
    for name, value in last.progress.items():
        if not _fits(name, value, last.progress["step"]):
            raise InputError(f"{path}: damaged: its progress has {name}={value!r}; start the run again without resume")
    return last


def _fits(name: str, value: Any, step: Any) -> bool:
    """Whether a run that has come to this step can have such a value in its `Progress`."""
    if name == "losses":
        return isinstance(value, list) and all(map(_is_number, value))
    if name in ("loss", "best_score"):
        return value is None or _is_number(value)
    if name == "best_step" and value is None:
        return True
    most = value if name == "step" else step  # there are no more validations than steps
    return isinstance(value, int) and not isinstance(value, bool) and _is_number(most) and 0 <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@torch.no_grad()
def restore(last: Checkpoint, model: Model, optimiser: torch.optim.Optimizer, average: dict[str, Tensor]) -> None:
    """Put the weights, the optimiser's state and the averaged weights where they were.

    The model must be built as for the first step: the layout of its weights in memory decides their last bits.
    """
    for name, parameter in model.state().items():
        parameter.copy_(last.state[name])
        found = {key.rpartition(".")[2]: each for key, each in last.state.items() if key.startswith(f"adamw.{name}.")}
        for key, value in found.items():
            # The count of steps stays where the optimiser keeps it, on the CPU.
            kept = value if key == "step" else torch.empty_like(parameter).copy_(value)
            optimiser.state[parameter][key] = kept
        if name in average:
            average[name].copy_(last.state[f"average.{name}"])


def check_same(recorded: Checkpoint, config: dict[str, Any]) -> None:
    """Raises InputError, with key and both values, where a run cannot go on with this configuration."""
    old, new = flattened(recorded.config), flattened(config)
    for key in sorted(new.keys() - set(FREE)):
        # Through text: JSON has no infinity, and tuples become lists.
        if key in old and str(old[key]) != str(new[key]):
            if key in OF_PAIRS:
                raise InputError(
                    f"resume=true: the contents of the pair files differ from those that {recorded.path} began with "
                    f"({old['data.count']} pairs then, {new['data.count']} now); give those, or start another run in "
                    "another folder"
                )
            raise InputError(
                f"resume=true: {recorded.path} was written with {key}={old[key]}, this run has {key}={new[key]}; "
                "give the recorded value, or start another run in another folder"
            )


def digest(*arrays: npt.NDArray[Any]) -> str:
    """Sixteen hex digits that tell other contents apart."""
    found = hashlib.blake2b(digest_size=8)
    for each in arrays:
        found.update(f"{each.dtype} {each.shape}".encode())
        found.update(np.ascontiguousarray(each).data)
    return found.hexdigest()


def describe_pairs(pairs: Pairs) -> dict[str, Any]:
    """What a checkpoint records of the training pairs, wherever their files are: how many, and a digest."""
    arrays = [getattr(pairs, each.name) for each in fields(pairs)]
    return {"count": len(pairs), "digest": digest(*(each for each in arrays if isinstance(each, np.ndarray)))}
