"""From the patches of a tile to rows of the text model: a model folder's vision tower, and its connector."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import ModelFolderError
from tinychat.images.connector import Connector, read_connectors
from tinychat.images.positions import axis_positions, grid_positions
from tinychat.models.rope import grid_turns
from tinychat.models.vision import VISION_FOLDER, Vision, read_vision, sees

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine


class ImageEncoder:
    """The vision tower and the connector of a model folder that `sees`; they are loaded when a tile first comes.

    threads : as of `load_engine`; progress : called with (steps done, steps in all) if kernels have to be compiled.
    """

    def __init__(
        self, folder: Path, threads: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        vision = read_vision(folder) if sees(folder) else None
        if vision is None:
            raise ModelFolderError(f"{folder} has no vision tower: convert the model again")
        self.vision: Vision = vision
        self._folder, self._threads, self._progress = folder, threads, progress

    @cached_property
    def engine(self) -> Engine:
        """The engine of the tower."""
        from tinychat.engine.loading import load_engine

        engine = load_engine(self._folder / VISION_FOLDER, threads=self._threads, progress=self._progress)
        if self.vision.others:
            engine.keep_states([parts.layer for parts in self.vision.others])
        return engine

    @cached_property
    def _connectors(self) -> list[Connector]:
        return read_connectors(self._folder, self.vision)

    def rows(self, tile: NDArray[np.float32], grid: tuple[int, int]) -> NDArray[np.float32]:
        """Return the rows of the text model, float32 [tokens, row_size], of a tile: float32 [patches, patch_columns].

        grid : its rows and columns of patches. They are the same bits on any processor, for any number of threads. A
        row has `text_size` numbers for the embedding, then as many of each other connector, in their order.
        """
        from tinychat.engine.sequence import new_sequence

        patches, engine, positions = len(tile), self.engine, None
        config = engine.config
        if config.position_grid:
            positions = grid_positions(engine.grid_positions, grid, from_corners=config.position_corners)
        elif config.position_axes:
            positions = axis_positions(engine.grid_positions, grid)
        turns = grid_turns(config, grid) if config.rotary_dim else None
        sequence = new_sequence(engine, patches)
        chunk = sequence.chunk([0] * patches, patches, 0)._replace(rows=tile, hidden=positions, turns=turns)
        (states,) = engine.hidden_states([chunk])
        inputs = [states]
        if others := len(self.vision.others):
            inputs += np.split(engine.kept_states(0, patches).astype(np.float64), others, axis=1)
        sequence.evict()
        # Until the next tile the cores are the text model's.
        engine.rest()
        return np.concatenate([each.rows(x, grid) for each, x in zip(self._connectors, inputs)], axis=1)
