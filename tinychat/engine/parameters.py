"""Binds the tensors of a model folder to the parameters of the compiled forward pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinychat.engine.forward import ExpertMlp, GatedMlp, Layer, ParallelMlp, Parameters, PlainMlp, Sizes
from tinychat.engine.kept_parameters import kept_weight
from tinychat.kernels.activations import ClampedSwiglu, Gelu, GeluTanh, Relu, Relu2, Silu
from tinychat.kernels.experts import NoShared, Shared
from tinychat.kernels.norms import LayerNorm, NoNorm, NoPositions, RmsNorm, WidthNorm
from tinychat.kernels.scores import Capped, Sloped, Sunk, Unchanged
from tinychat.kernels.weights import Either, Float32Weight, Int4Weight, Int8Weight, SplitWeight
from tinychat.models.config import ModelConfig
from tinychat.models.experts import ROUTER
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import FREQUENT, stored_linears

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
    tensors, L = folder.tensors, folder.config.num_hidden_layers

    stacks = {linear.name: linear.stack for linear in stored_linears(folder.config, folder.quantization)}

    def weight(name: str) -> Any:
        method = folder.quantization.method_of(name)
        if method == "kept":
            return kept_weight(folder, name)
        kind = KINDS[method]
        *parts, _ = kind._fields
        bias = tensors.get(f"{name}.bias", np.zeros((*stacks[name], 0), np.float32))
        return kind(*(tensors[f"{name}.{part}"] for part in parts), bias)

    def embedding() -> Any:
        rest = weight("embed_tokens")
        return SplitWeight(weight(FREQUENT), rest) if folder.quantization.frequent else rest

    def norm(name: str) -> Any:
        if name not in tensors:
            return NoNorm()
        gain = tensors[name]
        return LayerNorm(gain, tensors.get(f"{name}.bias", np.zeros_like(gain))) if config.layer_norm else RmsNorm(gain)

    def gains_of_heads(name: str) -> Any:
        return tensors[name] if config.qk_norm == "head" else np.zeros((L, 0), np.float32)

    def outside(found: Any) -> Any:
        """Take away the axis of layers."""
        return type(found)(*(part.reshape(-1) for part in found))

    def scoring() -> Any:
        # Scores are in powers of two.
        if config.alibi_slopes:
            return Sloped(np.tile(np.array(config.alibi_slopes, np.float64) * LOG2_E, (L, 1)).astype(np.float32))
        if config.sinks:
            return Sunk(np.asarray(tensors["sinks"], np.float32) * np.float32(LOG2_E))
        if config.attention_softcap is not None:
            return Capped(np.full(L, config.attention_softcap * LOG2_E, np.float32))
        return Unchanged()

    def activation(layers: Sequence[int]) -> Any:
        if config.swiglu_limit is None:
            return ACTIVATIONS[config.hidden_act]
        numbers = (config.swiglu_alpha, config.swiglu_limit)
        return ClampedSwiglu(*(np.full(len(layers), number, np.float32) for number in numbers))

    def norm_of(name: str, layers: Sequence[int]) -> Any:
        """Return a norm of some layers."""
        found = norm(name)
        return found if len(layers) in (0, L) else type(found)(*(part[list(layers)] for part in found))

    def mlp() -> Any:
        dense = range(L) if config.experts is None else config.experts.dense_layers(L)
        if config.experts is None:
            return dense_mlp(dense)
        if not dense:
            return expert_mlp(config.experts.layers)
        places = np.empty(L, np.int64)
        places[list(config.experts.layers)] = np.arange(len(config.experts.layers))
        places[list(dense)] = -1 - np.arange(len(dense))
        return Either(places, expert_mlp(config.experts.layers), dense_mlp(dense))

    def expert_mlp(layers: Sequence[int]) -> Any:
        has_shared = config.experts is not None and config.experts.shared_intermediate_size > 0
        return ExpertMlp(
            norm_of("post_attention_layernorm", layers),
            weight(ROUTER),
            weight("expert_gate_up_proj"),
            activation(layers),
            weight("expert_down_proj"),
            Shared(weight("shared_gate_up_proj"), weight("shared_down_proj")) if has_shared else NoShared(),
        )

    def dense_mlp(layers: Sequence[int]) -> Any:
        parts = (
            norm_of("post_attention_layernorm", layers),
            weight("gate_up_proj" if config.gated else "up_proj"),
            activation(layers),
            weight("down_proj"),
            norm_of("post_mlp_layernorm", layers),
        )
        found = GatedMlp(*parts) if config.gated else PlainMlp(*parts)
        return ParallelMlp(found) if config.parallel else found

    config = folder.config
    return Parameters(
        embed_tokens=embedding(),
        embed_positions=tensors.get("embed_positions", NoPositions()),
        embed_norm=outside(norm("embed_norm")),
        layers=Layer(
            input_layernorm=norm("input_layernorm"),
            qkv_proj=weight("qkv_proj"),
            width_norm=WidthNorm(tensors["q_norm"], tensors["k_norm"]) if config.qk_norm == "width" else NoNorm(),
            q_norm=gains_of_heads("q_norm"),
            k_norm=gains_of_heads("k_norm"),
            angles=np.array(config.angle_sets, np.int64),
            rotary_dim=np.array(config.rotary_dims, np.int64),
            window=np.array([window or NO_WINDOW for window in config.sliding_windows], np.int64),
            scoring=scoring(),
            o_proj=weight("o_proj"),
            post_self_attn_layernorm=norm("post_self_attn_layernorm"),
            mlp=mlp(),
        ),
        norm=outside(norm("norm")),
        lm_head=embedding() if config.tie_word_embeddings else weight("lm_head"),
        cap=Unchanged() if config.logits_softcap is None else Capped(np.float32(config.logits_softcap)),
    )


def sizes_of(config: ModelConfig) -> Sizes:
    """Return the numbers that the compiled forward pass takes."""
    found = config.experts
    experts = (found.intermediate_size, found.shared_intermediate_size, found.norm_topk_prob) if found else ()
    return Sizes(
        config.num_hidden_layers,
        config.num_attention_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
        np.float32(config.embedding_multiplier),
        *experts,
    )
