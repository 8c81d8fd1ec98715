"""Falcon 7B, 11B, 40B and 180B: attention and an MLP without gates beside each other, behind layer norms.

The three layouts: one head of keys and values; groups of heads, each with its keys and values, and norms of their own
for attention and MLP; the same with one norm (Almazrouei et al., 2023, https://arxiv.org/abs/2311.16867;
github.com/huggingface/transformers, models/falcon).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues, with_default_mlp
from tinychat.models.decoder import TensorNames, decoder_norms, grouped_rows, layer_norms
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

LAYER = "transformer.h.{}."
DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "activation": "gelu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
NAMES = {
    "intermediate_size": "ffn_hidden_size",
    "num_key_value_heads": "num_kv_heads",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation",
}
TENSORS = TensorNames(
    embed="transformer.word_embeddings",
    qkv=(f"{LAYER}self_attention.query_key_value",),
    qkv_order=grouped_rows,
    o=f"{LAYER}self_attention.dense",
    gate_up=(f"{LAYER}mlp.dense_h_to_4h",),
    down=f"{LAYER}mlp.dense_4h_to_h",
    norms=layer_norms(f"{LAYER}input_layernorm", f"{LAYER}input_layernorm", "transformer.ln_f"),
    norm_bias=True,
)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Add the width of the MLP, four times the model if the file has none, and the number of key heads."""
    found = with_default_mlp(raw, "hidden_size", "ffn_hidden_size")
    if raw.get("new_decoder_architecture", False):
        return found
    return {**found, "num_kv_heads": 1 if raw.get("multi_query", True) else None}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Linears have biases if the file sets them."""
    values.require(alibi=False, parallel_attn=True)
    norms = values.optional_integer("num_ln_in_parallel_attn", 1, 2)
    separate = values.flag("new_decoder_architecture", False) and norms != 1
    bias = values.flag("bias", False)
    config = replace(config, layer_norm=True, gated=False, parallel=True, separate_mlp_norm=separate)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms: attention and MLP have their own, or share one."""
    own = layer_norms(f"{LAYER}ln_attn", f"{LAYER}ln_mlp", "transformer.ln_f")
    return decoder_norms(config, replace(names, norms=own) if config.separate_mlp_norm else names)


FALCON = Family(
    "FalconForCausalLM",
    "falcon",
    "Falcon 7B, 11B, 40B, 180B",
    "MLP without gates beside attention, one or several heads of keys and values",
    DEFAULTS,
    read,
    TENSORS,
    norms=norms,
    names=NAMES,
    prepared=prepared,
)
