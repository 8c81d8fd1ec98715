"""A message, or a command, that is being written at the prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Draft:
    """A message or a command that the user has not sent yet.

    Attributes
    ----------
    text : str
        What stands in the prompt.
    replaced : int
        Exchanges at the end whose place it takes once it is sent.
    is_command : bool
        Whether it is the beginning of a command, and not a message.
    """

    text: str = ""
    replaced: int = 0
    is_command: bool = False
