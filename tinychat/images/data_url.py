"""Images as texts: base64 and data: URLs, which requests to servers hold."""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence

import numpy as np

from tinychat.errors import FieldError
from tinychat.images.detail import HIGH
from tinychat.images.image import Image, read_image

# By the bytes that files begin with; those of others are told apart by whoever reads them.
_MEDIA_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def image_of_url(url: object, field: str) -> Image:
    """Return the image of a data: URL; `FieldError` of `field` for any other address, and as `read_image`."""
    if not isinstance(url, str) or not url.startswith("data:"):
        raise FieldError(field, "must be a data: URL, as in data:image/png;base64,...: addresses are not fetched")
    head, _, text = url.partition(",")
    if not head.endswith(";base64"):
        raise FieldError(field, "must be a data: URL in base64, as in data:image/png;base64,...")
    return image_of_base64(text, field)


def image_of_base64(text: str, field: str) -> Image:
    """Return the image whose file is given in base64; errors are those of `image_of_url`."""
    try:
        data = b64decode(text)
    except ValueError:
        raise FieldError(field, "is not an image in base64") from None
    return read_image(data, field=field)


def data_url(image: Image) -> str:
    """Return the data: URL of an image: its file as it was given, a PNG file of one that has none."""
    data = file_bytes(image)
    kind = next((name for begin, name in _MEDIA_TYPES.items() if data.startswith(begin)), "application/octet-stream")
    return f"data:{kind};base64,{b64encode(data).decode()}"


def file_bytes(image: Image) -> bytes:
    """Return the bytes of the file that an image came from, or of a new PNG file."""
    return image.data or _png(image)


def with_data_urls(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return messages whose images are data: URLs in OpenAI's form, as servers take them."""
    return [_sent(message) for message in messages]


def _sent(message: Mapping[str, object]) -> Mapping[str, object]:
    content = message.get("content")
    return {**message, "content": [_part(part) for part in content]} if isinstance(content, list) else message


def _part(part: Mapping[str, object]) -> Mapping[str, object]:
    image = part.get("image")
    if not isinstance(image, Image):
        return part
    detail = {} if image.detail == HIGH else {"detail": image.detail}
    return {"type": "image_url", "image_url": {"url": data_url(image), **detail}}


def _png(image: Image) -> bytes:
    height, width, _ = image.pixels.shape
    # Before each row stands the number of its filter: none.
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = image.pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
