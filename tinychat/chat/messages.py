"""The messages of a conversation, and the texts that go with them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass
class Message:
    """One message of the conversation.

    Attributes
    ----------
    role : str
        "user" or "assistant".
    content : str
        The text.
    partial : bool
        True while a reply is being written, and for good when it was stopped or cut.
    """

    role: str
    content: str
    partial: bool = False


@dataclass(frozen=True)
class Attachment:
    """A text that goes with the next message: a file, or what was copied elsewhere.

    Attributes
    ----------
    name : str
        What it is called before its text.
    text : str
        The text.
    path : str
        The whole path of the file; empty for the clipboard.
    """

    name: str
    text: str
    path: str = ""

    @property
    def content(self) -> str:
        """The text below its name, in a code fence longer than any in the text."""
        longest = max((len(run) for run in re.findall(r"`{3,}", self.text)), default=2)
        fence = "`" * (longest + 1)
        return f"{self.name}:\n{fence}\n{self.text.rstrip()}\n{fence}"


@dataclass(frozen=True)
class Draft:
    """A message that the user has not sent yet.

    Attributes
    ----------
    text : str
        What stands in the prompt.
    replaced : int
        Turns at the end whose place it takes once it is sent.
    """

    text: str = ""
    replaced: int = 0
