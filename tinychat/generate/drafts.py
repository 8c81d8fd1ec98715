"""Drafts: ids that have followed the last ones before, run in the same pass as the next token and checked by it.

A pass over a few rows costs little more than a pass over one, so where a text repeats what stands in the prompt or in
the reply, several tokens come out of one pass. Each row of logits goes through the sampler as it would alone, and the
first id that differs from the draft ends it: the reply is the same, to the id, whatever is proposed.
(Saxena, 2023, "Prompt Lookup Decoding"; Leviathan et al., 2022, https://arxiv.org/abs/2211.17192. Earlier occurrences
are found through hash chains, as in LZ77.)
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Most ids of a draft.
LONGEST = 31
# How many earlier places are looked at, the latest first, and how many ids of them are compared.
PLACES, COMPARED = 32, 32
# A draft has to bring so much more than a pass without one.
WORTHWHILE = 1.05
# What each row costs beside the first, as a share of it, where nothing has been measured.
USUAL_ROW = 0.15
# The weight of the latest pass in the measured cost, and how many times the usual a pass counts that was held up.
LATEST, HELD_UP = 0.2, 2.0
# How often a run of 1, 2, 3-4, 5-8, 9-16, 17 or more ids that agree goes on, before any was tried; as how many tries
# that counts, and how many tries are remembered.
USUAL_CHANCES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
WEIGHT, MEMORY = 4.0, 64.0


class Occurrences:
    """A text of ids, and where the ids that end it have stood before."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        # The latest place after each pair of ids, and from each place the one before after the same pair; 0 for none.
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier = array("q")
        self._followed = 0

    def extend(self, new: Sequence[int]) -> None:
        """Add ids."""
        ids = self.ids
        for token_id in new:
            place, pair = len(ids), tuple(ids[-2:])
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = place
            goes_on = self._followed and ids[self._followed] == token_id
            self._followed = self._followed + 1 if goes_on else 0
            ids.append(token_id)

    def find(self) -> tuple[int, int]:
        """Return a place after ids that agree with the last ones, and how many do; (0, 0) if there is none.

        That where most agree, and the latest of several; the place that was found before goes on with the text.
        """
        best, longest = self._followed, self._matching(self._followed)
        place = self._latest.get(tuple(self.ids[-2:]), 0)
        for _ in range(PLACES):
            if place == 0 or longest == COMPARED:
                break
            matching = self._matching(place)
            if matching > longest:
                best, longest = place, matching
            place = self._earlier[place]
        self._followed = best
        return best, longest

    def after(self, place: int, count: int) -> list[int]:
        """Return `count` ids from a place on; what ends with the text begins again, as a text that repeats itself."""
        found = self.ids[place : place + count]
        return (found * -(-count // len(found)))[:count]

    def _matching(self, place: int) -> int:
        """Return how many ids before a place are those that end the text, as far as they are compared."""
        ids, most = self.ids, min(place, COMPARED)
        return next((n for n in range(most) if ids[place - 1 - n] != ids[-1 - n]), most)


class RowCosts:
    """What a pass over some rows takes, from the passes so far.

    Attributes
    ----------
    costs : float64 [LONGEST + 1]
        What passes over 1, 2, ... rows take, in passes over one; between numbers that were measured, on a line. Empty
        before there was a pass.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._passes: Counter[int] = Counter()
        self.costs = np.zeros(0)

    def note(self, rows: int, seconds: float) -> None:
        """Count a pass. One that was held up, as by another program, counts as some usual ones."""
        one = self._seconds.get(1, seconds)
        usual = self._seconds.get(rows, one * self.costs[rows - 1] if len(self.costs) else seconds)
        self._passes[rows] += 1
        weight = max(LATEST, 1.0 / (1 + self._passes[rows]))
        self._seconds[rows] = usual + weight * (min(seconds, HELD_UP * usual) - usual)
        if 1 in self._seconds:
            self.costs = self._line() / self._seconds[1]

    def _line(self) -> NDArray[np.float64]:
        numbers = sorted(self._seconds)
        seconds = [self._seconds[rows] for rows in numbers]
        last = LONGEST + 1
        if numbers[-1] < last:
            seconds.append(seconds[-1] + USUAL_ROW * self._seconds[1] * (last - numbers[-1]))
            numbers.append(last)
        return np.interp(np.arange(1, last + 1), numbers, seconds)


class Drafts:
    """Proposes what may come next, as far as it pays; what it has learnt stays from reply to reply."""

    def __init__(self) -> None:
        self._text = Occurrences()
        self._costs = RowCosts()
        self._goes_on = np.array(USUAL_CHANCES) * WEIGHT
        self._tries = np.full(len(USUAL_CHANCES), WEIGHT)
        self._suggestion: list[int] = []
        self._matched = self._count = 0

    def begin(self, ids: Sequence[int]) -> None:
        """Take the text that comes before the next token; one that goes on where the last ended costs only the rest."""
        known = len(self._text.ids)
        if list(ids[:known]) != self._text.ids:
            self._text, known = Occurrences(), 0
        self._text.extend(ids[known:])

    def propose(self, most: int) -> list[int]:
        """Return up to `most` ids that may come next; none where that would not pay."""
        place, self._matched = self._text.find()
        most = min(most, LONGEST)
        self._suggestion = self._text.after(place, most) if place and most > 0 else []
        self._count = self._worthwhile(len(self._suggestion))
        return self._suggestion[: self._count]

    def note(self, chosen: Sequence[int], seconds: float) -> None:
        """Take in what the pass with the ids proposed has brought, and how long it took."""
        self._costs.note(self._count + 1, seconds)
        self._learn(chosen)
        self._text.extend(chosen)

    def _worthwhile(self, most: int) -> int:
        """Return how many ids bring most tokens a second, from what passes cost and how often runs go on."""
        costs = self._costs.costs
        if not len(costs):
            return 0
        chances = [self._goes_on[kind] / self._tries[kind] for kind in range(len(USUAL_CHANCES))]
        best, best_rate, tokens, chance = 0, WORTHWHILE, 1.0, 1.0
        for count in range(1, most + 1):
            chance *= chances[_kind(self._matched + count - 1)]
            tokens += chance
            if tokens > best_rate * costs[count]:
                best, best_rate = count, tokens / costs[count]
        return best

    def _learn(self, chosen: Sequence[int]) -> None:
        """Note where the suggestion went on; its first id is compared though it was not proposed."""
        for i, (suggested, token_id) in enumerate(zip(self._suggestion[: max(self._count, 1)], chosen)):
            kind = _kind(self._matched + i)
            fading = 1.0 - 1.0 / MEMORY
            self._tries[kind] = fading * self._tries[kind] + 1.0
            self._goes_on[kind] = fading * self._goes_on[kind] + (suggested == token_id)


def _kind(matched: int) -> int:
    """Return the place in `USUAL_CHANCES` of so many ids that agree."""
    return min((max(matched, 1) - 1).bit_length(), len(USUAL_CHANCES) - 1)
