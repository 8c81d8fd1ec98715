"""The parameters of the forward pass, as a configuration has them: with the arrays of a model folder, or with names."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinychat.engine.arguments import (
    Attention,
    DeltaLayer,
    ExpertMlp,
    GatedAttention,
    GatedMlp,
    LatentAttention,
    Layer,
    MambaLayer,
    ModelDims,
    ParallelMlp,
    Parameters,
    PlainMlp,
    ShortConvolution,
)
from tinychat.engine.named_tensors import NamedTensors
from tinychat.engine.passthrough_parameters import passthrough_weight
from tinychat.kernels.buffers import NoLatents
from tinychat.kernels.variants import (
    Alibi,
    AttentionSink,
    ClampedSwiglu,
    Gelu,
    GeluTanh,
    LayerNorm,
    NoNorm,
    NoPositions,
    NoShared,
    Relu,
    Relu2,
    RmsNorm,
    Shared,
    SigmoidRouter,
    Silu,
    SoftCap,
    SoftmaxRouter,
    Unchanged,
    WidthNorm,
)
from tinychat.kernels.weights import Float32Weight, Int4Weight, Int8Weight, PerLayer, SplitWeight
from tinychat.models.config import ModelConfig
from tinychat.models.delta_net import GATES
from tinychat.models.experts import ROUTER, Experts
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import FREQUENT, stored_linears
from tinychat.models.mamba import STEPS, Mamba
from tinychat.models.passthrough import NATIVE

NO_WINDOW = 2**31
LOG2_E = 1.4426950408889634
ACTIVATIONS: dict[str, Any] = {
    "silu": Silu(),
    "gelu": Gelu(),
    "gelu_tanh": GeluTanh(),
    "relu": Relu(),
    "relu2": Relu2(),
}
KINDS: dict[str, Any] = {"int4": Int4Weight, "int8": Int8Weight, "f32": Float32Weight}


class FolderTensors:
    """The tensors of a model folder by name, as views of the mapped file; stacked over the layers that have them."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder, self._config, self._tensors = folder, folder.config, folder.tensors
        self._stacks = {linear.name: linear.stack for linear in stored_linears(folder.config, folder.quantization)}

    def embedding(self) -> Any:
        """Return the embedding, whose first rows may be stored apart."""
        rest = self.weight("embed_tokens")
        return SplitWeight(self.weight(FREQUENT), rest) if self._folder.quantization.frequent else rest

    def weight(self, name: str) -> Any:
        """Return a linear."""
        dtype = self._folder.quantization.dtype_of(name)
        if dtype == NATIVE:
            return passthrough_weight(self._folder, name)
        kind = KINDS[dtype]
        *parts, _ = kind._fields
        bias = self._tensors.get(f"{name}.bias", np.zeros((*self._stacks[name], 0), np.float32))
        return kind(*(self._tensors[f"{name}.{part}"] for part in parts), bias)

    def norm(self, name: str, layers: Sequence[int] | None = None) -> Any:
        """Return the norms of some layers, or one outside of them; `NoNorm` where the model has none."""
        if name not in self._tensors:
            return NoNorm()
        gain = self._tensors[name]
        parts = [gain]
        if self._config.layer_norm:
            parts.append(self._tensors.get(f"{name}.bias", np.zeros_like(gain)))
        if layers is None:
            parts = [part.reshape(-1) for part in parts]
        elif 0 < len(layers) < len(gain):
            parts = [part[list(layers)] for part in parts]
        return LayerNorm(*parts) if self._config.layer_norm else RmsNorm(*parts)

    def vectors(self, name: str, factor: float = 1.0) -> Any:
        """Return other vectors, stacked over the layers that have them, times a factor."""
        found = self._tensors[name]
        return found if factor == 1 else np.float32(factor) * np.asarray(found, np.float32)

    def by_tap(self, name: str, channels: int) -> Any:
        """Return the taps of convolutions, all channels of the first one before those of the next."""
        found = self._tensors[name]
        turned = found.reshape(len(found), channels, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(turned).reshape(found.shape)

    def positions(self) -> Any:
        """Return the vectors of positions, or `NoPositions`."""
        return self._tensors.get("embed_positions", NoPositions())


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
        embed_norm=tensors.norm("embed_norm"),
        layers=Layer(
            mixer=_per_layer(L, config.attention_layers, _attention(config, tensors), _other_mixer(config, tensors)),
            cache_layer=np.array(_cache_layers(config), np.int64),
            mlp=_mlp(config, tensors),
        ),
        norm=tensors.norm("norm"),
        lm_head=tensors.embedding() if config.tie_word_embeddings else tensors.weight("lm_head"),
        cap=Unchanged() if config.logits_softcap is None else SoftCap(np.float32(config.logits_softcap)),
    )


def _cache_layers(config: ModelConfig) -> list[int]:
    cached = config.cache_layers
    return [cached.index(layer) if layer in cached else 0 for layer in range(config.num_hidden_layers)]


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


def _other_mixer(config: ModelConfig, tensors: Tensors) -> ShortConvolution | DeltaLayer | MambaLayer | None:
    """Return what stands in attention's place, stacked over the layers that have it."""
    if config.mamba is not None:
        return _mamba(config.mamba, tensors)
    if (net := config.delta_net) is not None:
        return DeltaLayer(
            tensors.norm("input_layernorm", net.layers),
            tensors.weight(GATES),
            tensors.weight("delta_in_proj"),
            tensors.by_tap("delta_taps", net.channels),
            np.zeros((len(net.layers), 0), np.float32),
            tensors.vectors("delta_A_log"),
            tensors.vectors("delta_dt_bias"),
            tensors.vectors("delta_norm"),
            tensors.weight("delta_out_proj"),
            np.arange(len(net.layers)),
        )
    if not config.conv_layers:
        return None
    return ShortConvolution(
        tensors.norm("input_layernorm", config.conv_layers),
        tensors.weight("conv_in_proj"),
        tensors.vectors("conv_taps"),
        tensors.weight("conv_out_proj"),
    )


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
        tensors.vectors("mamba_norm"),
        tensors.weight("mamba_out_proj"),
        np.arange(count),
    )


def _mlp(config: ModelConfig, tensors: Tensors) -> Any:
    """Return the MLPs of all layers, of which some or all may have experts."""
    L, experts = config.num_hidden_layers, config.experts
    if experts is None:
        return _dense_mlp(config, tensors, range(L))
    dense = experts.dense_layers(L)
    dense_mlp = _dense_mlp(config, tensors, dense) if dense else None
    return _per_layer(L, experts.layers, _expert_mlp(config, tensors, experts), dense_mlp)


def _dense_mlp(config: ModelConfig, tensors: Tensors, layers: Sequence[int]) -> GatedMlp | PlainMlp | ParallelMlp:
    parts = (
        tensors.norm("post_attention_layernorm", layers),
        tensors.weight("gate_up_proj" if config.gated else "up_proj"),
        _activation(config, layers),
        tensors.weight("down_proj"),
        tensors.norm("post_mlp_layernorm", layers),
    )
    mlp = GatedMlp(*parts) if config.gated else PlainMlp(*parts)
    return ParallelMlp(mlp) if config.parallel else mlp


def _expert_mlp(config: ModelConfig, tensors: Tensors, experts: Experts) -> ExpertMlp:
    shared: Shared | NoShared = NoShared()
    if experts.shared_intermediate_size > 0:
        shared = Shared(tensors.weight("shared_gate_up_proj"), tensors.weight("shared_down_proj"))
    return ExpertMlp(
        tensors.norm("post_attention_layernorm", experts.layers),
        tensors.weight(ROUTER),
        SigmoidRouter(tensors.vectors("router_bias")) if experts.sigmoid else SoftmaxRouter(),
        tensors.weight("expert_gate_up_proj"),
        _activation(config, experts.layers),
        tensors.weight("expert_down_proj"),
        shared,
    )


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
    ranks = (latents.kv_lora_rank, latents.qk_nope_head_dim, latents.v_head_dim) if latents else ()
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
        *ranks,
    )
