"""GPT-J: attention and an MLP without gates beside each other, behind one layer norm.

Neighbouring channels are rotated together, the first ones of each head; rows of queries and keys are reordered for that
(Wang and Komatsuzaki, 2021, https://github.com/kingoflolz/mesh-transformer-jax; github.com/huggingface/transformers,
models/gptj).
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import gpt2
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, halves_order

LAYER = "transformer.h.{}."
DEFAULTS = {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_positions": 2048, "rotary_dim": 64}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The MLP and the output matrix have biases, attention has none."""
    if config.tie_word_embeddings:
        raise UnsupportedModelError(f"{values.source}: tie_word_embeddings beside a bias of lm_head is not supported")
    rotary_dim = values.integer("rotary_dim", 2, config.head_dim)
    if rotary_dim % 2:
        raise values.error("rotary_dim", "an even number")
    config = replace(config, layer_norm=True, gated=False, parallel=True, mlp_bias=True)
    return replace(config, rotary_dims=(rotary_dim,) * config.num_hidden_layers)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    heads, d = config.num_attention_heads, config.head_dim
    order = halves_order(heads, d, config.rotary_dim)
    qkv = tuple(f"{LAYER}attn.{name}_proj" for name in "qkv")
    return [
        Linear("embed_tokens", ("transformer.wte",), (V,), D, None),
        Linear("qkv_proj", qkv, (heads * d,) * 3, D, L, order=(order, order, None)),
        Linear("o_proj", (f"{LAYER}attn.out_proj",), (D,), heads * d, L),
        Linear("up_proj", (f"{LAYER}mlp.fc_in",), (F,), D, L, True),
        Linear("down_proj", (f"{LAYER}mlp.fc_out",), (D,), F, L, True),
        Linear("lm_head", ("lm_head",), (V,), D, None, True),
    ]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms: attention and MLP share one."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{LAYER}ln_1", D, L, bias=True),
        Norm("post_attention_layernorm", f"{LAYER}ln_1", D, L, bias=True),
        Norm("norm", "transformer.ln_f", D, None, bias=True),
    ]


FAMILIES = (
    Family(
        "GPTJForCausalLM",
        "gptj",
        "GPT-J",
        "MLP without gates beside attention, a part of each head rotated, by neighbours",
        DEFAULTS,
        read,
        linears,
        norms,
        names=gpt2.NAMES,
        prepared=gpt2.prepared,
    ),
)
