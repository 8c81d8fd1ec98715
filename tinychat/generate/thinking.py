"""Whether and how long a model thinks: the setting, and the budget that ends a think section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.settings import SETTINGS
from tinychat.text.think_sections import CLOSING_TEXT, ThinkSections

if TYPE_CHECKING:
    from tinychat.text.thought_reader import ThoughtReader
    from tinychat.text.tokenizer import Tokenizer

_SWITCHED = {"on": True, "off": False, "auto": None}


@dataclass(frozen=True)
class Thinking:
    """`wanted` is passed to the chat template, None leaves it to that; `budget` is that of `Request.think_budget`."""

    wanted: bool | None = None
    budget: int | None = None

    def __str__(self) -> str:
        if self.wanted and self.budget is not None:
            return str(self.budget)
        return next(name for name, wanted in _SWITCHED.items() if wanted is self.wanted)


def as_thinking(value: str | int) -> Thinking:
    """Return the meaning of "on", "off", "auto" or a number of tokens; `FieldError` for anything else.

    The budget without thinking is 0, which ends the section of models whose templates have no switch.
    """
    asked = SETTINGS["think"].check(value)
    if isinstance(asked, int):
        return Thinking(True, asked)
    return Thinking(_SWITCHED[asked], 0 if asked == "off" else None)


class ThinkBudget:
    """Forces the end marker once the think section of a reply has had `tokens` tokens.

    The tokens of the marker run through the model and are part of the reply like any others. `begun`: the reply begins
    inside the section. `closing` is the marker; that of `thoughts` is their own, and comes again where they do.
    """

    def __init__(
        self,
        tokens: int,
        tokenizer: Tokenizer,
        begun: bool,
        closing: str = CLOSING_TEXT,
        thoughts: ThoughtReader | None = None,
    ) -> None:
        self._left = tokens
        self._tokenizer = tokenizer
        self._sections = ThinkSections(begun)
        self._closing, self._thoughts = closing, thoughts
        self._was_thinking = begun
        self._forced: list[int] | None = None

    def forced(self) -> int | None:
        """Return the token that must come next; None leaves it to the sampler."""
        if not self._forced and self._left <= 0 and (closing := self._due()):
            self._forced = self._tokenizer.encode_rendered(closing)
        return self._forced.pop(0) if self._forced else None

    def _due(self) -> str:
        """Return the end marker that thoughts want now; empty where there are none."""
        if (own := self._own_thoughts) is not None:
            return own.marks.closing if own.is_thinking else ""
        return self._closing if self._forced is None and self._sections.is_thinking else ""

    def add(self, text: str) -> None:
        """Add the text of the token that came, forced or not."""
        self._left -= self._was_thinking
        for _ in self._sections.feed(text):
            pass
        self._was_thinking = (self._own_thoughts or self._sections).is_thinking

    @property
    def _own_thoughts(self) -> ThoughtReader | None:
        """The reader of thoughts, once it has found some."""
        return self._thoughts if self._thoughts is not None and self._thoughts.had_thoughts else None
