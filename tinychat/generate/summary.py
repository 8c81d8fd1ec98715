"""What a run of the model was: counts, times, rates, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "stop_string", "length", "context", "interrupted"]
"""Why a reply ended: a stop id, a stop string, `max_tokens`, the context is full, or somebody stopped it."""


@dataclass(frozen=True)
class Summary:
    """Counts and times of one run; times in seconds, without what the caller did between pieces.

    Attributes
    ----------
    prompt_tokens : int
        Tokens of the prompt, reused ones included.
    reused_tokens : int
        Leading tokens of the prompt that the cache already held.
    new_tokens : int
        Tokens of the reply, without the stop id.
    decode_steps : int
        Runs of the model on one token; the first token needs none, it comes from the prefill.
    prefill_seconds, decode_seconds : float
        Time for reading the prompt, and for all tokens after the first.
    first_token_seconds : float
        Time from the start to the first token.
    finish_reason : str
        See `FinishReason`.
    seed : int
        The seed that gives these tokens again.
    """

    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    decode_steps: int
    prefill_seconds: float
    decode_seconds: float
    first_token_seconds: float
    finish_reason: FinishReason
    seed: int

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens run per second, reused ones not counted."""
        return _rate(self.prompt_tokens - self.reused_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Tokens decoded per second after the first."""
        return _rate(self.decode_steps, self.decode_seconds)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else 0.0
