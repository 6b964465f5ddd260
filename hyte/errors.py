"""The one exception for everything a user can cause, and how entry points show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input: one line that says what is wrong, where, and what to do next."""


@contextmanager
def report_errors(*more: type[Exception]) -> Iterator[None]:
    """Print an `InputError` or `OSError`, or one of `more`, as one line on stderr and exit with code 2."""
    shown: tuple[type[Exception], ...] = (InputError, OSError, *more)
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe (head, less) went away: nothing is wrong, and nobody is listening
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except shown as error:
        message = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"error: {message}\n")
        sys.exit(2)
