"""A message that is being written at the prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Draft:
    """A message that the user has not sent yet.

    Attributes
    ----------
    text : str
        What stands in the prompt.
    replaced : int
        Exchanges at the end whose place it takes once it is sent.
    """

    text: str = ""
    replaced: int = 0
