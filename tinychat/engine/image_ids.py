"""Image ids: ids beyond the vocabulary, each of which stands for a row of an image in the residual stream.

To sequences, caches and the prefix index they are ids like others. A step gets the id of some token instead, and the
row that replaces its embedding. They are drawn at random: clients of a server, which may send ids, cannot guess
those of another one's image, and ids of an image that is gone, cached or kept by a client, are never another one's.

In some models the tokens of an image attend to each other, also to later ones. There the ids of a tile run together:
keys and values of all of them depend on its last row, which is known by any of its ids. So caches, which hold nothing
else, may be cut within a tile. Its other ids then run by themselves, again to the end.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from secrets import randbelow
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import SettingError

Rows = NDArray[np.float32]
# Ids of a tile begin at a multiple of `_MOST`; all are below 2**63.
_MOST, _BEGINS = 1 << 16, 1 << 46


class Tile:
    """A part of an image: its ids, which are known as long as it is held, and their rows, computed when they run.

    compute : returns the rows, float32 [len(ids), hidden_size]; grid : rows and columns in which the ids lie.
    """

    def __init__(self, ids: range, compute: Callable[[], Rows], grid: tuple[int, int]) -> None:
        self.ids, self.grid = ids, grid
        self._compute: Callable[[], Rows] | None = compute
        self._rows: Rows | None = None

    @property
    def is_computed(self) -> bool:
        """Whether the rows are there."""
        return self._rows is not None

    def compute(self) -> Rows:
        """Return the rows, computed if they are not there yet; after an error that is tried again."""
        if self._rows is None:
            assert self._compute is not None
            self._rows, self._compute = self._compute(), None
        return self._rows


class ImageIds:
    """The image ids of an engine, from the end of its vocabulary on; `token_id` is the image token's.

    `joint_tokens` is not 0 where the ids of a tile run together. Any thread may look ids up while another one makes a
    tile.
    """

    def __init__(self, vocab_size: int, token_id: int, joint_tokens: int = 0) -> None:
        self.first, self.token_id = vocab_size, token_id
        self._most, self._are_joint = joint_tokens or _MOST, joint_tokens > 0
        self._lock = Lock()
        # By the first of their ids. These stand in `_firsts`, too, a list that never changes: a dictionary that
        # grows cannot be gone through meanwhile.
        self._tiles: WeakValueDictionary[int, Tile] = WeakValueDictionary()
        self._firsts: list[int] = []

    def new_tile(self, count: int, compute: Callable[[], Rows], grid: tuple[int, int] | None = None) -> Tile:
        """Return a tile of so many new ids, in one row if no grid is given."""
        assert count <= self._most
        with self._lock:
            first = next(first for first in iter(self._drawn, None) if first not in self._tiles)
            tile = Tile(range(first, first + count), compute, grid or (1, count))
            self._tiles[first] = tile
            firsts = [*self._firsts]
            if len(firsts) > 2 * len(self._tiles):
                firsts = [one for one in firsts if one in self._tiles]
            insort(firsts, first)
            self._firsts = firsts
        return tile

    def _drawn(self) -> int:
        return self.first + _MOST * randbelow(_BEGINS)

    def find(self, token_id: int) -> Tile | None:
        """Return the tile of an image id; None if it is gone, or there never was one."""
        firsts = self._firsts
        index = bisect_right(firsts, token_id)
        tile = self._tiles.get(firsts[index - 1]) if index else None
        return tile if tile is not None and token_id in tile.ids else None

    def tile_of(self, token_id: int) -> Tile:
        """Return the tile of an image id; SettingError if it is gone, or there never was one."""
        if (tile := self.find(token_id)) is None:
            raise SettingError(f"token id {token_id} is of no image, or of one that is gone: render its prompt again")
        return tile

    def tiles_of(self, ids: Sequence[int]) -> list[Tile]:
        """Return the tiles that some of the ids belong to; errors are those of `tile_of`."""
        found: list[Tile] = []
        for token_id in ids:
            if token_id >= self.first and not (found and token_id in found[-1].ids):
                found.append(self.tile_of(token_id))
        return found

    def known_prefix(self, ids: Sequence[int]) -> int:
        """Return how many leading ids are of text, or of images that are still there; of joint ones, whole images."""
        known = range(0)
        for index, token_id in enumerate(ids):
            if token_id >= self.first and token_id not in known:
                if (tile := self.find(token_id)) is None:
                    return index
                known = tile.ids
        if self._are_joint and ids and ids[-1] in known[:-1]:
            return len(ids) - 1 - (ids[-1] - known.start)
        return len(ids)

    def step_length(self, ids: Sequence[int], count: int, most: int) -> int:
        """Return how many leading ids to run in a step, about `count` and up to `most`.

        Where a tile that runs together would be cut, the rest of it is run, too, or none of it if that is too much.
        """
        count = min(count, most, len(ids))
        if not self._are_joint or not 0 < count < len(ids) or ids[count - 1] < self.first:
            return count
        tile = self.tile_of(ids[count - 1]).ids
        stop = count + tile.stop - 1 - ids[count - 1]
        return stop if stop <= most else max(0, count - 1 - (ids[count - 1] - tile.start))

    def check_whole(self, ids: Sequence[int], before: Sequence[int] = ()) -> None:
        """Refuse ids of which some are a part of a tile; before : the ids that have run.

        Errors are those of `tile_of`, too.
        """
        # An image that has run may be gone by now.
        expected = self._next_of(before[-1]) if before and self.find(before[-1]) else None
        for token_id in ids:
            if token_id != expected and (expected or self._is_inside(token_id)):
                break
            expected = self._next_of(token_id)
        else:
            if expected is None:
                return
        raise SettingError("a part of an image: give the ids of all of it together")

    def _next_of(self, token_id: int) -> int | None:
        """Return the id that has to follow an id."""
        is_last = token_id < self.first or token_id == self.tile_of(token_id).ids[-1]
        return None if is_last else token_id + 1

    def _is_inside(self, token_id: int) -> bool:
        """Return whether another id has to stand before an id."""
        return token_id >= self.first and token_id != self.tile_of(token_id).ids[0]

    def tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the ids with the image token's in place of image ids."""
        return [token_id if token_id < self.first else self.token_id for token_id in ids]

    def until_computed(self, ids: Sequence[int], most: int = 1) -> int:
        """Return how many leading ids end with the first tile whose rows are not there yet; all without any.

        most : 1, or 0 for the ids before that tile.
        """
        tile = next((tile for tile in self.tiles_of(ids) if not tile.is_computed), None)
        if tile is None:
            return len(ids)
        begin = next(i for i, one in enumerate(ids) if one in tile.ids)
        others = (i for i in range(begin, len(ids)) if ids[i] >= self.first and ids[i] not in tile.ids)
        return next(others, len(ids)) if most else begin

    def compute(self, ids: Sequence[int]) -> bool:
        """Compute the rows of some ids that are missing; return whether any were."""
        missing = [tile for tile in self.tiles_of(ids) if not tile.is_computed]
        for tile in missing:
            tile.compute()
        return bool(missing)

    def computed(self, ids: Sequence[int]) -> Iterator[tuple[int, Tile]]:
        """Yield index and tile of each image id; rows that are missing are computed."""
        by_id = {token_id: tile for tile in self.tiles_of(ids) for token_id in tile.ids}
        for index, token_id in enumerate(ids):
            if token_id >= self.first:
                by_id[token_id].compute()
                yield index, by_id[token_id]
