"""Parts of a layer that some models have and others lack, or have another of: each a type of its own."""

from typing import Any, NamedTuple

import numpy as np


class RmsNorm(NamedTuple):
    """Gains of an RMS norm."""

    gain: np.ndarray  # float32 [>= D]


class LayerNorm(NamedTuple):
    """Gains and biases of a layer norm."""

    gain: np.ndarray  # float32 [>= D]
    bias: np.ndarray  # float32 [>= D]


class NoNorm(NamedTuple):
    """A place without a norm."""


class NoPositions(NamedTuple):
    """A model that does not learn vectors for positions."""


class WidthNorm(NamedTuple):
    """Gains of an RMS norm over all heads of the queries, and of one over all heads of the keys."""

    queries: np.ndarray  # float32 [H d]
    keys: np.ndarray  # float32 [G d]


class Unchanged(NamedTuple):
    """Numbers that stay as they are."""


class SoftCap(NamedTuple):
    """Numbers that are brought into -cap..cap; of scores, which are in powers of two, the cap is times log2(e)."""

    cap: Any  # float32


class Alibi(NamedTuple):
    """Scores that fall with the distance of the key, by each head's slope."""

    slopes: np.ndarray  # float32 [H], times log2(e)


class AttentionSink(NamedTuple):
    """Scores beside a sink's, which takes weight from the keys and adds nothing."""

    sinks: np.ndarray  # float32 [H]: its score, times log2(e)


class Silu(NamedTuple):
    """SiLU, also called swish."""


class Gelu(NamedTuple):
    """GELU by the error function."""


class GeluTanh(NamedTuple):
    """GELU by the hyperbolic tangent."""


class Relu(NamedTuple):
    """The positive part."""


class Relu2(NamedTuple):
    """Its square."""


class ClampedSwiglu(NamedTuple):
    """SiLU of clamped gates, steeper than usual, times what they let through and 1; stacked over layers."""

    alpha: Any  # float32
    limit: Any  # float32


class NoShared(NamedTuple):
    """Layers whose experts are all chosen."""


class Shared(NamedTuple):
    """An expert that all tokens pass; the router's last row is its gate."""

    gate_up_proj: Any
    down_proj: Any
