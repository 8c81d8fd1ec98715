"""Phi-3, Phi-3.5 and Phi-4: layers like Llama's, their projections fused in the checkpoint.

Phi-4-mini rotates a part of each head. Models for long contexts have LongRoPE, the first one for 4096 tokens a window
(Abdin et al., 2024, https://arxiv.org/abs/2404.14219; github.com/huggingface/transformers, models/phi3).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS
from tinychat.models.tensors import Linear

DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}
FUSED = {"qkv_proj": f"{llama.ATTENTION}qkv_proj", "gate_up_proj": f"{llama.MLP}gate_up_proj"}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have the window, if there is one."""
    window = values.optional_integer("sliding_window", 1, MAX_POSITIONS) or 0
    return replace(config, sliding_windows=(window,) * config.num_hidden_layers)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers: queries, keys and values are one tensor, gate and up projections another."""
    return [
        replace(linear, sources=(FUSED[linear.name],), rows=(sum(linear.rows),)) if linear.name in FUSED else linear
        for linear in llama.linears(config)
    ]


FAMILIES = (
    Family(
        "Phi3ForCausalLM",
        "phi3",
        "Phi-3, Phi-3.5, Phi-4 and their mini",
        "fused projections, a part of each head rotated, longrope, sliding window",
        DEFAULTS,
        read,
        linears,
        llama.norms,
        partial_rotary=True,
    ),
)
