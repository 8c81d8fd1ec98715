"""Sampling the next token from logits.

The settings apply in this order: bias, penalties, DRY, top-n-sigma, temperature, top-k, top-p, min-p, XTC; a constraint
has masked tokens before. llama.cpp, which has them all, applies the temperature last.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tinychat.errors import ModelFolderError
from tinychat.generate.request import Request
from tinychat.generate.sequence import Logits

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer

# A token this far below the best (in units of the temperature) has less than e^-20 = 2e-9 of
# its probability; leaving those out first makes sorting cheap for large vocabularies.
_NEGLIGIBLE = 20.0
# The exponent of DRY's penalty ends where its power would leave float32, at this logarithm; and where it hardly grows.
_MOST_GROWTH, _LEAST_GROWTH = 88.7228391, 1e-6
_LOWEST = float(np.finfo(np.float32).min)
# How many logits are looked at or passed over together.
_COLUMN = 64
# Of its own, so that a program that seeds the shared one does not get the same replies. To ask the system for each seed
# takes as long as to choose several tokens.
_SEEDS = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SEEDS.seed)

_Scores = npt.NDArray[np.float64]
_Ids = npt.NDArray[np.int64]


class Sampler:
    """Draws token ids; the same request and seed give the same ids for the same logits.

    `seed` is the one in use: drawn when the request names none, and 0 at temperature 0, where nothing depends on it.
    `tokenizer` spells the tokens for settings about texts.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None = None) -> None:
        self.request = request
        if request.seed is not None:
            self.seed = request.seed
        else:
            self.seed = 0 if request.temperature == 0.0 else _SEEDS.getrandbits(32)
        self._breakers = _Breakers(request.dry_sequence_breakers, tokenizer)

    def sample(self, logits: Logits, previous_ids: Sequence[int], is_structured: bool = False) -> int:
        """Choose the next token by logits, float32 [vocab_size], which are not changed.

        Penalties look at the end of `previous_ids`, prompt and reply so far; `is_structured` in a block of code or a
        table. `ModelFolderError` if the logits hold no finite maximum, which only damaged weights produce.
        """
        if self.request.biases:
            ids, biases = self._biases
            logits = logits.copy()
            logits[ids] += biases
        if self.request.repeat_in_code or not is_structured:
            logits = self._penalized(logits, previous_ids)
        logits = self._counted(logits, previous_ids)
        logits = self._dried(logits, previous_ids)
        if self.request.temperature == 0.0:
            best = int(logits.argmax())
            _peak(logits, [best])
            return best
        return self._draw(*self._candidates(logits))

    @cached_property
    def _biases(self) -> tuple[_Ids, Logits]:
        ids, biases = zip(*self.request.biases)
        return np.array(ids, np.int64), np.array(biases, np.float32)

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.seed))

    def fork(self) -> Sampler:
        """Return a sampler that draws what this one will draw next."""
        other = copy(self)
        other._random = deepcopy(self._random)
        return other

    def _candidates(self, logits: Logits) -> tuple[_Ids, _Scores]:
        """Return the ids that may come next, the most likely first, and their unnormalized probabilities."""
        logits = self._near_the_best(logits)
        temperature = self.request.temperature
        ids = most_likely(logits, _NEGLIGIBLE * temperature, self.request.top_k)
        peak = _peak(logits, ids)
        weights = self._kept_weights((logits[ids].astype(np.float64) - peak) / temperature)
        first = self._excluded(weights)
        return ids[first : len(weights)], weights[first:]

    def _penalized(self, logits: Logits, previous_ids: Sequence[int]) -> Logits:
        penalty, last_n = self.request.repeat_penalty, self.request.repeat_last_n
        if penalty == 1.0 or last_n == 0 or not previous_ids:
            return logits
        recent, _ = _counts(previous_ids[-last_n:], len(logits))
        penalized = logits.copy()
        values = penalized[recent]
        penalized[recent] = np.where(values > 0.0, values / penalty, values * penalty)
        return penalized

    def _counted(self, logits: Logits, previous_ids: Sequence[int]) -> Logits:
        """Lower the logits of recent tokens by how often they came (frequency), and that they did (presence)."""
        frequency, presence = self.request.frequency_penalty, self.request.presence_penalty
        last_n = self.request.repeat_last_n
        if frequency == presence == 0.0 or last_n == 0 or not previous_ids:
            return logits
        recent, counts = _counts(previous_ids[-last_n:], len(logits))
        lowered = logits.copy()
        lowered[recent] -= (counts * frequency + presence).astype(np.float32)
        return lowered

    def _dried(self, logits: Logits, previous_ids: Sequence[int]) -> Logits:
        """Lower the logits of tokens that continue a repetition (DRY)."""
        request = self.request
        if request.dry_multiplier == 0.0 or request.dry_penalty_last_n == 0:
            return logits
        recent = previous_ids[-request.dry_penalty_last_n :]
        allowed, most = request.dry_allowed_length, int(_MOST_GROWTH / max(np.log(request.dry_base), _LEAST_GROWTH))
        longest = min(self._breakers.unbroken_length(recent), allowed + most)
        dried = logits.copy()
        for token_id, length in repetitions(recent, allowed, longest).items():
            if token_id < len(dried) and dried[token_id] != -np.inf and not self._breakers.is_whole(token_id):
                lowered = float(dried[token_id]) - request.dry_multiplier * request.dry_base ** (length - allowed)
                # Where a constraint leaves no other token, it comes nevertheless.
                dried[token_id] = max(lowered, _LOWEST)
        return dried

    def _near_the_best(self, logits: Logits) -> Logits:
        """Mask what is more than `top_n_sigma` standard deviations of all possible tokens' logits below the best.

        Neither depends on the temperature (Tang et al., 2024, https://arxiv.org/abs/2411.07641).
        """
        if self.request.top_n_sigma == 0.0 or not len(possible := logits[logits != -np.inf]):
            return logits
        with np.errstate(invalid="ignore"):
            least = possible.max() - self.request.top_n_sigma * possible.std(dtype=np.float64)
        return np.where(logits < least, np.float32(-np.inf), logits)

    def _kept_weights(self, scores: _Scores) -> _Scores:
        """Return the unnormalized probabilities of the leading candidates that pass top-p and min-p."""
        weights = np.exp(scores)
        cumulative = np.cumsum(weights)
        before = cumulative - weights
        keep = (before < self.request.top_p * cumulative[-1]) & (weights >= self.request.min_p)
        # Both tests hold for a leading run, and always for the first: its weight is 1.
        return weights[: int(np.count_nonzero(keep))]

    def _excluded(self, weights: _Scores) -> int:
        """Return how many leading candidates XTC leaves out: of the likely ones all but the last, at random."""
        probability, threshold = self.request.xtc_probability, self.request.xtc_threshold
        # No draw where it is off: what a seed gives must not depend on a setting that does nothing.
        if probability == 0.0 or threshold > 0.5 or self._random.random() >= probability:
            return 0
        return max(0, int(np.count_nonzero(weights >= threshold * weights.sum())) - 1)

    def _draw(self, ids: _Ids, weights: _Scores) -> int:
        cumulative = np.cumsum(weights)
        position = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(position), len(weights) - 1)])


def _counts(ids: Sequence[int], vocab_size: int) -> tuple[_Ids, _Ids]:
    """Return the ids that occur, without those of images, and how often each does."""
    found, counts = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
    is_text = found < vocab_size
    return found[is_text], counts[is_text]


def _peak(logits: Logits, ids: _Ids | Sequence[int]) -> float:
    """Return the logit of the first candidate, which must be finite."""
    peak = float(logits[ids[0]]) if len(ids) else math.nan
    if not math.isfinite(peak):
        raise ModelFolderError("the model's output is not a number: its weights are damaged, convert the model again")
    return peak


def repetitions(ids: Sequence[int], least: int, most: int) -> dict[int, int]:
    """Return the tokens that would continue a repetition of the end of `ids`, each with its longest length so far.

    Repetitions shorter than `least` (at least 1) do not count; longer ones count as `most`.
    """
    found: dict[int, int] = {}
    recent = np.asarray(ids, dtype=np.int64)
    # Where the last `length` ids stand once more: the positions of the last of them.
    ends = np.arange(len(recent) - 1)
    for length in range(1, most + 1):
        ends = ends[ends >= length - 1]
        ends = ends[recent[ends - length + 1] == recent[-length]]
        if not len(ends):
            break
        if length >= least:
            found |= dict.fromkeys(recent[ends + 1].tolist(), length)
    return found


class _Breakers:
    """Texts that end every repetition, as spelled in tokens.

    A text is in one token, or begins in one and is completed by the default tokens of its rest. Only tokens that come
    are spelled: a vocabulary is large.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer | None) -> None:
        self._texts = [text.encode() for text in texts] if tokenizer is not None else []
        self._tokenizer = tokenizer
        self._rests: dict[int, list[list[int]]] = {}

    def is_whole(self, token_id: int) -> bool:
        return [] in self._rests_of(token_id)

    def unbroken_length(self, ids: Sequence[int]) -> int:
        """Return how many ids follow the last of the texts."""
        for start in range(len(ids) - 1, -1, -1):
            rests = self._rests_of(ids[start])
            ends = [start + 1 + len(rest) for rest in rests if [*ids[start + 1 : start + 1 + len(rest)]] == rest]
            if ends:
                return len(ids) - max(ends)
        return len(ids)

    def _rests_of(self, token_id: int) -> list[list[int]]:
        """Return, for each way in which a text begins in a token, the ids of its rest."""
        if token_id not in self._rests:
            self._rests[token_id] = [*self._find_rests(token_id)] if self._texts else []
        return self._rests[token_id]

    def _find_rests(self, token_id: int) -> Iterator[list[int]]:
        assert self._tokenizer is not None
        spelled = self._tokenizer.token_bytes(token_id)
        for text in self._texts:
            if text in spelled:
                yield []
                continue
            for begun in range(1, min(len(text), len(spelled) + 1)):
                if spelled.endswith(text[:begun]) and not _is_cut(text, begun):
                    yield self._tokenizer.encode(text[begun:].decode(), add_bos=False)


def _is_cut(text: bytes, index: int) -> bool:
    """Return whether an index is inside a character of UTF-8."""
    return text[index] & 0xC0 == 0x80


def most_likely(logits: Logits, reach: float, count: int) -> _Ids:
    """Return the ids of the largest logits, largest first, of equal ones the lower id first, int64.

    They are at most `reach` below the largest, and at most `count` (0 for no limit); none if the largest is not a
    number.
    """
    # The ids are dealt to columns. Only columns whose largest logit counts are looked into: of a large vocabulary, few.
    width = len(logits) // _COLUMN
    columns, rest = logits[: width * _COLUMN].reshape(_COLUMN, width), logits[width * _COLUMN :]
    largest = np.append(columns.max(axis=0), rest)
    least = largest.max() - reach
    if 0 < count < len(largest):
        least = max(least, np.partition(largest, len(largest) - count)[len(largest) - count])
    found = np.flatnonzero(largest >= least)
    within = found[found < width]
    rows, chosen = np.nonzero(columns[:, within] >= least)
    ids = np.append(rows * width + within[chosen], found[len(within) :] + (_COLUMN - 1) * width)
    return ids[np.lexsort((ids, -logits[ids]))[: count or None]]
