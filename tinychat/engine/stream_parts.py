"""Parameters that only models with several residual streams have: see `models.altup`."""

from typing import Any, NamedTuple

import numpy as np

from tinychat.engine.arguments import LayerInput, VariedAttention


class StreamRouter(NamedTuple):
    """How streams mix, by a token's residual stream (`kernels.altup`)."""

    norm: Any
    weight: np.ndarray  # float32 [4 D]
    mixing: np.ndarray  # float32 [n 4]


class StreamMixer(NamedTuple):
    """Attention to the prediction of the residual stream, and LAuReL beside it, a linear of low rank."""

    router: StreamRouter
    attention: VariedAttention
    left: Any
    right: Any
    norm: Any


class StreamEnd(NamedTuple):
    """The end of a layer of four streams."""

    router: StreamRouter
    scale: np.ndarray  # float32 [D]: of the residual stream before the gate of the layer's input
    input: LayerInput


class Streams(NamedTuple):
    """Linears between the embedding and the other streams, and between these and the last norm."""

    before: Any  # `NoNorm`: the embedding is projected as it is
    projection: Any  # to the three others
    first: Any  # from each of them
    second: Any
    third: Any
