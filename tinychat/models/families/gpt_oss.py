"""gpt-oss: layers of experts, with biases everywhere, and attention that may look at nothing.

Each head has a sink, a score that takes weight from the keys. Every other layer has a window, the first one on. Gates
are clamped and steeper than SiLU, their inputs are clamped and one larger; the rows of both alternate
(OpenAI, 2025, https://arxiv.org/abs/2508.10925; github.com/huggingface/transformers, models/gpt_oss).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import EXPERT, MLP, ExpertNames, TensorNames, decoder_linears
from tinychat.models.experts import read_experts, with_num_experts
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, alternating_order

TENSORS = TensorNames(experts=ExpertNames((f"{MLP}router",), (f"{EXPERT}gate_up_proj",)))


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts; biases of attention are those of the file."""
    L, bias = config.num_hidden_layers, values.flag("attention_bias", True)
    return replace(
        config,
        qkv_bias=bias,
        o_bias=bias,
        sliding_windows=read_windows(values, L, lambda layer: layer % 2 == 0),
        sinks=True,
        swiglu_alpha=values.number("swiglu_alpha", 1e-3, 1e3),
        swiglu_limit=values.number("swiglu_limit", 1e-3, 1e6),
        experts=replace(read_experts(values, "intermediate_size", range(L)), bias=True),
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; rows of gates and of their inputs alternate."""
    assert config.experts is not None
    order = (alternating_order(config.experts.intermediate_size),)
    found = decoder_linears(config, names)
    return [replace(each, order=order) if each.name == "expert_gate_up_proj" else each for each in found]


DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 150000.0,
    "sliding_window": 128,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}

GPT_OSS = Family(
    "GptOssForCausalLM",
    "gpt_oss",
    "gpt-oss 20B, 120B",
    "experts, attention sinks, clamped gates, sliding window by layer, weights in MXFP4",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    prepared=with_num_experts,
)
