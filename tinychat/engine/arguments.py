"""Arguments of the forward pass: parameters, dimensions, scratch, batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.buffers import DeltaScratch, ExpertScratch, FloatScratch, LatentScratch, StreamScratch


class Mlp(NamedTuple):
    """An MLP whose first linear gives gates and what they let through, or the latter alone."""

    post_attention_layernorm: Any  # before it
    up_proj: Any
    activation: Any  # of `kernels.activations`, `Ungated` without gates
    size: np.ndarray  # int64: inputs of the last linear
    down_proj: Any
    post_mlp_layernorm: Any  # of its output, before that is added to the residual stream


class ParallelMlp(NamedTuple):
    """An MLP that reads the residual stream as attention finds it, not as it leaves it."""

    mlp: Any  # `Mlp` or `ExpertMlp`


class SparseMlp(NamedTuple):
    """An MLP of whose gates only the largest are open (`kernels.inputs.cut_gates`)."""

    mlp: Mlp
    cutoff: np.ndarray  # float32: in standard deviations above the mean


class RouterMlp(NamedTuple):
    """A router that is an MLP; it reads a vector of its own, to which that of the layer before is carried."""

    in_proj: Any
    carry: Any  # float32 [R]: what that is multiplied by; `NoNorm` in the first layer
    norm: Any  # of the vector
    fc1: Any  # float32, and so are the next
    fc2: Any
    out_proj: Any
    activation: Any  # `Ungated`
    sizes: "ModelDims"  # with the vector's size as `hidden_size`; stacked, as everything


class ExpertMlp(NamedTuple):
    """An MLP of experts, of which each token passes those that the router chooses (`kernels.experts`)."""

    post_attention_layernorm: Any
    router: Any  # a linear, or `RouterMlp`
    routing: Any  # `SoftmaxRouter`, `ScaledRouter`, `MixingRouter`, `SigmoidRouter`, `LogitRouter` or `BiasedRouter`
    up_proj: Any  # of all experts
    activation: Any
    down_proj: Any  # of all experts
    shared: Any  # `Shared` or `NoShared`


class EarlyExperts(NamedTuple):
    """Experts that the router chooses by the residual stream as attention finds it, not as it leaves it."""

    experts: ExpertMlp


class PlainExperts(NamedTuple):
    """Experts without gates, which may read a latent of the residual stream."""

    experts: ExpertMlp
    latent: Any  # `ExpertLatent` or `NoLatent`


class ExpertLatent(NamedTuple):
    """The linears between the residual stream and a narrower vector, which experts read and add to."""

    in_proj: Any
    out_proj: Any


class NormedExperts(NamedTuple):
    """An MLP of experts, whose output is normed."""

    experts: ExpertMlp
    post_mlp_layernorm: Any  # of its output, before that is added to the residual stream; or `ResidualScale`


class StreamExperts(NamedTuple):
    """An MLP of experts, behind which the residual stream is normed."""

    experts: Any  # `ExpertMlp` or `PlainExperts`
    shift: Any  # `ChannelScale`: added to the residual stream; or `NoNorm`
    norm: Any  # `StreamNorm`


class MixedMlp(NamedTuple):
    """An MLP and experts beside each other, whose normed outputs are added."""

    mlp: Mlp
    experts: ExpertMlp
    router_norm: Any  # before the router, which has one of its own
    experts_norm: Any  # of what the experts give
    norm: Any  # of the sum, before that is added to the residual stream


class Attention(NamedTuple):
    """Attention of one layer. Weights are as in `kernels.weights`, norms as in `kernels.norms`."""

    input_layernorm: Any  # before it
    qkv_proj: Any
    width_norm: Any  # of all queries, and of all keys: `WidthNorm`, or `HeadsNorm`, or `NoNorm`
    q_norm: Any  # of each head: gains float32 [d], or [0] where the model has none
    k_norm: Any
    rotated_gains: Any  # of each head behind the rotation: `RotatedGains`, or `QueryScales`, or `NoNorm`
    angles: np.ndarray  # int64: which set of rotary angles
    rotary_dim: np.ndarray  # int64: how many channels of a head are rotated
    window: Any  # int64: positions a query sees, itself included; or `BothWays`, `Before` or `JointImages`
    scoring: Any  # what is done to scores: `kernels.scores`
    attended_norm: Any  # of what it gives, before the last linear: `RmsNorm`, `dory_parts.OtherWidth` or `NoNorm`
    o_proj: Any
    post_self_attn_layernorm: Any  # of its output, before that is added to the residual stream


class GatedAttention(NamedTuple):
    """Attention whose queries come with gates of its output, without norms over all heads."""

    attention: Attention


class HeadGates(NamedTuple):
    """The linear of a gate for each head of attention."""

    gates_proj: Any  # float32
    with_softplus: np.ndarray  # bool: gates are softplus, not sigmoids


class HeadGatedAttention(NamedTuple):
    """Attention whose output is multiplied by a gate for each head, without norms over all heads."""

    attention: Attention
    gates: HeadGates


class OtherHeads(NamedTuple):
    """Attention with another number of heads than the model's sizes have."""

    attention: HeadGatedAttention
    sizes: "ModelDims"  # stacked, as everything


class VariedAttention(NamedTuple):
    """Attention whose keys and values may be those of an earlier layer, and whose values are normed."""

    keys: Any  # `OwnKeys` or `OthersKeys`
    input_layernorm: Any  # these are as in `Attention`
    q_norm: Any
    angles: np.ndarray
    rotary_dim: np.ndarray
    window: Any
    scoring: Any
    o_proj: Any
    post_self_attn_layernorm: Any


class OwnKeys(NamedTuple):
    """Parameters of a layer with queries, and with keys and values of its own."""

    qkv_proj: Any
    k_norm: Any  # gains float32 [d]


class OthersKeys(NamedTuple):
    """Parameters of a layer with queries that meet the keys of another layer."""

    q_proj: Any


class LatentAttention(NamedTuple):
    """Attention to latents (`kernels.latent`); its `qkv_proj` gives latents, and queries where they have none."""

    attention: Attention
    q_norm: Any  # float32 [q_lora_rank], or [0]
    kv_norm: Any  # float32 [kv_lora_rank]
    q_proj: Any  # from the latents of queries, or `NoLatents`
    k_proj: Any  # of each head, and so is the next
    v_proj: Any
    gates: Any  # `HeadGates` or `NoGates`


class CompressedAttention(NamedTuple):
    """Attention whose queries and keys are convolved before (`kernels.compressed`)."""

    attention: Attention
    taps: Any  # float32 [2 (H + G) d]
    taps_bias: Any  # float32 [(H + G) d]
    heads_proj: Any  # of each head
    key_scales: Any  # float32 [G]
    layer: np.ndarray  # int64: among those with a state


class ShortConvolution(NamedTuple):
    """A short convolution instead of attention (`kernels.short_convolution`)."""

    input_layernorm: Any
    in_proj: Any
    taps: Any  # float32 [D * K]
    out_proj: Any
    post_self_attn_layernorm: Any  # as in `Attention`


class DeltaLayer(NamedTuple):
    """Gated DeltaNet instead of attention (`kernels.delta_net`)."""

    input_layernorm: Any
    gates_proj: Any  # float32
    in_proj: Any
    taps: Any  # float32 [K * channels]
    taps_bias: Any  # float32 [0]
    log_decay: Any  # float32 [Hv]
    bias: Any  # float32 [Hv]
    norm: Any  # float32 [dv], gains
    out_proj: Any
    layer: np.ndarray  # int64: among those with a state


class ChannelDeltaLayer(NamedTuple):
    """Kimi Delta Attention in attention's place (`kernels.channel_delta`)."""

    input_layernorm: Any
    gates_proj: Any  # float32: of the vector that decays are of, if there is one, and of rates
    decay_proj: Any  # float32 if it is of that vector
    low_proj: Any  # of the vector that gates of the output are of; `NoLatent`: these, and decays, are of the input
    gate_proj: Any
    in_proj: Any
    taps: Any  # float32 [K * channels]
    taps_bias: Any  # float32 [0]
    log_decay: Any  # float32 [H]
    bias: Any  # float32 [H dk]
    norm: Any  # float32 [dv], gains
    out_proj: Any
    layer: np.ndarray  # int64: among those with a state


class MambaLayer(NamedTuple):
    """Mamba-2 instead of attention (`kernels.mamba`)."""

    input_layernorm: Any
    steps_proj: Any  # float32
    in_proj: Any
    taps: Any  # float32 [K * channels]
    taps_bias: Any  # float32 [channels]
    log_decay: Any  # float32 [H]
    bias: Any  # float32 [H]
    limits: np.ndarray  # float32 [2]: of steps
    skip: Any  # float32 [H]
    norm: Any  # float32 [H P], gains, or `NoNorm`
    out_proj: Any
    layer: np.ndarray  # int64: among those with a state


class SelectiveLayer(NamedTuple):
    """Mamba instead of attention (`kernels.selective`)."""

    input_layernorm: Any
    low_proj: Any  # float32
    steps_proj: Any  # float32
    in_proj: Any
    taps: Any  # float32 [K * C]
    taps_bias: Any  # float32 [C]
    gains: Any  # `SelectiveGains`
    decays: Any  # float32 [N C]
    skip: Any  # float32 [C]
    out_proj: Any
    layer: np.ndarray  # int64: among those with a state


class MambaBeside(NamedTuple):
    """Attention and Mamba-2 that read the same input."""

    attention: Attention
    mamba: MambaLayer


class LayerInput(NamedTuple):
    """How a layer takes its own input of a token into the residual stream: through a gate (`kernels.layer_inputs`)."""

    gate: Any
    activation: Any
    layer: np.ndarray  # int64
    projection: Any
    norm: Any


class LayerEnd(NamedTuple):
    """The end of a layer."""

    input: Any  # `LayerInput` or `NoInputs`
    scale: np.ndarray  # float32 [1]: what the residual stream is multiplied by


class LayerInputs(NamedTuple):
    """The inputs of all layers."""

    before: Any  # `NoNorm`: the embedding is projected as it is
    projection: Any
    norm: Any  # gains float32 [P], of each layer's part of the projection
    table: Any  # a linear or `NoTable`


class Layer(NamedTuple):
    """One layer, stacked over L layers; with `PerLayer` where these differ in kind, `Looped` where they run again."""

    mixer: Any  # `Attention`, or another one of those above
    cache_layer: np.ndarray  # int64: the first of its layers in the cache; 0 without any
    mlp: Any  # one of those above
    end: Any  # `LayerEnd`, `stream_parts.StreamEnd`, `dory_parts.LoopEnd` or `NoEnd`


class Parameters(NamedTuple):
    """The parameters of a model, as training left them."""

    embed_tokens: Any  # a linear, or `patch_parts.PatchInput` or `PlacedPatchInput`
    images: Any  # `Images` or `DeepImages` of a model that sees them, or `NoImages`
    embed_positions: Any  # float32 [P, D]
    embed_norm: Any  # a norm, or `draft_parts.DraftInput` or `StatesInput`
    inputs: Any  # `LayerInputs` or `NoInputs`
    streams: Any  # `stream_parts.Streams` or `kernels.buffers.NoStreams`
    layers: Layer  # stacked
    norm: Any
    lm_head: Any  # a linear, `draft_parts.ClusteredOutput` or `FrequentOutput`, or `patch_parts.NoOutput`
    cap: Any  # of the logits
    state: Any  # the linear of a drafter's state (`models.drafter`), or `draft_parts.NoState`


class ModelDims(NamedTuple):
    """The numbers of the configuration that the arrays do not show."""

    num_hidden_layers: int  # that run: one counts as often as it does
    num_attention_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    rms_norm_eps: np.float32
    embedding_multiplier: np.float32 = np.float32(1)
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    norm_topk_prob: bool = False
    shared_gate: bool = False
    n_group: int = 1
    topk_group: int = 1
    key_heads: int = 0  # of layers with a state, and so are the next
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    taps: int = 0
    rate_scale: np.float32 = np.float32(1)  # of Gated DeltaNet, and so are the next
    decay_rank: int = 0
    decay_bound: np.float32 = np.float32(0)
    state_norm_eps: np.float32 = np.float32(0)  # of its norm
    layer_input_size: int = 0
    layer_input_ids: int = 0  # how many ids have inputs of their own
    kv_lora_rank: int = 0  # of latent attention, and so are the next
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    post_norm_eps: np.float32 = np.float32(0)  # of norms behind attention and MLP


class Scratch(NamedTuple):
    """Working memory for chunks of up to C tokens."""

    x: Any  # activations, in the form that the linears read
    hidden: np.ndarray  # float32 [C, D]: the residual stream
    # float32 [C, D]: of the rows whose logits are wanted; before, what a draft head reads, or what is held for loops
    last_hidden: np.ndarray
    qkv: np.ndarray  # float32 [C, (H + 2 G) d + slack], or the inputs of the part that replaces attention
    attended: np.ndarray  # float32 [C, H d]
    gate_up: np.ndarray  # float32 [C, 2 F + slack]
    branch: np.ndarray  # float32 [C, D]: what is normed before it is added to the residual stream; [C, 0] without that
    # float32 [C, L P]: what the embeddings give the layers, or hidden states that EAGLE-3 reads, or patches of images;
    # [C, 0] without that
    inputs: np.ndarray
    # float32 [C, parts D]: rows of images, of the tokens that stand for them, with the parts that are added behind the
    # first layers; [C, 0] without that
    images: np.ndarray
    kept: np.ndarray  # float32 [C, states D]: the hidden states before some layers, for EAGLE-3; [C, 0] without that
    rows: np.ndarray  # float32 [threads, widest input]
    tiles: np.ndarray  # float32 [threads, TILE_FLOATS]
    experts: Any  # `kernels.buffers.ExpertScratch` or `NoExperts`
    latents: Any  # `kernels.buffers.LatentScratch` or `NoLatents`
    states: Any  # `kernels.buffers.DeltaScratch` or `NoStates`
    streams: Any  # `kernels.buffers.StreamScratch` or `NoStreams`


def scratch_of(new: Callable[[], Any]) -> Any:
    """Return scratch with a new object instead of each array, for a forward pass in Python."""

    def with_floats(kind: Any) -> Any:
        floats = FloatScratch._make([new() for _ in FloatScratch._fields])
        return kind._make([floats, *(new() for _ in kind._fields[1:])])

    latents, streams = (kind._make([new() for _ in kind._fields]) for kind in (LatentScratch, StreamScratch))
    arrays = [new() for _ in Scratch._fields[4:]]
    return Scratch._make([*arrays, with_floats(ExpertScratch), latents, with_floats(DeltaScratch), streams])


class Batch(NamedTuple):
    """The tokens of one call: T of up to C rows, each a token of some sequence.

    The rows of a sequence stand together, in the order of their positions.
    """

    # int64 [4]: T; for how many rows to give logits; how many sequences there are; how many rows have a larger model's
    # hidden states
    counts: np.ndarray
    ids: np.ndarray  # int64 [C]
    positions: np.ndarray  # int64 [C]
    vectors: np.ndarray  # int64 [C]: the row of the table of positions that each token gets
    sequences: np.ndarray  # int64 [C]: whose row it is
    firsts: np.ndarray  # int64 [C + 1]: the first row of each sequence, and where the rows of the last end
    tables: np.ndarray  # int32 [C, most blocks of a sequence]: which blocks of the cache are each sequence's
    wanted: np.ndarray  # int64 [C]: the rows to give logits for, ascending
    clocks: np.ndarray  # int64: when each stage ended, if that is asked (`kernels.team.record_time`)
    cos_sin: np.ndarray  # float32 [sets of angles, C, the largest rotary_dim]
    query_factors: np.ndarray  # float32 [C]: what queries are multiplied by
    # int64 [4, C], or [4, 0] without states: by sequence, the addresses of its state before the step, after it, and in
    # between (at a multiple of `SNAPSHOT` positions, or before a draft; 0 for none), and how many rows that comes after
    states: np.ndarray
    # int64 [C], or [0]: where a row of `Scratch.images` replaces the embedding, the position behind its tile; else 0
    images: np.ndarray
    kept: np.ndarray  # int64 [L + 1]: the columns that hidden states before each layer, and behind all, are kept in; -1


class Arguments(NamedTuple):
    """All that the forward pass works with; the last three are replaced by others now and again."""

    parameters: Parameters
    sizes: ModelDims
    scratch: Scratch
    batch: Batch
    cache: Any  # `CacheBuffers` or `TwoCaches` of `kernels.buffers`
    attention: Any  # `kernels.buffers.AttentionScratch`
    logits: np.ndarray  # float32 [>= rows that are wanted, V padded to 16]
