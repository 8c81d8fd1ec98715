"""GLM-4.7-Flash: the layers of DeepSeek-V3, with latent attention and with experts that sigmoids choose.

The first layer has an MLP, unless the file names others (GLM Team, 2025; github.com/huggingface/transformers,
models/glm4_moe_lite).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.experts import read_sigmoid_experts, read_sparse_layers, with_shared
from tinychat.models.families import deepseek, glm4_moe
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 20,
    "max_position_embeddings": 202752,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "rope_interleave": True,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.8,
    "norm_topk_prob": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All heads share one latent; experts are those of GLM-4.5."""
    layers = read_sparse_layers(values, ["dense"] + ["sparse"] * (config.num_hidden_layers - 1))
    experts = with_shared(values, read_sigmoid_experts(values, layers))
    return replace(deepseek.read_youtu(values, config), experts=experts)


GLM4_MOE_LITE = Family(
    "Glm4MoeLiteForCausalLM",
    "glm4_moe_lite",
    "GLM-4.7-Flash",
    "latent attention (MLA), experts by sigmoids, a shared expert",
    DEFAULTS,
    read,
    glm4_moe.TENSORS,
    deepseek.linears,
    deepseek.norms,
    names=deepseek.NAMES,
)
