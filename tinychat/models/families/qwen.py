"""Qwen 1: Llama's layers by other names, with biases of queries, keys and values.

Beyond the training length, the base of the rotation grows with each doubling, and queries grow with the logarithm of
their position (Bai et al., 2023, https://arxiv.org/abs/2309.16609; the code of huggingface.co/Qwen/Qwen-7B).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import gpt2
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS, RopeScaling

DEFAULTS = {
    "layer_norm_epsilon": 1e-6,
    "kv_channels": 128,
    "rotary_pct": 1.0,
    "rotary_emb_base": 10000,
    "max_position_embeddings": 8192,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "no_bias": True,
}
NAMES = {
    "head_dim": "kv_channels",
    "rms_norm_eps": "layer_norm_epsilon",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}
TENSORS = replace(gpt2.TENSORS, gate_up=(f"{gpt2.LAYER}mlp.w2", f"{gpt2.LAYER}mlp.w1"), norm_bias=False)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Give each of the MLP's two halves its width: files have that of both."""
    width = raw.get("intermediate_size")
    return {**raw, "intermediate_size": width // 2} if type(width) is int else raw


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The growth beyond the training length, and biases of the other linears, are those of the file."""
    bias = not values.flag("no_bias", True)
    config = replace(config, qkv_bias=True, o_bias=bias, mlp_bias=bias)
    if values.flag("use_dynamic_ntk", False):
        length = values.integer("seq_length", 2, MAX_POSITIONS)
        config = replace(config, rope_scaling=RopeScaling("doubling", 1.0, length))
    if values.flag("use_logn_attn", False):
        config = replace(config, log_temperature_length=values.integer("seq_length", 2, MAX_POSITIONS))
    return config


QWEN = Family(
    "QWenLMHeadModel",
    "qwen",
    "Qwen 1",
    "q/k/v biases, dynamic NTK by doublings, attention that grows with the position's logarithm",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    names=NAMES,
    prepared=prepared,
)
