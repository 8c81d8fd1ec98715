"""Whether and how long a model thinks: as it is asked for, and a limit that ends its think section for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.settings import SETTINGS
from tinychat.text.think_sections import CLOSING_TEXT, ThinkSections

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer

_SWITCHED = {"on": True, "off": False, "auto": None}


@dataclass(frozen=True)
class Thinking:
    """What is asked for.

    Attributes
    ----------
    wanted : bool, optional
        Passed to the chat template; None leaves it to that.
    budget : int, optional
        Most tokens of the think section: see `Request.think_budget`.
    """

    wanted: bool | None = None
    budget: int | None = None

    def __str__(self) -> str:
        if self.wanted and self.budget is not None:
            return str(self.budget)
        return next(name for name, wanted in _SWITCHED.items() if wanted is self.wanted)


def as_thinking(value: str | int) -> Thinking:
    """Return what "on", "off", "auto" or a number of tokens asks for.

    Without thinking its budget is 0, which ends the section of models whose templates have no switch.

    Raises
    ------
    FieldError
        If it is none of these.
    """
    asked = SETTINGS["think"].check(value)
    if isinstance(asked, int):
        return Thinking(True, asked)
    return Thinking(_SWITCHED[asked], 0 if asked == "off" else None)


class ThinkBudget:
    """Follows a reply, and says which tokens must come next once its think section has had its share.

    The tokens of the end marker take the places of tokens that would have been chosen. They run through the model and
    are part of the reply like any others.

    Parameters
    ----------
    tokens : int
        Most tokens of the section; 0 ends it as soon as it begins.
    tokenizer : Tokenizer
        Encodes the end marker.
    begun : bool
        Whether the reply begins inside the section.
    """

    def __init__(self, tokens: int, tokenizer: Tokenizer, begun: bool) -> None:
        self._left = tokens
        self._tokenizer = tokenizer
        self._sections = ThinkSections(begun)
        self._forced: list[int] | None = None

    def forced(self) -> int | None:
        """Return the token that must come next, None where it is the sampler's choice."""
        if self._forced is None and self._left <= 0 and self._sections.is_thinking:
            self._forced = self._tokenizer.encode_rendered(CLOSING_TEXT)
        return self._forced.pop(0) if self._forced else None

    def add(self, text: str) -> None:
        """Take the text of the token that came, forced or not."""
        was_thinking = self._sections.is_thinking
        for _ in self._sections.feed(text):
            pass
        self._left -= was_thinking
