"""Documents to chunks: what is cut, and the chunks as columns with one row each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyte.chunking import chunk_spans
from hyte.encoder import Encoder
from hyte.growing import Base, Growing
from hyte.settings import Settings


class Rows(NamedTuple):
    """Chunks as arrays with one row each.

    Attributes:
        document: (N,) number of its document.
        number: (N,) number within its document.
        span: (N, 2) characters in the document's text.
        known: (N,) False where no token is known and the point means nothing.
        points: (N, d+1) float32, time first.
    """

    document: npt.NDArray[np.int32]
    number: npt.NDArray[np.int32]
    span: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]
    points: Base

    @classmethod
    def empty(cls, width: int) -> Rows:
        """No chunks, of points with `width` coordinates (0 without an encoder)."""
        none, points = np.zeros(0, np.int32), np.zeros((0, width), np.float32)
        return cls(none, none, np.zeros((0, 2), np.int64), np.zeros(0, bool), points)


@dataclass
class Chunks:
    """The columns of `Rows`, which grow."""

    document: Growing
    number: Growing
    span: Growing
    known: Growing
    points: Growing

    @classmethod
    def of(cls, rows: Rows) -> Chunks:
        """Those of `rows`, to which more can be appended."""
        return cls(*(Growing(column) for column in rows))

    def __len__(self) -> int:
        return len(self.document)

    def append(self, rows: Rows) -> None:
        """Put chunks at the end."""
        for field, values in zip(fields(self), rows, strict=True):
            getattr(self, field.name).append(values)

    def whole(self) -> Rows:
        """All chunks as arrays."""
        return Rows(*(getattr(self, field.name).whole() for field in fields(self)))


class Field(NamedTuple):
    """What is indexed of a document: `text` is cut into chunks, and `prefix` stands before each of them."""

    prefix: str
    text: str

    @classmethod
    def of(cls, title: str, text: str, titled: bool) -> Field:
        """Title and text as one field, or with `titled` the title before every chunk of the text."""
        if titled and title.split() and text.split():
            return cls(title + " ", text)
        return cls("", f"{title} {text}".strip() if title else text)


def cut(first: int, documents: list[Field], settings: Settings, encoder: Encoder | None) -> tuple[Rows, list[str]]:
    """The chunks of documents numbered from `first`, and the text of each chunk (N,). Without encoder d+1 is 0."""
    spans = [chunk_spans(each.text, settings.window, settings.overlap, settings.tail) for each in documents]
    texts = [
        each.prefix + each.text[start:end] for each, found in zip(documents, spans, strict=True) for start, end in found
    ]
    if encoder is None:
        points, known = np.zeros((len(texts), 0), np.float32), np.zeros(len(texts), bool)
    else:
        points, known = encoder.encode_with_flags(texts)
    counts = [len(found) for found in spans]
    rows = Rows(
        document=np.repeat(np.arange(first, first + len(spans), dtype=np.int32), counts),
        number=np.concatenate([np.arange(n, dtype=np.int32) for n in counts]),
        span=np.array([span for found in spans for span in found], np.int64).reshape(-1, 2),
        known=known,
        points=points,
    )
    return rows, texts
