"""Falcon 7B, 11B, 40B and 180B: attention and an MLP without gates beside each other, behind layer norms.

The three layouts: one head of keys and values; groups of heads, each with its keys and values, and norms of their own
for attention and MLP; the same with one norm (Almazrouei et al., 2023, https://arxiv.org/abs/2311.16867;
github.com/huggingface/transformers, models/falcon).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, split_order

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


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Say how wide the MLP is, four times the model if the file does not, and how many heads keys have."""
    width, found = raw.get("hidden_size"), dict(raw)
    if raw.get("ffn_hidden_size") is None and type(width) is int:
        found["ffn_hidden_size"] = 4 * width
    if not raw.get("new_decoder_architecture", False):
        found["num_kv_heads"] = 1 if raw.get("multi_query", True) else None
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Linears have biases if the file says so."""
    if values.flag("alibi", False):
        raise UnsupportedModelError(f"{values.source}: alibi is not supported in this architecture")
    if not values.flag("parallel_attn", True):
        raise UnsupportedModelError(f"{values.source}: parallel_attn false is not supported")
    norms = values.optional_integer("num_ln_in_parallel_attn", 1, 2)
    separate = values.flag("new_decoder_architecture", False) and norms != 1
    bias = values.flag("bias", False)
    config = replace(config, layer_norm=True, gated=False, parallel=True, separate_mlp_norm=separate)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers: queries of a group stand with their keys and values."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    H, G, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    order, bias = (split_order(G, H // G, d),), config.qkv_bias
    fused = f"{LAYER}self_attention.query_key_value"
    found = [
        Linear("embed_tokens", ("transformer.word_embeddings",), (V,), D, None),
        Linear("qkv_proj", (fused,), ((H + 2 * G) * d,), D, L, bias, order=order),
        Linear("o_proj", (f"{LAYER}self_attention.dense",), (D,), H * d, L, bias),
        Linear("up_proj", (f"{LAYER}mlp.dense_h_to_4h",), (F,), D, L, bias),
        Linear("down_proj", (f"{LAYER}mlp.dense_4h_to_h",), (D,), F, L, bias),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("lm_head",), (V,), D, None)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms: attention and MLP have their own, or share one."""
    D, L = config.hidden_size, config.num_hidden_layers
    first, second = ("ln_attn", "ln_mlp") if config.separate_mlp_norm else ("input_layernorm",) * 2
    return [
        Norm("input_layernorm", f"{LAYER}{first}", D, L, bias=True),
        Norm("post_attention_layernorm", f"{LAYER}{second}", D, L, bias=True),
        Norm("norm", "transformer.ln_f", D, None, bias=True),
    ]


FAMILIES = (
    Family(
        "FalconForCausalLM",
        "falcon",
        "Falcon 7B, 11B, 40B, 180B",
        "MLP without gates beside attention, one or several heads of keys and values",
        DEFAULTS,
        read,
        linears,
        norms,
        names=NAMES,
        prepared=prepared,
    ),
)
