"""Log-probabilities of a token and of the most likely alternatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinychat.generate.sampling import most_likely
from tinychat.generate.sequence import Logits


@dataclass(frozen=True)
class ScoredToken:
    """A token and its natural log-probability."""

    id: int
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs:
    """The chosen token and the most likely ones (`best`), most likely first, lower id first on ties."""

    chosen: ScoredToken
    best: tuple[ScoredToken, ...]


def token_logprobs(logits: Logits, token_id: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of `token_id` and of the `count` most likely tokens.

    The logits, float32 [vocab_size], are the model's own: no penalty, temperature, filter or mask.
    """
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    best_ids = most_likely(logits, np.inf, count) if count else ()
    best = tuple(ScoredToken(int(i), float(scores[i])) for i in best_ids)
    return TokenLogprobs(ScoredToken(token_id, float(scores[token_id])), best)
