"""Embeddings: for each text a vector of length 1, pooled from the final hidden states of its tokens.

Texts share steps of the engine, and a long one takes several, unless tokens attend to later ones. A row's numbers do
not depend on its neighbours, and what is pooled is added token after token in float64: a text has the same vector in
any company, in steps of any size. Replies are written between the steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tinychat.engine.context import CHUNK_SIZE
from tinychat.engine.hidden_states import States, row_sums
from tinychat.errors import CacheFullError, FieldError, ModelFolderError
from tinychat.generate.driver import PROMPT_BUDGET, Driver
from tinychat.generate.prompt import check_prompt
from tinychat.generate.sequence import Ids
from tinychat.models.dense import DenseLayer, layer_of, read_dense
from tinychat.models.embedder import POOLINGS, Embedder

if TYPE_CHECKING:
    from tinychat.engine.scheduled_chunk import ScheduledChunk
    from tinychat.engine.sequence import Sequence as EngineSequence
    from tinychat.models.score_head import ScoreHead
    from tinychat.text.tokenizer import Tokenizer

Vector = npt.NDArray[np.float32]
Steps = Generator[list[Vector], None, None]
"""Runs a step of the engine for each item: the vectors of the texts that end in it."""
# Texts of one step: each takes a block of the cache, however short it is.
_MOST_TEXTS = 32
# Vectors of this length or less are not brought to length 1, as in torch.nn.functional.normalize.
_SHORTEST = 1e-12
# For those that wait for the driver: a thread that never sleeps would take its lock again at once.
_PAUSE_SECONDS = 0.001


def shortest_floats(vector: Vector) -> list[float]:
    """Return the numbers of a vector for JSON, with no more digits than tell them from other float32 numbers."""
    return [float(text) for text in vector.astype(str)]


class VectorForm(NamedTuple):
    """The form of vectors: which hidden states are pooled, as `POOLINGS` names it, and what follows.

    `dense` are linear layers of what is pooled; of their outputs the first `dimensions` numbers count, or all.
    """

    pooling: str
    dense: tuple[DenseLayer, ...] = ()
    dimensions: int | None = None

    def finish(self, total: States, tokens: int) -> Vector:
        """Return the vector of length 1 of what was pooled from so many tokens, float32."""
        if self.dense:
            # Without biases, the number of tokens would change the length only.
            found = (total / tokens if self.pooling == "mean" else total).astype(np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                for layer in self.dense:
                    found = layer.apply(found)
            total = found.astype(np.float64)
        if not np.isfinite(total).all():
            raise ModelFolderError("the model's hidden states are not finite: convert it again from a sound checkpoint")
        return _normalized(total[: self.dimensions])


class Embedding:
    """The way that a model makes vectors: `embedder` says how, `path` is the model folder."""

    def __init__(self, embedder: Embedder, driver: Driver, tokenizer: Tokenizer, path: Path) -> None:
        self._embedder, self._driver, self._tokenizer, self._path = embedder, driver, tokenizer, path

    @property
    def size(self) -> int:
        """How many numbers the vector of a text has."""
        dense = self._embedder.dense
        return dense[-1].rows if dense else self._driver.engine.config.vector_size

    def vectors(
        self, texts: Iterable[str | Ids], pooling: str | None, prompt: str | None, dimensions: int | None
    ) -> npt.NDArray[np.float32]:
        """Return the vectors of texts: see `Model.embed`."""
        if isinstance(texts, str):
            raise FieldError("texts", "must be a list of texts or token ids, not one text")
        found = [self.text_ids(text, prompt) if isinstance(text, str) else list(text) for text in texts]
        vectors = [vector for ended in self.steps(found, pooling, dimensions) for vector in ended]
        return np.asarray(vectors, np.float32).reshape(len(found), dimensions or self.size)

    def text_ids(self, text: str, prompt: str | None = None) -> list[int]:
        """Return the token ids of a text, behind a prompt of this name, else the default one."""
        return [*self._tokenizer.encode(self._embedder.prompted(text, prompt)), *self._tokenizer.suffix_ids]

    def steps(self, texts: Sequence[Ids], pooling: str | None = None, dimensions: int | None = None) -> Steps:
        """Yield vectors of token ids, step after step: see `embed_ids`; errors are those of `Model.embed`."""
        if pooling is not None and pooling not in POOLINGS:
            raise FieldError("pooling", f"must be one of {', '.join(POOLINGS)}, not {pooling!r:.60}")
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= self.size):
            raise FieldError("dimensions", f"must be 1 to {self.size}, not {dimensions!r:.60}")
        for ids in texts:
            check_prompt(ids, self._driver.engine, self._driver.context_size)
        return embed_ids(self._driver, texts, VectorForm(pooling or self._embedder.pooling, self._dense, dimensions))

    @cached_property
    def _dense(self) -> tuple[DenseLayer, ...]:
        matrix = self._driver.engine.projection
        own = () if matrix is None else (layer_of(matrix),)
        return *own, *read_dense(self._path, self._embedder)


def embed_ids(
    driver: Driver, texts: Sequence[Ids], form: VectorForm | ScoreHead, seconds: Sequence[int] | None = None
) -> Steps:
    """Yield, step after step, what the form gives of the texts that end in it: vectors of length 1, or scores.

    The vectors come in the order of the texts; some steps have none.

    Parameters
    ----------
    driver : Driver
    texts : sequence of sequence of int
        Token ids, checked by `check_prompt`.
    form : VectorForm or ScoreHead
        Which hidden states are pooled, and the numbers that become of them.
    seconds : sequence of int, optional
        Of each text, the first of the tokens that are of the second kind: a document's behind a query's.

    Raises
    ------
    CacheFullError
        If other replies have the memory that a text needs.
    ModelFolderError
        If a hidden state is not finite.
    """
    return _Steps(driver, texts, form, seconds).run()


class _TextRange(NamedTuple):
    """Ids of a text that run in one step."""

    number: int  # of the text
    start: int
    stop: int


class _Steps:
    """The steps that run some texts, each from its first token to its last; few are begun at a time."""

    def __init__(
        self, driver: Driver, texts: Sequence[Ids], form: VectorForm | ScoreHead, seconds: Sequence[int] | None
    ) -> None:
        self._driver, self._texts, self._form, self._seconds = driver, texts, form, seconds
        self._number = self._start = 0  # the first id that has not run
        self._begun: dict[int, tuple[EngineSequence, States]] = {}

    def run(self) -> Steps:
        """Run all steps; free what texts that have begun hold."""
        try:
            while self._number < len(self._texts):
                yield self._run_next()
        finally:
            with self._driver.exclusive():
                for number in [*self._begun]:
                    self._end(number)

    def _run_next(self) -> list[Vector]:
        """Run a step; return the vectors of the texts that end in it."""
        with self._driver.exclusive():
            is_shared = len(self._driver) > 0
            room = min(self._driver.engine.chunk_size, CHUNK_SIZE)
            parts = self._parts(min(room, PROMPT_BUDGET) if is_shared else room)
            vectors = [vector for part, rows in self._run(parts) for vector in self._take(part, rows)]
        if is_shared:
            sleep(_PAUSE_SECONDS)
        return vectors

    def _parts(self, room: int) -> list[_TextRange]:
        """Return the ids that run next: up to `room`, or a whole text where tokens attend to later ones."""
        parts: list[_TextRange] = []
        is_whole = self._driver.engine.config.bidirectional
        number, start = self._number, self._start
        while room and number < len(self._texts) and len(parts) < _MOST_TEXTS:
            count = len(self._texts[number]) - start
            if is_whole and parts and count > room:
                break
            stop = start + (count if is_whole else min(count, room))
            parts.append(_TextRange(number, start, stop))
            room = max(0, room - (stop - start))
            number, start = number + 1, 0
        return parts

    def _run(self, parts: list[_TextRange]) -> Iterable[tuple[_TextRange, States]]:
        """Run parts, or the first one alone where memory is short; return them with their hidden states."""
        while True:
            try:
                return zip(parts, self._driver.engine.hidden_states([self._chunk(part) for part in parts]), strict=True)
            except CacheFullError:
                if self._driver.release_idle():
                    continue
                if len(parts) == 1:
                    raise
                for part in parts[1:]:
                    self._end(part.number)
                parts = parts[:1]

    def _chunk(self, part: _TextRange) -> ScheduledChunk:
        """Return a part for the engine; a sequence begins empty: what is cached has no hidden states."""
        if part.number not in self._begun:
            size = self._driver.engine.config.hidden_size
            self._begun[part.number] = self._driver.recent.another(), np.zeros(size, np.float64)
        ids, (sequence, _) = self._texts[part.number], self._begun[part.number]
        second = self._seconds[part.number] if self._seconds else None
        return sequence.chunk(ids[part.start : part.stop], len(ids), 0, second)

    def _take(self, part: _TextRange, rows: States) -> Iterator[Vector]:
        """Pool the hidden states of a part; yield the vector of a text that ends with it."""
        ids, (_, total) = self._texts[part.number], self._begun[part.number]
        _pool(self._form.pooling, total, rows, part.start)
        self._number, self._start = part.number, part.stop
        if part.stop == len(ids):
            yield self._form.finish(total, len(ids))
            self._end(part.number)
            self._number, self._start = part.number + 1, 0

    def _end(self, number: int) -> None:
        """Free the memory of a text: no later prompt is likely to begin like it."""
        self._begun.pop(number)[0].evict()


def _pool(pooling: str, total: States, rows: States, start: int) -> None:
    """Pool the hidden states of a text from its token `start` on, behind those that `total` has of it."""
    if pooling == "mean":
        for row in rows:
            total += row
    elif pooling == "last":
        total[:] = rows[-1]
    elif start == 0:
        total[:] = rows[0]


def _normalized(total: States) -> Vector:
    """Return the vector of length 1 in a direction, float32 [D]."""
    length = np.sqrt(row_sums((total * total)[None])[0, 0])
    vector: Vector = (total / max(length, _SHORTEST)).astype(np.float32)
    return vector
