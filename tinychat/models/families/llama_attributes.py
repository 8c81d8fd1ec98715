"""Seed-OSS, Arcee, Helium, Ministral 8B, CWM, InternLM 3, IQuest-Coder: Llama's layers but for biases, gates, windows.

Seed-OSS sets biases of queries, keys and values apart from that of attention's output; Arcee's MLP has no gates; Helium
rotates neighbouring channels together; Ministral and CWM have windows by layer (github.com/huggingface/transformers,
models/seed_oss, arcee, helium, ministral, cwm, internlm3 and iquestcoder).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, TensorNames, neighbours_rows
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family, with_names


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


def read_cwm(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every fourth layer has no window, from the first one on, unless the file names them."""
    windows = read_windows(values, config.num_hidden_layers, lambda layer: layer % 4 != 0)
    return replace(config, mlp_bias=values.flag("mlp_bias", False), sliding_windows=windows)


def read_iquest_coder(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Options that no published file turns on are refused, as in transformers."""
    values.require(use_sliding_window=False, clip_qkv=None)
    return read_llama(values, config)


def read_internlm3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none, as in transformers."""
    config = read_llama(values, config)
    if config.qkv_bias != config.mlp_bias:
        raise values.error("mlp_bias", f"the same as {values.name_of('attention_bias')}")
    return config


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
CWM = Family(
    "CwmForCausalLM",
    "cwm",
    "CWM 32B",
    "sliding window by layer, RoPE llama3",
    {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "sliding_window": 8192,
        "rope_theta": 1e6,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    read_cwm,
)
_INTERNLM3 = {"attention_bias": "qkv_bias", "mlp_bias": "bias"}
INTERNLM3 = Family(
    "InternLM3ForCausalLM",
    "internlm3",
    "InternLM 3",
    "RoPE default, linear, dynamic, biases",
    {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768},
    read_internlm3,
    also_written=("LlamaForCausalLM",),
    names=_INTERNLM3,
    prepared=with_names(_INTERNLM3),
)
IQUEST_CODER = Family(
    "IQuestCoderForCausalLM",
    "iquestcoder",
    "IQuest-Coder",
    "as Llama",
    {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072},
    read_iquest_coder,
    also_written=("LlamaForCausalLM",),
)
