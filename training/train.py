"""Train the projection: `python -m training.train data.pairs=[FILES] out=DIR` (settings: conf/train.yaml)."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn
from tqdm import tqdm

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write
from hyte.nn.encoder import HyteEncoder
from hyte.nn.projection import Projection
from training.batches import Batch, batch_size, batches, check_enough, collate
from training.checkpoint import FILE, Checkpoint, load_checkpoint, save_checkpoint
from training.data import Pairs, load_pairs
from training.logs import Metrics, start_wandb
from training.losses import info_nce, not_negatives, similarities
from training.settings import Settings, from_config
from training.sources import find_sources
from training.tokens import TokenTable, load_tokens

log = logging.getLogger(__name__)

CONF = Path(__file__).resolve().parents[1] / "conf"
MAX_SCALE = 100.0  # of the logits, as in CLIP: above it a batch is learned by heart
SHOWN_LINES = 5


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

    def forward(self, batch: Batch) -> Tensor:
        """Loss of a batch, a scalar."""
        arrays = (batch.distinct, batch.ids, batch.offsets, batch.counts, batch.hashes)
        distinct, ids, offsets, counts, hashes = (torch.from_numpy(each).to(self.log_scale.device) for each in arrays)
        points, _ = self.encoder.encode(distinct, ids, offsets, counts)
        count = len(batch.rows)
        scores = similarities(points[:count], points[count:], self.loss, self.encoder.k)
        return info_nce(self.log_scale.exp() * scores, not_negatives(hashes[:count], hashes[count:]))

    @property
    def scale(self) -> float:
        """Factor on the similarities."""
        return self.log_scale.exp().item()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {"w1": self.encoder.projection.w1, "w2": self.encoder.projection.w2, "log_scale": self.log_scale}


def train(settings: Settings) -> dict[str, Any]:
    """Train the projection and leave checkpoint.safetensors, config.yaml and metrics.jsonl in `settings.out`.

    The same settings, seed, thread count and machine give the same weights.

    Returns:
        Plain data: paths `checkpoint`, `config`, `metrics`; `steps`, `pairs`, `batch_size`, `loss` (mean of the last
        log interval, None without a step), `scale`, `seconds`, `seconds_to_load`.

    Raises InputError for bad input, and where loss or gradient stop being finite: the last good checkpoint is kept.
    """
    started = time.perf_counter()
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise InputError(f"out={out} is a file; name a folder")
    torch.manual_seed(settings.seed)
    find_sources(settings.pairs, settings.weights)  # first, because it is the quickest to be wrong
    start = None if settings.checkpoint is None else load_checkpoint(settings.checkpoint)
    tokens = load_tokens(settings.tokens, settings.tokens_path)
    model, config = build(settings, tokens, start)
    pairs = pairs_of(settings, tokens)
    config["data"]["sources"] = pairs.describe()
    log.info("%d pairs, %d distinct tokens in texts, from %d source(s)", len(pairs), len(pairs.ids), len(pairs.files))
    check_enough(pairs)  # before the records of an earlier run in this folder go
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(config)).encode())
    loaded = time.perf_counter() - started
    metrics = Metrics(out / "metrics.jsonl", start_wandb(settings.wandb_mode, settings.wandb_project, out, config))
    try:
        loss = run_steps(model, pairs, settings, config, metrics)
    finally:
        metrics.close()
    return {
        "checkpoint": str(out / FILE), "config": str(out / "config.yaml"), "metrics": str(out / "metrics.jsonl"),
        "steps": settings.steps, "pairs": len(pairs), "batch_size": batch_size(pairs, settings.batch_size),
        "loss": loss, "scale": model.scale, "seconds_to_load": loaded, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def pairs_of(settings: Settings, tokens: TokenTable) -> Pairs:
    """The pairs that the settings name. Raises InputError as `load_pairs` does."""
    return load_pairs(
        settings.pairs, tokens.tokenizer, settings.max_tokens, settings.cache, query_tokens=settings.query_tokens,
        negatives=settings.negatives, columns=settings.columns, weights=settings.weights,
    )  # fmt: skip


def build(settings: Settings, tokens: TokenTable, start: Checkpoint | None) -> tuple[Model, dict[str, Any]]:
    """The model, from the principal directions or from a checkpoint, and the configuration that is recorded with it."""
    config = settings.plain()
    config["tokens"] |= tokens.describe()
    pooling, power = _pooling(settings, start)
    config["pooling"] = {"name": pooling, "power": power}
    projection = _projection(settings, tokens, start, config)
    encoder = HyteEncoder(tokens.table, projection, settings.k, pooling, power)
    return Model(encoder, settings.loss, settings.logit_scale).to(_device(settings.device)), config


def _pooling(settings: Settings, start: Checkpoint | None) -> tuple[str, float]:
    """Pooling and P: "trained" is the checkpoint's, and P is 1 where nothing says otherwise."""
    name, power = settings.pooling, settings.power
    if name == "trained":
        if start is None:
            raise InputError("pooling=trained takes the pooling of a checkpoint: name one with checkpoint=PATH")
        name, power = start.config["pooling"]["name"], start.config["pooling"]["power"] if power is None else power
    return name, 1.0 if power is None else float(power)


def _projection(settings: Settings, tokens: TokenTable, start: Checkpoint | None, config: dict[str, Any]) -> Projection:
    dim = tokens.table.shape[1]
    if start is None:
        if settings.hidden % 2 or settings.hidden > 2 * dim:
            raise InputError(f"model.hidden={settings.hidden} must be even and at most {2 * dim}, twice the dimensions")
        return Projection.from_directions(tokens.table, settings.hidden, settings.init_scale)
    w1, w2 = start.state["w1"], start.state["w2"]
    if w1.shape[1] != dim:
        raise InputError(f"{start.path}: W1 takes {w1.shape[1]} dimensions, the table of {tokens.name} has {dim}")
    for key, old, new in _differences(start.config, config):
        log.warning("%s was trained with %s=%s, this run has %s", start.path, key, old, new)
    config["model"]["hidden"] = int(w1.shape[0])
    return Projection(w1.float(), w2.float())


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """What of a checkpoint's configuration does not agree with this run's: its key, both values."""
    places = [("k", old.get("k"), new["k"])]
    for group, name in (("pooling", "name"), ("pooling", "power"), ("tokens", "name"), ("tokens", "tokenizer_sha256")):
        places.append((f"{group}.{name}", old.get(group, {}).get(name), new[group][name]))
    return [place for place in places if place[1] is not None and place[1] != place[2]]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.ones(1, device=name).item()  # the device "meta" exists, and holds nothing
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name} cannot be used ({reason}); use device=auto or device=cpu") from error


def optimiser(model: Model, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; the logit scale does not decay."""
    projection = {"params": list(model.encoder.projection.parameters()), "weight_decay": weight_decay}
    return torch.optim.AdamW([projection, {"params": [model.log_scale], "weight_decay": 0.0}], lr=lr)


def rate(step: int, steps: int, warmup: float) -> float:
    """Share of the full learning rate, in [0, 1], of step 0 .. steps-1: linear warm-up, then half a cosine to 0."""
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def run_steps(model: Model, pairs: Pairs, settings: Settings, config: dict[str, Any], metrics: Metrics) -> float | None:
    """The loop. Saves every `save_every` steps and at the end; returns the mean loss of the last log interval."""
    chosen = optimiser(model, settings.lr, settings.weight_decay)
    order = batches(pairs, settings.batch_size, settings.seed)
    path, losses, mean, since = Path(settings.out) / FILE, [], None, time.perf_counter()
    progress = tqdm(range(1, settings.steps + 1), desc="training", unit="step", disable=None)
    for step in progress:
        batch = collate(pairs, next(order))
        share = rate(step - 1, settings.steps, settings.warmup)
        loss, norm = train_step(model, chosen, batch, settings.lr * share, settings.clip)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise InputError(explain(step, loss, norm, pairs.where(batch.rows), path.parent))
        losses.append(loss)
        if step % settings.log_every == 0 or step == settings.steps:
            mean, seconds = float(np.mean(losses)), time.perf_counter() - since
            speed, scale = len(losses) * len(batch.rows) / seconds, model.scale
            metrics.write(step=step, loss=mean, lr=settings.lr * share, grad_norm=norm, scale=scale, pairs_per_s=speed)
            progress.set_postfix(loss=f"{mean:.4f}", refresh=False)
            losses, since = [], time.perf_counter()
        if step % settings.save_every == 0 and step < settings.steps:
            save_checkpoint(path, model.state(), config | {"step": step})
    save_checkpoint(path, model.state(), config | {"step": settings.steps})
    return mean


def train_step(
    model: Model, chosen: torch.optim.Optimizer, batch: Batch, lr: float, clip: float
) -> tuple[float, float]:
    """One step: the loss and the gradient's norm before clipping. The weights only change if both are finite."""
    for group in chosen.param_groups:
        group["lr"] = lr
    chosen.zero_grad(set_to_none=True)
    loss = model(batch)
    loss.backward()
    value, norm = loss.item(), float(nn.utils.clip_grad_norm_(model.parameters(), clip))
    if math.isfinite(norm) and math.isfinite(value):
        chosen.step()
        with torch.no_grad():
            model.log_scale.clamp_(max=math.log(MAX_SCALE))
    return value, norm


def explain(step: int, loss: float, norm: float, places: Sequence[str], out: Path) -> str:
    """One line about a step that is not finite; the complete list of its lines goes to a file in `out`."""
    name = out / "nonfinite_batch.txt"
    with atomic_write(name) as file:
        file.write("".join(f"{place}\n" for place in places).encode("utf-8", "replace"))
    more = f" and {len(places) - SHOWN_LINES} more" if len(places) > SHOWN_LINES else ""
    return (
        f"step {step}: loss {loss:g}, gradient norm {norm:g}; the batch is {', '.join(places[:SHOWN_LINES])}{more} "
        f"(all in {name}); lower lr, or look at these lines; the last good checkpoint, if any, is kept"
    )


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def main(config: DictConfig) -> None:
    """Hydra's entry point: reads the settings, trains, prints the result as JSON."""
    with report_errors(OmegaConfBaseException):
        result = train(from_config(OmegaConf.to_container(config, resolve=True, throw_on_missing=True)))
        sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its own errors instead of printing them at length
    with report_errors(HydraException):
        main()
