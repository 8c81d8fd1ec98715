"""Jamba: Mamba in most layers, attention without positions in the others, and an MLP or experts in each.

Mamba's steps, keys and queries are normed (AI21 Labs, 2024, https://arxiv.org/abs/2403.19887;
github.com/huggingface/transformers, models/jamba).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, check_state_layers
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ExpertNames
from tinychat.models.experts import read_experts, with_num_experts
from tinychat.models.families import bamba
from tinychat.models.families.bamba import MLP
from tinychat.models.family import Family
from tinychat.models.selective import read_selective

_EXPERT = f"{MLP}experts.{{}}."
TENSORS = replace(
    bamba.TENSORS,
    experts=ExpertNames((f"{MLP}router",), (f"{_EXPERT}gate_proj", f"{_EXPERT}up_proj"), f"{_EXPERT}down_proj"),
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """One of so many layers has attention, one experts; a model of one expert has MLPs."""
    count = config.num_hidden_layers
    attending, sparse = ({*_every(values, name, count)} for name in ("attn", "expert"))
    layers = [layer for layer in range(count) if layer not in attending]
    check_state_layers(values, config, layers)
    experts = None
    if values.integer("num_experts", 1, 1 << 12) > 1 and sparse:
        experts = replace(read_experts(values, "intermediate_size", sorted(sparse)), norm_topk_prob=False)
    return replace(
        config,
        rotary_dims=(0,) * count,
        experts=experts,
        selective=read_selective(values, layers, config.hidden_size),
    )


def _every(values: ConfigValues, name: str, count: int) -> range:
    """Return the layers from an offset on that are a period apart."""
    period = values.integer(f"{name}_layer_period", 1, 1 << 12)
    return range(values.integer(f"{name}_layer_offset", 0, period - 1), count, period)


JAMBA = Family(
    "JambaForCausalLM",
    "jamba",
    "Jamba 1.5 to 2 (3B, Mini)",
    "Mamba in most layers, attention without positions in the others, experts in some",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
    read,
    TENSORS,
    prepared=with_num_experts,
)
