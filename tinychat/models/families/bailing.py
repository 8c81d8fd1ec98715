"""Ling 1 and 2.0, Ring 2.0 and Sarvam-30B: Qwen3-MoE's layers with fused projections and shared experts.

Ling 1 makes the probabilities of the chosen experts sum up to 1. The others choose by sigmoids and biases, from groups,
norm queries and keys, and have an MLP in the first layers; Ling 2.0 rotates half of each head (Ling Team, 2025,
https://arxiv.org/abs/2503.05139 and https://arxiv.org/abs/2510.22115; github.com/inclusionAI/Ling-V2;
github.com/huggingface/transformers, models/sarvam_moe).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, LLAMA_NORMS, MLP, ExpertNames, TensorNames
from tinychat.models.experts import read_experts, read_layers_behind_dense, with_shared
from tinychat.models.families import glm4_moe
from tinychat.models.family import Family, with_names

ATTENTION = f"{LAYER}attention."
TENSORS = TensorNames(
    embed="model.word_embeddings",
    qkv=(f"{ATTENTION}query_key_value",),
    o=f"{ATTENTION}dense",
    norms={**LLAMA_NORMS, "q_norm": f"{ATTENTION}query_layernorm", "k_norm": f"{ATTENTION}key_layernorm"},
    experts=ExpertNames(bias=f"{MLP}gate.expert_bias"),
)
NAMES = {"n_shared_experts": "num_shared_experts", "attention_bias": "use_qkv_bias"}
# Of published files; transformers writes those of GLM-4.5.
_SARVAM_NAMES = {"num_experts": "n_routed_experts", **{name: key for key, name in NAMES.items()}}


def read_ling(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The first layers may have an MLP; options that no published file turns on are refused."""
    values.require(use_bias=False, norm_head=False, use_qk_norm=False)
    layers = read_layers_behind_dense(values, config.num_hidden_layers)
    experts = read_experts(values, "moe_intermediate_size", layers, norm_topk_prob=True)
    return replace(config, qkv_bias=values.flag("attention_bias", False), experts=with_shared(values, experts))


def read_ling2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers for the prediction of several tokens, which stand behind the others, are not read."""
    values.require(use_bias=False, moe_router_enable_expert_bias=True)
    if values.get("score_function") not in (None, "sigmoid"):
        raise values.error("score_function", '"sigmoid"')
    return glm4_moe.read(values, config)


_LING = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "rope_theta": 6e5,
    "first_k_dense_replace": 0,
    "num_shared_experts": 1,
    "norm_topk_prob": True,
}
_LING2 = {
    **_LING,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 1.0,
}
_SARVAM = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 8e6,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "use_qk_norm": True,
}

LING = Family(
    "BailingMoeForCausalLM",
    "bailing_moe",
    "Ling 1, 1.5 (Lite, Plus)",
    "experts, shared experts, fused projection",
    _LING,
    read_ling,
    TENSORS,
    names=NAMES,
)
LING2 = Family(
    "BailingMoeV2ForCausalLM",
    "bailing_moe",
    "Ling 2.0, Ring 2.0 (mini 16B-A1.4B, flash, 1T)",
    "experts by sigmoids, in groups, a shared expert, q/k norm, half of each head rotated",
    _LING2,
    read_ling2,
    TENSORS,
    partial_rotary=True,
    other_types=("bailing_moe_v2",),
    names=NAMES,
)
SARVAM = Family(
    "SarvamMoEForCausalLM",
    "sarvam_moe",
    "Sarvam 30B-A2.4B",
    "experts by sigmoids, a shared expert, q/k norm",
    _SARVAM,
    read_ling2,
    TENSORS,
    partial_rotary=True,
    also_written=("Glm4MoeForCausalLM",),
    names={"num_experts": "n_routed_experts"},
    prepared=with_names(_SARVAM_NAMES),
)
