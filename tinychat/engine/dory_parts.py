"""Parameters that only Dory has: of layers that run in loops (`models.loops`), and of norms of other widths."""

from typing import Any, NamedTuple

import numpy as np

from tinychat.engine.arguments import ModelDims

# What the end of a layer does: it holds the residual stream, or begins the next loop with what is held.
HOLD, REJOIN = 1, 2


class LoopEnd(NamedTuple):
    """The end of a layer, each time that it runs."""

    step: np.ndarray  # int64: `HOLD`, `REJOIN`, or 0
    norm: Any  # of the sum of the residual stream and what is held


class OtherWidth(NamedTuple):
    """A norm of rows of another width than the residual stream's."""

    norm: Any
    sizes: ModelDims  # with this width as `hidden_size`; stacked, as everything
