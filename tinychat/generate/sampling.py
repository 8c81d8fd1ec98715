"""Choosing the next token from the logits.

The sampler applies its settings in this order: penalty, top-n-sigma, temperature, top-k, top-p, min-p. A constraint has
masked tokens before.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
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
# How many logits are looked at or passed over together.
_COLUMN = 64

_Scores = npt.NDArray[np.float64]
_Ids = npt.NDArray[np.int64]


class Sampler:
    """Draws token ids; the same request and seed give the same ids for the same logits.

    Parameters
    ----------
    request : Request
        Its sampling settings are used.
    tokenizer : Tokenizer, optional
        Spells the tokens for settings that are about texts.

    Attributes
    ----------
    seed : int
        The seed in use, drawn when the request names none.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None = None) -> None:
        self.request = request
        self.seed = secrets.randbits(32) if request.seed is None else request.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def sample(self, logits: Logits, previous_ids: Sequence[int]) -> int:
        """Choose the next token.

        Parameters
        ----------
        logits : float32 [vocab_size]
            Not changed.
        previous_ids : sequence of int
            Prompt and reply so far; penalties look at its end.

        Raises
        ------
        ModelFolderError
            If the logits hold no finite maximum, which only damaged weights produce.
        """
        logits = self._penalized(logits, previous_ids)
        if self.request.temperature == 0.0:
            return int(_finite(logits, np.argmax(logits, keepdims=True))[0])
        return self._draw(*self._candidates(logits))

    def _candidates(self, logits: Logits) -> tuple[_Ids, _Scores]:
        """Return the ids that may come next, the most likely first, and their unnormalized probabilities."""
        logits = self._near_the_best(logits)
        temperature = self.request.temperature
        ids = _finite(logits, most_likely(logits, _NEGLIGIBLE * temperature, self.request.top_k))
        peak = float(logits[ids[0]])
        weights = self._kept_weights((logits[ids].astype(np.float64) - peak) / temperature)
        return ids[: len(weights)], weights

    def _penalized(self, logits: Logits, previous_ids: Sequence[int]) -> Logits:
        penalty, last_n = self.request.repeat_penalty, self.request.repeat_last_n
        if penalty == 1.0 or last_n == 0 or not previous_ids:
            return logits
        recent = np.unique(np.asarray(previous_ids[-last_n:], dtype=np.int64))
        penalized = logits.copy()
        values = penalized[recent]
        penalized[recent] = np.where(values > 0.0, values / penalty, values * penalty)
        return penalized

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
        """Return the unnormalized probabilities of the leading candidates that top-p and min-p keep.

        scores : descending from 0.
        """
        weights = np.exp(scores)
        cumulative = np.cumsum(weights)
        before = cumulative - weights
        keep = (before < self.request.top_p * cumulative[-1]) & (weights >= self.request.min_p)
        # Both tests hold for a leading run, and always for the first: its weight is 1.
        return weights[: int(np.count_nonzero(keep))]

    def _draw(self, ids: _Ids, weights: _Scores) -> int:
        cumulative = np.cumsum(weights)
        position = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(position), len(weights) - 1)])


def _finite(logits: Logits, ids: _Ids) -> _Ids:
    """Return candidates, of which the first must have a finite logit."""
    if not len(ids) or not np.isfinite(logits[ids[0]]):
        raise ModelFolderError("the model's output is not a number: its weights are damaged, convert the model again")
    return ids


def most_likely(logits: Logits, reach: float, count: int) -> _Ids:
    """Return the ids of the largest logits, the largest first, of equal ones the lower id first.

    Parameters
    ----------
    logits : float32 [vocab_size]
    reach : float
        How far below the largest they may be.
    count : int
        Most ids; 0 for no limit.

    Returns
    -------
    int64 [<= count]
        Empty where the largest is not a number.
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
    rows, places = np.nonzero(columns[:, within] >= least)
    ids = np.append(rows * width + within[places], found[len(within) :] + (_COLUMN - 1) * width)
    return ids[np.lexsort((ids, -logits[ids]))[: count or None]]
