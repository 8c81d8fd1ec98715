"""GPT-2 and StarCoder 1: layer norms, biases, an MLP without gates, and a learned vector for each position.

GPT-2 has its weights transposed. StarCoder has one head of keys and values (Radford et al., 2019; Li et al., 2023,
https://arxiv.org/abs/2305.06161; github.com/huggingface/transformers, models/gpt2 and gpt_bigcode).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues, with_default_mlp
from tinychat.models.decoder import TensorNames, decoder_linears, grouped_rows, layer_norms
from tinychat.models.family import Family
from tinychat.models.tensors import POSITIONS, Linear, Order, Table

LAYER = "transformer.h.{}."
DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "n_positions": 1024,
    "tie_word_embeddings": True,
}
NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
TENSORS = TensorNames(
    embed="transformer.wte",
    qkv=(f"{LAYER}attn.c_attn",),
    o=f"{LAYER}attn.c_proj",
    gate_up=(f"{LAYER}mlp.c_fc",),
    down=f"{LAYER}mlp.c_proj",
    norms=layer_norms(f"{LAYER}ln_1", f"{LAYER}ln_2", "transformer.ln_f"),
    norm_bias=True,
)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Add the width of the MLP, four times the model if the file has none."""
    return with_default_mlp(raw, "n_embd", "n_inner")


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Scores are divided by sqrt(d), unless the file disables that."""
    values.require(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    scale = config.attention_scale if values.flag("scale_attn_weights", True) else 1.0
    config = replace(config, layer_norm=True, gated=False, learned_positions=True, attention_scale=scale)
    unrotated = (0,) * config.num_hidden_layers
    return replace(config, qkv_bias=True, o_bias=True, mlp_bias=True, rotary_dims=unrotated)


def read_bigcode(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Keys and values have one head, or as many as queries."""
    heads = 1 if values.flag("multi_query", True) else config.num_attention_heads
    return replace(read(values, config), num_key_value_heads=heads)


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers of GPT-2, transposed in the checkpoint."""
    found = decoder_linears(config, names)
    return [each if each.layers is None else replace(each, transposed=True) for each in found]


def rows_bigcode(config: ModelConfig) -> Order:
    """As many heads of keys as of queries stand together with them."""
    return grouped_rows(config) if config.num_key_value_heads == config.num_attention_heads else ()


def tables(config: ModelConfig) -> list[Table]:
    """List the vectors of the positions."""
    return [Table(POSITIONS, "transformer.wpe", config.max_position_embeddings, config.hidden_size)]


GPT2 = Family(
    "GPT2LMHeadModel",
    "gpt2",
    "GPT-2",
    "learned positions, MLP without gates",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    tables=tables,
    names=NAMES,
    prepared=prepared,
)
GPT_BIGCODE = Family(
    "GPTBigCodeForCausalLM",
    "gpt_bigcode",
    "StarCoder 1, SantaCoder",
    "the same, one head of keys and values",
    DEFAULTS | {"activation_function": "gelu_pytorch_tanh"},
    read_bigcode,
    replace(TENSORS, qkv_order=rows_bigcode),
    tables=tables,
    names=NAMES,
    prepared=prepared,
)
