"""What a run leaves besides its checkpoint: metrics.jsonl, and wandb if it is there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

log = logging.getLogger(__name__)

WANDB_TIMEOUT = 8.0


class Metrics:
    """Appends one line of strict JSON at a time to a file, and sends it to wandb where there is a run.

    Args:
        path: metrics.jsonl; an older one is replaced.
        wandb_run: what `start_wandb` returned.
    """

    def __init__(self, path: Path, wandb_run: Any = None) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self._run = wandb_run

    def write(self, **values: float) -> None:
        """Write finite numbers; `step` must be one of them."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()
        self._send("log", values, step=int(values["step"]))

    def close(self) -> None:
        """Close the file and end the wandb run."""
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


def start_wandb(mode: str, project: str, out: Path, config: dict[str, Any]) -> Any:
    """A wandb run that keeps its files under `out`, or None where the mode is "disabled" or wandb does not start.

    Training never depends on it: a reason is logged and the run goes on.
    """
    if mode == "disabled":
        return None
    try:
        import wandb  # noqa: PLC0415 - optional

        settings = wandb.Settings(silent=True, init_timeout=WANDB_TIMEOUT, console="off", disable_git=True)
        return wandb.init(mode=cast(Any, mode), project=project, dir=str(out), config=config, settings=settings)
    except ImportError:
        log.warning('wandb is not installed, going on without it (pip install "hyte[train]", or wandb.mode=disabled)')
    except Exception as error:  # whatever ails it, training goes on
        log.warning("wandb does not start (%s), going on without it (wandb.mode=disabled)", _short(error))
    return None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
