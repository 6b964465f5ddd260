"""The one exception for everything a user can cause, and how entry points show it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input: one line that says what is wrong, where, and what to do next."""


@contextmanager
def report_errors() -> Iterator[None]:
    """Print an `InputError` or `OSError` as one line on stderr and exit with code 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (InputError, OSError) as error:
        message = " ".join(str(error).splitlines()) or type(error).__name__
        sys.stderr.write(f"error: {message}\n")
        sys.exit(2)
