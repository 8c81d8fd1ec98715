"""GLM-4.5, 4.6 and Solar Open: Llama's layers, of whose heads a part is rotated, with experts that sigmoids choose.

Other models choose by probabilities that sum up to 1. A bias for each expert counts for the choice alone, and an expert
that all tokens pass has no gate (GLM Team, 2025, https://arxiv.org/abs/2508.06471; github.com/huggingface/transformers,
models/glm4_moe and solar_open).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ExpertNames, TensorNames
from tinychat.models.experts import read_layers_behind_dense, read_sigmoid_experts, with_shared
from tinychat.models.family import Family

TENSORS = TensorNames(experts=ExpertNames())
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "partial_rotary_factor": 0.5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The first layers have an MLP; norms of queries and keys, and their biases, are those of the file."""
    experts = read_sigmoid_experts(values, read_layers_behind_dense(values, config.num_hidden_layers))
    return replace(
        config,
        qkv_bias=values.flag("attention_bias", False),
        qk_norm="head" if values.flag("use_qk_norm", False) else None,
        experts=with_shared(values, experts),
    )


def read_solar_open(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts; queries and keys have no norms."""
    experts = read_sigmoid_experts(values, range(config.num_hidden_layers))
    return replace(config, qkv_bias=values.flag("attention_bias", False), experts=with_shared(values, experts))


GLM4_MOE = Family(
    "Glm4MoeForCausalLM",
    "glm4_moe",
    "GLM-4.5, 4.6",
    "experts by sigmoids, a shared expert, half of each head rotated",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    names={"num_experts": "n_routed_experts"},
)
SOLAR_OPEN = Family(
    "SolarOpenForCausalLM",
    "solar_open",
    "Solar Open 100B-A12B",
    "experts by sigmoids, a shared expert",
    {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "moe_intermediate_size": 1280,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
    read_solar_open,
    TENSORS,
    names={"intermediate_size": "moe_intermediate_size", "num_experts": "n_routed_experts"},
)
