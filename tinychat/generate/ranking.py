"""Ranking: how well documents answer a query, by a model that reads both as one text (see `models.ranker`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tinychat.errors import FieldError
from tinychat.generate.embeddings import Steps, embed_ids
from tinychat.generate.prompt import check_prompt
from tinychat.models.ranker import Ranker
from tinychat.models.score_head import ScoreHead, read_head, relevance
from tinychat.text.pairs import PairWriter

if TYPE_CHECKING:
    from tinychat.generate.driver import Driver
    from tinychat.text.template import ChatTemplate
    from tinychat.text.tokenizer import Tokenizer

Scores = npt.NDArray[np.float32]


class PairIds(NamedTuple):
    """The token ids of a query and a document as one text; those from `second` on are of the second kind."""

    ids: list[int]
    second: int


class Ranking:
    """The way that a model ranks: `ranker` says how, `path` is the model folder."""

    def __init__(
        self, ranker: Ranker, driver: Driver, tokenizer: Tokenizer, template: ChatTemplate, path: Path
    ) -> None:
        self._ranker, self._driver, self._path = ranker, driver, path
        self._writer = PairWriter(tokenizer, None if ranker.reads_pairs else template, path.name)

    def relevance(self, query: str, documents: Iterable[str], instruction: str | None) -> Scores:
        """Return how well each document answers a query: see `Model.rank`."""
        if isinstance(documents, str):
            raise FieldError("documents", "must be a list of texts, not one text")
        pairs = self.pairs(query, [*documents], instruction)
        return ranked([score for ended in self.score_ids(pairs) for score in ended]).relevance

    def pairs(
        self, query: str, documents: Sequence[str], instruction: str | None = None, cuts: bool = False
    ) -> list[PairIds]:
        """Return the token ids of a query with each document; errors are those of `Model.rank`.

        The query is short: one that alone is longer than the context is refused at once. With `cuts` a document that
        does not fit loses its end.
        """
        if not isinstance(query, str) or not all(isinstance(document, str) for document in documents):
            raise FieldError("query" if not isinstance(query, str) else "documents", "must be text")
        check_prompt(self._writer.query_ids(query), self._driver.engine, self._driver.context_size)
        most = self._driver.context_size if cuts else None
        return [PairIds(*pair) for pair in self._writer.pairs(query, documents, instruction, most)]

    def score_ids(self, pairs: Sequence[PairIds]) -> Steps:
        """Yield scores of pairs, step after step, each a logit, float32 [1]: see `embeddings.embed_ids`."""
        for pair in pairs:
            check_prompt(pair.ids, self._driver.engine, self._driver.context_size)
        return embed_ids(self._driver, [pair.ids for pair in pairs], self._head, [pair.second for pair in pairs])

    @cached_property
    def _head(self) -> ScoreHead:
        return read_head(self._path, self._ranker, self._driver.engine.config.hidden_size)


class Ranked(NamedTuple):
    """Documents by their scores: `order` has their numbers, the best first; `relevance` is from 0 to 1.

    The order is that of the logits, `scores`: many have a relevance of 1.
    """

    order: list[int]
    scores: Scores
    relevance: Scores


def ranked(found: Sequence[Scores]) -> Ranked:
    """Return documents in order by what `Ranking.score_ids` yields of them."""
    scores = np.asarray(found, np.float32).reshape(-1)
    return Ranked(np.argsort(-scores, kind="stable").tolist(), scores, relevance(scores))
