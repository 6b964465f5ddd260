"""What an earlier run left in the folder of one that starts afresh."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hyte.errors import InputError
from training.checkpoint import FILE, LAST, PREVIOUS, Checkpoint
from training.state import load_last

log = logging.getLogger(__name__)


def warn_of_earlier(out: Path) -> None:
    """Log one line where the folder holds a run that could go on: starting afresh takes its place."""
    try:
        last = load_last(out) if (out / LAST).is_file() else None
        found = last and _unfinished(last)
    except (InputError, OSError, TypeError):  # nothing could go on with that
        return
    if found:
        step, steps = found
        log.warning(
            "%s holds a run that stopped at step %d of %d: this one starts afresh in its place; resume=true would have "
            "gone on with it", out, step, steps,
        )  # fmt: skip


def _unfinished(last: Checkpoint) -> tuple[int, int] | None:
    """Steps done and wanted of a run that has done some, and has some left."""
    step, steps = last.progress["step"], last.config.get("steps", 0)
    patience = last.config.get("validation", {}).get("patience")
    patient = patience is None or last.progress["stale"] < patience
    return (step, steps) if 0 < step < steps and patient else None


def set_aside(out: Path) -> None:
    """Move the checkpoint of an earlier run out of the way, so that none lies there under another run's config."""
    if (out / FILE).is_file():
        os.replace(out / FILE, out / PREVIOUS)
