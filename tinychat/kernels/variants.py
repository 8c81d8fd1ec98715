"""Types of the parts of a layer in which models differ; a kernel chooses its code by them (`jit`)."""

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np


class RmsNorm(NamedTuple):
    """Gains of an RMS norm."""

    gain: np.ndarray  # float32 [>= D]


class LayerNorm(NamedTuple):
    """Gains and biases of a layer norm."""

    gain: np.ndarray  # float32 [>= D]
    bias: np.ndarray  # float32 [>= D]


class ClippedNorm(NamedTuple):
    """A norm whose numbers are brought between two bounds."""

    norm: Any
    bounds: Any  # float32 [>= 2]: the least number, the largest


class StreamNorm(NamedTuple):
    """A norm of the residual stream behind a branch, which is added to it as it is."""

    norm: Any  # `RmsNorm` or `LayerNorm`


class ChannelScale(NamedTuple):
    """A scale and a shift of each channel, instead of a norm: ``(x + shift) * scale``."""

    scale: Any  # float32 [>= D]
    shift: Any  # float32 [>= D]


class ResidualScale(NamedTuple):
    """The same of a branch, and of the residual stream that it is added to."""

    branch: ChannelScale
    stream: ChannelScale


class Interpolation(NamedTuple):
    """How far a branch draws the residual stream towards it, both of length 1 (nGPT)."""

    norm: Any  # `RmsNorm`, of the branch and of the result
    rate: Any  # float32 [>= D]


class WidthNorm(NamedTuple):
    """Gains of an RMS norm over all heads of the queries, and of one over all heads of the keys."""

    queries: np.ndarray  # float32 [H d]
    keys: np.ndarray  # float32 [G d]


class HeadsNorm(NamedTuple):
    """Gains of a layer norm of each head of the queries, and of each of the keys."""

    queries: np.ndarray  # float32 [H d]
    keys: np.ndarray  # float32 [G d]


class RotatedGains(NamedTuple):
    """Gains of each head of queries and keys behind the rotation."""

    queries: np.ndarray  # float32 [d]
    keys: np.ndarray  # float32 [d]


class QueryScales(NamedTuple):
    """Factors of queries behind the rotation, of each channel of each head."""

    queries: np.ndarray  # float32 [H d]


class SoftCap(NamedTuple):
    """Scores or logits capped to -cap..cap; of scores, which are in powers of two, the cap is times log2(e)."""

    cap: Any  # float32


class Alibi(NamedTuple):
    """Scores that fall with the distance of the key, by each head's slope."""

    slopes: np.ndarray  # float32 [H], times log2(e)


class AlibiBothWays(NamedTuple):
    """The same of keys on both sides."""

    slopes: np.ndarray  # float32 [H], times log2(e)


class DistanceBias(NamedTuple):
    """Scores to which a number of each head and distance is added."""

    biases: np.ndarray  # float32 [H, W], times log2(e): of distances from 1 - W / 2 to W / 2, those of all farther ones


class AttentionSink(NamedTuple):
    """A score of each head that takes weight from the keys and adds nothing."""

    sinks: np.ndarray  # float32 [H], times log2(e)


class ProfileBias(NamedTuple):
    """Scores with a bias by distance that each query weighs for itself, and a sink of each query."""

    # float32 [R, W], times log2(e): of distances from W - 2 * 64 positions before to none, 64 zeros on either side
    profiles: np.ndarray
    weights: np.ndarray  # float32 [>= T, >= first + H (R + 1)]
    first: int  # column of the first weight of profiles, of which a head has R; behind those of all, sinks
    heads: int  # H


class QueryClips(NamedTuple):
    """Scales and bounds of queries and of the weights of profiles, and the bound of keys."""

    queries: np.ndarray  # float32 [H d]
    relative: np.ndarray  # float32 [H R]
    bound: Any  # float32
    relative_bound: Any  # float32
    factor: Any  # float32: of queries at position 0, log2(e) included
    grows: Any  # bool: whether they grow with the position


class BothWays(NamedTuple):
    """A window of attention that reaches as far behind a query as before it."""

    window: Any  # int64: as of `arguments.Attention`


class Before(NamedTuple):
    """A window of attention without the query's own position, whose key is not there."""

    window: Any  # int64: as of `arguments.Attention`, the own position included


class JointImages(NamedTuple):
    """A window of attention in which the tokens of an image see the later ones of the same image, too."""

    window: Any  # int64: as of `arguments.Attention`


class ClampedSwiglu(NamedTuple):
    """The activation of gpt-oss (`kernels.activations`); stacked over layers."""

    alpha: Any  # float32
    limit: Any  # float32


class CappedSwiglu(NamedTuple):
    """The activation of Inkling 2 (`kernels.activations`); stacked over layers."""

    gate: Any  # float32
    up: Any  # float32


class LimitedSilu(NamedTuple):
    """SiLU and what it lets through, within a limit (`kernels.activations`); stacked over layers."""

    limit: Any  # float32


class Xielu(NamedTuple):
    """The activation of Apertus (`kernels.activations`)."""

    positive: np.ndarray  # float32 [1]
    negative: np.ndarray  # float32 [1]


class NormedActivation(NamedTuple):
    """An activation and gates, and an RMS norm of what these let through."""

    activation: Any
    gain: np.ndarray  # float32 [>= F]
    eps: Any  # float32


class ClippedActivation(NamedTuple):
    """An activation and gates, and bounds of what these let through."""

    activation: Any
    bounds: Any  # float32 [>= 2]: as of `ClippedNorm`


class Ungated(NamedTuple):
    """The activation of an MLP that has no gates."""

    activation: Any


class SigmoidRouter(NamedTuple):
    """A router whose probabilities are sigmoids; biases are added for the choice alone."""

    bias: np.ndarray  # float32 [E]


class LogitRouter(NamedTuple):
    """A router whose probabilities are sigmoids; biases are added to logits, for the choice alone."""

    bias: np.ndarray  # float32 [E]


class BiasedRouter(NamedTuple):
    """A router whose probabilities sum up to 1; biases are added for the choice alone."""

    bias: np.ndarray  # float32 [E]


class MixingRouter(NamedTuple):
    """A router (SparseMixer) whose choices have their probabilities among the logits near their own."""

    reach: np.ndarray  # float32 [1], of a logit's size


class ScaledRouter(NamedTuple):
    """A router whose probabilities are times a number of each expert."""

    scale: np.ndarray  # float32 [E]


class SelectiveGains(NamedTuple):
    """Gains of Mamba's norms."""

    steps: np.ndarray  # float32 [R]
    keys: np.ndarray  # float32 [N]
    queries: np.ndarray  # float32 [N]


class DeepImages(NamedTuple):
    """Rows of images replace embeddings, and other parts of them are added to the outputs of the first layers."""

    layers: int


class Shared(NamedTuple):
    """An expert of all tokens; the router's last row may be its gate."""

    up_proj: Any
    activation: Any
    down_proj: Any


# Parts without parameters: the activations of `kernels.activations`, and parts that a model lacks.
Silu = namedtuple("Silu", ())
Gelu = namedtuple("Gelu", ())
GeluTanh = namedtuple("GeluTanh", ())
Relu = namedtuple("Relu", ())
Relu2 = namedtuple("Relu2", ())
SoftmaxRouter = namedtuple("SoftmaxRouter", ())
NoNorm = namedtuple("NoNorm", ())
NoPositions = namedtuple("NoPositions", ())
NoMixer = namedtuple("NoMixer", ())  # neither attention nor a part that replaces it
NoMlp = namedtuple("NoMlp", ())
NoShared = namedtuple("NoShared", ())
NoLatent = namedtuple("NoLatent", ())  # of experts, or of gates of a state
NoGates = namedtuple("NoGates", ())  # of heads of latent attention
NoInputs = namedtuple("NoInputs", ())  # of layers, beside the residual stream
NoTable = namedtuple("NoTable", ())  # of these inputs, which are projections alone
Images = namedtuple("Images", ())  # rows of images replace embeddings
NoImages = namedtuple("NoImages", ())
NoEnd = namedtuple("NoEnd", ())
Unchanged = namedtuple("Unchanged", ())  # scores and logits as they are
