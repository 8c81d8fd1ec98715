"""GPT-NeoX, Pythia, Dolly 2 and StableLM alpha: layer norms, biases, an MLP without gates beside attention.

Queries, keys and values of a head stand together; a quarter of each head is rotated. The MLP has a norm of its own
(Black et al., 2022, https://arxiv.org/abs/2204.06745; github.com/huggingface/transformers, models/gpt_neox).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, split_order

LAYER = "gpt_neox.layers.{}."
DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "rotary_pct": 0.25,
    "attention_bias": True,
    "use_parallel_residual": True,
}
NAMES = {
    "rms_norm_eps": "layer_norm_eps",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases of attention, and the place of the MLP, are as the file says."""
    bias = values.flag("attention_bias", True)
    config = replace(config, layer_norm=True, gated=False, parallel=values.flag("use_parallel_residual", True))
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=True)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    heads, d = config.num_attention_heads, config.head_dim
    order = (split_order(heads, 1, d),)
    fused, dense = f"{LAYER}attention.query_key_value", f"{LAYER}attention.dense"
    found = [
        Linear("embed_tokens", ("gpt_neox.embed_in",), (V,), D, None),
        Linear("qkv_proj", (fused,), (3 * heads * d,), D, L, config.qkv_bias, order=order),
        Linear("o_proj", (dense,), (D,), heads * d, L, config.o_bias),
        Linear("up_proj", (f"{LAYER}mlp.dense_h_to_4h",), (F,), D, L, True),
        Linear("down_proj", (f"{LAYER}mlp.dense_4h_to_h",), (D,), F, L, True),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("lm_head",), (V,), D, None)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{LAYER}input_layernorm", D, L, bias=True),
        Norm("post_attention_layernorm", f"{LAYER}post_attention_layernorm", D, L, bias=True),
        Norm("norm", "gpt_neox.final_layer_norm", D, None, bias=True),
    ]


FAMILIES = (
    Family(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        "GPT-NeoX, Pythia, Dolly 2",
        "MLP without gates beside attention, a part of each head rotated",
        DEFAULTS,
        read,
        linears,
        norms,
        partial_rotary=True,
        names=NAMES,
    ),
)
