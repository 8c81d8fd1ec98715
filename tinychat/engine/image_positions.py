"""Positions of a sequence's tokens on three axes (M-RoPE): text goes on behind an image as if that were one line.

An image begins at the position p that text would have there. Its token in a row and column has the time p, the row
p + row and the column p + column; text behind it goes on at p + max(rows, columns). So all positions follow from the
ids up to them, and cached blocks belong to them as ever. What is known of images stays with the cache, as they may be
gone when it goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.ids import common_length
from tinychat.engine.image_ids import Tile
from tinychat.models.config import ModelConfig

Turns = NDArray[np.float32]


class ImageSpan(NamedTuple):
    """Consecutive ids of a tile in a sequence, from index `start` to `stop` - 1."""

    start: int
    stop: int
    first_id: int
    position: int  # of text that would stand here
    ids: range  # those of the whole tile
    grid: tuple[int, int]

    @property
    def next_position(self) -> int:
        """Position of text behind it."""
        return self.position + max(self.grid)

    def goes_on(self, index: int, token_id: int) -> bool:
        """Return whether an id at an index is the next one of the tile."""
        return index == self.stop and token_id == self.first_id + index - self.start and token_id in self.ids

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions of ids from one index of it to another."""
        numbers = np.arange(start, stop) - self.start + self.first_id - self.ids.start
        rows, columns = np.divmod(numbers, self.grid[1])
        return self.position + np.stack([np.zeros_like(rows), rows, columns], axis=1)


_STOP = attrgetter("stop")


class ImagePositions:
    """The images of one sequence; those beyond its length, of a step that failed, have no effect."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._spans: list[ImageSpan] = []

    def copy(self) -> ImagePositions:
        """Return the same images, for another sequence."""
        other = ImagePositions(self._config)
        other._spans = self._spans.copy()
        return other

    def of(self, ids: Sequence[int]) -> ImagePositions:
        """Return the images of other ids, all of which are here."""
        other = ImagePositions(self._config)
        other.extend(0, ids, lambda token_id: next((span for span in self._spans if token_id in span.ids), None))
        return other

    def extend(self, length: int, ids: Sequence[int], find: Callable[[int], Tile | ImageSpan | None]) -> int:
        """Find the images of ids that follow the first `length`; return how many ids lie before an unknown image.

        find : returns the tile of an image id, or what another sequence shows of it; None for an unknown one.
        """
        spans = self._spans
        while spans and spans[-1].start >= length:
            spans.pop()
        if spans and spans[-1].stop > length:
            spans[-1] = spans[-1]._replace(stop=length)
        if max(ids, default=0) < self._config.vocab_size:
            return len(ids)
        for index, token_id in enumerate(ids, length):
            if token_id < self._config.vocab_size or (spans and index < spans[-1].stop):
                continue
            if not (spans and spans[-1].goes_on(index, token_id)):
                if (tile := find(token_id)) is None:
                    return index - length
                spans.append(ImageSpan(index, index, token_id, index - self._behind, tile.ids, tile.grid))
            rest, first = range(token_id, spans[-1].ids.stop), index - length
            spans[-1] = spans[-1]._replace(stop=index + common_length(rest, ids[first : first + len(rest)]))
        return len(ids)

    @property
    def _behind(self) -> int:
        """Index less position of text after the last image."""
        return self._spans[-1].stop - self._spans[-1].next_position if self._spans else 0

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return time, row and column of the tokens from one index to another: int64 [stop - start, 3]."""
        found = np.repeat(np.arange(start, stop)[:, None], 3, axis=1)
        # Of the images before, the last one says where text goes on.
        for span in self._spans[max(0, bisect_right(self._spans, start, key=_STOP) - 1) :]:
            behind = max(start, span.stop)
            found[behind - start :] = np.arange(behind, stop)[:, None] - span.stop + span.next_position
            first, last = max(start, span.start), min(stop, span.stop)
            if first < last:
                found[first - start : last - start] = span.positions(first, last)
        return found

    def turns(self, start: int, stop: int, cos_sin: Callable[[int, int], Turns]) -> Turns:
        """Return cosines, then sines of the tokens from one index to another: float32 [stop - start, rotary_dim].

        cos_sin : returns those of positions from one to another that are the same on all axes.
        """
        if not self._spans or start >= self._spans[-1].stop:
            return cos_sin(start - self._behind, stop - self._behind)
        positions = self.positions(start, stop)
        least = int(positions.min())
        table, axes = cos_sin(least, int(positions.max()) + 1), np.array(2 * self._config.rotary_axes)
        turned: Turns = table[positions[:, axes] - least, np.arange(len(axes))]
        return turned
