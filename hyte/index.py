"""HybridIndex: documents in, ranked documents out. The same engine serves evaluation and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hyte import ranking, store
from hyte.analyzers import get_analyzer
from hyte.bm25 import BM25
from hyte.chunks import Chunks, Field, cut
from hyte.encoder import Encoder, find_encoder
from hyte.errors import InputError
from hyte.settings import Candidates, Settings

MODES = ("hybrid", "bm25", "lorentz")

# Documents are chunked, analysed and encoded this many at a time.
BLOCK = 256

Progress = Callable[[int], object]


class Hit(NamedTuple):
    """A document at its best chunk.

    Attributes:
        path: the document.
        chunk: number of the chunk in it, from 0.
        span: characters (start, end) of the chunk in what was indexed: the text, or title + space + text where there is
            a title that does not stand before every chunk.
        text: the chunk's text.
        score: what the ranking went by, falling down the list: fused, in [0, 1]; the BM25 score in mode "bm25" and for
            a query without known tokens; the inner product in mode "lorentz", None for a chunk without known tokens.
        bm25: BM25 score, at least 0, or None in mode "lorentz".
        lorentz: inner product with the query's point (with feedback the moved one), at most -K, or None where the chunk
            has no such score.
    """

    path: str
    chunk: int
    span: tuple[int, int]
    text: str
    score: float | None
    bm25: float | None
    lorentz: float | None


class HybridIndex:
    """BM25 and Lorentz search over the chunks of documents.

    Args:
        encoder: makes the points; None gives an index for mode "bm25" only.
        settings: how documents are cut and scored.
        tokenizer: for analyzer "wordpiece" where there is no encoder.

    Not for several threads at once, except for searches after a `flush`.
    """

    def __init__(
        self, encoder: Encoder | None, settings: Settings | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.encoder = encoder
        self.settings = settings or Settings()
        self._analyze = get_analyzer(self.settings.analyzer, encoder.tokenizer if encoder else tokenizer)
        self._bm25 = BM25(self.settings.k1, self.settings.b, self.settings.k3)
        self._chunks = Chunks.empty(encoder.dim + 1 if encoder else 0)
        self._paths: list[str] = []
        self._texts: Sequence[str] = []
        self._number: dict[str, int] = {}
        self.made_by = encoder.record if encoder else None
        self._added: dict[str, tuple[str, str]] = {}  # path: (title, text), not yet chunked and encoded
        self._removed: set[int] = set()  # numbers of documents not yet taken out

    def __len__(self) -> int:
        """Number of documents, those without any word included."""
        return len(self._paths) - len(self._removed) + len(self._added)

    def __contains__(self, path: str) -> bool:
        """Whether there is a document of that path."""
        number = self._number.get(path)
        return path in self._added or (number is not None and number not in self._removed)

    @property
    def paths(self) -> list[str]:
        """Paths of the documents in index order."""
        self.flush()
        return list(self._paths)

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        self.flush()
        return len(self._chunks)

    @property
    def n_empty(self) -> int:
        """Number of documents without any word, which nothing can find."""
        self.flush()
        return len(self._paths) - len(np.unique(self._chunks.document))

    def add(self, path: str, text: str, title: str = "") -> bool:
        """Add a document, in place of the one of that path if there is one; returns whether there was.

        The work is done at the next search, save or `flush`, for all added documents together.
        Raises TypeError where something is not a string.
        """
        for what, value in (("path", path), ("text", text), ("title", title)):
            if not isinstance(value, str):
                raise TypeError(f"document {path!r}: the {what} is {type(value).__name__}, not a string")
        replaced = self._forget(path)
        self._added[path] = (title, text)
        return replaced

    def remove(self, path: str) -> None:
        """Remove a document. Raises InputError where there is none of that path."""
        if not self._forget(path):
            raise InputError(f"{path}: not in the index, which holds {len(self)} documents")

    def _forget(self, path: str) -> bool:
        known = path in self
        if path not in self._added and known:
            self._removed.add(self._number[path])
        self._added.pop(path, None)
        return known

    def flush(self, progress: Progress | None = None) -> None:
        """Do the work that `add` and `remove` left; `progress` is called with each number of documents done."""
        if self._removed:
            self._take_out(np.array(sorted(self._removed)))
            self._removed = set()
        if self._added:
            self._put_in([Field.of(*document, self.settings.titled) for document in self._added.values()], progress)
            self._set_paths([*self._paths, *self._added])
            self._added = {}

    def _take_out(self, documents: ranking.Numbers) -> None:
        stays = np.ones(len(self._paths), bool)
        stays[documents] = False
        keep = stays[self._chunks.document]
        self._bm25.remove(np.flatnonzero(~keep))
        self._chunks = self._chunks.kept(keep)
        self._chunks.document = (np.cumsum(stays, dtype=np.int32) - 1)[self._chunks.document]
        self._texts = [self._texts[int(i)] for i in np.flatnonzero(stays)]
        self._set_paths([path for path, keeps in zip(self._paths, stays, strict=True) if keeps])

    def _put_in(self, fields: list[Field], progress: Progress | None) -> None:
        if self.encoder is None and self.made_by is not None:
            raise InputError(f"adding needs the artifact {self.made_by['path']}: open the index with it")
        parts = [self._chunks]
        self._bm25.add(self._tokens_of(fields, parts, progress))
        self._chunks = Chunks.joined(parts)
        self._texts = [*self._texts, *(field.text for field in fields)]

    def _tokens_of(self, fields: list[Field], parts: list[Chunks], progress: Progress | None) -> Iterator[list[str]]:
        """Yield the tokens of each new chunk in order, appending the chunks themselves to `parts`."""
        for first in range(0, len(fields), BLOCK):
            block = fields[first : first + BLOCK]
            part, texts = cut(len(self._paths) + first, block, self.settings, self.encoder)
            parts.append(part)
            yield from map(self._analyze, texts)
            if progress:
                progress(len(block))

    def _set_paths(self, paths: list[str]) -> None:
        self._paths = paths
        self._number = {path: i for i, path in enumerate(paths)}

    def tokens(self, text: str) -> list[str]:
        """The tokens that BM25 sees of a text."""
        return self._analyze(text)

    def search(
        self,
        query: str,
        k: int = 10,
        alpha: float | None = None,
        candidates: Candidates | None = None,
        mode: str = "hybrid",
        fusion: str | None = None,
        exclude: str | None = None,
    ) -> list[Hit]:
        """The best `k` documents, or fewer where there are fewer, each at its best chunk, best first.

        Args:
            query: a text; one without words finds nothing, one without known tokens is ranked by BM25 alone.
            k: documents wanted, at least 0.
            alpha: weight of BM25 in [0, 1]: 1 is BM25 alone, 0 is Lorentz alone; None is the index's.
            candidates: M, the chunks that BM25 hands to fusion, or "all"; None is the index's. `ranking.by_both` says
                what follows the first M.
            mode: one of `MODES`.
            fusion: one of `hyte.fusion.FUSIONS`; None is the index's.
            exclude: a path that is left out before anything is ranked.

        Raises InputError where an argument is out of range, or where mode needs points and the index has none.
        """
        used = self.settings.override(alpha=alpha, candidates=candidates, fusion=fusion)
        self._check_search(query, k, mode)
        self.flush()
        if k == 0 or not query.split():
            return []
        return self._documents(self._rank(query, mode, used, exclude), k)

    def _check_search(self, query: str, k: int, mode: str) -> None:
        if not isinstance(query, str):
            raise TypeError(f"the query is {type(query).__name__}, not a string")
        if k < 0:
            raise InputError(f"k must be at least 0, not {k}")
        if mode not in MODES:
            raise InputError(f"mode {mode!r} is unknown: use one of {', '.join(MODES)}")
        if mode != "bm25" and self.encoder is None:
            raise InputError(f"mode {mode} needs an artifact, and this index was built without one: use mode bm25")

    def _rank(self, query: str, mode: str, used: Settings, exclude: str | None) -> ranking.Ranking:
        allowed = np.arange(len(self._chunks))
        if exclude in self._number:
            allowed = allowed[self._chunks.document != self._number[exclude]]
        point = None if mode == "bm25" else self._query_point(query)
        if mode == "lorentz" and point is not None:
            return ranking.with_points(point, self._chunks, partial(ranking.by_lorentz, allowed), used)
        scores = self._bm25.scores(self._analyze(query))
        if point is None:
            return ranking.by_bm25(allowed, scores)
        if used.alpha == 1.0:  # then points order nothing
            used = used.override(feedback=0.0)
        rank = partial(ranking.by_both, allowed, scores, settings=used)
        return ranking.with_points(point, self._chunks, rank, used)

    def _query_point(self, query: str) -> npt.NDArray[np.float32] | None:
        """The query's point (d+1,), or None if the query has no known token."""
        assert self.encoder is not None  # _check_search saw to it
        points, known = self.encoder.encode_with_flags([query], query=True)
        return points[0] if known[0] else None

    def _documents(self, ranked: ranking.Ranking, k: int) -> list[Hit]:
        """Fold chunks into documents, each at its best chunk, until k are full."""
        first = ranking.best_of_each(self._chunks.document[ranked.chunks])
        return [self._hit(ranked, i) for i in first[:k]]

    def _hit(self, ranked: ranking.Ranking, i: int) -> Hit:
        chunk = ranked.chunks[i]
        document = int(self._chunks.document[chunk])
        start, end = (int(x) for x in self._chunks.span[chunk])
        score, bm25, inner = float(ranked.score[i]), float(ranked.bm25[i]), float(ranked.inner[i])
        return Hit(
            path=self._paths[document],
            chunk=int(self._chunks.number[chunk]),
            span=(start, end),
            text=self._texts[document][start:end],
            score=score if np.isfinite(score) else None,
            bm25=None if np.isnan(bm25) else bm25,
            lorentz=inner if np.isfinite(inner) else None,
        )

    def save(self, folder: str | Path) -> None:
        """Write `idx.bin`, `texts.z` and `paths.txt` into a folder, which is made if missing."""
        self.flush()
        store.save(
            folder, store.Contents(self.settings, self.made_by, self._paths, self._texts, self._chunks, self._bm25)
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        encoder: Encoder | str | Path | None = None,
        tokenizer: Tokenizer | None = None,
        need_encoder: bool = True,
    ) -> HybridIndex:
        """Open a saved index.

        Args:
            folder: where it was saved.
            encoder: the encoder that it was built with, or its artifact folder; without one the recorded folder is
                loaded, or else the shipped weights are tried.
            tokenizer: for analyzer "wordpiece" where there is no encoder.
            need_encoder: False opens it without one, for mode "bm25", removals and facts.

        Raises InputError where a file is missing or damaged, or where no artifact has the recorded fingerprint.
        """
        contents = store.load(folder)
        wanted = contents.made_by if need_encoder or contents.settings.analyzer == "wordpiece" else None
        index = cls(find_encoder(wanted, encoder, folder) if wanted else None, contents.settings, tokenizer)
        index.made_by = contents.made_by
        index._chunks, index._bm25, index._texts = contents.chunks, contents.bm25, contents.texts
        index._set_paths(contents.paths)
        return index
