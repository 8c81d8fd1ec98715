"""LFM3: LFM2's convolutions, over more positions, beside attention with windows, and gates for each head.

Outputs of attention, convolutions and MLPs are normed, too. A linear gives each head of attention a gate, whose sigmoid
multiplies what the head gives. Layers without a window have a base of their own, and of each head only the fastest
pairs turn (github.com/huggingface/transformers, models/lfm3).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_layer_types, read_window, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, HEAD_NORMS, LAYER
from tinychat.models.families import lfm2
from tinychat.models.family import Family
from tinychat.models.rope_scaling import FULL, SLIDING, read_ropes_apart, ropes_apart

TENSORS = replace(
    lfm2.TENSORS,
    o=f"{ATTENTION}o_proj",
    norms={
        **lfm2.TENSORS.norms,
        **HEAD_NORMS,
        "post_self_attn_layernorm": f"{LAYER}post_operator_norm",
        "post_mlp_layernorm": f"{LAYER}post_ffn_norm",
    },
)
CONVOLUTION = "conv"


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every other layer has attention, which every other time has a window, unless the file names the layers."""
    values.require(use_sandwich_norm=True, use_attention_gate=True)
    L, window = config.num_hidden_layers, read_window(values)
    kinds = read_layer_types(values, L, (CONVOLUTION, FULL, SLIDING)) or [
        FULL if layer % 4 == 2 else SLIDING if layer % 4 == 0 < layer else CONVOLUTION for layer in range(L)
    ]
    if SLIDING in kinds and window is None:
        raise values.error("sliding_window", "a window for layer_types")
    config = lfm2.with_convolutions(values, config, [layer for layer in range(L) if kinds[layer] != CONVOLUTION])
    theta, scaling, sliding_theta = read_ropes_apart(values)
    return replace(
        with_attention_bias(values, config),
        rope_theta=theta,
        rope_scaling=scaling,
        sliding_rope_theta=sliding_theta,
        sliding_windows=tuple(
            window or 0 if kind == SLIDING else width for kind, width in zip(kinds, config.sliding_windows)
        ),
        gated_heads=True,
    )


DEFAULTS = {
    "norm_eps": 1e-5,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
    "conv_bias": False,
    "conv_L_cache": 7,
    "sliding_window": 256,
    f"{SLIDING}_rope": {"rope_type": "default", "rope_theta": 10000.0},
    f"{FULL}_rope": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
}

LFM3 = Family(
    "Lfm3ForCausalLM",
    "lfm3",
    "LFM3 1.7B",
    "short convolutions in half of the layers, norms before and after, a gate for each head, sliding window by layer",
    DEFAULTS,
    read,
    TENSORS,
    lfm2.linears,
    lfm2.norms,
    names={"rms_norm_eps": "norm_eps"},
    prepared=ropes_apart,
)
