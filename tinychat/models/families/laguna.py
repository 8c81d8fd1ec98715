"""Laguna: attention whose number of query heads differs by layer, with a gate for each; experts that sigmoids choose.

The gates are softplus of a linear of the layer's input. Layers with a window have more heads than the others, and a
base of their own; of each head of the others a part is rotated. The first layers have an MLP (Poolside, 2026;
github.com/huggingface/transformers, models/laguna).
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, read_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, MLP, ExpertNames, TensorNames
from tinychat.models.experts import Experts, read_sigmoid_experts, read_sparse_layers, with_shared_expert
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_rotary_dim, read_sliding_theta, split_rope

TENSORS = TensorNames(
    head_gates=f"{ATTENTION}g_proj",
    experts=ExpertNames(shared=f"{MLP}shared_expert.", bias=f"{MLP}experts.e_score_correction_bias"),
)
_SLIDING_THETA = 10000.0
DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "moe_routed_scaling_factor": 1.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    "sliding_rope_parameters": {"rope_type": "default", "rope_theta": _SLIDING_THETA, "partial_rotary_factor": 1.0},
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers attend to everything, and all but the first have experts, unless the file names the layers."""
    windows = read_windows(values, config.num_hidden_layers, lambda layer: False)
    sliding = values.optional_section("sliding_rope_parameters")
    dims = config.rotary_dim, read_rotary_dim(sliding, config.head_dim) if sliding else config.head_dim
    _check_gates(values)
    return replace(
        _with_heads(values, with_attention_bias(values, config)),
        qk_norm="head",
        gated_heads=True,
        softplus_gates=True,
        sliding_windows=windows,
        rotary_dims=tuple(dims[window > 0] for window in windows),
        # It stretches the angles of layers without a window.
        rope_scaling=None if all(windows) else config.rope_scaling,
        sliding_rope_theta=read_sliding_theta(values, _SLIDING_THETA),
        experts=_read_experts(values, config.num_hidden_layers),
    )


def _with_heads(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Read ``num_attention_heads_per_layer``: two numbers at most."""
    heads = values.get("num_attention_heads_per_layer")
    if heads is None:
        return config
    L, G = config.num_hidden_layers, config.num_key_value_heads
    if not isinstance(heads, list) or len(heads) != L or not all(_is_heads(count, G) for count in heads):
        raise values.error("num_attention_heads_per_layer", f"a list of {L} multiples of num_key_value_heads ({G})")
    first, *others = dict.fromkeys(heads)
    if len(others) > 1:
        raise UnsupportedModelError(f"{values.source}: num_attention_heads_per_layer of three numbers is not supported")
    at = tuple(layer for layer in range(L) if heads[layer] != first)
    return replace(config, num_attention_heads=first, other_heads=others[0] if others else 0, other_heads_at=at)


def _is_heads(count: object, groups: int) -> bool:
    return type(count) is int and 0 < count <= 4096 and count % groups == 0


def _check_gates(values: ConfigValues) -> None:
    """Refuse gates for each channel; ``gating_types`` lists the same by layer."""
    known = (None, True, "per-head", "per_head")
    for key, by_layer in (("gating", [values.get("gating")]), ("gating_types", values.get("gating_types") or [])):
        if not isinstance(by_layer, list) or any(kind not in known for kind in by_layer):
            raise UnsupportedModelError(f"{values.source}: {key} is supported by head only")


def _read_experts(values: ConfigValues, layers: int) -> Experts:
    values.require(moe_apply_router_weight_on_input=False)
    if values.optional_number("moe_router_logit_softcapping", 0.0, 1e9):
        raise UnsupportedModelError(f"{values.source}: moe_router_logit_softcapping is not supported")
    sparse = read_sparse_layers(values, ["dense"] + ["sparse"] * (layers - 1))
    # Probabilities sum up to 1 whatever a file says, and there are no groups.
    chosen = replace(read_sigmoid_experts(values, sparse), norm_topk_prob=True, n_group=1, topk_group=1)
    return with_shared_expert(values, chosen)


LAGUNA = Family(
    "LagunaForCausalLM",
    "laguna",
    "Laguna XS.2",
    "query heads by layer, a gate for each head, experts by sigmoids, a shared expert, sliding window by layer",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    names={"routed_scaling_factor": "moe_routed_scaling_factor"},
    prepared=split_rope,
)
