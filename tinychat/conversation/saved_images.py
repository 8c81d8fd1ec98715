"""Images of saved conversations: a file each in a folder beside them, by the digest of its pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from tinychat.conversation.contents import SavedImage
from tinychat.errors import FieldError, SessionError
from tinychat.files import read_small, replacing
from tinychat.user_folders import make_folder

if TYPE_CHECKING:
    from tinychat.images.image import Image

FOLDER = "images"
DIGEST = re.compile(r"[0-9a-f]{64}")
# Above what `read_image` takes: an array without a file may be more.
_MAX_BYTES = 256 << 20
# Another process may have written an image whose conversation is not saved yet.
_NEW_SECONDS = 3600.0


class SavedImages:
    """The images of the conversations of a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, images: Iterable[Image | SavedImage]) -> None:
        """Save images that are not there yet; `OSError` if that fails."""
        for image in images:
            path = self.folder / image.digest
            if isinstance(image, SavedImage) or path.exists():
                continue
            from tinychat.images.data_url import file_bytes

            make_folder(self.folder)
            with replacing(path) as file:
                file.write(file_bytes(image))
                file.flush()
                os.fsync(file.fileno())

    def read(self, digest: str, name: str) -> Image | SavedImage:
        """Return an image; one that is gone or damaged has a `problem`. `SessionError` where Pillow is missing."""
        from tinychat.images.image import read_image

        try:
            return read_image(read_small(self.folder / digest, _MAX_BYTES), name, "an image of the conversation")
        except OSError as error:
            return SavedImage(digest, name, f"cannot be read: {error.strerror or error}")
        except FieldError as error:
            if find_spec("PIL") is None:
                raise SessionError(str(error)) from None
            return SavedImage(digest, name, error.problem.removeprefix(f"{name} "))

    def size(self, digests: Iterable[str]) -> int:
        """Return the bytes of the files of images."""
        size = 0
        for digest in digests:
            with suppress(OSError):
                size += (self.folder / digest).stat().st_size
        return size

    def remove(self, digests: Iterable[str], others: set[str]) -> None:
        """Remove images, and older ones that no conversation has, but none of `others`."""
        for path in self._files():
            with suppress(OSError):
                if path.name not in others and (path.name in digests or time() - path.stat().st_mtime > _NEW_SECONDS):
                    path.unlink()

    @property
    def is_empty(self) -> bool:
        """Whether no image is saved."""
        return not self._files()

    def _files(self) -> list[Path]:
        with suppress(OSError):
            return [path for path in self.folder.iterdir() if DIGEST.fullmatch(path.name)]
        return []
