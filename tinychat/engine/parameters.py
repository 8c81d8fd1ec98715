"""Binds the tensors of a model folder to the parameters of the compiled forward pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.arguments import (
    ExpertMlp,
    GatedMlp,
    HybridLayers,
    Layer,
    ModelDims,
    NoMlp,
    ParallelMlp,
    Parameters,
    PlainMlp,
    ShortConvolution,
)
from tinychat.engine.passthrough_parameters import passthrough_weight
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
    Silu,
    SoftCap,
    Unchanged,
    WidthNorm,
)
from tinychat.kernels.weights import Float32Weight, Int4Weight, Int8Weight, PerLayer, SplitWeight
from tinychat.models.config import ModelConfig
from tinychat.models.experts import ROUTER, Experts
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import FREQUENT, stored_linears
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


def bind_parameters(folder: ModelFolder) -> Parameters:
    """Return the parameters as views of the mapped file; a tied `lm_head` is the embedding itself."""
    parts, tensors, config = _Parts(folder), folder.tensors, folder.config
    layers = parts.hybrid_layers() if config.conv_layers else parts.attention(parts.mlp())
    return Parameters(
        embed_tokens=parts.embedding(),
        embed_positions=tensors.get("embed_positions", NoPositions()),
        embed_norm=_without_layers(parts.norm("embed_norm")),
        layers=layers,
        norm=_without_layers(parts.norm("norm")),
        lm_head=parts.embedding() if config.tie_word_embeddings else parts.weight("lm_head"),
        cap=Unchanged() if config.logits_softcap is None else SoftCap(np.float32(config.logits_softcap)),
    )


class _Parts:
    """What the parameters of a model folder are made of, each as views of its tensors."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder, self._config, self._tensors = folder, folder.config, folder.tensors
        self._layers = range(folder.config.num_hidden_layers)
        self._stacks = {linear.name: linear.stack for linear in stored_linears(folder.config, folder.quantization)}

    def weight(self, name: str) -> Any:
        """Return a linear, stacked over the layers that have it."""
        dtype = self._folder.quantization.dtype_of(name)
        if dtype == NATIVE:
            return passthrough_weight(self._folder, name)
        kind = KINDS[dtype]
        *parts, _ = kind._fields
        bias = self._tensors.get(f"{name}.bias", np.zeros((*self._stacks[name], 0), np.float32))
        return kind(*(self._tensors[f"{name}.{part}"] for part in parts), bias)

    def embedding(self) -> Any:
        """Return the embedding, whose first rows may be stored apart."""
        rest = self.weight("embed_tokens")
        return SplitWeight(self.weight(FREQUENT), rest) if self._folder.quantization.frequent else rest

    def norm(self, name: str) -> Any:
        """Return the norms of all layers."""
        if name not in self._tensors:
            return NoNorm()
        gain = self._tensors[name]
        if not self._config.layer_norm:
            return RmsNorm(gain)
        return LayerNorm(gain, self._tensors.get(f"{name}.bias", np.zeros_like(gain)))

    def norm_of(self, name: str, layers: Sequence[int]) -> Any:
        """Return the norms of some layers."""
        found = self.norm(name)
        if len(layers) in (0, len(self._layers)):
            return found
        return type(found)(*(part[list(layers)] for part in found))

    def gains_of_heads(self, name: str) -> NDArray[Any]:
        """Return the gains [L, d] of queries' or keys' norms, [L, 0] where heads are not normed."""
        if self._config.qk_norm == "head":
            return self._tensors[name]
        return np.zeros((len(self._layers), 0), np.float32)

    def scoring(self) -> Any:
        """Return what is done to scores, which are in powers of two."""
        config, L = self._config, len(self._layers)
        if config.alibi_slopes:
            return Alibi(np.tile(np.array(config.alibi_slopes, np.float64) * LOG2_E, (L, 1)).astype(np.float32))
        if config.sinks:
            return AttentionSink(np.asarray(self._tensors["sinks"], np.float32) * np.float32(LOG2_E))
        if config.attention_softcap is not None:
            return SoftCap(np.full(L, config.attention_softcap * LOG2_E, np.float32))
        return Unchanged()

    def attention(self, mlp: Any) -> Layer:
        """Return the layers that have attention."""
        tensors, config, layers = self._tensors, self._config, self._config.attention_layers
        return Layer(
            input_layernorm=self.norm_of("input_layernorm", layers),
            qkv_proj=self.weight("qkv_proj"),
            width_norm=WidthNorm(tensors["q_norm"], tensors["k_norm"]) if config.qk_norm == "width" else NoNorm(),
            q_norm=self.gains_of_heads("q_norm"),
            k_norm=self.gains_of_heads("k_norm"),
            angles=np.array([config.angle_sets[layer] for layer in layers], np.int64),
            rotary_dim=np.array([config.rotary_dims[layer] for layer in layers], np.int64),
            window=np.array([config.sliding_windows[layer] or NO_WINDOW for layer in layers], np.int64),
            scoring=self.scoring(),
            o_proj=self.weight("o_proj"),
            post_self_attn_layernorm=self.norm_of("post_self_attn_layernorm", layers),
            mlp=mlp,
        )

    def hybrid_layers(self) -> HybridLayers:
        """Return the layers of a model that has short convolutions in some."""
        config = self._config
        convolution = ShortConvolution(
            self.norm_of("input_layernorm", config.conv_layers),
            self.weight("conv_in_proj"),
            self._tensors["conv_taps"],
            self.weight("conv_out_proj"),
        )
        places = np.empty(len(self._layers), np.int64)
        places[list(config.attention_layers)] = np.arange(len(config.attention_layers))
        places[list(config.conv_layers)] = -1 - np.arange(len(config.conv_layers))
        cache_layer = np.array([config.cache_layers.index(layer) for layer in self._layers], np.int64)
        return HybridLayers(PerLayer(places, self.attention(NoMlp()), convolution), cache_layer, self.mlp())

    def mlp(self) -> Any:
        """Return the MLPs of all layers, of which some or all may have experts."""
        experts = self._config.experts
        if experts is None:
            return self._dense_mlp(self._layers)
        dense = experts.dense_layers(len(self._layers))
        if not dense:
            return self._expert_mlp(experts)
        places = np.empty(len(self._layers), np.int64)
        places[list(experts.layers)] = np.arange(len(experts.layers))
        places[list(dense)] = -1 - np.arange(len(dense))
        return PerLayer(places, self._expert_mlp(experts), self._dense_mlp(dense))

    def _dense_mlp(self, layers: Sequence[int]) -> Any:
        parts = (
            self.norm_of("post_attention_layernorm", layers),
            self.weight("gate_up_proj" if self._config.gated else "up_proj"),
            self._activation(layers),
            self.weight("down_proj"),
            self.norm_of("post_mlp_layernorm", layers),
        )
        found = GatedMlp(*parts) if self._config.gated else PlainMlp(*parts)
        return ParallelMlp(found) if self._config.parallel else found

    def _expert_mlp(self, experts: Experts) -> ExpertMlp:
        shared: Shared | NoShared = NoShared()
        if experts.shared_intermediate_size > 0:
            shared = Shared(self.weight("shared_gate_up_proj"), self.weight("shared_down_proj"))
        return ExpertMlp(
            self.norm_of("post_attention_layernorm", experts.layers),
            self.weight(ROUTER),
            self.weight("expert_gate_up_proj"),
            self._activation(experts.layers),
            self.weight("expert_down_proj"),
            shared,
        )

    def _activation(self, layers: Sequence[int]) -> Any:
        if self._config.swiglu_limit is None:
            return ACTIVATIONS[self._config.hidden_act]
        numbers = (self._config.swiglu_alpha, self._config.swiglu_limit)
        return ClampedSwiglu(*(np.full(len(layers), number, np.float32) for number in numbers))


def _without_layers(norm: Any) -> Any:
    """Return a norm that stands outside of the layers: its arrays lose their first axis."""
    return type(norm)(*(part.reshape(-1) for part in norm))


def dims_of(config: ModelConfig) -> ModelDims:
    """Return the numbers that the compiled forward pass takes."""
    found = config.experts
    experts = (found.intermediate_size, found.shared_intermediate_size, found.norm_topk_prob) if found else ()
    return ModelDims(
        config.num_hidden_layers,
        config.num_attention_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
        np.float32(config.embedding_multiplier),
        *experts,
    )
