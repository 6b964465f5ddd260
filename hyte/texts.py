"""The documents' texts as `texts.z` holds them: blocks of 64 KiB of UTF-8, each compressed with zlib on its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError

BLOCK = 1 << 16


def pack(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bytes]:
    """(end of each text in bytes, end of each compressed block, the compressed blocks)."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = b"".join(encoded)
    packed = [zlib.compress(joined[i : i + BLOCK]) for i in range(0, len(joined), BLOCK)]
    ends, blocks = ([len(part) for part in parts] for parts in (encoded, packed))
    return np.cumsum(ends, dtype=np.int64), np.cumsum(blocks, dtype=np.int64), b"".join(packed)


class Texts(Sequence[str]):
    """The documents' texts in `texts.z`; reading one inflates only the blocks that hold it."""

    def __init__(self, packed: bytes, blocks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self._packed, self._blocks, self._ends = packed, blocks, ends

    def __len__(self) -> int:
        return len(self._ends)

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
        start, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
        first, last = start // BLOCK, -(-end // BLOCK)
        try:
            held = b"".join(self._inflate(i) for i in range(first, last))
            return held[start - first * BLOCK : end - first * BLOCK].decode("utf-8", "surrogatepass")
        except (zlib.error, UnicodeDecodeError, IndexError) as error:
            raise InputError(f"texts.z: text {number} is not where idx.bin says ({error}); build it anew") from error

    def _inflate(self, block: int) -> bytes:
        start = int(self._blocks[block - 1]) if block else 0
        return zlib.decompressobj().decompress(self._packed[start : int(self._blocks[block])], BLOCK)
