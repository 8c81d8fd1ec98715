"""Parameters of layers that read mixtures of blocks, and run in loops: see `models.block_mixtures`."""

from typing import Any, NamedTuple

import numpy as np

from tinychat.models.block_mixtures import Seen


class MessageGate(NamedTuple):
    """How a mixture takes in a message (`kernels.block_mixtures`)."""

    norm: Any  # of both, without gains
    mixture_proj: Any
    message_proj: Any
    gates_proj: Any  # of the sum of what these give
    queries: Any  # float32 [2 D a layer of the loop]
    query: np.ndarray  # int64: the element at which the message's query begins


class MixtureAttention(NamedTuple):
    """Attention of layers with a window, or of those without, to convolved keys and values."""

    queries: Any  # float32 [D], of one mixture for all, or [3 D]: of those for queries, keys and values
    step: np.ndarray  # int64: elements from one of these to the next
    query_norm: Any
    key_norm: Any
    value_norm: Any
    key_taps: Any  # float32 [K G d]
    value_taps: Any
    key_taps_proj: Any  # of taps of each token, float32; or `NoTaps`
    value_taps_proj: Any
    profiles: Any  # of `ProfileBias`


class Convolutions(NamedTuple):
    """Where the inputs of a run's convolutions begin in a state."""

    keys: np.ndarray  # int64, and so are the others
    values: np.ndarray
    attention: np.ndarray
    mlp: np.ndarray


class MixtureMixer(NamedTuple):
    """Attention of a run of a layer, and the convolution of what it gives."""

    visit: Any  # `models.block_mixtures.Visit`, of int64
    states: Convolutions
    attention: Any  # `PerLayer` of `MixtureAttention`
    query_gate: Any  # `MessageGate`, and so are the next
    key_gate: Any
    value_gate: Any
    query_proj: Any  # of queries, gates, weights of profiles, and sinks
    key_proj: Any
    value_proj: Any
    clips: Any  # `QueryClips`
    window: np.ndarray  # int64, as in `arguments.Attention`
    o_proj: Any
    taps: Any  # float32 [K D]


class MixtureMlp(NamedTuple):
    """The experts of a run of a layer."""

    visit: Any
    query: Any  # float32 [D], of their mixture
    gate: MessageGate
    experts: Any  # `arguments.ExpertMlp`


class MixtureEnd(NamedTuple):
    """The end of a run of a layer: the convolution of what experts give."""

    visit: Any
    states: Convolutions
    taps: Any  # float32 [K D]


class MixtureOutput(NamedTuple):
    """The mixture that the last norm reads."""

    query: Any  # float32 [D]
    seen: Seen


class NoTaps(NamedTuple):
    """A layer whose convolutions have the same taps for all tokens."""
