"""Texts and images attached to a message: files, and the clipboard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.conversation.contents import PlacedImage, SavedImage
from tinychat.conversation.messages import Message

if TYPE_CHECKING:
    from tinychat.generate.model import Model
    from tinychat.images.image import Image

# As `Attachment.content` writes them before a message.
_ATTACHED = re.compile(r"\A(?:[^\n]*:\n(`{3,})\n.*?\n\1\n\n)+", re.DOTALL)


@dataclass(frozen=True)
class Attachment:
    """A text or an image that goes with the next message: a file by its whole `path`, or the clipboard."""

    name: str
    text: str
    path: str = ""
    image: Image | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to attach."""
        return self.image is None and not self.text.strip()

    @property
    def content(self) -> str:
        """The text below its name, in a code fence longer than any in the text."""
        longest = max((len(run) for run in re.findall(r"`{3,}", self.text)), default=2)
        fence = "`" * (longest + 1)
        return f"{self.name}:\n{fence}\n{self.text.rstrip()}\n{fence}"


def message_with(attachments: Sequence[Attachment], images: Iterable[Image | SavedImage], text: str) -> Message:
    """Return the user's message of a text, attachments and further images before it."""
    content = ""
    placed: list[PlacedImage] = []
    for attachment in attachments:
        if attachment.image is None:
            content += f"{attachment.content}\n\n"
        else:
            placed.append(PlacedImage(len(content), attachment.image))
    placed += [PlacedImage(len(content), image) for image in images]
    return Message("user", content + text, images=tuple(placed))


def image_tokens(model: Model, image: Image) -> int:
    """Return the tokens of an image in a prompt of a model that sees it."""
    counts = [
        len(model.chat_prompt([Message("user", "?", images=images).as_dict()]).ids)
        for images in ((PlacedImage(0, image),), ())
    ]
    return counts[0] - counts[1]


def without_attachments(content: str) -> str:
    """Return the content of a message without the attachments that it begins with."""
    return _ATTACHED.sub("", content)
