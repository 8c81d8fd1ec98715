"""Images in prompts: the tiles of each, the ids that stand for them, and the rows, computed when these run."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from tinychat.errors import SettingError, TextError
from tinychat.images.data_url import image_of_url
from tinychat.images.image import Image, image_of
from tinychat.images.preparation import Size, patches, prepare, written_otherwise
from tinychat.json_file import one_line
from tinychat.text.guard import GUARD_START

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tinychat.engine.image_ids import Tile
    from tinychat.generate.driver import Driver
    from tinychat.images.encoder import ImageEncoder
    from tinychat.text.tokenizer import Tokenizer

# Images that later prompts may show again: their rows and, before these are there, their tiles. Those of prompts that
# are being answered are held beside these.
_MOST_BYTES = 256 << 20


class _SeenImage(NamedTuple):
    """The ids that stand for an image in a prompt, and the tiles that they are known by as long as these are held."""

    ids: list[int]
    tiles: list[Tile]
    tile_bytes: list[int]
    row_bytes: int

    @property
    def bytes(self) -> int:
        """Memory of the rows, and of the pixels of tiles whose rows are not computed yet."""
        return self.row_bytes + sum(size for tile, size in zip(self.tiles, self.tile_bytes) if not tile.is_computed)


class ImagePrompts:
    """Puts images into prompts; the same image has the same ids as long as there is room.

    So a conversation finds it in the cache again. `encoder` computes its rows, tile by tile, when they run; None for a
    model that sees no images.
    """

    def __init__(self, driver: Driver, tokenizer: Tokenizer, encoder: ImageEncoder | None) -> None:
        self.are_seen: bool = encoder is not None
        self._driver, self._tokenizer, self._encoder = driver, tokenizer, encoder
        self._lock = Lock()
        # By digest and detail, the least recently used first.
        self._seen: OrderedDict[tuple[str, str], _SeenImage] = OrderedDict()

    def encode(self, rendered: str, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """Return the ids of rendered messages, those of their images included; errors are those of `fill`."""
        found = written_otherwise(self._encoder.vision.preparation) if self._encoder else None
        if found is not None:
            written, instead = found
            # Behind the mark it is a spelling in somebody's text. Encoded with it, newlines around may be one token.
            rendered = re.sub(f"(?<!{GUARD_START}){re.escape(written)}", lambda _: instead, rendered)
        return self.fill(self._tokenizer.encode_rendered(rendered), messages)

    def fill(self, ids: list[int], messages: Sequence[Mapping[str, object]]) -> list[int]:
        """Return the ids of rendered messages with those of their images in place of image tokens, one for each.

        TextError if there are more or fewer of these than images; FieldError for what is no image.
        """
        if self._encoder is None:
            return ids
        images = [*_images_of(messages)]
        token_id = self._encoder.vision.image_token_id
        if ids.count(token_id) != len(images):
            raise TextError(f"the chat template writes {ids.count(token_id)} of {len(images)} images: send fewer")
        if not images:
            return ids
        # One image is resized at a time: it takes memory. Texts do not wait for it.
        with self._lock:
            waiting = iter([self._ids_of(image, self._encoder) for image in images])
            self._make_room(len(set(images)))
        return [one for found in ids for one in (next(waiting) if found == token_id else [found])]

    def _ids_of(self, image: Image, encoder: ImageEncoder) -> list[int]:
        key = image.digest, image.detail
        seen = self._seen.pop(key, None) or self._see(image, encoder)
        self._seen[key] = seen
        return seen.ids

    def _make_room(self, shown: int) -> None:
        """Let the least recently used images go, but none of those that were just shown."""
        left = sum(one.bytes for one in self._seen.values())
        while left > _MOST_BYTES and len(self._seen) > max(shown, 1):
            left -= self._seen.popitem(last=False)[1].bytes

    def _see(self, image: Image, encoder: ImageEncoder) -> _SeenImage:
        vision, images = encoder.vision, self._driver.engine.images
        assert images is not None
        try:
            prepared = prepare(image, vision.preparation)
        except MemoryError as error:
            raise _unseen(error) from error
        patch_grids, side = prepared.plan.grids, vision.scale_factor
        grids = [(rows // side, columns // side) for rows, columns in patch_grids]
        counts = [rows * columns for rows, columns in grids]
        works = [partial(self._rows, encoder, *tile) for tile in zip(prepared.pixels, patch_grids)]
        tiles = [images.new_tile(*tile) for tile in zip(counts, works, grids)]
        waiting = iter([token_id for tile in tiles for token_id in tile.ids])
        text = self._tokenizer.encode_rendered(prepared.plan.text)
        if text.count(vision.image_token_id) != sum(counts):
            token = prepared.plan.image_token
            raise TextError(f"the tokenizer does not know {token} as token {vision.image_token_id}")
        ids = [next(waiting) if token_id == vision.image_token_id else token_id for token_id in text]
        return _SeenImage(ids, tiles, [tile.nbytes for tile in prepared.pixels], 4 * vision.row_size * sum(counts))

    def _rows(self, encoder: ImageEncoder, tile: NDArray[np.uint8], grid: Size) -> NDArray[np.float32]:
        """Compute the rows of a tile, while the threads of the text model sleep.

        SettingError where there is no memory for it, or a file of the tower cannot be read; others are of the tower.
        """
        try:
            found = patches(tile, encoder.vision.preparation)
            self._driver.engine.rest()
            return encoder.rows(found, grid)
        except (MemoryError, OSError) as error:
            raise _unseen(error) from error


def _images_of(messages: Sequence[Mapping[str, object]]) -> Iterator[Image]:
    """Yield the images of messages' parts; of those that are texts, data: URLs alone, never the file of a path."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] == "image":
                image, field = part.get("image"), f"messages[{number}].content[{index}].image"
                yield image_of_url(image, field) if isinstance(image, str) else image_of(image, field)


def _unseen(error: Exception) -> SettingError:
    return SettingError(f"the image cannot be seen: {one_line(str(error), 80) or 'memory is full'}")
