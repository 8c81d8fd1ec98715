"""Arguments of the forward pass: parameters, dimensions, scratch, batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.buffers import DeltaScratch, ExpertScratch, FloatScratch, LatentScratch


class GatedMlp(NamedTuple):
    """An MLP whose first linear gives gates and what they let through."""

    post_attention_layernorm: Any  # before it
    gate_up_proj: Any
    activation: Any  # of `kernels.activations`
    down_proj: Any
    post_mlp_layernorm: Any  # of its output, before that is added to the residual stream


class PlainMlp(NamedTuple):
    """An MLP without gates."""

    post_attention_layernorm: Any
    up_proj: Any
    activation: Any
    down_proj: Any
    post_mlp_layernorm: Any


class ParallelMlp(NamedTuple):
    """An MLP that reads the residual stream as attention finds it, not as it leaves it."""

    mlp: Any


class ExpertMlp(NamedTuple):
    """An MLP of experts, of which each token passes those that the router chooses (`kernels.experts`)."""

    post_attention_layernorm: Any
    router: Any
    routing: Any  # `SoftmaxRouter` or `SigmoidRouter`
    gate_up_proj: Any  # of all experts
    activation: Any
    down_proj: Any  # of all experts
    shared: Any  # `Shared` or `NoShared`


class Attention(NamedTuple):
    """Attention of one layer. Weights are as in `kernels.weights`, norms as in `kernels.norms`."""

    input_layernorm: Any  # before it
    qkv_proj: Any
    width_norm: Any  # of all queries, and of all keys
    q_norm: Any  # of each head: gains float32 [d], or [0] where the model has none
    k_norm: Any
    angles: np.ndarray  # int64: which set of rotary angles
    rotary_dim: np.ndarray  # int64: how many channels of a head are rotated
    window: np.ndarray  # int64: positions a query sees, itself included
    scoring: Any  # what is done to scores: `kernels.scores`
    o_proj: Any
    post_self_attn_layernorm: Any  # of its output, before that is added to the residual stream


class GatedAttention(NamedTuple):
    """Attention whose queries come with gates of its output, without norms after it and over all heads."""

    attention: Attention


class LatentAttention(NamedTuple):
    """Attention to latents (`kernels.latent`); its `qkv_proj` gives latents, and queries where they have none."""

    attention: Attention
    q_norm: Any  # float32 [q_lora_rank], or [0]
    kv_norm: Any  # float32 [kv_lora_rank]
    q_proj: Any  # from the latents of queries, or `NoLatents`
    k_proj: Any  # of each head, and so is the next
    v_proj: Any


class ShortConvolution(NamedTuple):
    """A short convolution in attention's place (`kernels.short_convolution`)."""

    input_layernorm: Any
    in_proj: Any
    taps: Any  # float32 [D * K]
    out_proj: Any


class DeltaLayer(NamedTuple):
    """Gated DeltaNet in attention's place (`kernels.delta_net`)."""

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


class MambaLayer(NamedTuple):
    """Mamba-2 in attention's place (`kernels.mamba`)."""

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


class Layer(NamedTuple):
    """One layer; stacked, each array has one more axis in front, of length L.

    Where layers differ in kind, `mixer` or `mlp` is `PerLayer` one of two.
    """

    mixer: Any  # one of those from `Attention` to `MambaLayer`
    cache_layer: np.ndarray  # int64: the first of its layers in the cache; 0 without any
    mlp: Any  # one of those above


class Parameters(NamedTuple):
    """The parameters of a model, as training left them."""

    embed_tokens: Any
    embed_positions: Any  # float32 [P, D]
    embed_norm: Any
    layers: Layer  # stacked
    norm: Any
    lm_head: Any
    cap: Any  # of the logits


class ModelDims(NamedTuple):
    """The numbers of the configuration that the arrays do not show."""

    num_hidden_layers: int
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
    kv_lora_rank: int = 0  # of latent attention, and so are the next
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0


class Scratch(NamedTuple):
    """Working memory for chunks of up to C tokens."""

    x: Any  # activations, in the form that the linears read
    hidden: np.ndarray  # float32 [C, D]: the residual stream
    last_hidden: np.ndarray  # float32 [C, D]: of the rows whose logits are wanted
    qkv: np.ndarray  # float32 [C, (H + 2 G) d + slack], or what stands in the place of queries, keys and values
    attended: np.ndarray  # float32 [C, H d]
    gate_up: np.ndarray  # float32 [C, 2 F + slack]
    branch: np.ndarray  # float32 [C, D]: what is normed before it is added to the residual stream; [0, 0] without that
    rows: np.ndarray  # float32 [threads, widest input]
    tiles: np.ndarray  # float32 [threads, TILE_FLOATS]
    experts: Any  # `kernels.buffers.ExpertScratch` or `NoExperts`
    latents: Any  # `kernels.buffers.LatentScratch` or `NoLatents`
    states: Any  # `kernels.buffers.DeltaScratch` or `NoStates`


def scratch_of(new: Callable[[], Any]) -> Any:
    """Return scratch with a new object in the place of each array, for a forward pass in Python."""

    def with_floats(kind: Any) -> Any:
        floats = FloatScratch._make([new() for _ in FloatScratch._fields])
        return kind._make([floats, *(new() for _ in kind._fields[1:])])

    latents = LatentScratch._make([new() for _ in LatentScratch._fields])
    arrays = [new() for _ in Scratch._fields[3:]]
    return Scratch._make([*arrays, with_floats(ExpertScratch), latents, with_floats(DeltaScratch)])


class Batch(NamedTuple):
    """The tokens of one call: T of up to C rows, each a token of some sequence.

    The rows of a sequence stand together, in the order of their positions.
    """

    counts: np.ndarray  # int64 [3]: T; for how many rows to give logits; how many sequences there are
    ids: np.ndarray  # int64 [C]
    positions: np.ndarray  # int64 [C]
    sequences: np.ndarray  # int64 [C]: whose row it is
    firsts: np.ndarray  # int64 [C + 1]: the first row of each sequence, and where the rows of the last end
    tables: np.ndarray  # int32 [C, most blocks of a sequence]: which blocks of the cache are each sequence's
    wanted: np.ndarray  # int64 [C]: the rows to give logits for, ascending
    clocks: np.ndarray  # int64: when each stage ended, if that is asked (`kernels.team.record_time`)
    cos_sin: np.ndarray  # float32 [sets of angles, C, the largest rotary_dim]
    query_factors: np.ndarray  # float32 [C]: what queries are multiplied by
    # int64 [3, C]: by sequence, addresses of its state before the step and after it, and of that at a multiple of
    # `SNAPSHOT` positions in between; 0 for none
    states: np.ndarray


class Arguments(NamedTuple):
    """All that the forward pass works with; the last three are replaced by others now and again."""

    parameters: Parameters
    sizes: ModelDims
    scratch: Scratch
    batch: Batch
    cache: Any  # `kernels.kv.CacheBuffers`
    attention: Any  # `kernels.attention.AttentionScratch`
    logits: np.ndarray  # float32 [>= rows that are wanted, V padded to 16]
