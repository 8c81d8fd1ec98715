"""Log-probabilities of a token and of the most likely alternatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    best = tuple(ScoredToken(int(i), float(scores[i])) for i in _largest(logits, count))
    return TokenLogprobs(ScoredToken(token_id, float(scores[token_id])), best)


def _largest(logits: Logits, count: int) -> list[int]:
    count = min(count, len(logits))
    if count == 0:
        return []
    weakest = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= weakest)
    order = np.argsort(-logits[ids], kind="stable")[:count]
    return [int(i) for i in ids[order]]
