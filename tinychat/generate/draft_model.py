"""Drafts by a smaller model: the ids that it would write, where the text itself repeats nothing.

The smaller model follows the text of each reply with a sequence of its own. It draws with the random numbers that the
reply's sampler will use next, so that models which agree draw the same ids at any temperature. How far it goes is
chosen round by round, by the measured costs of both models and by how often ids of such a probability were right.
(Leviathan et al., 2022, https://arxiv.org/abs/2211.17192; Chen et al., 2023, https://arxiv.org/abs/2302.01318.)
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from tinychat.engine.context import DRAFTED_TEXTS
from tinychat.engine.ids import common_length
from tinychat.errors import CacheFullError
from tinychat.generate.drafts import DEFAULT_CHANCES, MEMORY, WEIGHT, WORTHWHILE, Drafts, DraftText, Guess, RowCosts

if TYPE_CHECKING:
    from tinychat.engine.scheduled_chunk import ScheduledChunk
    from tinychat.engine.sequence import Sequence as TokenSequence
    from tinychat.generate.sequence import Logits

# Probabilities, in the eyes of the smaller model, between the kinds of its ids; how often each kind is right, and all
# of them, before any was tried.
EDGES = (0.25, 0.5, 0.75, 0.9)
MODEL_CHANCES = (0.2, 0.4, 0.6, 0.75, 0.9)
DEFAULT_CHANCE = 0.6
# Most ids of a draft, and most replies that the model follows at once.
MOST, MOST_TEXTS = 16, DRAFTED_TEXTS
# Where more ids than this are missing, the model reads only so many of the last.
WINDOW = 512
# Rows that a sequence may have left for the step that begins a draft.
JOINED = 8
# Steps that are timed before the first draft, after one that is not.
WARM_UP = 3
# The share of the time that may go into drafts which do not pay, to see whether they would again; most seconds saved.
TRIALS, MOST_SAVED = 0.01, 0.5


class FollowedText(DraftText):
    """The text of one reply, of which a smaller model writes drafts; `sequence` is what it runs."""

    def __init__(self, sequence: TokenSequence) -> None:
        super().__init__()
        self.sequence = sequence
        self._kinds: list[int] = []
        self._is_known = True

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text before the next token."""
        super().begin(ids)
        self._is_known = self._knows(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Add the tokens that were chosen."""
        super().extend(ids)
        self._is_known = self._is_known and self._knows(ids)

    def leave(self) -> None:
        """Follow this reply no further."""
        self._is_known = False

    def suggest(self, most: int) -> None:
        """Set `suggestion` to what the text repeats."""
        super().suggest(most)
        self._kinds = []

    def kind(self, index: int) -> int:
        """Return the kind of a suggested id: see `Drafts`."""
        return self._kinds[index] if self._kinds else super().kind(index)

    @property
    def can_follow(self) -> bool:
        """Whether the smaller model has all ids: of equal vocabularies, one may be padded or have more marks."""
        return self._is_known and len(self._text.ids) > 0

    @property
    def drafted(self) -> list[int]:
        """The ids of the smaller model."""
        return self.suggestion if self._kinds else []

    @property
    def missing(self) -> int:
        """Number of ids of the text that run before the next one is drafted."""
        return 1

    def missing_ids(self) -> list[int]:
        """Return these ids."""
        return (self.drafted or self._text.ids)[-1:]

    def chunk(self, ids: Sequence[int]) -> ScheduledChunk:
        """Return ids for a step that extends the sequence."""
        return self.sequence.chunk(ids, len(self.sequence.ids) + len(ids))

    def align(self) -> None:
        """Bring the sequence in order before a draft."""

    def propose(self, token_id: int, kind: int) -> None:
        """Add an id of the smaller model to the suggestion; the first one replaces what the text repeats."""
        if not self._kinds:
            self.suggestion = []
        self.suggestion.append(token_id)
        self._kinds.append(kind)

    def _knows(self, ids: Sequence[int]) -> bool:
        return max(ids, default=0) < self.sequence.vocab_size


class ModelText(FollowedText):
    """The text of one reply, and the smaller model's sequence, which holds its first id and those from `_first` on."""

    def __init__(self, sequence: TokenSequence) -> None:
        super().__init__(sequence)
        self._first = 1
        self._is_new = True

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text before the next token; the sequence is aligned with it when it is needed."""
        super().begin(ids)
        self._is_new = True

    def extend(self, ids: Sequence[int]) -> None:
        """Add the tokens that were chosen; ids of the draft that differ leave the sequence."""
        length = self._length
        super().extend(ids)
        if not self._is_new and len(self.sequence.ids) > length:
            # The last one runs again, for its logits.
            self.sequence.cut(min(length + common_length(self.sequence.ids[length:], ids), self._length - 1))

    def leave(self) -> None:
        """Free the memory of the sequence, and follow this reply no further."""
        super().leave()
        self.sequence.release()
        self._is_new = True

    @property
    def missing(self) -> int:
        """Number of ids that the sequence lacks, the last one always; none while it is ahead with a draft."""
        return self._length - len(self.sequence.ids)

    def missing_ids(self) -> list[int]:
        """Return the ids that the sequence lacks; in a draft, the last id of that."""
        ids = self._text.ids
        if self.missing <= 0:
            return self.drafted[-1:]
        return [*ids[:1], *ids[len(ids) - self.missing + 1 :]] if not self.sequence.ids else ids[-self.missing :]

    def align(self) -> None:
        """Bring the sequence to a prefix of the text, or of its end where too much is missing or does not fit."""
        sequence, ids = self.sequence, self._text.ids
        if self._is_new:
            self._is_new = False
            sequence.reuse([*ids[:1], *ids[self._first :]])
        window = min(WINDOW, sequence.context_size // 2)
        if self.missing > window or self._length + MOST > sequence.context_size:
            sequence.rewind(0)
            self._first = max(1, len(ids) - window)

    @property
    def _length(self) -> int:
        return min(len(self._text.ids), 1) + max(0, len(self._text.ids) - self._first)


@dataclass
class _Draft:
    """A draft that is being written: the most ids of it, and the probability that it is right so far."""

    text: FollowedText
    most: int
    guess: Guess
    chance: float = 1.0


class ModelDrafts(Drafts):
    """Proposes what the text repeats, or what a smaller model of the same vocabulary would write.

    sequence : of the smaller model, which gives each reply another one; vocab_size : of the larger model.
    """

    def __init__(self, sequence: TokenSequence, vocab_size: int) -> None:
        super().__init__((*DEFAULT_CHANCES, *MODEL_CHANCES))
        self._sequence = sequence
        self._vocab_size = vocab_size
        self._steps = RowCosts()
        self._right, self._tried = DEFAULT_CHANCE * WEIGHT, WEIGHT
        # Seconds of this pass that went into its drafts, and those that trials may take.
        self._spent = self._allowance = 0.0
        self._warm_up()

    def _warm_up(self) -> None:
        """Run some steps: the first one reads the weights into memory, and its time says nothing of the others."""
        text = self._warm_text()
        for step in range(WARM_UP + 1):
            self._run([text], [[0]])
            if step == 0:
                self._steps = RowCosts()
        text.sequence.evict()
        self._sequence.engine.rest()

    def _warm_text(self) -> FollowedText:
        """Return a text for steps whose ids nobody reads."""
        return self.new_text()

    def begin_step(self, texts: int) -> bool:
        """Return False, as drafts never rest: the model would have to read all texts again."""
        return False

    def new_text(self) -> FollowedText:
        """Return the text of another reply."""
        return ModelText(self._sequence.another())

    def suggest(
        self,
        texts: Sequence[DraftText],
        limits: Sequence[int],
        guesses: Sequence[Callable[[], Guess]],
        rows: int,
        rest: Callable[[], None],
    ) -> None:
        """Set the suggestions: see `Drafts.suggest`."""
        super().suggest(texts, limits, guesses, rows, rest)
        self._spent, started = 0.0, perf_counter()
        drafts = []
        for text, most, guess in zip(texts, limits, guesses):
            if not isinstance(text, FollowedText) or most < 1 or not text.can_follow:
                continue
            if next(iter(self.chances_of(text)), 0.0) < self._mean:
                drafts.append(_Draft(text, min(most, MOST), guess()))
        if drafts:
            try:
                self._write(drafts[:MOST_TEXTS], len(texts), rows, rest)
            except CacheFullError:
                for draft in drafts:
                    draft.text.leave()
            self._spent = perf_counter() - started

    def note_pass(self, rows: int, seconds: float) -> None:
        """Count a pass that only wrote replies, with its drafts."""
        super().note_pass(rows, seconds - self._spent)
        self._allowance = min(self._allowance + TRIALS * seconds, MOST_SAVED)

    def count(self, kind: int, is_right: bool) -> None:
        """Count a suggested id."""
        super().count(kind, is_right)
        if kind >= len(DEFAULT_CHANCES):
            fading = 1.0 - 1.0 / MEMORY
            self._right, self._tried = fading * self._right + is_right, fading * self._tried + 1.0

    @property
    def _mean(self) -> float:
        """How often ids of the smaller model are right."""
        return self._right / self._tried

    def _write(self, drafts: list[_Draft], tokens: float, rows: int, rest: Callable[[], None]) -> None:
        """Let the smaller model write drafts, round by round, as long as another one pays."""
        costs = self._costs.expected(rows, rows + MOST * len(drafts)).tolist()
        if not costs:
            return
        checked, spent, least = 0, 0.0, WORTHWHILE
        while drafts:
            step = float(next(iter(self._steps.expected(len(drafts), len(drafts))), 0.0))
            each = (costs[checked + len(drafts)] - costs[checked] + step) / len(drafts)
            rate = least * tokens / (costs[checked] + spent)
            paying = [draft for draft in drafts if draft.chance * self._mean > rate * each]
            if not paying and not (checked == 0 and self._takes_trial(drafts, each)):
                break
            drafts = paying or drafts
            if checked == 0:
                rest()
                self._read([draft.text for draft in drafts])
            self._continue(drafts)
            checked, spent, least = checked + len(drafts), spent + step, 1.0
            tokens += sum(draft.chance for draft in drafts)
            drafts = [draft for draft in drafts if len(draft.text.suggestion) < draft.most and draft.chance > 0.0]
            if not paying:
                break
        if checked:
            self._sequence.engine.rest()

    def _takes_trial(self, drafts: list[_Draft], each: float) -> bool:
        """Return whether there is time for a round that does not pay, and take it."""
        missing = sum(min(draft.text.missing, WINDOW) for draft in drafts)
        cost = len(drafts) * each + float(next(iter(self._steps.expected(missing, missing)), 0.0))
        if cost > self._allowance:
            return False
        self._allowance -= cost
        return True

    def _read(self, texts: Sequence[FollowedText]) -> None:
        """Run what the sequences lack, but the last ids."""
        for text in texts:
            text.align()
            while text.missing > JOINED:
                count = min(text.missing - 1, text.sequence.chunk_size)
                self._run([text], [text.missing_ids()[:count]])

    def _continue(self, drafts: Sequence[_Draft]) -> None:
        """Add an id to each draft."""
        texts = [draft.text for draft in drafts]
        begins = texts[0].missing > 0
        for draft, logits in zip(drafts, self._run(texts, [text.missing_ids() for text in texts])):
            text = draft.text
            if begins:
                # A state can be taken back to here only.
                text.sequence.insert_snapshot()
            row = logits[-1, : self._vocab_size]
            token_id = draft.guess(row, text.drafted)
            kind = len(DEFAULT_CHANCES) + bisect(EDGES, _probability(row, token_id))
            text.propose(token_id, kind)
            draft.chance *= self.chance(kind)

    def _run(self, texts: Sequence[FollowedText], ids: Sequence[Sequence[int]]) -> list[Logits]:
        """Run ids of the sequences in one step; return the logits after the last of each."""
        started = perf_counter()
        logits = self._sequence.engine.run([text.chunk(some) for text, some in zip(texts, ids)])
        self._steps.note(sum(map(len, ids)), perf_counter() - started)
        return logits


def _probability(logits: Logits, token_id: int) -> float:
    """Return the probability of an id."""
    return float(np.exp(logits[token_id] - (top := logits.max())) / np.exp(logits - top).sum())
