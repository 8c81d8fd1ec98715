"""dots.llm1: Qwen3's attention, and DeepSeek-V3's experts behind the first layers.

(rednote-hilab, 2025, https://arxiv.org/abs/2506.05767; github.com/huggingface/transformers, models/dots1.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.experts import read_layers_behind_dense, read_sigmoid_experts, with_shared
from tinychat.models.families import glm4_moe
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The window is for the layers that ``layer_types`` names, or for those from ``max_window_layers`` on."""

    def is_windowed(layer: int) -> bool:
        return layer >= values.integer("max_window_layers", 0, MAX_POSITIONS)

    L = config.num_hidden_layers
    experts = read_sigmoid_experts(values, read_layers_behind_dense(values, L))
    return replace(
        with_attention_bias(values, config),
        qk_norm="head",
        sliding_windows=read_windows(values, L, is_windowed),
        experts=with_shared(values, experts),
    )


DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "max_window_layers": 62,
    "moe_intermediate_size": 1408,
    "n_routed_experts": None,
    "n_shared_experts": None,
    "num_experts_per_tok": None,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
}

DOTS1 = Family(
    "Dots1ForCausalLM",
    "dots1",
    "dots.llm1",
    "experts by sigmoids, in groups, a shared expert, q/k norm, sliding window by layer",
    DEFAULTS,
    read,
    glm4_moe.TENSORS,
    names={"num_experts": "n_routed_experts"},
)
