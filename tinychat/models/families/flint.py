"""Flint: Qwen3-MoE with attention sinks, windows, and experts that sigmoids choose.

Layers without a window do not rotate; the first two have an MLP. All tokens pass an expert beside the others
(github.com/huggingface/transformers, models/flint).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows, rotated_in_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION
from tinychat.models.experts import with_shared_expert
from tinychat.models.families import experts
from tinychat.models.family import Family

TENSORS = replace(experts.TENSORS, sinks=f"{ATTENTION}softmax_offset")


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The first two layers, every fourth and the last have no window, unless the file names them."""
    L = config.num_hidden_layers
    windows = read_windows(values, L, lambda layer: layer >= 2 and layer % 4 != 1 and layer < L - 1)
    sparse = with_shared_expert(values, experts.read_sparse(values, config))
    return replace(
        rotated_in_windows(with_attention_bias(values, config), windows),
        qk_norm="head",
        sinks=True,
        experts=replace(sparse, sigmoid=True),
    )


FLINT = Family(
    "FlintForCausalLM",
    "flint",
    "Flint",
    "experts by sigmoids, a shared expert, q/k norm, sinks, sliding window by layer, no rotation in the others",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 1],
        "num_experts": 256,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 1024,
        "norm_topk_prob": True,
    },
    read,
    TENSORS,
)
