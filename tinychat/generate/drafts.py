"""Drafts: ids that have followed the last ones before, run in the same pass as the next token and checked by it.

A pass over a few rows costs little more than a pass over one, so where a reply repeats a text of the prompt or its
own, several tokens come out of one pass. Each row of logits goes through the sampler as it would alone, and the
first id that differs from the draft ends it: the reply is the same, to the id, whatever is proposed.
(Saxena, 2023, "Prompt Lookup Decoding"; Leviathan et al., 2022, https://arxiv.org/abs/2211.17192. Earlier occurrences
are found through hash chains, as in LZ77.)
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tinychat.engine.cache import KVCache
    from tinychat.engine.engine import Engine
    from tinychat.engine.sequence import Sequence as TokenSequence

Guess = Callable[[NDArray[np.float32], Sequence[int]], int]
"""Returns the id that a reply would choose by logits, float32 [vocab_size], after ids that may come before it."""

# Most ids of a draft.
LONGEST = 31
# How many earlier positions are looked at, the latest first, and how many ids of them are compared.
POSITIONS, COMPARED = 32, 32
# A draft has to bring so much more than a pass without one.
WORTHWHILE = 1.05
# What each row costs beside the first, as a share of it, where nothing has been measured.
DEFAULT_ROW = 0.15
# The least that a row costs beyond those measured, and how many of them say nothing about more.
LEAST_ROW, FEW_ROWS = 0.02, 2
# The weight of the latest pass in the measured cost, and the most times the typical cost that a pass counts as.
LATEST, HELD_UP = 0.2, 2.0
# How often a match of 1, 2, 3-4, 5-8, 9-16, 17 or more ids goes on, before any was tried; as how many tries that
# counts, and how many tries are averaged.
DEFAULT_CHANCES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
WEIGHT, MEMORY = 4.0, 64.0
# Of so many replies at once, none gets drafts for a while after steps in which they brought hardly any token more: to
# look for them takes as long as to choose a token. The next rest is twice as long if they still do, up to the longest.
MANY, LOOKED_AT, LEAST_SHARE = 8, 64, 0.03
RESTING, LONGEST_REST = 1024, 4096


class Occurrences:
    """Ids of a text, indexed by where its last ids occurred before."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        # The latest position after each pair of ids, and from each the one before after the same pair; 0 for none.
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier = array("q")
        self._followed = 0

    def extend(self, new: Sequence[int]) -> None:
        """Append ids."""
        ids = self.ids
        for token_id in new:
            position, pair = len(ids), tuple(ids[-2:])
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = position
            goes_on = self._followed and ids[self._followed] == token_id
            self._followed = self._followed + 1 if goes_on else 0
            ids.append(token_id)

    def find(self) -> tuple[int, int]:
        """Return the position after the longest earlier match of the last ids, the latest of several, and its length.

        The position found before goes on with the text; (0, 0) without a match.
        """
        best, longest = self._followed, self._matching(self._followed)
        position = self._latest.get(tuple(self.ids[-2:]), 0)
        for _ in range(POSITIONS):
            if position == 0 or longest == COMPARED:
                break
            matching = self._matching(position)
            if matching > longest:
                best, longest = position, matching
            position = self._earlier[position]
        self._followed = best
        return best, longest

    def after(self, position: int, count: int) -> list[int]:
        """Return `count` ids from a position on, repeated where they reach the end of the text."""
        found = self.ids[position : position + count]
        return (found * -(-count // len(found)))[:count]

    def _matching(self, position: int) -> int:
        """Return how many ids before a position match the end of the text."""
        ids, most = self.ids, min(position, COMPARED)
        return next((n for n in range(most) if ids[position - 1 - n] != ids[-1 - n]), most)


class DraftText:
    """The text before the next token of one reply, and the draft that may follow it."""

    def __init__(self) -> None:
        self._text = Occurrences()
        self.suggestion: list[int] = []
        self.matched: int = 0

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text before the next token; where it extends the last one, only the rest is indexed."""
        known = len(self._text.ids)
        if list(ids[:known]) != self._text.ids:
            self._text, known = Occurrences(), 0
        self._text.extend(ids[known:])

    def extend(self, ids: Sequence[int]) -> None:
        """Add the tokens that were chosen."""
        self._text.extend(ids)

    def suggest(self, most: int) -> None:
        """Set `suggestion` to up to `most` ids that may come next."""
        position, self.matched = self._text.find()
        most = min(most, LONGEST)
        self.suggestion = self._text.after(position, most) if position and most > 0 else []

    def kind(self, index: int) -> int:
        """Return the kind of a suggested id: see `Drafts`."""
        return min((max(self.matched + index, 1) - 1).bit_length(), len(DEFAULT_CHANCES) - 1)


class RowCosts:
    """Seconds of passes by their number of rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._passes: Counter[int] = Counter()

    def note(self, rows: int, seconds: float) -> None:
        """Count a pass; one that another program held up counts as at most `HELD_UP` typical ones."""
        typical = seconds
        if self._seconds:
            typical = self._seconds[rows] if rows in self._seconds else float(self.expected(rows, rows)[0])
        self._passes[rows] += 1
        weight = max(LATEST, 1.0 / (1 + self._passes[rows]))
        self._seconds[rows] = typical + weight * (min(seconds, HELD_UP * typical) - typical)

    def expected(self, first: int, last: int) -> NDArray[np.float64]:
        """Return the seconds of passes over `first` to `last` rows, float64 [last - first + 1], or none yet."""
        if not self._seconds:
            return np.zeros(0)
        numbers = sorted(self._seconds)
        seconds = [self._seconds[rows] for rows in numbers]
        one = self._seconds.get(1, seconds[0] / (1.0 + DEFAULT_ROW * (numbers[0] - 1)))
        # Beyond what was measured, a row costs as much as those before.
        row = DEFAULT_ROW * one
        if numbers[-1] > FEW_ROWS:
            row = min(max((seconds[-1] - one) / (numbers[-1] - 1), LEAST_ROW * one), row)
        wanted = np.arange(first, last + 1)
        return np.interp(wanted, numbers, seconds) + row * np.maximum(wanted - numbers[-1], 0)


class Drafts:
    """Chooses how much of the suggestions is worth a pass, by the costs and hits so far.

    chances : how often ids of each kind are right, before any was tried.
    """

    def __init__(self, chances: Sequence[float] = DEFAULT_CHANCES) -> None:
        self._costs = RowCosts()
        self._goes_on = np.array(chances) * WEIGHT
        self._tries = np.full(len(chances), WEIGHT)
        self.is_resting: bool = False
        # Steps since the last judgement, their replies and right ids; and the steps that are left of a rest.
        self._looks = self._looked_at = self._gained = self._rest = 0
        self._next_rest = RESTING

    def begin_step(self, texts: int) -> bool:
        """Begin a step of so many replies; return whether it goes without drafts, and their texts are not followed."""
        self._rest = max(0, self._rest - 1)
        self.is_resting = texts >= MANY and self._rest > 0
        return self.is_resting

    def new_text(self) -> DraftText:
        """Return the text of another reply."""
        return DraftText()

    def suggest(
        self,
        texts: Sequence[DraftText],
        limits: Sequence[int],
        guesses: Sequence[Callable[[], Guess]],
        rows: int,
        rest: Callable[[], None],
    ) -> None:
        """Set the suggestions of texts, up to a number of ids each, for a pass over `rows` rows without them.

        `guesses` return what draws ids as the replies will; `rest` lets the threads of their model sleep.
        """
        for text, most in zip(texts, limits):
            text.suggest(most)

    def share(self, texts: Sequence[DraftText], rows: int) -> list[int]:
        """Return how many ids of each suggestion give most tokens a second, beside `rows` rows without drafts."""
        counts = [0] * len(texts)
        self._judge(len(texts))
        offers = [(-chance, n, i) for i, text in enumerate(texts) for n, chance in enumerate(self.chances_of(text))]
        costs = self._costs.expected(rows, rows + len(offers)).tolist() if offers else []
        if not costs:
            return counts
        tokens = float(len(texts))
        best, best_rate = 0, WORTHWHILE * tokens / costs[0]
        offers.sort()
        for count, (chance, _, _) in enumerate(offers, 1):
            tokens -= chance
            if tokens > best_rate * costs[count]:
                best, best_rate = count, tokens / costs[count]
        for _, _, i in offers[:best]:
            counts[i] += 1
        return counts

    def _judge(self, replies: int) -> None:
        """Count a step; drafts rest if those before it brought hardly more tokens than there were replies."""
        self._looks, self._looked_at = self._looks + 1, self._looked_at + replies
        if self._looks == LOOKED_AT:
            if self._gained < LEAST_SHARE * self._looked_at:
                self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
            else:
                self._next_rest = RESTING
            self._looks = self._looked_at = self._gained = 0

    def beside(self, sequence: TokenSequence) -> Drafts:
        """Return the drafts for a model that goes on with another sequence, perhaps of another engine."""
        return self

    def follow(self, rows: Iterable[tuple[DraftText | None, int, int, KVCache]], engine: Engine) -> None:
        """Take what is wanted of the step that `engine` has run.

        rows : for each sequence, its text, the position of its first row, how many rows it had, and its cache.
        """

    def note_pass(self, rows: int, seconds: float) -> None:
        """Count a pass that only wrote replies."""
        self._costs.note(rows, seconds)

    def learn(self, text: DraftText, proposed: int, chosen: Sequence[int]) -> None:
        """Count where a suggestion was right; its first id is compared though it was not proposed."""
        for i, (suggested, token_id) in enumerate(zip(text.suggestion[: max(proposed, 1)], chosen)):
            self.count(text.kind(i), suggested == token_id)
        text.extend(chosen)
        self._gained += max(0, len(chosen) - 1)

    def count(self, kind: int, is_right: bool) -> None:
        """Count a suggested id."""
        fading = 1.0 - 1.0 / MEMORY
        self._tries[kind] = fading * self._tries[kind] + 1.0
        self._goes_on[kind] = fading * self._goes_on[kind] + is_right

    def chance(self, kind: int) -> float:
        """Return how often ids of a kind are right."""
        return float(self._goes_on[kind] / self._tries[kind])

    def chances_of(self, text: DraftText) -> list[float]:
        """Return the probability that each id of a suggestion is reached and right, never increasing."""
        found, chance = [], 1.0
        for n in range(len(text.suggestion)):
            chance *= self.chance(text.kind(n))
            found.append(chance)
        return found
