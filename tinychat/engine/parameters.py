"""The parameters of the forward pass, as a configuration has them: with the arrays of a model folder, or with names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinychat.engine.arguments import (
    Attention,
    ChannelDeltaLayer,
    CompressedAttention,
    DeltaLayer,
    GatedAttention,
    HeadGatedAttention,
    HeadGates,
    LatentAttention,
    Layer,
    LayerEnd,
    LayerInput,
    LayerInputs,
    MambaBeside,
    MambaLayer,
    OtherHeads,
    OthersKeys,
    OwnKeys,
    Parameters,
    SelectiveLayer,
    ShortConvolution,
    VariedAttention,
)
from tinychat.engine.block_parameters import mixture_layers, mixture_output
from tinychat.engine.block_parts import MixtureOutput
from tinychat.engine.clipped_parameters import clipped_attention
from tinychat.engine.dims import LOG2_E, NO_WINDOW, dims_of, stacked_dims
from tinychat.engine.dory_parts import HOLD, REJOIN, LoopEnd, OtherWidth
from tinychat.engine.draft_parts import (
    ClusteredOutput,
    DraftInput,
    FrequentOutput,
    NoState,
    StatesAttention,
    StatesInput,
)
from tinychat.engine.folder_tensors import FolderTensors, Tensors
from tinychat.engine.mlp_parameters import activation_of, mlps_of, norm_behind, per_layer
from tinychat.engine.patch_parts import NoOutput, PatchInput, PlacedPatchInput
from tinychat.engine.stages import layer_of
from tinychat.engine.stream_parts import StreamEnd, StreamMixer, StreamRouter, Streams
from tinychat.kernels.buffers import NoLatents, NoStreams
from tinychat.kernels.variants import (
    Alibi,
    AlibiBothWays,
    AttentionSink,
    Before,
    BothWays,
    ChannelScale,
    DeepImages,
    DistanceBias,
    HeadsNorm,
    Images,
    JointImages,
    NoEnd,
    NoGates,
    NoImages,
    NoInputs,
    NoLatent,
    NoMixer,
    NoNorm,
    NoTable,
    QueryScales,
    RotatedGains,
    SelectiveGains,
    SoftCap,
    Unchanged,
    WidthNorm,
)
from tinychat.kernels.weights import Looped
from tinychat.models.altup import LAUREL, STREAM_LINEARS
from tinychat.models.block_mixtures import BlockMixtures
from tinychat.models.compressed import HEADS, CompressedHeads
from tinychat.models.config import ModelConfig
from tinychat.models.decoder import HEAD_GATES, OTHER
from tinychat.models.delta_net import DECAYS, GATES, WIDE_DECAYS, WIDE_GATES, DeltaNet
from tinychat.models.distance_biases import DISTANCE_BIASES
from tinychat.models.draft_head import INPUT_NORMS, INPUTS
from tinychat.models.drafter import ORDERING, STATE
from tinychat.models.eagle import DRAFT_IDS, EMBEDDED, STATES
from tinychat.models.experts import ROUTER
from tinychat.models.folder import ModelFolder
from tinychat.models.mamba import STEPS, Mamba
from tinychat.models.selective import LOW, SelectiveScan
from tinychat.models.varied_layers import LAYER_INPUTS, VariedLayers


def bind_parameters(folder: ModelFolder, embedding: Any = None) -> Parameters:
    """Return the parameters as views of the mapped file; embedding : the larger model's, for a drafter."""
    return parameters_of(folder.config, FolderTensors(folder, embedding))


def parameters_of(config: ModelConfig, tensors: Tensors) -> Parameters:
    """Return the parameters of a model; a tied `lm_head` is the embedding itself."""
    return Parameters(
        embed_tokens=_input(config, tensors),
        images=_images(config),
        embed_positions=tensors.positions(),
        embed_norm=_embed_norm(config, tensors),
        inputs=_layer_inputs(config, tensors),
        streams=_streams(config, tensors),
        layers=_layers(config, tensors),
        norm=tensors.norm("norm"),
        lm_head=_output(config, tensors),
        cap=Unchanged() if config.logits_softcap is None else SoftCap(np.float32(config.logits_softcap)),
        state=tensors.weight(STATE) if config.drafter else NoState(),
    )


def _images(config: ModelConfig) -> Images | DeepImages | NoImages:
    if config.image_token_id is None:
        return NoImages()
    return DeepImages(config.deepstack_layers) if config.deepstack_layers else Images()


def _layers(config: ModelConfig, tensors: Tensors) -> Layer:
    cache_layers = np.array([config.cache_layer(index) for index in range(len(config.layer_runs))], np.int64)
    if config.mixtures:
        return _mixture_layers(config, config.mixtures, tensors, cache_layers)
    once = Layer(_mixer(config, tensors), cache_layers, mlps_of(config, tensors), _layer_end(config, tensors))
    if config.loops is None:
        return once
    runs = np.array(config.layer_runs, np.int64)
    steps = np.zeros(len(runs), np.int64)
    steps[config.loops.held_after] = HOLD
    steps[[*config.loops.rejoined_after]] = REJOIN
    norm = tensors.norm("post_mlp_layernorm", range(config.num_hidden_layers))
    end = LoopEnd(steps, Looped(runs, norm))
    return once._replace(mixer=Looped(runs, once.mixer), mlp=Looped(runs, once.mlp), end=end)


def _mixture_layers(config: ModelConfig, net: BlockMixtures, tensors: Tensors, cache_layers: np.ndarray) -> Layer:
    mixer, mlp, end = mixture_layers(config, net, tensors, mlps_of(config, tensors))
    return Layer(mixer, cache_layers, mlp, end)


def _input(config: ModelConfig, tensors: Tensors) -> Any:
    if not config.patch_columns:
        return tensors.embedding()
    return (PlacedPatchInput if config.places_patches else PatchInput)(tensors.embedding())


def _output(config: ModelConfig, tensors: Tensors) -> Any:
    if config.patch_columns:
        return NoOutput()
    if config.tie_word_embeddings:
        return tensors.embedding()
    weight = tensors.weight("lm_head")
    if config.eagle and config.eagle.draft_vocab_size < config.vocab_size:
        return FrequentOutput(weight, tensors.vectors(DRAFT_IDS))
    if config.drafter is None or config.drafter.clusters is None:
        return weight
    return ClusteredOutput(tensors.weight(ROUTER), layer_of(weight, 0), tensors.vectors(ORDERING))


def _embed_norm(config: ModelConfig, tensors: Tensors) -> Any:
    if config.eagle:
        embedding, hidden = map(tensors.norm, INPUT_NORMS)
        return StatesInput(embedding, tensors.weight(EMBEDDED), tensors.weight(STATES), hidden)
    if config.is_draft_head or config.drafter:
        embedding, hidden = zip(map(tensors.norm, INPUT_NORMS), map(tensors.weight, INPUTS))
        return DraftInput(*embedding, *hidden)
    if config.residual_scales:
        return ChannelScale(tensors.vectors("embed_scale"), tensors.vectors("embed_shift"))
    return tensors.norm("embed_norm")


def _layer_inputs(config: ModelConfig, tensors: Tensors) -> LayerInputs | NoInputs:
    if config.varied is None or not config.varied.input_size:
        return NoInputs()
    projection, norm = tensors.weight("inputs_proj"), tensors.vectors("inputs_norm")
    table = tensors.weight(LAYER_INPUTS) if config.varied.input_ids else NoTable()
    return LayerInputs(NoNorm(), projection, norm, table)


def _streams(config: ModelConfig, tensors: Tensors) -> Streams | MixtureOutput | NoStreams:
    if config.mixtures:
        return mixture_output(config.mixtures, tensors)
    if not config.altup:
        return NoStreams()
    return Streams(NoNorm(), tensors.weight("streams_proj"), *map(tensors.weight, STREAM_LINEARS))


def _layer_end(config: ModelConfig, tensors: Tensors) -> LayerEnd | StreamEnd | NoEnd:
    if config.varied is None:
        return NoEnd()
    layers = range(config.num_hidden_layers)
    found = (
        LayerInput(
            tensors.weight("input_gate"),
            activation_of(config, tensors, layers),
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
    if config.clipped_linears:
        return clipped_attention(config, tensors, _positions(config, range(L)), _scoring(config, tensors))
    if (varied := config.varied) is not None:
        narrow, wide = (
            _varied_attention(config, tensors, varied, layers, kind) if layers else None
            for layers, kind in ((varied.narrow, ""), (varied.wide, "wide_"))
        )
        found = per_layer(L, varied.narrow, narrow, wide)
        return _stream_mixer(tensors, range(L), found) if config.altup else found
    attention = _attention(config, tensors, config.first_heads_at)
    if config.eagle:
        return StatesAttention(attention)
    if config.mamba and config.mamba.beside_attention:
        return MambaBeside(attention, _mamba(config.mamba, tensors))
    if config.compressed:
        return _compressed(config.compressed, tensors, attention)
    if config.other_heads:
        others = _other_heads(config, tensors, config.other_heads_at)
        return per_layer(L, config.first_heads_at, attention, others)
    layers = [layer for layer in range(L) if layer not in config.mlp_alone]
    attending = [layers.index(layer) for layer in config.attention_layers]
    mixers = per_layer(len(layers), attending, attention, _other_mixer(config, tensors))
    return per_layer(L, layers, mixers, NoMixer())


def _stream_mixer(tensors: Tensors, layers: Sequence[int], attention: VariedAttention) -> StreamMixer:
    left, right = map(tensors.weight, LAUREL)
    router, norm = _router(tensors, layers, "predictions"), tensors.norm("laurel_norm", layers)
    return StreamMixer(router, attention, left, right, norm)


def _varied_attention(
    config: ModelConfig, tensors: Tensors, varied: VariedLayers, layers: tuple[int, ...], kind: str
) -> VariedAttention:
    own = [layers.index(layer) for layer in varied.owners(layers)]
    of_own = OwnKeys(tensors.weight(f"{kind}qkv_proj"), tensors.vectors(f"{kind}k_norm")) if own else None
    of_others = OthersKeys(tensors.weight(f"{kind}query_proj")) if len(own) < len(layers) else None
    return VariedAttention(
        keys=per_layer(len(layers), own, of_own, of_others),
        input_layernorm=tensors.norm("input_layernorm", layers),
        q_norm=tensors.vectors(f"{kind}q_norm"),
        **_positions(config, layers),
        scoring=_scoring(config, tensors),
        o_proj=tensors.weight(f"{kind}o_proj"),
        post_self_attn_layernorm=tensors.norm("post_self_attn_layernorm", layers),
    )


def _other_heads(config: ModelConfig, tensors: Tensors, layers: Sequence[int]) -> OtherHeads:
    dims = dims_of(replace(config, num_attention_heads=config.other_heads))
    return OtherHeads(_attention(config, tensors, layers, OTHER), stacked_dims(dims, len(layers)))


def _attention(config: ModelConfig, tensors: Tensors, layers: Sequence[int], kind: str = "") -> Any:
    """Return attention, stacked over some layers that have it; kind : the beginning of its parts' names."""
    no_gains = np.zeros((len(layers), 0), np.float32)
    by_head, rotated = (config.qk_norm == norms for norms in ("head", "rotated"))
    over_all = {"width": WidthNorm, "heads": HeadsNorm}.get(config.qk_norm or "")
    found = Attention(
        input_layernorm=tensors.norm("input_layernorm", layers),
        qkv_proj=tensors.weight(f"{kind}qkv_proj"),
        width_norm=over_all(tensors.vectors(f"{kind}q_norm"), tensors.vectors(f"{kind}k_norm"))
        if over_all
        else NoNorm(),
        q_norm=tensors.vectors(f"{kind}q_norm") if by_head or rotated else no_gains,
        k_norm=tensors.vectors(f"{kind}k_norm") if by_head or rotated else no_gains,
        rotated_gains=_rotated_gains(config, tensors),
        **_positions(config, layers),
        scoring=_scoring(config, tensors),
        attended_norm=_attended_norm(config, tensors, layers),
        o_proj=tensors.weight(f"{kind}o_proj"),
        post_self_attn_layernorm=norm_behind(config, tensors, "post_self_attn_layernorm", layers),
    )
    gates: HeadGates | NoGates = NoGates()
    if config.gated_heads:
        gates = HeadGates(tensors.weight(f"{kind}{HEAD_GATES}"), np.full(len(layers), config.softplus_gates))
    if config.latents is None:
        if isinstance(gates, HeadGates):
            return HeadGatedAttention(found, gates)
        return GatedAttention(found) if config.gated_attention else found
    has_rank = config.latents.q_lora_rank > 0
    return LatentAttention(
        found,
        tensors.vectors("q_a_norm") if has_rank else no_gains,
        tensors.vectors("kv_a_norm"),
        tensors.weight("q_b_proj") if has_rank else NoLatents(),
        tensors.weight("k_b_proj"),
        tensors.weight("v_b_proj"),
        gates,
    )


def _rotated_gains(config: ModelConfig, tensors: Tensors) -> RotatedGains | QueryScales | NoNorm:
    if config.normalized:
        return QueryScales(tensors.vectors("query_scales"))
    return RotatedGains(*map(tensors.vectors, ("q_gains", "k_gains"))) if config.qk_norm == "rotated" else NoNorm()


def _attended_norm(config: ModelConfig, tensors: Tensors, layers: Sequence[int]) -> Any:
    norm, width = tensors.norm("attn_sub_norm", layers), config.num_attention_heads * config.head_dim
    if isinstance(norm, NoNorm) or width == config.hidden_size:
        return norm
    return OtherWidth(norm, stacked_dims(dims_of(replace(config, hidden_size=width)), len(layers)))


def _positions(config: ModelConfig, layers: Sequence[int]) -> dict[str, Any]:
    """Return the parts of attention by name that depend on positions."""
    windows = np.array([config.sliding_windows[layer] or NO_WINDOW for layer in layers], np.int64)
    window: Any = BothWays(windows) if config.bidirectional else windows
    # In Gemma 4, only layers with a window see all of an image.
    if config.joint_tokens and (config.varied is None or all(config.sliding_windows[layer] for layer in layers)):
        window = JointImages(windows)
    if config.drafter:
        # As many positions before the last one that the larger model has seen as its windows have in all.
        window = Before(windows + 2)
    return {
        "angles": np.array([config.angle_sets[layer] for layer in layers], np.int64),
        "rotary_dim": np.array([config.rotary_dims[layer] for layer in layers], np.int64),
        "window": window,
    }


def _scoring(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the variant of scoring, of scores in powers of two."""
    L = len(config.attention_layers)
    if config.alibi_slopes:
        slopes = np.tile(np.array(config.alibi_slopes, np.float64) * LOG2_E, (L, 1)).astype(np.float32)
        return AlibiBothWays(slopes) if config.bidirectional else Alibi(slopes)
    if config.distance_biases:
        return DistanceBias(tensors.by_distance(DISTANCE_BIASES, LOG2_E))
    if config.sinks:
        return AttentionSink(tensors.vectors("sinks", LOG2_E))
    if config.attention_softcap is not None:
        return SoftCap(np.full(L, config.attention_softcap * LOG2_E, np.float32))
    return Unchanged()


def _other_mixer(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the parameters of the part that replaces attention, by the layers that have it; None without any."""
    if config.mamba is not None:
        return _mamba(config.mamba, tensors)
    if config.selective is not None:
        return _selective(config.selective, tensors)
    if config.delta_net is not None:
        return _delta_net(config.delta_net, tensors)
    if not config.conv_layers:
        return None
    return ShortConvolution(
        tensors.norm("input_layernorm", config.conv_layers),
        tensors.weight("conv_in_proj"),
        tensors.vectors("conv_taps"),
        tensors.weight("conv_out_proj"),
        norm_behind(config, tensors, "post_self_attn_layernorm", config.conv_layers),
    )


def _compressed(net: CompressedHeads, tensors: Tensors, attention: Attention) -> CompressedAttention:
    return CompressedAttention(
        attention,
        tensors.by_tap("conv_taps", net.channels),
        tensors.vectors("conv_taps_bias"),
        tensors.weight(HEADS),
        tensors.vectors("key_scales"),
        np.arange(len(net.layers)),
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
    if not net.rank:
        decays, of_output = map(tensors.weight, (WIDE_DECAYS, WIDE_GATES))
        return ChannelDeltaLayer(norm, gates, decays, NoLatent(), of_output, *others)
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


def _selective(net: SelectiveScan, tensors: Tensors) -> SelectiveLayer:
    return SelectiveLayer(
        tensors.norm("input_layernorm", net.layers),
        tensors.weight(LOW),
        tensors.weight(STEPS),
        tensors.weight("mamba_in_proj"),
        tensors.by_tap("mamba_taps", net.channels),
        tensors.vectors("mamba_taps_bias"),
        SelectiveGains._make(tensors.vectors(f"mamba_{name}_norm") for name in SelectiveGains._fields),
        tensors.by_tap("mamba_decays", net.channels),
        tensors.vectors("mamba_D"),
        tensors.weight("mamba_out_proj"),
        np.arange(len(net.layers)),
    )
