"""Lara 4 Mini: Gated DeltaNet, attention with a window, and attention without positions, by layer; experts as MLPs.

Queries and keys are normed; layers without a window do not rotate. All tokens pass an expert beside the others, without
a gate (Translated, 2026; github.com/huggingface/transformers, models/lara_mini).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_layer_types, rotated_in_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_norms
from tinychat.models.delta_net import GATES, read_delta_net
from tinychat.models.experts import read_experts, with_num_experts, with_shared_expert
from tinychat.models.families import experts, qwen3_next
from tinychat.models.families.qwen3_next import DELTA
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS
from tinychat.models.tensors import Linear, Norm, rows_of

KINDS = ("linear_attention", "sliding_attention", "full_attention")
# Of the layers where the file lists none.
PATTERN = KINDS[0], KINDS[1], KINDS[0], KINDS[2], KINDS[1]


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers have Gated DeltaNet, and which a window; every layer has experts."""
    if config.hidden_act != "silu":
        raise values.error("hidden_act", '"silu"')
    L = config.num_hidden_layers
    kinds = read_layer_types(values, L, KINDS) or [PATTERN[layer % len(PATTERN)] for layer in range(L)]
    if not 0 < kinds.count(KINDS[0]) < L:
        raise values.error("layer_types", f"layers of {KINDS[0]} and of attention")
    window = values.integer("sliding_window", 1, MAX_POSITIONS)
    sparse = read_experts(values, "moe_intermediate_size", range(L), norm_topk_prob=True)
    states = [layer for layer in range(L) if kinds[layer] == KINDS[0]]
    config = with_attention_bias(values, config)
    return replace(
        rotated_in_windows(config, tuple(window if kind == KINDS[1] else 0 for kind in kinds)),
        qk_norm="head",
        experts=with_shared_expert(values, sparse),
        delta_net=read_delta_net(values, states, config.rms_norm_eps),
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: one tensor has all that Gated DeltaNet reads of a layer's input."""
    net, D = qwen3_next.net_of(config), config.hidden_size
    sizes = net.channels, net.value_size, net.value_heads, net.value_heads
    parts = rows_of(f"{DELTA}in_proj", *sizes)
    projections = [
        Linear("delta_in_proj", tuple(parts[:2]), sizes[:2], D, None),
        Linear(GATES, tuple(parts[2:]), sizes[2:], D, None),
    ]
    return qwen3_next.hybrid_linears(config, names, projections)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the other vectors of Gated DeltaNet."""
    return [*decoder_norms(config, names), *qwen3_next.delta_vectors(qwen3_next.net_of(config), norm="out_norm")]


LARA_MINI = Family(
    "LaraMiniForCausalLM",
    "lara_mini",
    "Lara 4 Mini",
    "Gated DeltaNet, attention with a window, or without positions, by layer, experts, a shared expert, q/k norm",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
    },
    read,
    experts.TENSORS,
    linears,
    norms,
    names={"intermediate_size": "moe_intermediate_size"},
    prepared=with_num_experts,
)
