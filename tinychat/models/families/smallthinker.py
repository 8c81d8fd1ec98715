"""SmallThinker: mixtures for CPUs, whose experts are chosen before attention.

The router reads a layer's input as it is. Gates of experts are ReLUs; weights are a softmax of the chosen logits, or
sigmoids of them that are made to sum up to 1. Some layers have a window, and some rotate (Song et al., 2025,
https://arxiv.org/abs/2507.20984; github.com/SJTU-IPADS/SmallThinker).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_window
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.experts import read_experts
from tinychat.models.families.experts import MIXTRAL_EXPERTS, SPARSE
from tinychat.models.families.smollm3 import read_flags
from tinychat.models.family import Family

EXPERT = f"{SPARSE}experts.{{}}."
TENSORS = TensorNames(
    experts=replace(
        MIXTRAL_EXPERTS,
        router=(f"{SPARSE}primary_router",),
        gate_up=(f"{EXPERT}gate", f"{EXPERT}up"),
        down=f"{EXPERT}down",
    )
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have experts; all rotate, and none has a window, unless the file says which."""
    values.require(moe_enable_early_router=True, moe_enable_secondary_experts=False, use_qk_norm=False)
    L, sigmoid = config.num_hidden_layers, not values.flag("moe_primary_router_apply_softmax", False)
    rotated, windowed = [True] * L, [False] * L
    if values.get("rope_layout") is not None:
        rotated = read_flags(values, "rope_layout", L, "rotates")
    if values.get("sliding_window_layout") is not None:
        windowed = read_flags(values, "sliding_window_layout", L, "has a window")
    window = read_window(values) or 0
    experts = read_experts(values, "intermediate_size", range(L))
    return replace(
        config,
        hidden_act="relu",
        rotary_dims=tuple(config.rotary_dim if rotates else 0 for rotates in rotated),
        sliding_windows=tuple(window if slides else 0 for slides in windowed),
        # Sigmoids of large logits are equal, and the router's inputs are not normed.
        experts=replace(experts, early=True, sigmoid=sigmoid, by_logits=sigmoid),
    )


SMALLTHINKER = Family(
    "SmallThinkerForCausalLM",
    "smallthinker",
    "SmallThinker (4B-A0.6B, 21B-A3B)",
    "experts that are chosen before attention, gates by ReLU, rotation and sliding window by layer",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "sliding_window_size": 4096,
        "moe_num_primary_experts": 32,
        "moe_num_active_primary_experts": 4,
        "moe_ffn_hidden_size": 768,
        "tie_word_embeddings": True,
    },
    read,
    TENSORS,
    names={
        "intermediate_size": "moe_ffn_hidden_size",
        "num_experts": "moe_num_primary_experts",
        "num_experts_per_tok": "moe_num_active_primary_experts",
        "sliding_window": "sliding_window_size",
    },
)
