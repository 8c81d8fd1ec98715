"""LFM2 and its mixtures: short convolutions in most layers, attention in the others.

A convolution's linear gives three vectors b, c and x; each channel of ``b x`` is convolved over the last few positions,
and multiplied by c (`kernels.short_convolution`). Attention norms each head's queries and keys (Liquid AI, 2025,
https://arxiv.org/abs/2511.23404; github.com/huggingface/transformers, models/lfm2).

The cache has a convolution's inputs of every position, though it needs only the last two: sequences can be rewound and
shared anywhere then. A position takes 52 KiB of a bf16 cache in the 1.2B model, of which attention's keys
and values are 12.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, read_layer_types
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import (
    ATTENTION,
    LAYER,
    ExpertNames,
    TensorNames,
    decoder_linears,
    decoder_norms,
    layer_norms,
)
from tinychat.models.experts import read_layers_behind_dense, read_sigmoid_experts
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm

CONVOLUTION, MLP = f"{LAYER}conv.", f"{LAYER}feed_forward."
TENSORS = TensorNames(
    o=f"{ATTENTION}out_proj",
    gate_up=(f"{MLP}w1", f"{MLP}w3"),
    down=f"{MLP}w2",
    norms={
        **layer_norms(f"{LAYER}operator_norm", f"{LAYER}ffn_norm", "model.embedding_norm"),
        "q_norm": f"{ATTENTION}q_layernorm",
        "k_norm": f"{ATTENTION}k_layernorm",
    },
)
EXPERT = f"{MLP}experts.{{}}."
MOE_TENSORS = replace(
    TENSORS,
    experts=ExpertNames((f"{MLP}gate",), (f"{EXPERT}w1", f"{EXPERT}w3"), f"{EXPERT}w2", bias=f"{MLP}expert_bias"),
)
LONGEST = 64  # positions that a convolution sees, at most: a block of the cache


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the names that transformers writes: older files have two of their own."""
    found = dict(raw)
    for older, name in (("block_ff_dim", "intermediate_size"), ("tie_embedding", "tie_word_embeddings")):
        if older in raw:
            found[name] = raw[older]
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The layers with attention, and the width of the MLP, are computed."""
    config = with_convolutions(values, config, _attention_layers(values, config.num_hidden_layers))
    return replace(config, intermediate_size=_inner_size(values, config.intermediate_size))


def with_convolutions(values: ConfigValues, config: ModelConfig, attention: Sequence[int]) -> ModelConfig:
    """Return the configuration with convolutions in all layers but those that have attention."""
    values.require(conv_bias=False)
    if config.hidden_size % config.head_dim:
        raise values.error("hidden_size", f"a multiple of head_dim ({config.head_dim})")
    if not attention:
        raise UnsupportedModelError(f"{values.source}: no layer has attention, which is not supported")
    layers = range(config.num_hidden_layers)
    window = values.integer("conv_L_cache", 1, LONGEST)
    return replace(
        config,
        qk_norm="head",
        conv_layers=tuple(layer for layer in layers if layer not in attention),
        conv_L_cache=window,
        sliding_windows=tuple(0 if layer in attention else window for layer in layers),
        rotary_dims=tuple(config.rotary_dim if layer in attention else 0 for layer in layers),
    )


def read_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers but the first ones have experts, which sigmoids and biases choose."""
    values.require(use_expert_bias=True)
    experts = read_sigmoid_experts(values, read_layers_behind_dense(values, config.num_hidden_layers))
    return replace(read(values, config), intermediate_size=config.intermediate_size, experts=experts)


def _attention_layers(values: ConfigValues, layers: int) -> list[int]:
    """Return the layers that ``layer_types`` names, or ``full_attn_idxs`` in older files; all without either."""
    layer_types = read_layer_types(values, layers, ("full_attention", "conv"))
    if layer_types is not None:
        return [layer for layer, name in enumerate(layer_types) if name == "full_attention"]
    listed = values.get("full_attn_idxs")
    if listed is None:
        return list(range(layers))
    if not isinstance(listed, list) or not all(type(layer) is int and 0 <= layer < layers for layer in listed):
        raise values.error("full_attn_idxs", f"a list of layers, each from 0 to {layers - 1}")
    return sorted(set(listed))


def _inner_size(values: ConfigValues, size: int) -> int:
    """Return the width of the MLP: two thirds of the file's, times a factor, up to the next multiple."""
    if not values.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    if values.get("block_ffn_dim_multiplier") is None:
        return size
    size = int(values.number("block_ffn_dim_multiplier", 1e-3, 1e3) * size)
    multiple = values.integer("block_multiple_of", 1, 1 << 20)
    return -(-size // multiple) * multiple


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers, and those of convolutions."""
    D, convolution = config.hidden_size, config.conv_layers
    found = decoder_linears(config, names)
    if convolution:
        count = len(convolution)
        found.append(Linear("conv_in_proj", (f"{CONVOLUTION}in_proj",), (3 * D,), D, count, at=convolution))
        found.append(Linear("conv_out_proj", (f"{CONVOLUTION}out_proj",), (D,), D, count, at=convolution))
    return found


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the taps of the convolutions."""
    convolution, found = config.conv_layers, decoder_norms(config, names)
    if convolution:
        size, count = config.hidden_size * config.conv_L_cache, len(convolution)
        taps = Norm("conv_taps", f"{CONVOLUTION}conv", size, count, padded=False, at=convolution, flattened=True)
        found.append(taps)
    return found


DEFAULTS = {
    "norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}

LFM2 = Family(
    "Lfm2ForCausalLM",
    "lfm2",
    "LFM2 350M to 2.6B",
    "short convolutions in most layers, q/k norm in the others",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    names={"rms_norm_eps": "norm_eps"},
    prepared=prepared,
)
LFM2_MOE = Family(
    "Lfm2MoeForCausalLM",
    "lfm2_moe",
    "LFM2 8B-A1B, 24B-A2B",
    "short convolutions in most layers, experts by sigmoids",
    {key: value for key, value in DEFAULTS.items() if not key.startswith("block")}
    | {
        "num_dense_layers": 2,
        "moe_intermediate_size": 1792,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    read_moe,
    MOE_TENSORS,
    linears,
    norms,
    names={"rms_norm_eps": "norm_eps", "first_k_dense_replace": "num_dense_layers"},
    prepared=prepared,
)
