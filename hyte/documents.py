"""The documents of an index: their paths, texts, and what tells whether one changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyte.growing import Growing
from hyte.texts import Texts


class Document(NamedTuple):
    """One to be added; `digest` are the 32 bytes that tell whether it changed."""

    title: str
    text: str
    digest: bytes

    @classmethod
    def of(cls, title: str, text: str) -> Document:
        """Its digest is the sha256 of the title's length, the title and the text."""
        parts = [each.encode("utf-8", "surrogatepass") for each in (title, text)]
        return cls(title, text, hashlib.sha256(b"%d " % len(parts[0]) + b"".join(parts)).digest())


class Documents:
    """Documents by number. A removed one keeps its number until the rest is `kept`.

    Args:
        paths: of the first D documents, all different.
        texts: theirs.
        digests: (D, 32) theirs, as of `Document`.

    Attributes:
        texts: of every number in use.
        numbers: the number of each living document by path.
    """

    def __init__(self, paths: Sequence[str], texts: Texts, digests: npt.NDArray[np.uint8]) -> None:
        self.texts, self._digests = texts, Growing(digests)
        self._paths: list[str | None] = list(paths)  # None for a removed one
        self.numbers = {path: number for number, path in enumerate(paths)}

    @classmethod
    def empty(cls) -> Documents:
        """No documents."""
        return cls([], Texts(), np.zeros((0, 32), np.uint8))

    @property
    def size(self) -> int:
        """Numbers in use."""
        return len(self._paths)

    @property
    def paths(self) -> list[str]:
        """Paths of the living documents, by number."""
        return [path for path in self._paths if path is not None]

    def path(self, number: int) -> str:
        """The path of a living document."""
        path = self._paths[number]
        assert path is not None
        return path

    def digest(self, number: int) -> bytes:
        """The digest of a document."""
        return self._digests[np.array([number])].tobytes()

    def append(self, paths: Sequence[str], texts: Sequence[str], digests: Sequence[bytes]) -> None:
        """Put documents at the end. One whose path is there already takes its place; the old one must be removed."""
        self.texts.append(texts)
        self._digests.append(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32))
        self.numbers |= {path: number for number, path in enumerate(paths, self.size)}
        self._paths += paths

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove documents."""
        for number in numbers:
            path = self._paths[number]
            if path is not None and self.numbers.get(path) == number:
                del self.numbers[path]
            self._paths[number] = None

    def alive(self) -> npt.NDArray[np.bool_]:
        """(size,) False where a document was removed."""
        return np.array([path is not None for path in self._paths], bool)

    def kept(self) -> Documents:
        """The living documents, which move up."""
        alive = self.alive()
        return Documents(self.paths, self.texts.kept(alive), self.digests()[alive])

    def digests(self) -> npt.NDArray[np.uint8]:
        """(size, 32) those of all."""
        return self._digests.whole()
