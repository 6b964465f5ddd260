"""The documents' texts as `texts.z` holds them: blocks of at most 16 KiB of UTF-8, each a zlib stream of its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError

BLOCK = 1 << 14
SLACK = 16  # so many blocks more than needed are no reason to pack anew

Longs = npt.NDArray[np.int64]
Buffer = bytes | memoryview


class Packed(NamedTuple):
    """Texts as they are saved.

    Attributes:
        spans: (D, 2) where each text begins and ends in what the blocks hold, in bytes; (0, 0) for an empty one.
        blocks: (B, 2) where each block ends: compressed in `content`, and in what the blocks hold.
        content: the blocks, one after the other, in pieces.
    """

    spans: Longs
    blocks: Longs
    content: list[Buffer]


def pack(texts: Sequence[str]) -> Packed:
    """Texts in new blocks."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = b"".join(encoded)
    content: list[Buffer] = [zlib.compress(joined[i : i + BLOCK]) for i in range(0, len(joined), BLOCK)]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    spans = np.stack([np.append(0, ends[:-1]), ends], axis=1) if len(ends) else np.zeros((0, 2), np.int64)
    spans[spans[:, 0] == spans[:, 1]] = 0
    sizes = [[len(block), min(BLOCK, len(joined) - i * BLOCK)] for i, block in enumerate(content)]
    return Packed(spans, np.cumsum(np.array(sizes, np.int64).reshape(-1, 2), axis=0), content)


class Texts(Sequence[str]):
    """Texts that a file holds, and after them those appended since. Reading one inflates only the blocks that hold it.

    Args:
        content: of `texts.z`.
        blocks: (B, 2) and spans (D, 2), as of `Packed`.
    """

    def __init__(self, content: Buffer = b"", blocks: Longs | None = None, spans: Longs | None = None) -> None:
        none = np.zeros((0, 2), np.int64)
        self._content, self._blocks = memoryview(content), none if blocks is None else blocks
        self._spans = none if spans is None else spans
        self._appended: list[str] = []

    def __len__(self) -> int:
        return len(self._spans) + len(self._appended)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        if number >= len(self._spans):
            return self._appended[number - len(self._spans)]
        return self._read(number)

    def append(self, texts: Sequence[str]) -> None:
        """Put texts at the end."""
        self._appended += texts

    def kept(self, keep: npt.NDArray[np.bool_]) -> Texts:
        """The texts where `keep` (N,) is true."""
        saved = len(self._spans)
        found = Texts(self._content, self._blocks, self._spans[keep[:saved]])
        found.append([text for text, stays in zip(self._appended, keep[saved:], strict=True) if stays])
        return found

    def packed(self, anew: bool = False) -> Packed:
        """The texts as they are saved.

        Blocks that hold a text are taken over as they are, and appended texts come in new ones. With `anew`, or where
        more than half of it would be waste, everything is packed anew.
        """
        old = self._taken_over()
        size = int(old.blocks[-1, 1]) if len(old.blocks) else 0
        used = int((self._spans[:, 1] - self._spans[:, 0]).sum())
        if anew or size > 2 * used + BLOCK or len(old.blocks) > 2 * (size // BLOCK) + SLACK:
            return pack(self)
        new = pack(self._appended)
        end = old.blocks[-1] if len(old.blocks) else np.zeros(2, np.int64)
        spans = np.where(new.spans.any(axis=1, keepdims=True), new.spans + end[1], 0)
        return Packed(
            np.concatenate([old.spans, spans]),
            np.concatenate([old.blocks, new.blocks + end]),
            old.content + new.content,
        )

    def _taken_over(self) -> Packed:
        """The saved texts in those of their blocks that hold any."""
        ends = self._blocks
        starts = np.concatenate([np.zeros((1, 2), np.int64), ends[:-1]]) if len(ends) else ends
        full = self._spans[self._spans[:, 0] < self._spans[:, 1]]
        first, last = self._places(full[:, 0]), self._places(full[:, 1] - 1)
        covered = np.zeros(len(ends) + 1, np.int64)
        np.add.at(covered, first, 1)
        np.add.at(covered, last + 1, -1)
        used = np.cumsum(covered[:-1]) > 0
        sizes = np.where(used[:, None], ends - starts, 0)
        moved = np.cumsum(sizes, axis=0)
        shift = np.append(starts[:, 1] - (moved - sizes)[:, 1], 0)  # bytes that went before each block
        spans = np.where(
            (self._spans[:, 0] < self._spans[:, 1])[:, None],
            self._spans - shift[self._places(self._spans[:, 0])][:, None],
            0,
        )
        content: list[Buffer] = [
            self._content[int(a) : int(b)] for a, b in zip(starts[used, 0], ends[used, 0], strict=True)
        ]
        return Packed(spans, moved[used], content)

    def _places(self, offsets: Longs) -> npt.NDArray[np.intp]:
        """The blocks that hold the bytes at these offsets (n,)."""
        return np.searchsorted(self._blocks[:, 1], offsets, side="right")

    def _read(self, number: int) -> str:
        start, end = (int(x) for x in self._spans[number])
        if start == end:
            return ""
        first, last = (int(x) for x in self._places(np.array([start, end - 1])))
        try:
            before, until = (int(self._blocks[i - 1, 1]) if i else 0 for i in (first, last))
            whole = [self.inflate(i) for i in range(first, last)]
            held = b"".join([*whole, self.inflate(last, end - until)])
            return held[start - before : end - before].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise InputError(f"texts.z: text {number} is not where idx.bin says ({error}); build it anew") from error

    def inflate(self, block: int, size: int | None = None) -> bytes:
        """The first `size` bytes that a block holds, or all. Raises InputError where it does not hold so many."""
        start, before = (int(x) for x in self._blocks[block - 1]) if block else (0, 0)
        end, after = (int(x) for x in self._blocks[block])
        wanted = after - before if size is None else size
        try:
            held = zlib.decompressobj().decompress(self._content[start:end], wanted or 1)
        except zlib.error as error:
            raise InputError(f"texts.z: the block at offset {start} is damaged ({error}); build it anew") from error
        if len(held) != wanted:
            raise InputError(
                f"texts.z: the block at offset {start} holds {len(held)} bytes, not {wanted}; build it anew"
            )
        return held

    def check(self) -> None:
        """Raises InputError unless every block can be read."""
        for block in range(len(self._blocks)):
            self.inflate(block)
