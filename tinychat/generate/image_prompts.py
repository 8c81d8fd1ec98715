"""Images in prompts: the ids that stand for each, and the rows that are computed when these run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from tinychat.errors import SettingError, TextError
from tinychat.images.image import Image
from tinychat.images.preparation import IMAGE_TOKEN, Size, plan, prepare
from tinychat.json_file import one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tinychat.engine.image_ids import Tile
    from tinychat.generate.driver import Driver
    from tinychat.images.encoder import ImageEncoder
    from tinychat.text.tokenizer import Tokenizer

# Images that later prompts may show again: their rows and, before these are there, their pixels. Those of prompts that
# are being answered are held beside these.
_MOST_BYTES = 256 << 20


class _SeenImage(NamedTuple):
    """The ids that stand for an image in a prompt, and the tiles that they are known by as long as these are held."""

    ids: list[int]
    tiles: list[Tile]
    prepared: _Prepared
    row_bytes: int

    @property
    def bytes(self) -> int:
        """Memory of the rows, and of what they are not computed of yet."""
        return self.row_bytes + self.prepared.bytes


class ImagePrompts:
    """Puts images into prompts; the same image has the same ids as long as there is room.

    So a conversation finds it in the cache again. `encoder` computes its rows, tile by tile, when they run; None for a
    model that sees no images.
    """

    def __init__(self, driver: Driver, tokenizer: Tokenizer, encoder: ImageEncoder | None) -> None:
        self.are_seen: bool = encoder is not None
        self._driver, self._tokenizer, self._encoder = driver, tokenizer, encoder
        self._lock = Lock()
        self._seen: OrderedDict[str, _SeenImage] = OrderedDict()  # by digest, the least recently used first

    def fill(self, ids: list[int], messages: Sequence[Mapping[str, object]]) -> list[int]:
        """Return the ids of rendered messages with those of their images in place of image tokens, one for each.

        TextError if there are more or fewer of these than images.
        """
        if self._encoder is None:
            return ids
        contents = [message.get("content") for message in messages]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        images: list[Image] = [part["image"] for part in parts if part["type"] == "image"]
        token_id = self._encoder.vision.image_token_id
        if ids.count(token_id) != len(images):
            raise TextError(f"the chat template writes {ids.count(token_id)} of {len(images)} images: send fewer")
        with self._lock:
            waiting = iter([self._ids_of(image, self._encoder) for image in images])
            self._make_room(len(set(images)))
        return [one for found in ids for one in (next(waiting) if found == token_id else [found])]

    def _ids_of(self, image: Image, encoder: ImageEncoder) -> list[int]:
        seen = self._seen.pop(image.digest, None) or self._see(image, encoder)
        self._seen[image.digest] = seen
        return seen.ids

    def _make_room(self, shown: int) -> None:
        """Let the least recently used images go, but none of those that were just shown."""
        left = sum(one.bytes for one in self._seen.values())
        while left > _MOST_BYTES and len(self._seen) > max(shown, 1):
            left -= self._seen.popitem(last=False)[1].bytes

    def _see(self, image: Image, encoder: ImageEncoder) -> _SeenImage:
        vision, images = encoder.vision, self._driver.engine.images
        assert images is not None
        height, width, _ = image.pixels.shape
        planned, prepared = plan(height, width, encoder.vision.preparation), _Prepared(image, encoder, self._driver)
        counts = [rows * columns // vision.scale_factor**2 for rows, columns in planned.grids]
        tiles = [images.new_tile(count, partial(prepared.rows, number)) for number, count in enumerate(counts)]
        waiting = iter([token_id for tile in tiles for token_id in tile.ids])
        text = self._tokenizer.encode_rendered(planned.text)
        if text.count(vision.image_token_id) != sum(counts):
            raise TextError(f"the tokenizer does not know {IMAGE_TOKEN} as token {vision.image_token_id}")
        ids = [next(waiting) if token_id == vision.image_token_id else token_id for token_id in text]
        return _SeenImage(ids, tiles, prepared, 4 * vision.text_size * sum(counts))


class _Prepared:
    """The tiles of an image, prepared when the first one runs; each is dropped when its rows are there."""

    def __init__(self, image: Image, encoder: ImageEncoder, driver: Driver) -> None:
        # Without its file, which may be as large.
        self._image: Image | None = replace(image, data=b"")
        self._encoder, self._driver = encoder, driver
        self._tiles: dict[int, tuple[NDArray[np.float32], Size]] = {}

    @property
    def bytes(self) -> int:
        """Memory of the pixels, or of the tiles that have not run."""
        image = self._image
        return sum(tile.nbytes for tile, _ in [*self._tiles.values()]) if image is None else image.pixels.nbytes

    def rows(self, number: int) -> NDArray[np.float32]:
        """Compute the rows of a tile, once, while the threads of the text model sleep.

        SettingError where there is no memory for it, or a file of the tower cannot be read; others are of the tower.
        """
        try:
            if self._image is not None:
                prepared = prepare(self._image, self._encoder.vision.preparation)
                self._tiles = dict(enumerate(zip(prepared.tiles, prepared.plan.grids)))
                self._image = None
            self._driver.engine.rest()
            found = self._encoder.rows(*self._tiles[number])
        except (MemoryError, OSError) as error:
            raise SettingError(f"the image cannot be seen: {one_line(str(error), 80) or 'memory is full'}") from error
        del self._tiles[number]
        return found
