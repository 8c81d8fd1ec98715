"""Drafts by the head that a model was trained with: see `tinychat.models.draft_head`.

The head reads each id with the hidden state that the model had before it, so it follows the steps of the model. Where
it writes more than one id, it reads its own hidden states; these positions run again once the model's are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.ids import common_length
from tinychat.generate.draft_model import MOST, WINDOW, FollowedText, ModelDrafts, ModelText
from tinychat.generate.drafts import Drafts, DraftText

if TYPE_CHECKING:
    from tinychat.engine.cache import KVCache
    from tinychat.engine.engine import Engine
    from tinychat.engine.scheduled_chunk import ScheduledChunk
    from tinychat.engine.sequence import Sequence as TokenSequence
    from tinychat.generate.sequence import Logits

States = NDArray[np.float32]
# A head that reads a larger share of what a pass of the model reads gains nothing: of a small model with a large
# vocabulary, the output matrix, which both read, is most of it.
MOST_COST = 0.25


class StateWindow:
    """The last hidden states of a text: those of positions `start` to `stop` - 1, the last `count` at least."""

    def __init__(self, size: int, count: int = WINDOW) -> None:
        self.count = count
        self._rows = np.zeros((2 * count, size), np.float32)
        self.start = self.stop = 0

    def write(self, position: int, rows: States) -> None:
        """Write the states of a position and those after it; later ones are of a text that was not."""
        if not self.start <= position <= self.stop:
            self.start = position
        count = self.count
        if len(rows) > count:
            position, rows = position + len(rows) - count, rows[-count:]
            self.start = position
        end = position - self.start
        if end + len(rows) > len(self._rows):
            self._rows[:count] = self._rows[end - count : end]
            self.start, end = position - count, count
        self._rows[end : end + len(rows)] = rows
        self.stop = position + len(rows)

    def read(self, position: int, count: int) -> States:
        """Return the states of positions that are there."""
        return self._rows[position - self.start :][:count]


class StatesText(FollowedText):
    """The text of one reply, and the hidden states before its last ids, which what writes drafts reads."""

    def __init__(self, sequence: TokenSequence, size: int, count: int) -> None:
        super().__init__(sequence)
        self.states = StateWindow(size, count)
        self.last_state: States = np.zeros(size, np.float32)

    def follow(self, position: int, states: States, cache: KVCache) -> None:
        """Take the hidden states of a position and those after it, which the model has run."""
        self.states.write(position, states)

    @property
    def can_follow(self) -> bool:
        """Whether the states before the last id are there."""
        return super().can_follow and self.states.start < len(self._text.ids) - 1 <= self.states.stop

    def note_run(self, last_state: States) -> None:
        """Note that ids have run, with the state that was made behind the last."""
        self.last_state = last_state


class HeadText(StatesText, ModelText):
    """The text of one reply, and the head's sequence, which holds its ids from `_first` on.

    Of these, `_certain` have run with the model's own states.
    """

    def __init__(self, sequence: TokenSequence, states: int = 1, window: int = WINDOW) -> None:
        super().__init__(sequence, states * sequence.engine.config.hidden_size, window)
        self._certain = 0

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text before the next token; what the sequence has of another one leaves it."""
        super().begin(ids)
        self._is_new = False
        self._cut(common_length(self.sequence.ids, ids[self._first :]))

    def extend(self, ids: Sequence[int]) -> None:
        """Add the tokens that were chosen; ids with states of the head leave the sequence."""
        DraftText.extend(self, ids)
        self._cut(self._certain)

    def _cut(self, length: int) -> None:
        self._certain = min(self._certain, length, max(self._length - 1, 0))
        self.sequence.cut(self._certain)

    def missing_ids(self) -> list[int]:
        """Return the ids that the sequence lacks; in a draft, the last id of that."""
        return self._text.ids[-self.missing :] if self.missing > 0 else self.drafted[-1:]

    def align(self) -> None:
        """Bring the sequence to a prefix of the text from some id on, of whose missing ids all states are there."""
        sequence, count = self.sequence, len(self._text.ids)
        window = min(WINDOW, sequence.context_size // 2)
        is_there = self._first + len(sequence.ids) > self.states.start
        if not is_there or self.missing > window or self._length + MOST > sequence.context_size:
            self._certain = 0
            sequence.rewind(0)
            self._first = max(self.states.start + 1, count - window)

    def chunk(self, ids: Sequence[int]) -> ScheduledChunk:
        """Return ids for a step, with the states before them: the model's, or at the end the head's own."""
        states = self.last_state[None]
        if self.missing > 0:
            states = self.states.read(self._first + len(self.sequence.ids) - 1, len(ids))
        return super().chunk(ids)._replace(hidden=states)

    def note_run(self, last_state: States) -> None:
        """Note that ids have run, with the head's state behind the last."""
        super().note_run(last_state)
        if self.missing >= 0:
            self._certain = len(self.sequence.ids)

    @property
    def _length(self) -> int:
        return max(0, len(self._text.ids) - self._first)


class HeadDrafts(ModelDrafts):
    """Proposes what the text repeats, or what the model's own head would write."""

    def new_text(self) -> StatesText:
        """Return the text of another reply."""
        return HeadText(self._sequence.another())

    def follow(self, rows: Iterable[tuple[DraftText | None, int, int, KVCache]], engine: Engine) -> None:
        """Take the hidden states of a step: see `Drafts.follow`."""
        stop = 0
        for text, position, count, cache in rows:
            stop += count
            if isinstance(text, StatesText):
                wanted = min(count, text.states.count)
                text.follow(position + count - wanted, self._states(engine, stop - wanted, stop), cache)

    def _states(self, engine: Engine, first: int, stop: int) -> States:
        """Return the hidden states that drafts read, of rows of the last step of the larger model."""
        return engine.last_states(first, stop)

    def _run(self, texts: Sequence[FollowedText], ids: Sequence[Sequence[int]]) -> list[Logits]:
        """Run ids of the sequences in one step; return the logits after the last of each."""
        logits, stop = super()._run(texts, ids), 0
        for text, some in zip(texts, ids):
            assert isinstance(text, StatesText)
            stop += len(some)
            text.note_run(self._sequence.engine.last_states(stop - 1, stop)[0])
        return logits


def own_drafts(sequence: TokenSequence, progress: Callable[[int, int], None] | None = None) -> Drafts:
    """Return the drafts of a model by itself: by its head, if it has one that can pay, compiled if that is missing."""
    engine, head = sequence.engine, sequence.engine.draft_head
    if head is None or _bytes_of_token(head) > MOST_COST * _bytes_of_token(engine):
        return Drafts()
    from tinychat.engine.sequence import new_sequence

    head.compile(progress)
    return HeadDrafts(new_sequence(head, sequence.context_size), sequence.vocab_size)


def _bytes_of_token(engine: Engine) -> int:
    return sum(cost.bytes for cost in engine.costs(1, 0))
