"""Texts attached to a message: files, and the clipboard."""

from __future__ import annotations

import re
from dataclasses import dataclass

# As `Attachment.content` writes them before a message.
_ATTACHED = re.compile(r"\A(?:[^\n]*:\n(`{3,})\n.*?\n\1\n\n)+", re.DOTALL)


@dataclass(frozen=True)
class Attachment:
    """A text that goes with the next message: a file by its whole `path`, or the clipboard."""

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
    """Return the content of a message without the attachments that it begins with."""
    return _ATTACHED.sub("", content)
