"""Ranking: how well documents answer a query, by a model that reads both as one text (see `models.ranker`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tinychat.errors import FieldError, SettingError
from tinychat.generate.embeddings import Steps, embed_ids
from tinychat.generate.prompt import check_prompt
from tinychat.models.ranker import Ranker
from tinychat.models.score_head import ScoreHead, read_head, relevance

if TYPE_CHECKING:
    from tinychat.generate.driver import Driver
    from tinychat.text.template import ChatTemplate
    from tinychat.text.tokenizer import Tokenizer

_ROLES = ("query", "document")


class PairIds(NamedTuple):
    """The token ids of a query and a document as one text; the document begins at the token `second`."""

    ids: list[int]
    second: int


class Ranking:
    """The way that a model ranks: `ranker` says how, `path` is the model folder."""

    def __init__(
        self, ranker: Ranker, driver: Driver, tokenizer: Tokenizer, template: ChatTemplate, path: Path
    ) -> None:
        self._ranker, self._driver, self._tokenizer, self._template = ranker, driver, tokenizer, template
        self._path = path

    def relevance(self, query: str, documents: Iterable[str], instruction: str | None) -> npt.NDArray[np.float32]:
        """Return how well each document answers a query: see `Model.rank`."""
        if isinstance(documents, str):
            raise FieldError("documents", "must be a list of texts, not one text")
        pairs = [self.pair_ids(query, document, instruction) for document in documents]
        return relevances([score for ended in self.score_ids(pairs) for score in ended])

    def pair_ids(self, query: str, document: str, instruction: str | None = None) -> PairIds:
        """Return the token ids of a query and a document.

        An encoder's tokenizer has tokens that stand between the two; the chat template of a decoder writes them, and
        what the query asks for, as messages of the roles "query", "document" and "system". SettingError for an
        instruction that the model does not take.
        """
        if self._ranker.reads_pairs:
            if instruction is not None:
                raise FieldError("instruction", f"does nothing: {self._path.name} takes none")
            if self._tokenizer.pair_ids is None:
                raise SettingError(f"{self._path.name} cannot rank: its tokenizer does not join two texts")
            before, between, after = self._tokenizer.pair_ids
            first = [*before, *self._tokenizer.encode(query, add_bos=False), *between]
            return PairIds([*first, *self._tokenizer.encode(document, add_bos=False), *after], len(first))
        if not all(role in self._template.source for role in _ROLES):
            raise SettingError(f"{self._path.name} cannot rank: its chat template has no roles {' and '.join(_ROLES)}")
        messages = [{"role": role, "content": text} for role, text in zip(_ROLES, (query, document))]
        asked = [] if instruction is None else [{"role": "system", "content": instruction}]
        ids = self._template.render_ids([*asked, *messages])
        return PairIds(ids, len(ids))

    def score_ids(self, pairs: Sequence[PairIds]) -> Steps:
        """Yield scores of pairs, step after step, each a logit, float32 [1]: see `embeddings.embed_ids`."""
        for pair in pairs:
            check_prompt(pair.ids, self._driver.engine, self._driver.context_size)
        return embed_ids(self._driver, [pair.ids for pair in pairs], self._head, [pair.second for pair in pairs])

    @cached_property
    def _head(self) -> ScoreHead:
        return read_head(self._path, self._ranker, self._driver.engine.config.hidden_size)


def relevances(scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return scores, as `Ranking.score_ids` yields them, as numbers from 0 to 1: float32 [scores]."""
    return relevance(np.asarray(scores, np.float32).reshape(-1))
