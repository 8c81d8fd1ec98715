"""A message, or a command, that is not sent yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinychat.conversation.contents import SavedImage
    from tinychat.images.image import Image


@dataclass(frozen=True)
class Draft:
    """The text in the prompt: a message, which may replace exchanges at the end, or the beginning of a command.

    `images` go with the message, such as those of the one that it replaces.
    """

    text: str = ""
    replaced: int = 0
    is_command: bool = False
    images: tuple[Image | SavedImage, ...] = ()

    @property
    def image_names(self) -> list[str]:
        """The names of the images."""
        return [image.name or "image" for image in self.images]
