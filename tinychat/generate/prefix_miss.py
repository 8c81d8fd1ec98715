"""Diagnosis of a prompt that shares less with the cache than its conversation would suggest."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tinychat.engine.ids import common_length
from tinychat.generate.sequence import Ids

# Tokens around the first difference that are looked at, and shown.
_LOOKED_AT, _SHOWN = 64, 8
# Texts that begin with so many equal letters differ in their tokens alone.
_SAME_LETTERS = 12
_THINKING = ("<think>", "</think>")


class PrefixMiss(NamedTuple):
    """The first token, 0-based, that runs again though it was one of `previous` tokens of the conversation."""

    position: int
    previous: int
    reason: str

    def __str__(self) -> str:
        return f"the prompt leaves the cache at token {self.position} of {self.previous}: {self.reason}"


def explain_miss(prompt: Ids, previous: Ids, cached: int, decode: Callable[[Ids], str]) -> PrefixMiss | None:
    """Return why fewer leading ids of a prompt are `cached` than the conversation had; None where nothing is missing.

    `previous` are prompt and reply of the turn before; empty where there was none.
    """
    if not previous:
        return None
    agreed = common_length(prompt, previous)
    # The last token of a reply was chosen but never run; the last of a prompt always runs.
    if agreed < min(len(prompt), len(previous) - 1):
        before, after = previous[agreed : agreed + _LOOKED_AT], prompt[agreed : agreed + _LOOKED_AT]
        around = decode(previous[max(agreed - _SHOWN, 0) : agreed + _LOOKED_AT])
        if any(tag in around for tag in _THINKING) and _THINKING[1] not in decode(after):
            reason = "the template leaves out earlier thinking"
        else:
            then, now = (decode(ids[:_SHOWN]) for ids in (before, after))
            reason = f"the template writes an earlier turn in another way ({then!r} is now {now!r})"
            if then[:_SAME_LETTERS] == now[:_SAME_LETTERS]:
                reason = f"the text {now!r} has other tokens when it is read than those that the model wrote"
        return PrefixMiss(agreed, len(previous), reason)
    if cached < min(agreed, len(prompt) - 1, len(previous) - 1):
        return PrefixMiss(cached, len(previous), "its memory was needed, or the cache has other settings now")
    return None
