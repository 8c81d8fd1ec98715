"""Images in prompts: the tiles of each, the ids that stand for them, and the rows, computed when these run."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from tinychat.errors import SettingError, TextError, TinychatError
from tinychat.images.data_url import image_of_url
from tinychat.images.image import Image, image_of
from tinychat.images.preparation import Size, patches, plan, prepare, written_otherwise
from tinychat.json_file import one_line
from tinychat.text.guard import GUARD_START

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tinychat.engine.image_ids import Tile
    from tinychat.generate.driver import Driver
    from tinychat.images.encoder import ImageEncoder
    from tinychat.models.image_preparation import Preparation
    from tinychat.text.tokenizer import Tokenizer

# Images that later prompts may show again: their rows and, before these are there, their tiles. Those of prompts that
# are being answered are held beside these.
_MOST_BYTES = 256 << 20


class _SeenImage(NamedTuple):
    """The ids that stand for an image in a prompt, and the tiles that they are known by as long as these are held."""

    ids: list[int]
    tiles: list[Tile]
    pixels: _Pixels
    row_bytes: int  # of one id

    @property
    def bytes(self) -> int:
        """Memory of the rows, and of what others are not computed of yet."""
        return self.row_bytes * sum(len(tile.ids) for tile in self.tiles if tile.is_computed) + self.pixels.bytes


class _Pixels:
    """The pixels of an image, or of its tiles, each of which is dropped when its rows are there.

    resizing : held by who resizes an image: that takes memory.
    """

    def __init__(self, image: Image, preparation: Preparation, resizing: Lock) -> None:
        # Without its file, which may be as large.
        self._image: Image | None = replace(image, data=b"")
        self._preparation, self._resizing = preparation, resizing
        self._tiles: dict[int, NDArray[np.uint8]] = {}

    @property
    def bytes(self) -> int:
        """Memory of what is held."""
        image = self._image
        return sum(tile.nbytes for tile in [*self._tiles.values()]) if image is None else image.pixels.nbytes

    def prepare(self) -> None:
        """Resize the image and split it into tiles, unless that is done."""
        with self._resizing:
            if self._image is not None:
                self._tiles = dict(enumerate(prepare(self._image, self._preparation).pixels))
                self._image = None

    def patches(self, number: int) -> NDArray[np.float32]:
        """Return the patches of a tile."""
        self.prepare()
        return patches(self._tiles[number], self._preparation)

    def drop(self, number: int) -> None:
        """Drop a tile."""
        del self._tiles[number]


class ImagePrompts:
    """Puts images into prompts; the same image has the same ids as long as there is room.

    So a conversation finds it in the cache again. `encoder` computes its rows, tile by tile, when they run; None for a
    model that sees no images.
    """

    def __init__(self, driver: Driver, tokenizer: Tokenizer, encoder: ImageEncoder | None) -> None:
        self.are_seen: bool = encoder is not None
        self._driver, self._tokenizer, self._encoder = driver, tokenizer, encoder
        self._lock, self._resizing = Lock(), Lock()
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
        with self._lock:
            shown = [self._shown(image, self._encoder) for image in images]
            self._make_room(len(set(images)))
        waiting = iter(shown)
        ids = [one for found in ids for one in (next(waiting).ids if found == token_id else [found])]
        if len(ids) <= self._driver.context_size:
            # Now, while others write: their steps would wait for it. What does not fit is not worth the time.
            _prepare(shown)
        return ids

    def _shown(self, image: Image, encoder: ImageEncoder) -> _SeenImage:
        key = image.digest, image.detail
        self._seen[key] = seen = self._seen.pop(key, None) or self._see(image, encoder)
        return seen

    def _make_room(self, shown: int) -> None:
        """Let the least recently used images go, but none of those that were just shown."""
        left = sum(one.bytes for one in self._seen.values())
        while left > _MOST_BYTES and len(self._seen) > max(shown, 1):
            left -= self._seen.popitem(last=False)[1].bytes

    def _see(self, image: Image, encoder: ImageEncoder) -> _SeenImage:
        vision, images = encoder.vision, self._driver.engine.images
        assert images is not None
        height, width, _ = image.pixels.shape
        planned, side = plan(height, width, vision.preparation, image.detail), vision.scale_factor
        pixels = _Pixels(image, vision.preparation, self._resizing)
        grids = [(rows // side, columns // side) for rows, columns in planned.grids]
        counts = [rows * columns for rows, columns in grids]
        works = [partial(_rows, self._driver, encoder, pixels, *tile) for tile in enumerate(planned.grids)]
        tiles = [images.new_tile(*tile) for tile in zip(counts, works, grids)]
        waiting = iter([token_id for tile in tiles for token_id in tile.ids])
        text = self._tokenizer.encode_rendered(planned.text)
        if text.count(vision.image_token_id) != sum(counts):
            raise TextError(f"the tokenizer does not know {planned.image_token} as token {vision.image_token_id}")
        ids = [next(waiting) if token_id == vision.image_token_id else token_id for token_id in text]
        return _SeenImage(ids, tiles, pixels, 4 * vision.row_size)


def _images_of(messages: Sequence[Mapping[str, object]]) -> Iterator[Image]:
    """Yield the images of messages' parts; of those that are texts, data: URLs alone, never the file of a path."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] == "image":
                image, field = part.get("image"), f"messages[{number}].content[{index}].image"
                yield image_of_url(image, field) if isinstance(image, str) else image_of(image, field)


def _rows(driver: Driver, encoder: ImageEncoder, pixels: _Pixels, number: int, grid: Size) -> NDArray[np.float32]:
    """Compute the rows of a tile, while the threads of the text model sleep.

    SettingError where there is no memory for it, or a file of the tower cannot be read; others are of the tower.
    """
    try:
        tile = pixels.patches(number)
        driver.engine.rest()
        found = encoder.rows(tile, grid)
    except TinychatError:
        raise
    except Exception as error:
        # Whatever is wrong with an image, or with a tower, is no matter of other replies.
        raise _unseen(error) from error
    pixels.drop(number)
    return found


def _prepare(shown: Sequence[_SeenImage]) -> None:
    try:
        for seen in shown:
            seen.pixels.prepare()
    except MemoryError as error:
        raise _unseen(error) from error


def _unseen(error: Exception) -> SettingError:
    what = "memory is full" if isinstance(error, MemoryError) else str(error) or type(error).__name__
    return SettingError(f"the image cannot be seen: {one_line(what, 80)}")
