"""Ctrl-C and SIGTERM while training: the run ends between two steps, saved so that it can go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from training import parallel

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal; the message is one line for the user."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.code = 128 + number  # the exit code that shells give it


@dataclass
class Stop:
    """Which signal asked the run to stop, None as long as none did."""

    number: int | None = None

    def __call__(self) -> bool:
        """Whether one did."""
        return self.number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - of a signal's handler
        """Take note of the first signal; the second is an exception at once."""
        if self():
            raise Stopped("stopped at once; resume=true goes on from the last save", number)
        self.number = number


@contextmanager
def signals() -> Iterator[Stop]:
    """Have the signals noted, within the block, instead of ending the process.

    Only in a process that trains alone: of several, each would stop at a step of its own, and wait for the others.
    """
    stop = Stop()
    alone = parallel.size() == 1 and threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stop.handle) for number in SIGNALS if alone}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
