"""GLM-4 (2024) and GLM-4-0414: Llama's layers, of which neighbouring channels are rotated together, the first half.

Rows of queries and keys are reordered, so that the kernels' rotation of halves serves. GLM-4-0414 norms the outputs
of attention and MLP as well as their inputs (GLM Team, 2024, https://arxiv.org/abs/2406.12793;
github.com/huggingface/transformers, models/glm and glm4).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, LLAMA_NORMS, MLP, TensorNames, neighbours_rows
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1.5625e-7,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
TENSORS = TensorNames(qkv_order=neighbours_rows, gate_up=(f"{MLP}gate_up_proj",))
GLM4_TENSORS = replace(
    TENSORS,
    norms={
        **LLAMA_NORMS,
        "post_self_attn_layernorm": f"{LAYER}post_self_attn_layernorm",
        "post_mlp_layernorm": f"{LAYER}post_mlp_layernorm",
    },
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Queries, keys and values have biases, if the file sets them."""
    return replace(config, qkv_bias=values.flag("attention_bias", False))


GLM = Family(
    "GlmForCausalLM",
    "glm",
    "GLM-4 9B (2024)",
    "half of each head rotated, by neighbours; q/k/v biases",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
)
GLM4 = Family(
    "Glm4ForCausalLM",
    "glm4",
    "GLM-4-0414",
    "the same, norms before and after",
    DEFAULTS,
    read,
    GLM4_TENSORS,
    partial_rotary=True,
)
