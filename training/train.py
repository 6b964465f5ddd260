"""Train the projection: `python -m training.train data.pairs=[FILES] out=DIR` (settings: conf/train.yaml)."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write, check_folder
from hyte.nn.encoder import HyteEncoder
from hyte.nn.projection import Projection
from training import parallel, summary
from training.batches import batch_size, check_enough
from training.checkpoint import FILE, Checkpoint, load_checkpoint
from training.data import Pairs, load_pairs
from training.distillation import Distillation
from training.earlier import set_aside, warn_of_earlier
from training.hierarchy import Hierarchy
from training.logs import METRICS, Metrics, read_metrics, start_wandb
from training.loop import Run
from training.model import Model
from training.settings import Settings, from_config
from training.sources import find_sources
from training.state import Progress, check_same, describe_pairs, digest, load_last
from training.stopping import Stopped, signals
from training.tokens import TokenTable, idf_weights, load_tokens
from training.validation import Validator

log = logging.getLogger(__name__)

CONF = Path(__file__).resolve().parents[1] / "conf"
OmegaConf.register_new_resolver("conf", lambda: str(CONF), replace=True)  # for hydra.searchpath


def train(settings: Settings) -> dict[str, Any]:
    """Train the projection and leave checkpoint.safetensors, config.yaml and metrics.jsonl in `settings.out`.

    Beside these: last.safetensors, from which `resume` goes on, and summary.png. A checkpoint that an earlier run left
    there becomes previous.safetensors. The same settings, seed, thread count and machine give the same weights, whether
    or not a run was interrupted.

    Returns:
        Plain data: paths `checkpoint`, `config`, `metrics`; `steps` (done), `pairs`, `batch_size`, `loss` (mean of the
        last log interval, None without a step), `scale`, `best_step`, `best_score` (None without validation),
        `stopped_early`, `seconds`, `seconds_to_load`.

    Raises InputError for bad input, and where loss or gradient stop being finite: what this run last saved is kept.
    Raises Stopped (a KeyboardInterrupt) where SIGINT or SIGTERM ended it between two steps; all is saved to go on.
    """
    started = time.perf_counter()
    out = Path(settings.out)
    check_folder("out", out)
    check_folder("data.cache", settings.cache or ".")
    torch.manual_seed(settings.seed)
    last = _last(settings) if settings.resume else None
    if last is None and parallel.first():
        warn_of_earlier(out)
    if last is not None and Progress(**last.progress).finished(settings):
        return _finished(settings, last, started)
    device = _device(settings.device)
    find_sources(settings.pairs, settings.weights)  # first, because it is the quickest to be wrong
    with parallel.processes(device):
        run, pairs = _start(settings, last, device)
        loaded = time.perf_counter() - started
        _go(run, pairs)
    return _result(settings, run.progress, run.config["data"], run.scale, started) | {"seconds_to_load": loaded}


def _last(settings: Settings) -> Checkpoint:
    """Where the run to be resumed stopped. Raises InputError where its settings are not these."""
    last = load_last(Path(settings.out))
    config = describe(settings, last)
    if settings.checkpoint is not None:
        del config["model"]  # it began with the hidden units of that checkpoint
    check_same(last, config)
    return last


def _start(settings: Settings, last: Checkpoint | None, device: torch.device) -> tuple[Run, Pairs]:
    """The run, ready to go, and its pairs; nothing is written yet."""
    start = None if settings.checkpoint is None else last or load_checkpoint(settings.checkpoint)
    tokens = load_tokens(settings.tokens, settings.tokens_path)
    model, config = build(settings, tokens, start)
    model.to(device)  # before there is an optimiser
    config["tokens"]["digest"] = digest(tokens.table)
    validator = _validator(settings, model, tokens)
    with parallel.in_turn():
        pairs = pairs_of(settings, tokens)
    log.info("%d pairs, %d distinct tokens in texts, from %d source(s)", len(pairs), len(pairs.ids), len(pairs.files))
    check_enough(pairs)  # before the records of an earlier run in this folder go
    distillation, hierarchy = _distillation(settings, pairs), _hierarchy(settings, tokens)
    # Recorded where there is none too: a run does not go on without what it began with.
    config["distillation"]["sha256"] = distillation and distillation.sha256
    config["hierarchy"]["digest"] = hierarchy and hierarchy.digest
    if distillation is not None and settings.distillation_only:
        pairs = distillation.narrowed(pairs)
    if settings.weighting == "idf":
        model.weigh(idf_weights(len(pairs), *pairs.positive_counts(len(tokens.table))))
    config["data"] |= describe_pairs(pairs)
    config["data"] |= {"sources": pairs.describe(), "batch": batch_size(pairs, settings.batch_size)}
    if last is not None:
        check_same(last, config)
    return Run(model, settings, config, validator, last, distillation, hierarchy), pairs


def _distillation(settings: Settings, pairs: Pairs) -> Distillation | None:
    if settings.distillation_cache is None:
        return None
    weight, temperature = settings.distillation_weight, settings.distillation_temperature
    return Distillation(settings.distillation_cache, pairs, weight, temperature)


def _hierarchy(settings: Settings, tokens: TokenTable) -> Hierarchy | None:
    if not settings.hierarchy_pairs:
        return None
    weight, margin, size = settings.hierarchy_weight, settings.hierarchy_margin, settings.hierarchy_batch_size
    return Hierarchy(settings.hierarchy_pairs, tokens.tokenizer, weight, margin, size, settings.seed)


def _validator(settings: Settings, model: Model, tokens: TokenTable) -> Validator | None:
    if not (settings.validation_collections and parallel.first()):
        return None
    split, queries = settings.validation_split, settings.validation_queries
    collections, dropping = settings.validation_collections, settings.validation_drop_same_id
    return Validator(collections, split, queries, model.encoder, tokens.tokenizer, dropping)


def _go(run: Run, pairs: Pairs) -> None:
    """Train, and leave the files of the run."""
    if not parallel.first():
        run.go(pairs, Metrics(None))
        return
    settings, out, step = run.settings, run.out, run.progress.step
    if not settings.resume:
        set_aside(out)
    run.save_last()  # before the lines of an earlier run go: whenever this one is killed, it can go on
    with atomic_write(out / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(run.config)).encode())
    (out / summary.FILE).unlink(missing_ok=True)
    metrics = Metrics(out / METRICS, start_wandb(settings.wandb_mode, settings.wandb_project, out, run.config), step)
    with signals() as stop:
        try:
            run.go(pairs, metrics, stop)
        finally:
            metrics.close()
            if not stop():
                _draw(out)
    if stop.number is not None and not run.progress.finished(settings):
        place = f"step {run.progress.step} of {settings.steps}"
        raise Stopped(f"stopped at {place}; go on with resume=true", stop.number)


def _draw(out: Path) -> None:
    """The picture of the run, if there is anything to see; training never depends on it."""
    try:
        if read_metrics(out / METRICS):
            summary.draw(out)
    except (InputError, OSError) as error:
        log.warning("%s", error)


def _finished(settings: Settings, last: Checkpoint, started: float) -> dict[str, Any]:
    """The result of a run that has nothing left to do."""
    progress, checkpoint = Progress(**last.progress), Path(settings.out, FILE)
    if not checkpoint.is_file():
        raise InputError(
            f"resume=true: {last.path} is of a finished run, whose {checkpoint} is missing; put it back, or train "
            "again without resume"
        )
    log.info("%s: finished at step %d, nothing to do", last.path, progress.step)
    log_scale = last.state.get("average.log_scale", last.state["log_scale"])
    result = _result(settings, progress, last.config["data"], log_scale.exp().item(), started)
    return result | {"seconds_to_load": result["seconds"]}


def _result(
    settings: Settings, progress: Progress, data: dict[str, Any], scale: float, started: float
) -> dict[str, Any]:
    out = Path(settings.out)
    return {
        "checkpoint": str(out / FILE), "config": str(out / "config.yaml"), "metrics": str(out / METRICS),
        "steps": progress.step, "pairs": data["count"], "batch_size": data["batch"], "loss": progress.loss,
        "scale": scale, "best_step": progress.best_step, "best_score": progress.best_score,
        "stopped_early": progress.step < settings.steps, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def pairs_of(settings: Settings, tokens: TokenTable) -> Pairs:
    """The pairs that the settings name. Raises InputError as `load_pairs` does."""
    return load_pairs(
        settings.pairs, tokens.tokenizer, settings.max_tokens, settings.cache, query_tokens=settings.query_tokens,
        negatives=settings.negatives, columns=settings.columns, weights=settings.weights,
    )  # fmt: skip


def build(settings: Settings, tokens: TokenTable, start: Checkpoint | None) -> tuple[Model, dict[str, Any]]:
    """The model, from the principal directions or from a checkpoint, and the configuration that is recorded with it."""
    config = describe(settings, start)
    config["tokens"] |= tokens.describe()
    projection = _projection(settings, tokens, start, config)
    pooling = config["pooling"]
    encoder = HyteEncoder(tokens.table, projection, settings.k, pooling["name"], pooling["power"])
    return Model(encoder, settings.loss, settings.logit_scale), config


def describe(settings: Settings, start: Checkpoint | None) -> dict[str, Any]:
    """The settings as they are recorded: with the pooling and P that are used, without `resume`."""
    config = settings.plain()
    del config["resume"]
    name, power = _pooling(settings, start)
    return config | {"pooling": {"name": name, "power": power}}


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
        most = 2 * dim if settings.start == "pairs" else dim
        if settings.hidden % 2 or settings.hidden > most:
            raise InputError(f"model.hidden={settings.hidden} must be even and at most {most} (start={settings.start})")
        return Projection.from_directions(
            tokens.table, settings.hidden, settings.init_scale, settings.start, settings.seed
        )
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
    for key in ("pooling.name", "pooling.power", "tokens.name", "tokens.weighting", "tokens.tokenizer_sha256"):
        group, _, name = key.partition(".")
        places.append((f"{group}.{name}", old.get(group, {}).get(name), new[group][name]))
    return [place for place in places if place[1] is not None and place[1] != place[2]]


def _device(name: str) -> torch.device:
    if name == "auto":
        local = int(os.environ.get("LOCAL_RANK", "0"))  # torchrun's: one device a process
        return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        torch.ones(1, device=name).item()  # the device "meta" exists, and holds nothing
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name} cannot be used ({reason}); use device=auto or device=cpu") from error


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def main(config: DictConfig) -> None:
    """Hydra's entry point: reads the settings, trains, prints the result as JSON."""
    if not parallel.first():
        logging.disable(logging.WARNING)  # the first process says it
    with report_errors(OmegaConfBaseException):
        settings = from_config(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
        try:
            result = train(settings)
        except Stopped as stopped:
            sys.stderr.write(f"{stopped}\n")
            sys.exit(stopped.code)
        if parallel.first():
            sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its own errors instead of printing them at length
    with report_errors(HydraException):
        main()
