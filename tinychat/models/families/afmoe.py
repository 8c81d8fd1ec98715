"""AFMoE (Trinity): norms before and after attention and MLP, gates of attention, experts that sigmoids choose.

Queries and keys of each head are normed. Layers have a window, but every fourth, which does not rotate; the first ones
have an MLP. Embeddings may be times the root of their width (Arcee AI, 2025;
github.com/huggingface/transformers, models/afmoe).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows, rotated_in_windows, with_gates
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LAYER, LLAMA_NORMS, MLP, ExpertNames, TensorNames
from tinychat.models.experts import read_layers_behind_dense, read_sigmoid_experts, with_shared
from tinychat.models.family import Family

TENSORS = TensorNames(
    qkv=tuple(f"{ATTENTION}{part}_proj" for part in ("q", "gate", "k", "v")),
    norms={
        **LLAMA_NORMS,
        "post_self_attn_layernorm": f"{LAYER}post_attention_layernorm",
        "post_attention_layernorm": f"{LAYER}pre_mlp_layernorm",
        "post_mlp_layernorm": f"{LAYER}post_mlp_layernorm",
    },
    experts=ExpertNames(router=(f"{MLP}router.gate",), bias=f"{MLP}expert_bias"),
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers without a window do not rotate."""
    L = config.num_hidden_layers
    values.require(attention_bias=False, route_norm=True)
    interval = values.integer("global_attn_every_n_layers", 1, 4096)
    windows = read_windows(values, L, lambda layer: (layer + 1) % interval != 0)
    if not any(windows):
        raise values.error("sliding_window", "a window, and layers that have it")
    experts = read_sigmoid_experts(values, read_layers_behind_dense(values, L))
    return replace(
        rotated_in_windows(with_gates(values, config), windows),
        qk_norm="head",
        embedding_multiplier=config.hidden_size**0.5 if values.flag("mup_enabled", False) else 1.0,
        experts=with_shared(values, experts),
    )


AFMOE = Family(
    "AfmoeForCausalLM",
    "afmoe",
    "Trinity Nano, Mini",
    "norms before and after, gates of attention, experts by sigmoids, shared experts, sliding window by layer",
    {
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "max_position_embeddings": 16384,
        "sliding_window": 1024,
        "global_attn_every_n_layers": 4,
        "moe_intermediate_size": 1408,
        "num_dense_layers": 1,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "route_scale": 1.0,
    },
    read,
    TENSORS,
    names={
        "first_k_dense_replace": "num_dense_layers",
        "n_shared_experts": "num_shared_experts",
        "routed_scaling_factor": "route_scale",
    },
)
