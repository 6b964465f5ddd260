"""What a run leaves besides its checkpoint: metrics.jsonl, and wandb if it is there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

from hyte.errors import InputError
from hyte.files import write_text

log = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
WANDB_TIMEOUT = 8.0


class Metrics:
    """Appends one line of strict JSON at a time to a file, and sends it to wandb where there is a run.

    Args:
        path: metrics.jsonl; of an older one the lines up to `step` stay, which a run that goes on has written. None
            writes nothing.
        wandb_run: what `start_wandb` returned.
        step: the step that the run starts after.
    """

    def __init__(self, path: Path | None, wandb_run: Any = None, step: int = 0) -> None:
        self._file, self._run = None, wandb_run
        if path is not None:
            kept = [line for line in read_metrics(path) if line["step"] <= step] if step and path.is_file() else []
            write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
            self._file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, **values: float) -> None:
        """Write finite numbers; `step` must be one of them."""
        if self._file:
            self._file.write(json.dumps(values, allow_nan=False) + "\n")
            self._file.flush()
        self._send("log", values, step=int(values["step"]))

    def close(self) -> None:
        """Close the file and end the wandb run."""
        if self._file:
            self._file.close()
        self._send("finish")
        self._run = None

    def _send(self, method: str, *args: Any, **options: Any) -> None:
        if self._run is None:
            return
        try:
            getattr(self._run, method)(*args, **options)
        except Exception as error:  # as in start_wandb
            log.warning("wandb: %s failed (%s), going on without it", method, _short(error))
            self._run = None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last one that a kill cut short is left out. Raises InputError for any other."""
    lines = path.read_text("utf-8", "replace").split("\n")[:-1]  # what follows the last line break is not whole
    try:
        return [{"step": int(line["step"]), **line} for line in map(json.loads, lines)]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: a line is not what training wrote ({error}); train again") from error


def start_wandb(mode: str, project: str, out: Path, config: dict[str, Any]) -> Any:
    """A wandb run that keeps its files under `out`, or None where the mode is "disabled" or wandb does not start.

    Training never depends on it: a reason is logged and the run goes on.
    """
    if mode == "disabled":
        return None
    try:
        import wandb  # noqa: PLC0415 - optional

        settings = wandb.Settings(silent=True, init_timeout=WANDB_TIMEOUT, console="off", disable_git=True)
        wandb.setup(settings)  # silent from here on: without a login it would ask on the terminal, and wait
        return wandb.init(mode=cast(Any, mode), project=project, dir=str(out), config=config, settings=settings)
    except ImportError:
        log.warning('wandb is not installed, going on without it (pip install "hyte[train]", or wandb.mode=disabled)')
    except Exception as error:  # whatever ails it, training goes on
        log.warning("wandb does not start (%s), going on without it (wandb.mode=disabled)", _short(error))
    return None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
