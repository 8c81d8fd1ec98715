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
DEFAULT_ROW = 0.15
# The weight of the latest pass in the measured cost, and how many times the usual a pass counts that was held up.
LATEST, HELD_UP = 0.2, 2.0
# How often a run of 1, 2, 3-4, 5-8, 9-16, 17 or more ids that agree goes on, before any was tried; as how many tries
# that counts, and how many tries are remembered.
DEFAULT_CHANCES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
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


class DraftText:
    """The text before the next token of one reply, with the places where its end stood before."""

    def __init__(self) -> None:
        self._text = Occurrences()
        self.suggestion: list[int] = []
        self.matched: int = 0

    def begin(self, ids: Sequence[int]) -> None:
        """Take the text that comes before the next token; one that goes on where the last ended costs only the rest."""
        known = len(self._text.ids)
        if list(ids[:known]) != self._text.ids:
            self._text, known = Occurrences(), 0
        self._text.extend(ids[known:])

    def extend(self, ids: Sequence[int]) -> None:
        """Add the tokens that were chosen."""
        self._text.extend(ids)

    def suggest(self, most: int) -> None:
        """Look for up to `most` ids that may come next: they are the `suggestion`."""
        place, self.matched = self._text.find()
        most = min(most, LONGEST)
        self.suggestion = self._text.after(place, most) if place and most > 0 else []


class RowCosts:
    """The seconds of passes over some rows, from the passes so far."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._passes: Counter[int] = Counter()

    def note(self, rows: int, seconds: float) -> None:
        """Count a pass. One that was held up, as by another program, counts as some usual ones."""
        usual = seconds
        if self._seconds:
            usual = self._seconds[rows] if rows in self._seconds else float(self.expected(rows, rows)[0])
        self._passes[rows] += 1
        weight = max(LATEST, 1.0 / (1 + self._passes[rows]))
        self._seconds[rows] = usual + weight * (min(seconds, HELD_UP * usual) - usual)

    def expected(self, first: int, last: int) -> NDArray[np.float64]:
        """Return the seconds of passes over `first` to `last` rows, float64 [last - first + 1]; empty before any pass.

        Between numbers that were measured they lie on a line.
        """
        if not self._seconds:
            return np.zeros(0)
        numbers = sorted(self._seconds)
        seconds = [self._seconds[rows] for rows in numbers]
        one = self._seconds.get(1, seconds[0] / (1.0 + DEFAULT_ROW * (numbers[0] - 1)))
        wanted = np.arange(first, last + 1)
        return np.interp(wanted, numbers, seconds) + DEFAULT_ROW * one * np.maximum(wanted - numbers[-1], 0)


class Drafts:
    """Chooses how much of what replies suggest is worth a pass; what it has learnt stays from reply to reply."""

    def __init__(self) -> None:
        self._costs = RowCosts()
        self._goes_on = np.array(DEFAULT_CHANCES) * WEIGHT
        self._tries = np.full(len(DEFAULT_CHANCES), WEIGHT)

    def new_text(self) -> DraftText:
        """Return the text of another reply."""
        return DraftText()

    def share(self, texts: Sequence[DraftText], rows: int) -> list[int]:
        """Return how many ids of each suggestion bring most tokens a second, all replies together.

        Parameters
        ----------
        texts : sequence of DraftText
            Of replies that one pass writes, each of them a token without drafts.
        rows : int
            Rows of the pass without drafts.
        """
        counts = [0] * len(texts)
        offers = [(-chance, n, i) for i, text in enumerate(texts) for n, chance in enumerate(self._chances_of(text))]
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

    def note_pass(self, rows: int, seconds: float) -> None:
        """Count a pass that only wrote replies."""
        self._costs.note(rows, seconds)

    def learn(self, text: DraftText, proposed: int, chosen: Sequence[int]) -> None:
        """Note where a suggestion went on; its first id is compared though it was not proposed."""
        for i, (suggested, token_id) in enumerate(zip(text.suggestion[: max(proposed, 1)], chosen)):
            kind = _kind(text.matched + i)
            fading = 1.0 - 1.0 / MEMORY
            self._tries[kind] = fading * self._tries[kind] + 1.0
            self._goes_on[kind] = fading * self._goes_on[kind] + (suggested == token_id)
        text.extend(chosen)

    def _chances_of(self, text: DraftText) -> list[float]:
        """Return how likely each id of a suggestion is reached and right; never more than the one before."""
        found, chance = [], 1.0
        for n in range(len(text.suggestion)):
            kind = _kind(text.matched + n)
            chance *= self._goes_on[kind] / self._tries[kind]
            found.append(chance)
        return found


def _kind(matched: int) -> int:
    """Return the place in `DEFAULT_CHANCES` of so many ids that agree."""
    return min((max(matched, 1) - 1).bit_length(), len(DEFAULT_CHANCES) - 1)
