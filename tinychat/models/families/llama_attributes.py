"""Seed-OSS, Arcee, Helium and Ministral 8B: Llama's layers, which differ in biases, gates, windows or rotation.

Seed-OSS sets biases of queries, keys and values apart from that of attention's output; Arcee's MLP has no gates; Helium
rotates neighbouring channels together; Ministral has windows by layer (github.com/huggingface/transformers,
models/seed_oss, arcee, helium and ministral).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, TensorNames, neighbours_rows
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family


def read_seed_oss(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The output of attention has a bias of its own."""
    return replace(read_llama(values, config), o_bias=values.flag("attention_out_bias", False))


def read_arcee(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The MLP has no gates."""
    return replace(read_llama(values, config), gated=False)


def read_helium(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The output of attention has no bias."""
    return replace(read_llama(values, config), o_bias=False)


def read_ministral(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have the window, unless the file names them."""
    return replace(config, sliding_windows=read_windows(values, config.num_hidden_layers, lambda layer: True))


SEED_OSS = Family(
    "SeedOssForCausalLM",
    "seed_oss",
    "Seed-OSS",
    "q/k/v biases",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "attention_bias": True,
    },
    read_seed_oss,
)
ARCEE = Family(
    "ArceeForCausalLM",
    "arcee",
    "Arcee AFM",
    "MLP of squared ReLU without gates, yarn",
    {"rms_norm_eps": 1e-5, "hidden_act": "relu2", "max_position_embeddings": 4096},
    read_arcee,
    TensorNames(gate_up=(f"{MLP}up_proj",)),
)
HELIUM = Family(
    "HeliumForCausalLM",
    "helium",
    "Helium",
    "rotation by neighbours",
    {
        "rms_norm_eps": 1e-8,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rope_theta": 1e5,
    },
    read_helium,
    TensorNames(qkv_order=neighbours_rows),
)
MINISTRAL = Family(
    "MinistralForCausalLM",
    "ministral",
    "Ministral 8B (2024)",
    "sliding window by layer",
    {"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    read_ministral,
)
