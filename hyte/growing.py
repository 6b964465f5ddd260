"""Arrays that rows are appended to, at a cost that does not depend on how many there are."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]


class Base(Protocol):
    """What `Growing` needs of the rows that it starts with: an array, or one that checks what is read of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a number."""

    def __getitem__(self, numbers: Any, /) -> Rows:
        """The rows of these numbers (n,), or of a slice."""


class Growing:
    """Rows of a base that is never copied, and after them rows in a buffer that doubles when it is full.

    Args:
        base: (n, ...) the first rows, only read.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        self._tail: Rows = np.empty((0, *base.shape[1:]), base.dtype)
        self._used = 0

    def __len__(self) -> int:
        return self._base.shape[0] + self._used

    def append(self, rows: Rows) -> None:
        """Put rows (n, ...) at the end."""
        needed = self._used + len(rows)
        if needed > len(self._tail):
            grown = np.empty((max(needed, 2 * len(self._tail), 16), *self._tail.shape[1:]), self._tail.dtype)
            grown[: self._used] = self._tail[: self._used]
            self._tail = grown
        self._tail[self._used : needed] = rows
        self._used = needed

    def __getitem__(self, numbers: npt.NDArray[np.integer[Any]]) -> Rows:
        """A copy of the rows of these numbers (n,)."""
        first = self._base.shape[0]
        if self._used == 0:
            return self._base[numbers]
        old = numbers < first
        if old.all():
            return self._base[numbers]
        rows = np.empty((len(numbers), *self._tail.shape[1:]), self._tail.dtype)
        rows[old], rows[~old] = self._base[numbers[old]], self._tail[numbers[~old] - first]
        return rows

    def parts(self) -> list[Rows]:
        """All rows in order, as views: those of the base, then those appended since."""
        found = [self._base[:]] if self._base.shape[0] else []
        return [*found, self._tail[: self._used]] if self._used or not found else found

    def whole(self) -> Rows:
        """All rows as one array; a view where nothing was appended."""
        parts = self.parts()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def put(self, numbers: npt.NDArray[np.integer[Any]], value: Any) -> None:
        """Set rows (n,) to a value. The base must be writable where they lie in it."""
        first = self._base.shape[0]
        old = numbers < first
        if old.any():
            self._base[numbers[old]] = value  # type: ignore[index]
        self._tail[numbers[~old] - first] = value
