"""gpt-oss: layers of experts, with biases everywhere, and attention that may look at nothing.

Each head has a sink, a score that takes weight from the keys. Every other layer has a window, the first one on. Gates
are clamped and steeper than usual, what they let through is clamped and counts one more; the rows of both alternate
(OpenAI, 2025, https://arxiv.org/abs/2508.10925; github.com/huggingface/transformers, models/gpt_oss).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, windows_of_types
from tinychat.models.config_values import ConfigValues
from tinychat.models.experts import expert_linears, read_experts, with_one_name
from tinychat.models.families import experts, llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS
from tinychat.models.tensors import Linear, Norm, alternating_order

MLP = llama.MLP


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts; biases of attention are as the file says."""
    L, bias = config.num_hidden_layers, values.flag("attention_bias", True)
    window = values.optional_integer("sliding_window", 1, MAX_POSITIONS)
    if values.get("layer_types") is not None:
        windows = windows_of_types(values, window, L)
    else:
        windows = tuple(0 if layer % 2 else window or 0 for layer in range(L))
    return replace(
        config,
        qkv_bias=bias,
        o_bias=bias,
        sliding_windows=windows,
        sinks=True,
        swiglu_alpha=values.number("swiglu_alpha", 1e-3, 1e3),
        swiglu_limit=values.number("swiglu_limit", 1e-3, 1e6),
        experts=replace(read_experts(values, "intermediate_size", range(L)), bias=True),
    )


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    assert config.experts is not None
    order = (alternating_order(config.experts.intermediate_size),)
    gate_up, down = f"{MLP}experts.{{}}.gate_up_proj", f"{MLP}experts.{{}}.down_proj"
    found = expert_linears(config.experts, config.hidden_size, (f"{MLP}router",), (gate_up,), down)
    ordered = [replace(each, order=order) if each.name == "expert_gate_up_proj" else each for each in found]
    return experts.linears_with(config, ordered)


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms, and attention's sinks."""
    sinks = Norm("sinks", f"{llama.ATTENTION}sinks", config.num_attention_heads, config.num_hidden_layers, padded=False)
    return [*llama.norms(config), sinks]


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

FAMILIES = (
    Family(
        "GptOssForCausalLM",
        "gpt_oss",
        "gpt-oss 20B, 120B",
        "experts, attention sinks, clamped gates, sliding window by layer, weights in MXFP4",
        DEFAULTS,
        read,
        linears,
        norms,
        prepared=with_one_name,
    ),
)
