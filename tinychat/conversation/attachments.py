"""Texts that go with a message: files, and what was copied elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

# As `Attachment.content` writes them before a message.
_ATTACHED = re.compile(r"\A(?:[^\n]*:\n(`{3,})\n.*?\n\1\n\n)+", re.DOTALL)


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


def without_attachments(content: str) -> str:
    """Return the content of a message from behind the attachments that it begins with."""
    return _ATTACHED.sub("", content)
