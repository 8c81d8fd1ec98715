"""GLM-4 (2024) and GLM-4-0414: Llama's layers, of which neighbouring channels are rotated together, the first half.

Rows of queries and keys are reordered, so that the kernels' rotation of halves serves. GLM-4-0414 norms what attention
and MLP give as well as what they take (GLM Team, 2024, https://arxiv.org/abs/2406.12793;
github.com/huggingface/transformers, models/glm and glm4).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama, phi3
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, halves_order

DEFAULTS = {
    "rms_norm_eps": 1.5625e-7,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Queries, keys and values have biases, if the file says so."""
    return replace(config, qkv_bias=values.flag("attention_bias", False))


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers: gate and up projections are one tensor; rows of queries and keys are reordered."""
    d, rotary_dim = config.head_dim, config.rotary_dim
    order = (
        halves_order(config.num_attention_heads, d, rotary_dim),
        halves_order(config.num_key_value_heads, d, rotary_dim),
        None,
    )
    fused = {linear.name: linear for linear in phi3.linears(config)}
    return [
        replace(linear, order=order) if linear.name == "qkv_proj" else fused[linear.name]
        for linear in llama.linears(config)
    ]


def norms_glm4(config: ModelConfig) -> list[Norm]:
    """List the norms: before and after attention, before and after the MLP."""
    D, L = config.hidden_size, config.num_hidden_layers
    names = ("post_self_attn_layernorm", "post_mlp_layernorm")
    return [*llama.norms(config), *(Norm(name, f"{llama.LAYER}{name}", D, L) for name in names)]


FAMILIES = (
    Family(
        "GlmForCausalLM",
        "glm",
        "GLM-4 9B (2024)",
        "half of each head rotated, by neighbours; q/k/v biases",
        DEFAULTS,
        read,
        linears,
        llama.norms,
        partial_rotary=True,
    ),
    Family(
        "Glm4ForCausalLM",
        "glm4",
        "GLM-4-0414",
        "the same, norms before and after",
        DEFAULTS,
        read,
        linears,
        norms_glm4,
        partial_rotary=True,
    ),
)
