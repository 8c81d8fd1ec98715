"""Contents of messages: a text, and images between its characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.errors import FieldError
from tinychat.images.detail import HIGH, LOW
from tinychat.text.guard import well_formed
from tinychat.text.parts import NO_IMAGES

if TYPE_CHECKING:
    from tinychat.images.image import Image

# Keys of the text of parts of a content, by their type.
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
# Of all images of a conversation, which take three bytes for each.
_MOST_PIXELS = 256 << 20
# A tiny image has as many tokens as a large one: far more than a context holds.
_MOST_IMAGES = 256


@dataclass(frozen=True)
class SavedImage:
    """An image of a saved conversation that was not read: digest, name, the problem if there is one, and detail."""

    digest: str
    name: str = ""
    problem: str = ""
    detail: str = HIGH


@dataclass(frozen=True)
class PlacedImage:
    """An image of a message: it stands before the character `offset` of the content."""

    offset: int
    image: Image | SavedImage

    @property
    def label(self) -> str:
        """The text that shows the image to a person."""
        return f"[image {self.image.name}]" if self.image.name else "[image]"


def with_labels(content: str, images: Sequence[PlacedImage]) -> str:
    """Return a content with the labels of its images in their places."""
    return "".join(text for text, _ in _pieces(content, images))


def as_parts(content: str, images: Sequence[PlacedImage]) -> str | list[dict[str, object]]:
    """Return a content as parts in OpenAI's form, images as ``{"type": "image", "image": Image}``.

    An image that was not read is its label; a content without others is a text.
    """
    parts: list[dict[str, object]] = []
    for text, placed in _pieces(content, images):
        if placed is not None and not isinstance(placed.image, SavedImage):
            parts.append({"type": "image", "image": placed.image})
        elif parts and "text" in parts[-1]:
            parts[-1] = {"type": "text", "text": f"{parts[-1]['text']}{text}"}
        else:
            parts.append({"type": "text", "text": text})
    return parts if any("image" in part for part in parts) else with_labels(content, images)


def _pieces(content: str, images: Sequence[PlacedImage]) -> Iterator[tuple[str, PlacedImage | None]]:
    """Yield texts and labels of images in their order, a label with its image and, before a word, with a space."""
    begin = 0
    for placed in images:
        end = min(max(placed.offset, begin), len(content))
        if end > begin:
            yield content[begin:end], None
        begin = end
        is_apart = begin == len(content) or content[begin].isspace()
        yield placed.label + ("" if is_apart else " "), placed
    if begin < len(content):
        yield content[begin:], None


class ContentReader:
    """Reads contents of plain dicts, of one conversation: with a most number of images, and of their pixels together.

    `sees_images` is whether the model may get any.
    """

    def __init__(self, sees_images: bool = True) -> None:
        self._sees_images = sees_images
        self._count = self._pixels = 0

    def read(self, message: Mapping[str, object], field: str, default: str | None) -> tuple[str, list[PlacedImage]]:
        """Return the text of a message and its images; `FieldError` names the part that is wrong.

        Images are those of a content in parts and, before it, those under ``images``, as Ollama's clients send them.
        `default` is a text in place of none.
        """
        images = [PlacedImage(0, image) for image in self._listed(message, field)]
        content = message.get("content")
        if content is None:
            content = "" if images else default
        if not isinstance(content, list):
            if not isinstance(content, str):
                raise FieldError(f"{field}.content", "must be a text")
            return well_formed(content), images
        text = ""
        for index, part in enumerate(content):
            path = f"{field}.content[{index}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in ("image", "image_url"):
                images.append(PlacedImage(len(text), self._image(part, path, message)))
                continue
            key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
            if key is None or not isinstance(part.get(key), str):
                raise FieldError(path, "must be a text or an image: a model reads nothing else")
            text += well_formed(part[key])
        return text, images

    def _listed(self, message: Mapping[str, object], field: str) -> Iterator[Image]:
        """Yield the images under ``images``."""
        given = message.get("images") or []
        if not isinstance(given, list):
            raise FieldError(f"{field}.images", "must be a list of images in base64")
        for index, image in enumerate(given):
            yield self._image({"type": "base64", "image": image}, f"{field}.images[{index}]", message)

    def _image(self, part: Mapping[str, object], path: str, message: Mapping[str, object]) -> Image:
        if not self._sees_images:
            raise FieldError(path, NO_IMAGES)
        if message.get("role") != "user":
            raise FieldError(path, "must be left out: only messages of the user have images")
        self._count += 1
        if self._count > _MOST_IMAGES:
            raise FieldError(path, f"is one too many: there may be {_MOST_IMAGES} images")
        image = _read(part, path)
        self._pixels += image.pixels.size // 3
        if self._pixels > _MOST_PIXELS:
            raise FieldError(path, f"is one too many: all may have {_MOST_PIXELS >> 20} million pixels together")
        return image


def _read(part: Mapping[str, object], path: str) -> Image:
    # Imported here: it needs numpy, which lists of conversations do without.
    from tinychat.images.data_url import image_of_base64, image_of_url
    from tinychat.images.image import image_of

    if part["type"] == "image_url":
        url = part.get("image_url")
        fields = url if isinstance(url, dict) else {"url": url}
        detail = fields.get("detail")
        if detail not in (None, "auto", HIGH, LOW):
            raise FieldError(f"{path}.image_url.detail", f"must be auto, {LOW} or {HIGH}")
        return image_of_url(fields.get("url"), f"{path}.image_url").seen_in(LOW if detail == LOW else HIGH)
    image = part.get("image")
    if not isinstance(image, str):
        return image_of(image, path)
    # Never a path: the text may come from anywhere.
    is_base64 = part["type"] == "base64" and not image.startswith("data:")
    return image_of_base64(image, path) if is_base64 else image_of_url(image, path)
