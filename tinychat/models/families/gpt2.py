"""GPT-2 and StarCoder 1: layer norms, biases, an MLP without gates, and a learned vector for each position.

GPT-2 keeps its weights transposed. StarCoder has one head of keys and values (Radford et al., 2019; Li et al., 2023,
https://arxiv.org/abs/2305.06161; github.com/huggingface/transformers, models/gpt2 and gpt_bigcode).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, Table, split_order

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


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Give an MLP whose width is not said four times that of the model."""
    width = raw.get("n_embd")
    return {**raw, "n_inner": 4 * width} if raw.get("n_inner") is None and type(width) is int else raw


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Scores are divided by sqrt(d), unless the file says otherwise."""
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if values.flag(key, False):
            raise UnsupportedModelError(f"{values.source}: {key} is not supported")
    config = replace(config, layer_norm=True, gated=False, learned_positions=True, rotary_dims=_none(config))
    scale = config.attention_scale if values.flag("scale_attn_weights", True) else 1.0
    return replace(config, qkv_bias=True, o_bias=True, mlp_bias=True, attention_scale=scale)


def read_bigcode(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Keys and values have one head, or as many as queries."""
    heads = 1 if values.flag("multi_query", True) else config.num_attention_heads
    return replace(read(values, config), num_key_value_heads=heads)


def _none(config: ModelConfig) -> tuple[int, ...]:
    return (0,) * config.num_hidden_layers


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers of GPT-2."""
    inside = ("qkv_proj", "o_proj", "up_proj", "down_proj")
    return [
        replace(linear, order=(), transposed=True) if linear.name in inside else linear
        for linear in linears_bigcode(config)
    ]


def linears_bigcode(config: ModelConfig) -> list[Linear]:
    """List the linear layers of StarCoder: as many heads of keys as of queries stand together with them."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    H, G, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    found = [
        Linear("embed_tokens", ("transformer.wte",), (V,), D, None),
        Linear(
            "qkv_proj",
            (f"{LAYER}attn.c_attn",),
            ((H + 2 * G) * d,),
            D,
            L,
            True,
            order=(split_order(H, 1, d),) if G == H else (),
        ),
        Linear("o_proj", (f"{LAYER}attn.c_proj",), (D,), H * d, L, True),
        Linear("up_proj", (f"{LAYER}mlp.c_fc",), (F,), D, L, True),
        Linear("down_proj", (f"{LAYER}mlp.c_proj",), (D,), F, L, True),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("lm_head",), (V,), D, None)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{LAYER}ln_1", D, L, bias=True),
        Norm("post_attention_layernorm", f"{LAYER}ln_2", D, L, bias=True),
        Norm("norm", "transformer.ln_f", D, None, bias=True),
    ]


def tables(config: ModelConfig) -> list[Table]:
    """List the vectors of the positions."""
    return [Table("embed_positions", "transformer.wpe", config.max_position_embeddings, config.hidden_size)]


FAMILIES = (
    Family(
        "GPT2LMHeadModel",
        "gpt2",
        "GPT-2",
        "learned positions, MLP without gates",
        DEFAULTS,
        read,
        linears,
        norms,
        tables,
        names=NAMES,
        prepared=prepared,
    ),
    Family(
        "GPTBigCodeForCausalLM",
        "gpt_bigcode",
        "StarCoder 1, SantaCoder",
        "the same, one head of keys and values",
        DEFAULTS | {"activation_function": "gelu_pytorch_tanh"},
        read_bigcode,
        linears_bigcode,
        norms,
        tables,
        names=NAMES,
        prepared=prepared,
    ),
)
