"""The parameters of the forward pass, as a configuration has them: with the arrays of a model folder, or with names."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinychat.engine.arguments import (
    Attention,
    ChannelDeltaLayer,
    DeltaLayer,
    DraftInput,
    ExpertMlp,
    GatedAttention,
    GatedMlp,
    LatentAttention,
    Layer,
    LayerEnd,
    LayerInput,
    LayerInputs,
    MambaBeside,
    MambaLayer,
    MixedMlp,
    ModelDims,
    OthersKeys,
    OwnKeys,
    ParallelMlp,
    Parameters,
    PlainMlp,
    ShortConvolution,
    SparseMlp,
    StreamEnd,
    StreamMixer,
    StreamRouter,
    Streams,
    VariedAttention,
)
from tinychat.engine.folder_tensors import FolderTensors
from tinychat.engine.named_tensors import NamedTensors
from tinychat.kernels.buffers import NoLatents, NoStreams
from tinychat.kernels.variants import (
    Alibi,
    AttentionSink,
    BiasedRouter,
    ClampedSwiglu,
    Gelu,
    GeluTanh,
    NoEnd,
    NoInputs,
    NoNorm,
    NoShared,
    Relu,
    Relu2,
    ScaledRouter,
    Shared,
    SigmoidRouter,
    Silu,
    SoftCap,
    SoftmaxRouter,
    Unchanged,
    WidthNorm,
)
from tinychat.kernels.weights import PerLayer
from tinychat.models.altup import LAUREL, STREAM_LINEARS, AltUp
from tinychat.models.config import ModelConfig
from tinychat.models.delta_net import DECAYS, GATES, DeltaNet
from tinychat.models.draft_head import INPUT_NORMS, INPUTS
from tinychat.models.experts import ROUTER, Experts
from tinychat.models.folder import ModelFolder
from tinychat.models.mamba import STEPS, Mamba
from tinychat.models.varied_layers import LAYER_INPUTS, VariedLayers

NO_WINDOW = 2**31
LOG2_E = 1.4426950408889634
ACTIVATIONS: dict[str, Any] = {
    "silu": Silu(),
    "gelu": Gelu(),
    "gelu_tanh": GeluTanh(),
    "relu": Relu(),
    "relu2": Relu2(),
}


Tensors = FolderTensors | NamedTensors


def bind_parameters(folder: ModelFolder) -> Parameters:
    """Return the parameters as views of the mapped file."""
    return parameters_of(folder.config, FolderTensors(folder))


def parameters_of(config: ModelConfig, tensors: Tensors) -> Parameters:
    """Return the parameters of a model; a tied `lm_head` is the embedding itself."""
    L = config.num_hidden_layers
    return Parameters(
        embed_tokens=tensors.embedding(),
        embed_positions=tensors.positions(),
        embed_norm=_draft_input(tensors) if config.is_draft_head else tensors.norm("embed_norm"),
        inputs=_layer_inputs(config, tensors),
        streams=_streams(tensors) if config.altup else NoStreams(),
        layers=Layer(
            mixer=_mixer(config, tensors),
            cache_layer=np.array([config.cache_layer(layer) for layer in range(L)], np.int64),
            mlp=_mlp(config, tensors),
            end=_layer_end(config, tensors),
        ),
        norm=tensors.norm("norm"),
        lm_head=tensors.embedding() if config.tie_word_embeddings else tensors.weight("lm_head"),
        cap=Unchanged() if config.logits_softcap is None else SoftCap(np.float32(config.logits_softcap)),
    )


def _draft_input(tensors: Tensors) -> DraftInput:
    embedding, hidden = zip(map(tensors.norm, INPUT_NORMS), map(tensors.weight, INPUTS))
    return DraftInput(*embedding, *hidden)


def _layer_inputs(config: ModelConfig, tensors: Tensors) -> LayerInputs | NoInputs:
    if config.varied is None or not config.varied.input_size:
        return NoInputs()
    projection, norm = tensors.weight("inputs_proj"), tensors.vectors("inputs_norm")
    return LayerInputs(NoNorm(), projection, norm, tensors.weight(LAYER_INPUTS))


def _streams(tensors: Tensors) -> Streams:
    return Streams(NoNorm(), tensors.weight("streams_proj"), *map(tensors.weight, STREAM_LINEARS))


def _layer_end(config: ModelConfig, tensors: Tensors) -> LayerEnd | StreamEnd | NoEnd:
    if config.varied is None:
        return NoEnd()
    layers = range(config.num_hidden_layers)
    found = (
        LayerInput(
            tensors.weight("input_gate"),
            _activation(config, layers),
            np.array(layers, np.int64),
            tensors.weight("input_proj"),
            tensors.norm("input_norm", layers),
        )
        if config.varied.input_size
        else NoInputs()
    )
    if config.altup:
        assert isinstance(found, LayerInput)
        return StreamEnd(_router(tensors, layers, "corrections"), tensors.vectors("corrected_scale"), found)
    return LayerEnd(found, tensors.vectors("layer_scale"))


def _router(tensors: Tensors, layers: Sequence[int], mixing: str) -> StreamRouter:
    norm = tensors.norm("streams_norm", layers)
    return StreamRouter(norm, tensors.vectors("streams_router"), tensors.vectors(mixing))


def _mixer(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the parameters of attention, or of the part that replaces it, of all layers."""
    L = config.num_hidden_layers
    if (varied := config.varied) is not None:
        narrow, wide = (
            _varied_attention(config, tensors, varied, layers, kind) if layers else None
            for layers, kind in ((varied.narrow, ""), (varied.wide, "wide_"))
        )
        found = _per_layer(L, varied.narrow, narrow, wide)
        return _stream_mixer(tensors, range(L), found) if config.altup else found
    if config.mamba and config.mamba.beside_attention:
        attention = _attention(config, tensors)
        assert isinstance(attention, Attention)
        return MambaBeside(attention, _mamba(config.mamba, tensors))
    return _per_layer(L, config.attention_layers, _attention(config, tensors), _other_mixer(config, tensors))


def _stream_mixer(tensors: Tensors, layers: Sequence[int], attention: VariedAttention) -> StreamMixer:
    left, right = map(tensors.weight, LAUREL)
    router, norm = _router(tensors, layers, "predictions"), tensors.norm("laurel_norm", layers)
    return StreamMixer(router, attention, left, right, norm)


def _varied_attention(
    config: ModelConfig, tensors: Tensors, varied: VariedLayers, layers: tuple[int, ...], kind: str
) -> VariedAttention:
    own = [layers.index(layer) for layer in varied.owners(layers)]
    of_own = OwnKeys(tensors.weight(f"{kind}qkv_proj"), tensors.vectors(f"{kind}k_norm"))
    of_others = OthersKeys(tensors.weight(f"{kind}query_proj")) if len(own) < len(layers) else None
    return VariedAttention(
        keys=_per_layer(len(layers), own, of_own, of_others),
        input_layernorm=tensors.norm("input_layernorm", layers),
        q_norm=tensors.vectors(f"{kind}q_norm"),
        angles=np.array([config.angle_sets[layer] for layer in layers], np.int64),
        rotary_dim=np.array([config.rotary_dims[layer] for layer in layers], np.int64),
        window=np.array([config.sliding_windows[layer] or NO_WINDOW for layer in layers], np.int64),
        scoring=_scoring(config, tensors),
        o_proj=tensors.weight(f"{kind}o_proj"),
        post_self_attn_layernorm=tensors.norm("post_self_attn_layernorm", layers),
    )


def _per_layer(L: int, layers: Sequence[int], first: Any, second: Any) -> Any:
    """Return the parts of L layers: `first` is stacked over some layers, `second` over the others."""
    others = sorted({*range(L)} - {*layers})
    if not others or not layers:
        return first if layers else second
    indices = np.empty(L, np.int64)
    indices[list(layers)] = np.arange(len(layers))
    indices[others] = -1 - np.arange(len(others))
    return PerLayer(indices, first, second)


def _attention(config: ModelConfig, tensors: Tensors) -> Attention | GatedAttention | LatentAttention:
    """Return attention, stacked over the layers that have it."""
    layers = config.attention_layers
    no_gains = np.zeros((len(layers), 0), np.float32)
    by_head, by_width = (config.qk_norm == kind for kind in ("head", "width"))
    found = Attention(
        input_layernorm=tensors.norm("input_layernorm", layers),
        qkv_proj=tensors.weight("qkv_proj"),
        width_norm=WidthNorm(tensors.vectors("q_norm"), tensors.vectors("k_norm")) if by_width else NoNorm(),
        q_norm=tensors.vectors("q_norm") if by_head else no_gains,
        k_norm=tensors.vectors("k_norm") if by_head else no_gains,
        angles=np.array([config.angle_sets[layer] for layer in layers], np.int64),
        rotary_dim=np.array([config.rotary_dims[layer] for layer in layers], np.int64),
        window=np.array([config.sliding_windows[layer] or NO_WINDOW for layer in layers], np.int64),
        scoring=_scoring(config, tensors),
        o_proj=tensors.weight("o_proj"),
        post_self_attn_layernorm=tensors.norm("post_self_attn_layernorm", layers),
    )
    if config.latents is None:
        return GatedAttention(found) if config.gated_attention else found
    has_rank = config.latents.q_lora_rank > 0
    return LatentAttention(
        found,
        tensors.vectors("q_a_norm") if has_rank else no_gains,
        tensors.vectors("kv_a_norm"),
        tensors.weight("q_b_proj") if has_rank else NoLatents(),
        tensors.weight("k_b_proj"),
        tensors.weight("v_b_proj"),
    )


def _scoring(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the variant of scoring, of scores in powers of two."""
    L = len(config.attention_layers)
    if config.alibi_slopes:
        return Alibi(np.tile(np.array(config.alibi_slopes, np.float64) * LOG2_E, (L, 1)).astype(np.float32))
    if config.sinks:
        return AttentionSink(tensors.vectors("sinks", LOG2_E))
    if config.attention_softcap is not None:
        return SoftCap(np.full(L, config.attention_softcap * LOG2_E, np.float32))
    return Unchanged()


def _other_mixer(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the parameters of the part that replaces attention, by the layers that have it; None without any."""
    if config.mamba is not None:
        return _mamba(config.mamba, tensors)
    if config.delta_net is not None:
        return _delta_net(config.delta_net, tensors)
    if not config.conv_layers:
        return None
    return ShortConvolution(
        tensors.norm("input_layernorm", config.conv_layers),
        tensors.weight("conv_in_proj"),
        tensors.vectors("conv_taps"),
        tensors.weight("conv_out_proj"),
    )


def _delta_net(net: DeltaNet, tensors: Tensors) -> DeltaLayer | ChannelDeltaLayer:
    norm, gates = tensors.norm("input_layernorm", net.layers), tensors.weight(GATES)
    others = (
        tensors.weight("delta_in_proj"),
        tensors.by_tap("delta_taps", net.channels),
        np.zeros((len(net.layers), 0), np.float32),
        tensors.vectors("delta_A_log"),
        tensors.vectors("delta_dt_bias"),
        tensors.vectors("delta_norm"),
        tensors.weight("delta_out_proj"),
        np.arange(len(net.layers)),
    )
    if not net.by_channel:
        return DeltaLayer(norm, gates, *others)
    decays, low, of_output = map(tensors.weight, (DECAYS, "delta_low_proj", "delta_gate_proj"))
    return ChannelDeltaLayer(norm, gates, decays, low, of_output, *others)


def _mamba(net: Mamba, tensors: Tensors) -> MambaLayer:
    count = len(net.layers)
    return MambaLayer(
        tensors.norm("input_layernorm", net.layers),
        tensors.weight(STEPS),
        tensors.weight("mamba_in_proj"),
        tensors.by_tap("mamba_taps", net.channels),
        tensors.vectors("mamba_taps_bias"),
        tensors.vectors("mamba_A_log"),
        tensors.vectors("mamba_dt_bias"),
        np.tile(np.array(net.step_limits, np.float32), (count, 1)),
        tensors.vectors("mamba_D"),
        tensors.vectors("mamba_norm") if net.normed else NoNorm(),
        tensors.weight("mamba_out_proj"),
        np.arange(count),
    )


def _mlp(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the MLPs of all layers, of which some or all may have experts."""
    L, experts = config.num_hidden_layers, config.experts
    if config.varied is not None and config.varied.wide_mlps:
        narrow = _dense_mlp(config, tensors, config.varied.narrow_mlps)
        wide = _dense_mlp(config, tensors, config.varied.wide_mlps, "wide_", 2)
        return _per_layer(L, config.varied.narrow_mlps, narrow, wide)
    if experts is None:
        mlp = _dense_mlp(config, tensors, range(L))
        if config.altup:
            assert isinstance(mlp, GatedMlp)
            return _sparse_mlp(config.altup, mlp)
        if not config.normed_after:
            return mlp
        assert isinstance(mlp, GatedMlp)
        # Both kinds have the weights of all layers, of which each layer reads its own.
        indices = np.array([~layer if layer in config.normed_after else layer for layer in range(L)], np.int64)
        before = mlp._replace(post_mlp_layernorm=NoNorm())
        return PerLayer(indices, before, mlp._replace(post_attention_layernorm=NoNorm()))
    if config.varied is not None:
        beside = _dense_mlp(config, tensors, range(L))
        assert isinstance(beside, GatedMlp)
        return MixedMlp(
            beside._replace(post_mlp_layernorm=tensors.norm("mlp_norm", range(L))),
            _expert_mlp(config, tensors, experts)._replace(
                post_attention_layernorm=tensors.norm("before_experts", range(L)),
                routing=ScaledRouter(tensors.vectors("expert_scale")),
            ),
            tensors.norm("router_norm", range(L)),
            tensors.norm("experts_norm", range(L)),
            tensors.norm("post_mlp_layernorm", range(L)),
        )
    dense = experts.dense_layers(L)
    dense_mlp = _dense_mlp(config, tensors, dense) if dense else None
    return _per_layer(L, experts.layers, _expert_mlp(config, tensors, experts), dense_mlp)


def _sparse_mlp(altup: AltUp, mlp: GatedMlp) -> GatedMlp | SparseMlp | PerLayer:
    """Return MLPs of which some or all have closed gates; each layer reads its own of the weights of all."""
    sparse = SparseMlp(mlp, np.array([cutoff or 0 for cutoff in altup.cutoffs], np.float32))
    is_open = [cutoff is None for cutoff in altup.cutoffs]
    if any(is_open) and not all(is_open):
        indices = np.array([~layer if opened else layer for layer, opened in enumerate(is_open)], np.int64)
        return PerLayer(indices, sparse, mlp)
    return mlp if any(is_open) else sparse


def _dense_mlp(
    config: ModelConfig, tensors: Tensors, layers: Sequence[int], kind: str = "", width: int = 1
) -> GatedMlp | PlainMlp | ParallelMlp:
    first = (
        tensors.norm("post_attention_layernorm", layers),
        tensors.weight(f"{kind}gate_up_proj" if config.gated else "up_proj"),
        _activation(config, layers),
    )
    last = tensors.weight(f"{kind}down_proj"), tensors.norm("post_mlp_layernorm", layers)
    sizes = np.full(len(layers), width * config.intermediate_size, np.int64)
    mlp = GatedMlp(*first, sizes, *last) if config.gated else PlainMlp(*first, *last)
    return ParallelMlp(mlp) if config.parallel else mlp


def _expert_mlp(config: ModelConfig, tensors: Tensors, experts: Experts) -> ExpertMlp:
    shared: Shared | NoShared = NoShared()
    if experts.shared_intermediate_size > 0:
        shared = Shared(tensors.weight("shared_gate_up_proj"), tensors.weight("shared_down_proj"))
    return ExpertMlp(
        tensors.norm("post_attention_layernorm", experts.layers),
        tensors.weight(ROUTER),
        _routing(tensors, experts),
        tensors.weight("expert_gate_up_proj"),
        _activation(config, experts.layers),
        tensors.weight("expert_down_proj"),
        shared,
    )


def _routing(tensors: Tensors, experts: Experts) -> SigmoidRouter | BiasedRouter | SoftmaxRouter:
    if not experts.biased:
        return SoftmaxRouter()
    return (SigmoidRouter if experts.sigmoid else BiasedRouter)(tensors.vectors("router_bias"))


def _activation(config: ModelConfig, layers: Sequence[int]) -> Any:
    if config.swiglu_limit is None:
        return ACTIVATIONS[config.hidden_act]
    numbers = (config.swiglu_alpha, config.swiglu_limit)
    return ClampedSwiglu(*(np.full(len(layers), number, np.float32) for number in numbers))


def dims_of(config: ModelConfig) -> ModelDims:
    """Return the numbers that the compiled forward pass takes."""
    found, net, latents = config.experts, config.recurrence, config.latents
    experts = 0, 0, False, False, 1, 1
    if found:
        shared = found.shared_intermediate_size, found.norm_topk_prob, found.shared_gate
        experts = found.intermediate_size, *shared, found.n_group, found.topk_group
    states = (net.key_heads, net.value_heads, net.key_dim, net.value_dim, net.taps) if net else (0,) * 5
    delta = config.delta_net
    ranks = (latents.kv_lora_rank, latents.qk_nope_head_dim, latents.v_head_dim) if latents else (0,) * 3
    return ModelDims(
        config.num_hidden_layers,
        config.num_attention_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
        np.float32(config.embedding_multiplier),
        *experts,
        *states,
        np.float32(delta.rate_scale if delta else 1.0),
        np.float32(delta.norm_eps if delta else 0.0),
        config.varied.input_size if config.varied else 0,
        config.varied.input_ids if config.varied else 0,
        *ranks,
    )
