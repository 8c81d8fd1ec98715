"""OPT: layer norms, biases, an MLP of ReLU without gates, and a learned vector for each position.

(Zhang et al., 2022, https://arxiv.org/abs/2205.01068; github.com/huggingface/transformers, models/opt.) The size of
350 M, which norms after what it adds and projects its embeddings, is not supported.
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, Table

MODEL = "model.decoder."
LAYER = f"{MODEL}layers.{{}}."
# Vectors before that of the first position.
OFFSET = 2
DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "activation_function": "relu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "do_layer_norm_before": True,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
}
NAMES = {"intermediate_size": "ffn_dim", "rms_norm_eps": "layer_norm_eps", "hidden_act": "activation_function"}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none."""
    for key, only in (
        ("do_layer_norm_before", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        if values.flag(key, only) != only:
            raise UnsupportedModelError(f"{values.source}: {key} {str(not only).lower()} is not supported")
    if values.optional_integer("word_embed_proj_dim", 1, 1 << 20) not in (None, config.hidden_size):
        raise UnsupportedModelError(f"{values.source}: word_embed_proj_dim beside another hidden_size is not supported")
    bias = values.flag("enable_bias", True)
    config = replace(config, layer_norm=True, gated=False, learned_positions=True, qkv_bias=bias, o_bias=bias)
    return replace(config, mlp_bias=bias, rotary_dims=(0,) * config.num_hidden_layers)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    qkv = tuple(f"{LAYER}self_attn.{name}_proj" for name in "qkv")
    found = [
        Linear("embed_tokens", (f"{MODEL}embed_tokens",), (V,), D, None),
        Linear("qkv_proj", qkv, (D, D, D), D, L, config.qkv_bias),
        Linear("o_proj", (f"{LAYER}self_attn.out_proj",), (D,), D, L, config.o_bias),
        Linear("up_proj", (f"{LAYER}fc1",), (F,), D, L, config.mlp_bias),
        Linear("down_proj", (f"{LAYER}fc2",), (D,), F, L, config.mlp_bias),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("lm_head",), (V,), D, None)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{LAYER}self_attn_layer_norm", D, L, bias=True),
        Norm("post_attention_layernorm", f"{LAYER}final_layer_norm", D, L, bias=True),
        Norm("norm", f"{MODEL}final_layer_norm", D, None, bias=True),
    ]


def tables(config: ModelConfig) -> list[Table]:
    """List the vectors of the positions."""
    rows, columns = config.max_position_embeddings, config.hidden_size
    return [Table("embed_positions", f"{MODEL}embed_positions", rows, columns, OFFSET)]


FAMILIES = (
    Family(
        "OPTForCausalLM",
        "opt",
        "OPT (all but 350M)",
        "learned positions, MLP of ReLU without gates",
        DEFAULTS,
        read,
        linears,
        norms,
        tables,
        names=NAMES,
    ),
)
