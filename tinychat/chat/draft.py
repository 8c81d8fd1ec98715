"""A message, or a command, that is not sent yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Draft:
    """The text in the prompt: a message, which may replace exchanges at the end, or the beginning of a command."""

    text: str = ""
    replaced: int = 0
    is_command: bool = False
