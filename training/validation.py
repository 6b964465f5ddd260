"""Validation while training: NDCG@10 of mode lorentz on collections, through the engine that a device runs.

The figures are those that `python -m eval.run retrieval.mode=lorentz` gives for the export of the same weights. Only
the points are made anew for each validation; the corpus is cut into chunks and tokenised once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.collections import Collection, load
from eval.metrics import evaluate
from hyte import Encoder, HybridIndex, InputError, Settings
from hyte.chunks import Chunks
from hyte.nn.encoder import HyteEncoder
from hyte.nn.projection import Projection
from hyte.tokenizer import Ids, fingerprint, token_ids
from hyte.weights import Weights

log = logging.getLogger(__name__)

METRIC = "ndcg@10"
DEPTH = 10  # documents a query that the metric looks at
# Chunks of 300 words that share 60, and what answers queries without a known token: the defaults of `eval.run`.
SETTINGS = Settings(analyzer="whitespace", fusion="paper")


class KeptTokens(Encoder):
    """The runtime's encoder, which looks up the tokens of a text that it or an earlier one has seen.

    Args:
        weights: the baked token rows.
        tokenizer: the tokenizer that they belong to.
        seen: token ids by text, shared between the encoders of one run.
    """

    def __init__(self, weights: Weights, tokenizer: Tokenizer, seen: dict[str, Ids]) -> None:
        super().__init__(weights, tokenizer)
        self._seen = seen

    def encode_with_flags(
        self, texts: Sequence[str], query: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """As `Encoder.encode_with_flags`; queries have the P of documents."""
        del query
        new = [text for text in texts if text not in self._seen]
        self._seen.update(zip(new, token_ids(self.tokenizer, new), strict=True))
        bags = [self._seen[text] for text in texts]
        points = np.array([self.pool(ids) for ids in bags], np.float32).reshape(len(texts), self.dim + 1)
        return points, np.array([len(ids) > 0 for ids in bags], dtype=bool)


class DevIndex(HybridIndex):
    """An index whose chunks can be encoded anew."""

    def encode_with(self, encoder: Encoder) -> None:
        """Give every chunk the point that `encoder` has for it."""
        self.flush()
        rows = self._chunks.whole()
        places = zip(rows.document, rows.span, strict=True)
        texts = [self._documents.texts[int(document)][start:end] for document, (start, end) in places]
        self.encoder = encoder
        points, known = encoder.encode_with_flags(texts)
        self._chunks = Chunks.of(rows._replace(points=points, known=known))


class Validator:
    """Scores weights on collections.

    Args:
        collections: folders, zips or names, as `eval.collections.load` takes them.
        split: which judgements.
        queries: at most this many queries of each collection, the first ones; None is all.
        model: the encoder that is trained; its token table, pooling and K count, not its weights.
        tokenizer: the table's.
        drop_same_id: BEIR's rule, a document with the query's id is taken out.

    Raises InputError for a collection that cannot be read, and where two have one name.
    """

    def __init__(
        self,
        collections: Sequence[str],
        split: str,
        queries: int | None,
        model: HyteEncoder,
        tokenizer: Tokenizer,
        drop_same_id: bool = True,
    ) -> None:
        self._drop_same_id = drop_same_id
        self._model, self._tokenizer, self._sha256 = model, tokenizer, fingerprint(tokenizer)
        self._seen: dict[str, Ids] = {}
        encoder = self._encoder({"w1": model.projection.w1, "w2": model.projection.w2})
        self._sets: dict[str, tuple[Collection, DevIndex]] = {}
        for place in collections:
            data = _shortened(load(place, split), queries)
            if data.name in self._sets:
                raise InputError(f"validation.collections: two are called {data.name}; rename one of them")
            self._sets[data.name] = (data, _indexed(data, encoder))
            log.info("validation on %s: %d documents, %d queries", data.name, len(data.corpus), len(data.qrels))

    def scores(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """NDCG@10, in [0, 1], of these W1 and W2: `val/NAME` for each collection and `val/mean`, their mean."""
        encoder = self._encoder(state)
        found = {f"val/{name}": _score(*each, encoder, self._drop_same_id) for name, each in self._sets.items()}
        return found | {"val/mean": float(np.mean(list(found.values())))}

    @torch.no_grad()
    def _encoder(self, state: Mapping[str, Tensor]) -> Encoder:
        rows = Projection(state["w1"], state["w2"])(self._model.table).cpu().numpy().astype(np.float32)
        digest = hashlib.sha256(rows.tobytes()).hexdigest()
        model = self._model
        weights = Weights(rows, model.k, model.pooling, model.power, self._sha256, digest)
        return KeptTokens(weights, self._tokenizer, self._seen)


def _shortened(data: Collection, queries: int | None) -> Collection:
    """The first so many queries that have a positive judgement, the others count in no metric."""
    judged = (query for query, grades in data.qrels.items() if any(grade > 0 for grade in grades.values()))
    kept = list(islice(judged, queries))
    if not kept:
        raise InputError(f"{data.name}: no query of split {data.split} has a positive judgement")
    texts = {query: data.queries[query] for query in kept if query in data.queries}
    return replace(data, queries=texts, qrels={query: data.qrels[query] for query in kept})


def _indexed(data: Collection, encoder: Encoder) -> DevIndex:
    index = DevIndex(encoder, SETTINGS)
    for document, (title, text) in data.corpus.items():
        index.add(document, text, title)
    index.flush()
    return index


def _score(data: Collection, index: DevIndex, encoder: Encoder, drop_same_id: bool) -> float:
    index.encode_with(encoder)
    rankings = {
        query: [hit.path for hit in index.search(text, DEPTH, mode="lorentz", exclude=query if drop_same_id else None)]
        for query, text in data.queries.items()
    }
    return evaluate(data.qrels, rankings).mean[METRIC]
