"""Kolibri-1: many small experts, chosen by their logits and biases of these, with norms before and after.

Weights of chosen experts are sigmoids; all tokens pass one more. Layers without a window, every fifth, do not rotate
(Aleph Alpha, 2026; github.com/huggingface/transformers, models/kolibri1).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, LLAMA_NORMS, ExpertNames, TensorNames
from tinychat.models.experts import read_experts, with_num_experts, with_shared_expert
from tinychat.models.family import Family

TENSORS = TensorNames(
    norms={
        **LLAMA_NORMS,
        "post_self_attn_layernorm": f"{LAYER}post_attn_norm",
        "post_mlp_layernorm": f"{LAYER}post_ffn_norm",
    },
    experts=ExpertNames(bias=f"{LAYER}moe.router.expert_bias"),
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have experts; four of five have the window, unless the file names them."""
    L = config.num_hidden_layers
    windows = read_windows(values, L, lambda layer: layer % 5 != 4)
    experts = with_shared_expert(values, read_experts(values, "moe_intermediate_size", range(L), norm_topk_prob=False))
    # Without a size of windows all layers rotate.
    is_rotated = [window > 0 or values.get("sliding_window") is None for window in windows]
    return replace(
        config,
        qk_norm="head",
        sliding_windows=windows,
        rotary_dims=tuple(config.rotary_dim if rotated else 0 for rotated in is_rotated),
        experts=replace(experts, biased=True, by_logits=True, sigmoid=True),
    )


KOLIBRI1 = Family(
    "Kolibri1ForCausalLM",
    "kolibri1",
    "Kolibri-1",
    "experts by biased logits, a shared expert, q/k norm, norms before and after, sliding window by layer",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "num_experts": 384,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": False,
    },
    read,
    TENSORS,
    names={"intermediate_size": "moe_intermediate_size"},
    prepared=with_num_experts,
)
