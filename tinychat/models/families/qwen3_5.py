"""Qwen3.5 and later: Qwen3-Next's layers, whose Gated DeltaNet has a tensor for each part; MLPs are dense or experts.

The router makes the probabilities of the chosen experts sum up to 1; every layer has experts, or none.

(Qwen Team, 2026; github.com/huggingface/transformers, models/qwen3_5 and qwen3_5_moe.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.delta_net import GATES
from tinychat.models.experts import read_experts, with_num_experts, with_shared_expert
from tinychat.models.families import qwen3_next
from tinychat.models.families.qwen3_next import DELTA, gated_queries
from tinychat.models.family import Family
from tinychat.models.tensors import Linear


def read_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts, and one that all tokens pass."""
    experts = read_experts(values, "moe_intermediate_size", range(config.num_hidden_layers))
    hybrid = qwen3_next.read_hybrid(values, config)
    return replace(hybrid, experts=with_shared_expert(values, experts, gated=True))


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers."""
    net, D = qwen3_next.net_of(config), config.hidden_size
    parts = f"{DELTA}in_proj_qkv", f"{DELTA}in_proj_z"
    gates = f"{DELTA}in_proj_b", f"{DELTA}in_proj_a"
    projections = [
        Linear("delta_in_proj", parts, (net.channels, net.value_size), D, None),
        Linear(GATES, gates, (net.value_heads, net.value_heads), D, None),
    ]
    return qwen3_next.hybrid_linears(config, names, projections)


DEFAULTS = {**qwen3_next.HYBRID_DEFAULTS, "num_key_value_heads": 4}
_MOE = {
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}

QWEN3_5 = Family(
    "Qwen3_5ForCausalLM",
    "qwen3_5_text",
    "Qwen3.5, Qwen3.6 (dense)",
    "Gated DeltaNet in most layers, gated attention in the others",
    DEFAULTS,
    qwen3_next.read_hybrid,
    TensorNames(qkv_order=gated_queries, norm_offset=1.0),
    linears,
    qwen3_next.norms,
    partial_rotary=True,
    draft_head=qwen3_next.DRAFT_HEAD,
)
QWEN3_5_MOE = Family(
    "Qwen3_5MoeForCausalLM",
    "qwen3_5_moe_text",
    "Qwen3.5, Qwen3.6 (mixtures: 35B-A3B and larger)",
    "Gated DeltaNet in most layers, gated attention in the others, experts, a shared expert",
    {**DEFAULTS, **_MOE},
    read_moe,
    qwen3_next.TENSORS,
    linears,
    qwen3_next.norms,
    partial_rotary=True,
    draft_head=qwen3_next.DRAFT_HEAD,
    prepared=with_num_experts,
)
