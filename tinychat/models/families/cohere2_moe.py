"""Command A+ and North Mini Code: Command R7B's layers, with experts beside attention in the place of MLPs.

The probabilities of the chosen experts are a softmax of their logits alone, or sigmoids. The first layers may have an
MLP, and windows of another pattern; these layers may rotate without a window, too. Norms may be RMS norms (Cohere,
2026; github.com/huggingface/transformers, models/cohere2_moe).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ExpertNames
from tinychat.models.experts import MOST, Experts, read_experts, read_sparse_layers
from tinychat.models.families import cohere
from tinychat.models.family import Family

PREFIX = "prefix_dense_sliding_window_pattern"


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers without a window do not rotate, but the first ones without experts where their pattern is 1."""
    values.require(use_parallel_block=True, use_gated_activation=True)
    L, dense = config.num_hidden_layers, values.integer("first_k_dense_replace", 0, config.num_hidden_layers)
    sparse = read_sparse_layers(values, ["dense"] * dense + ["sparse"] * (L - dense))
    first, others = values.integer(PREFIX, 1, 4096), values.integer("sliding_window_pattern", 1, 4096)
    windows = read_windows(
        values, L, lambda layer: (layer + 1) % first != 0 if layer < dense else (layer - dense + 1) % others != 0
    )
    rotated = [windows[layer] > 0 or (first == 1 and layer not in sparse) for layer in range(L)]
    experts, multiplier = _read_experts(values, sparse)
    rms_eps = values.optional_number("own_rms_eps", 1e-30, 1.0)
    config = replace(
        cohere.read_cohere(values, config),
        sliding_windows=windows,
        rotary_dims=tuple(config.rotary_dim if rotates else 0 for rotates in rotated),
        experts=experts,
        linear_multipliers=(("shared_down_proj", (multiplier,)),),
    )
    return config if rms_eps is None else replace(config, layer_norm=False, rms_norm_eps=rms_eps)


def _read_experts(values: ConfigValues, layers: list[int]) -> tuple[Experts, float]:
    """Read the experts, and the factor of what those give that all tokens pass."""
    choice, shares = values.get("expert_selection_fn"), values.get("shared_expert_combination_strategy")
    if choice not in ("softmax", "sigmoid"):
        raise values.error("expert_selection_fn", '"softmax" or "sigmoid"')
    if shares not in ("average", "sum"):
        raise values.error("shared_expert_combination_strategy", '"average" or "sum"')
    found = read_experts(values, "moe_intermediate_size", layers, norm_topk_prob=True)
    shared = values.integer("num_shared_experts", 0, MOST)
    factor = 0.5 if shared and shares == "average" else 1.0
    return replace(
        found,
        norm_topk_prob=choice == "softmax" or found.norm_topk_prob,
        sigmoid=choice == "sigmoid",
        shared_intermediate_size=shared * found.intermediate_size,
        scale=factor,
    ), factor


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the width of MLPs without experts, which is that of experts if it names none."""
    found = {**raw, "first_k_dense_replace": raw.get("first_k_dense_replace") or 0}
    if found.get("prefix_dense_intermediate_size") is None:
        found["prefix_dense_intermediate_size"] = raw.get("intermediate_size")
    return found


COHERE2_MOE = Family(
    "Cohere2MoeForCausalLM",
    "cohere2_moe",
    "Command A+, North Mini Code",
    "experts beside attention, shared experts, layer norms, rotation by neighbours, sliding window by layer",
    {
        **cohere.DEFAULTS,
        "head_dim": 128,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        PREFIX: 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 0,
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "softmax",
        "norm_topk_prob": True,
    },
    read,
    replace(cohere.TENSORS, experts=ExpertNames()),
    names={
        **cohere.NAMES,
        "own_rms_eps": "rms_norm_eps",
        "intermediate_size": "prefix_dense_intermediate_size",
        "moe_intermediate_size": "intermediate_size",
    },
    prepared=prepared,
)
