"""An image that a message holds: its pixels, from a file, an array or an object of Pillow.

Files come from anybody. Pillow decodes them, of a few formats and within limits that are checked before pixels are;
it is an optional package, and imported only here.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinychat.errors import FieldError
from tinychat.files import read_stream
from tinychat.images.detail import HIGH
from tinychat.images.metadata import orientation_of, without_metadata
from tinychat.installing import install_command
from tinychat.json_file import one_line

MAX_FILE_BYTES = 64 << 20
MAX_PIXELS = 64 << 20
# More than a JPEG file can have. The work of resizing grows with it however narrow the image is.
MAX_SIDE = 1 << 16
# Others of Pillow's formats run programs, or may need gigabytes for what is beside the pixels: TIFF, AVIF.
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
# Pillow keeps their 16 bits as they are.
_GREY_16 = ("I;16", "I;16B", "I;16L", "I;16N")
# An image is converted in strips: a whole one at 16 bytes a pixel would need a gigabyte.
_STRIP_PIXELS = 1 << 20
# One decoder at a time: a server's requests could need as many times the memory. It also guards `warnings`.
_decoding = threading.Lock()


@dataclass(frozen=True, eq=False)
class Image:
    """The pixels of an image: uint8 [height, width, 3], red, green and blue.

    `data` are the bytes of its file as they were given, b"" where it comes from an array; `name` is for people. The
    `detail` in which it is seen is "high", or "low" for few tokens. Two images with the same pixels, seen in the same
    detail, are equal.
    """

    pixels: npt.NDArray[np.uint8]
    name: str = ""
    data: bytes = b""
    detail: str = HIGH

    def __post_init__(self) -> None:
        # The digest stands for them.
        self.pixels.flags.writeable = False

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the size and the pixels, in hexadecimal digits."""
        height, width, _ = self.pixels.shape
        found = sha256(f"{height} {width} ".encode())
        found.update(np.ascontiguousarray(self.pixels).data)
        return found.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Image):
            return NotImplemented
        return (self.digest, self.detail) == (other.digest, other.detail)

    def __hash__(self) -> int:
        return hash((self.digest, self.detail))

    def seen_in(self, detail: str) -> "Image":
        """Return the image as it is seen in this detail, or in its own if that is lower."""
        return self if detail in (HIGH, self.detail) else replace(self, detail=detail)

    def __repr__(self) -> str:
        height, width, _ = self.pixels.shape
        return f"Image({self.name!r}, {width} x {height})"


def read_image(data: bytes, name: str = "", field: str = "image") -> Image:
    """Return the image of a file's bytes: as a camera says that it is turned, on white, the first of several frames.

    `FieldError` of `field` for what is no image, is damaged or exceeds the limits, or where Pillow is missing.
    """
    called = f"{one_line(name, 60)} " if name else ""
    if len(data) > MAX_FILE_BYTES:
        raise FieldError(field, f"{called}is larger than {MAX_FILE_BYTES >> 20} MiB: send a smaller image")
    pillow = _pillow(field)
    try:
        plain, exif = without_metadata(data)
    except ValueError as error:
        raise _unreadable(field, called, error) from None
    return Image(_decoded(lambda: pillow.open(BytesIO(plain), formats=_FORMATS), exif, field, called), name, data)


def image_of(value: object, field: str = "image") -> Image:
    """Return the image that a Python program names.

    It is an `Image`, an array of uint8 [height, width] or [height, width, 3 or 4], an image of Pillow, the bytes of a
    file, or the path of one. `FieldError` of `field` for anything else, and as `read_image`.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, np.ndarray):
        return Image(_from_array(value, field))
    if isinstance(value, bytes):
        return read_image(value, field=field)
    if isinstance(value, str | Path):
        path = Path(value)
        try:
            data = read_stream(path, MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FieldError(field, f"{one_line(str(path), 60)} cannot be read: {reason}; check the path") from None
        return read_image(data, path.name, field)
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(value, pillow.Image):
        return Image(_decoded(lambda: nullcontext(value), b"", field, ""))
    raise FieldError(field, "must be an image: a path, bytes, an array of uint8, or an image of Pillow")


def _pillow(field: str) -> Any:
    try:
        import PIL.Image
    except ImportError:
        raise FieldError(field, f"cannot be read without the package pillow: {install_command('pillow')}") from None
    return PIL.Image


def _check_size(height: int, width: int, field: str, called: str) -> None:
    if 0 in (height, width):
        raise FieldError(field, f"{called}has no pixels")
    if height * width > MAX_PIXELS:
        raise _too_many_pixels(field, called)
    if max(height, width) > MAX_SIDE:
        raise FieldError(field, f"{called}has a side of more than {MAX_SIDE} pixels: send a smaller image")


def _too_many_pixels(field: str, called: str) -> FieldError:
    return FieldError(field, f"{called}has more than {MAX_PIXELS >> 20} million pixels: send a smaller image")


def _unreadable(field: str, called: str, error: Exception) -> FieldError:
    reason = one_line(str(error), 80) or type(error).__name__
    return FieldError(field, f"{called}cannot be read as an image: {reason}; save it again")


def _decoded(
    opened: Callable[[], AbstractContextManager[Any]], exif: bytes, field: str, called: str
) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image of Pillow's; every failure is a `FieldError`."""
    pillow = _pillow(field)
    with _decoding, warnings.catch_warnings():
        # Of damaged comments and the like, which change no pixel.
        warnings.simplefilter("ignore")
        try:
            with opened() as picture:
                return _pixels_of(picture, exif, field, called)
        except FieldError:
            raise
        except pillow.UnidentifiedImageError:
            kinds = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
            raise FieldError(field, f"{called}is not an image of a known format: send {kinds}") from None
        except pillow.DecompressionBombError:
            raise _too_many_pixels(field, called) from None
        # Decoders of damaged files raise errors of many kinds.
        except Exception as error:
            raise _unreadable(field, called, error) from None


def _pixels_of(picture: Any, exif: bytes, field: str, called: str) -> npt.NDArray[np.uint8]:
    # Before they are decoded.
    _check_size(picture.height, picture.width, field, called)
    picture.load()
    if picture.mode in ("I", "F"):
        raise FieldError(field, f"{called}has more than 16 bits in a channel: save it with 8")
    width, height = picture.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        strip = picture.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = _strip_pixels(strip)
    exif = exif or picture.info.get("exif") or b""
    return np.ascontiguousarray(_upright(pixels, orientation_of(exif)))


def _strip_pixels(strip: Any) -> npt.NDArray[np.uint8]:
    if strip.mode in _GREY_16:
        grey = np.asarray(strip).astype(np.uint32)
        return ((grey * 255 + 0x7FFF) // 0xFFFF).astype(np.uint8)[..., None]
    if strip.has_transparency_data:
        return _on_white(np.asarray(strip.convert("RGBA")))
    return np.asarray(strip.convert("RGB"))


def _on_white(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return pixels with a channel of opacity as they look on white, rounded to the nearest."""
    opacity = pixels[..., 3:].astype(np.uint16)
    mixed = pixels[..., :3] * opacity + (255 - opacity) * 255
    # At most 255 * 255, so neither sum exceeds 16 bits.
    return ((mixed + 127) // 255).astype(np.uint8)


def _upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Return pixels turned and mirrored as the EXIF value of a camera says, 1 to 8."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _from_array(array: npt.NDArray[Any], field: str) -> npt.NDArray[np.uint8]:
    """Return a copy of an array of pixels, in colours."""
    shape = array.shape
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))
    if array.dtype != np.uint8 or not is_image:
        raise FieldError(field, "must be an array of uint8 [height, width] or [height, width, 3 or 4]")
    _check_size(shape[0], shape[1], field, "")
    pixels = np.empty((*shape[:2], 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // shape[1])
    for top in range(0, shape[0], rows):
        strip = array[top : top + rows]
        strip = strip[..., None] if strip.ndim == 2 else strip
        pixels[top : top + rows] = _on_white(strip) if strip.shape[2] == 4 else strip
    return pixels
