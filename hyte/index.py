"""HybridIndex: documents in, ranked documents out. The same engine serves evaluation and devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from hyte import ranking, store
from hyte.analyzers import get_analyzer
from hyte.bm25 import BM25
from hyte.chunks import Chunks, Field, Rows, cut
from hyte.documents import Document, Documents
from hyte.encoder import Encoder, find_encoder
from hyte.errors import InputError
from hyte.hits import Hit, folded
from hyte.settings import Candidates, Settings

# Documents are chunked, analysed and encoded this many at a time.
BLOCK = 256

# Fewer removed chunks than this stay where they are until the index is saved.
FEW = 1024

Progress = Callable[[int], object]
Added = Literal["added", "updated", "unchanged"]


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
        self.made_by = encoder.record if encoder else None
        self._added: dict[str, Document] = {}  # by path; not yet chunked and encoded
        self._removed: set[int] = set()  # numbers of documents not yet taken out
        self._opened: tuple[str, int] | None = None  # the folder of load or save, and its generation
        self._changed = self._pack_anew = False
        self._bm25 = BM25(self.settings.k1, self.settings.b, self.settings.k3)
        self._chunks = Chunks.of(Rows.empty(encoder.dim + 1 if encoder else 0))
        self._documents = Documents.empty()

    def __len__(self) -> int:
        """Number of documents, those without any word included."""
        return len(self._documents.numbers) - len(self._removed) + len(self._added)

    def __contains__(self, path: str) -> bool:
        """Whether there is a document of that path."""
        number = self._documents.numbers.get(path)
        return path in self._added or (number is not None and number not in self._removed)

    @property
    def paths(self) -> list[str]:
        """Paths of the documents in index order."""
        self.flush()
        return self._documents.paths

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        self.flush()
        return len(self._chunks) - self._bm25.n_dead

    @property
    def n_empty(self) -> int:
        """Number of documents without any word, which nothing can find."""
        self.flush()
        return len(self._documents.numbers) - len(np.unique(self._chunks.document[self._alive()]))

    @property
    def generation(self) -> int | None:
        """Number of the generation that was opened or saved last; None before."""
        return self._opened[1] if self._opened else None

    @property
    def changed(self) -> bool:
        """Whether there is something to save since `load` or the last `save`."""
        return bool(self._added or self._removed or self._changed)

    def add(self, path: str, text: str, title: str = "") -> Added:
        """Add a document, in place of the one of that path if there is one.

        Returns "updated" where there was one, and "unchanged", doing nothing, where it had this very text and title.
        The work is done at the next search, save or `flush`, for all added documents together.
        Raises TypeError where something is not a string.
        """
        for what, value in (("path", path), ("text", text), ("title", title)):
            if not isinstance(value, str):
                raise TypeError(f"document {path!r}: the {what} is {type(value).__name__}, not a string")
        new = Document.of(title, text)
        if self._digest_of(path) == new.digest:
            return "unchanged"
        replaced = self._forget(path)
        self._added[path] = new
        return "updated" if replaced else "added"

    def _digest_of(self, path: str) -> bytes | None:
        """What tells whether the document of a path changed; None where there is none."""
        if path in self._added:
            return self._added[path].digest
        return self._documents.digest(self._documents.numbers[path]) if path in self else None

    def remove(self, path: str) -> None:
        """Remove a document. Raises InputError where there is none of that path."""
        if not self._forget(path):
            raise InputError(f"{path}: not in the index, which holds {len(self)} documents")

    def _forget(self, path: str) -> bool:
        known = path in self
        if path not in self._added and known:
            self._removed.add(self._documents.numbers[path])
        self._added.pop(path, None)
        return known

    def flush(self, progress: Progress | None = None) -> None:
        """Do the work that `add` and `remove` left; `progress` is called with each number of documents done."""
        if self._added:
            self._put_in(progress)
        if self._removed:
            self._take_out()
        if self._bm25.n_dead > max(FEW, len(self._chunks) // 2):
            self._settle()

    def _put_in(self, progress: Progress | None) -> None:
        if self.encoder is None and self.made_by is not None:
            raise InputError(f"adding needs the artifact {self.made_by['path']}: open the index with it")
        new = list(self._added.values())
        fields = [Field.of(each.title, each.text, self.settings.titled) for each in new]
        parts: list[Rows] = []
        self._bm25.add(self._tokens_of(fields, parts, progress))
        for part in parts:
            self._chunks.append(part)
        self._documents.append(list(self._added), [field.text for field in fields], [each.digest for each in new])
        self._added, self._changed = {}, True

    def _take_out(self) -> None:
        gone = np.isin(self._chunks.document.whole(), list(self._removed)) & ~self._bm25.dead.whole()
        self._bm25.remove(np.flatnonzero(gone))
        self._documents.remove(self._removed)
        self._removed, self._changed = set(), True

    def _settle(self) -> None:
        """Drop what was removed: documents and chunks move up, and the postings become one part."""
        rows, keep, alive = self._chunks.whole(), ~self._bm25.dead.whole(), self._documents.alive()
        if len({len(rows.document), len(keep)}) > 1 or len(self._documents.texts) != len(alive):
            raise InputError("an interrupt left a document half added: open the index again")
        if not alive.all():
            rows = Rows(*(np.asarray(column[:])[keep] for column in rows))
            rows = rows._replace(document=(np.cumsum(alive, dtype=np.int32) - 1)[rows.document])
            self._documents = self._documents.kept()
        self._bm25.settle()
        self._chunks = Chunks.of(rows)

    def _tokens_of(self, fields: list[Field], parts: list[Rows], progress: Progress | None) -> Iterator[list[str]]:
        """Yield the tokens of each new chunk in order, appending the chunks themselves to `parts`."""
        for first in range(0, len(fields), BLOCK):
            block = fields[first : first + BLOCK]
            part, texts = cut(self._documents.size + first, block, self.settings, self.encoder)
            parts.append(part)
            yield from map(self._analyze, texts)
            if progress:
                progress(len(block))

    def _alive(self) -> ranking.Numbers:
        """Numbers of the chunks that were not removed."""
        return np.flatnonzero(~self._bm25.dead.whole()) if self._bm25.n_dead else np.arange(len(self._chunks))

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
            mode: one of `ranking.MODES`.
            fusion: one of `hyte.fusion.FUSIONS`; None is the index's.
            exclude: a path that is left out before anything is ranked.

        Raises InputError where an argument is out of range, or where mode needs points and the index has none.
        """
        used = self.settings.override(alpha=alpha, candidates=candidates, fusion=fusion)
        ranking.check_search(query, k, mode)
        if mode != "bm25" and self.encoder is None:
            raise InputError(f"mode {mode} needs an artifact, and this index was built without one: use mode bm25")
        self.flush()
        if k == 0 or not query.split():
            return []
        return folded(self._rank(query, mode, used, exclude), k, self._chunks, self._documents)

    def _rank(self, query: str, mode: str, used: Settings, exclude: str | None) -> ranking.Ranking:
        allowed = self._alive()
        if exclude in self._documents.numbers:
            allowed = allowed[self._chunks.document[allowed] != self._documents.numbers[exclude]]
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
        assert self.encoder is not None  # search saw to it
        points, known = self.encoder.encode_with_flags([query], query=True)
        return points[0] if known[0] else None

    def compact(self) -> None:
        """Have the next `save` pack all texts anew, so that the disk gets back what removed ones held."""
        self._pack_anew = True

    def save(self, folder: str | Path) -> int:
        """Commit `idx.bin`, `texts.z` and `paths.txt` to a folder, which is made if missing; returns the generation.

        A process that dies meanwhile leaves the old generation or the new one. An index that was opened from this
        folder, or saved to it, goes on from its generation; any other takes the place of what is there.

        Raises InputError where another process is writing, or has committed since, and OSError where it cannot be
        written; then the old generation stays.
        """
        self.flush()
        self._settle()
        contents = store.Contents(
            self.settings, self.made_by, self._documents.paths, self._documents.digests(), self._documents.texts,
            self._chunks.whole(), self._bm25,
        )  # fmt: skip
        place = os.path.realpath(folder)
        opened = self._opened[1] if self._opened and self._opened[0] == place else None
        generation = store.save(folder, contents, opened, self._pack_anew)
        self._opened, self._pack_anew, self._changed = (place, generation), False, False
        return generation

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
        contents, generation = store.load(folder)
        wanted = contents.made_by if need_encoder or contents.settings.analyzer == "wordpiece" else None
        index = cls(find_encoder(wanted, encoder, folder) if wanted else None, contents.settings, tokenizer)
        index.made_by = contents.made_by
        index._bm25, index._chunks = contents.bm25, Chunks.of(contents.chunks)
        index._documents = Documents(contents.paths, contents.texts, contents.digests)
        index._opened = (os.path.realpath(folder), generation)
        return index

    def check(self) -> None:
        """Read everything that `load` leaves for later. Raises InputError where something of it is damaged."""
        self._chunks.points.parts()
        self._documents.texts.check()
