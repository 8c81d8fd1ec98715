"""ERNIE 4.5: Llama's layers, of which neighbouring channels are rotated together.

The mixture chooses experts by probabilities that sum up to 1, and a bias of each, which counts for the choice alone
(Baidu, 2025, https://ernie.baidu.com/blog/posts/ernie4.5; github.com/huggingface/transformers, models/ernie4_5 and
ernie4_5_moe).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, ExpertNames, TensorNames, decoder_norms, neighbours_rows
from tinychat.models.experts import MOST, read_experts
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

TENSORS = TensorNames(qkv_order=neighbours_rows, experts=ExpertNames(bias=f"{MLP}moe_statics.e_score_correction_bias"))

COMMON = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
    "tie_word_embeddings": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none."""
    bias = values.flag("use_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def read_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every so many layers have experts, from one layer to another; there are no biases."""
    values.require(use_bias=False)
    values.optional_number("moe_norm_min", 0.0, 1e-6)
    L = config.num_hidden_layers
    first, step = values.integer("moe_layer_start_index", 0, L - 1), values.integer("moe_layer_interval", 1, 4096)
    last = values.optional_integer("moe_layer_end_index", -1, 4096)
    layers = [i for i in range(first, L if last is None or last < 0 else min(last + 1, L)) if (i + 1) % step == 0]
    if not layers:
        raise values.error("moe_layer_interval", f"a number that leaves experts to one of the {L} layers")
    experts = read_experts(values, "moe_intermediate_size", layers)
    shared = experts.intermediate_size * values.integer("moe_num_shared_experts", 0, MOST)
    return replace(config, experts=replace(experts, biased=True, shared_intermediate_size=shared))


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms: biases of experts have an axis more."""
    return [replace(each, flattened=each.name == "router_bias") for each in decoder_norms(config, names)]


ERNIE4_5_MOE = Family(
    "Ernie4_5_MoeForCausalLM",
    "ernie4_5_moe",
    "ERNIE 4.5 with experts (21B-A3B, 300B-A47B)",
    "experts by probabilities and biases, shared experts, rotation by neighbours",
    {
        **COMMON,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 1536,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
    },
    read_moe,
    TENSORS,
    norms=norms,
    names={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
)
ERNIE4_5 = Family(
    "Ernie4_5ForCausalLM",
    "ernie4_5",
    "ERNIE 4.5 (dense: 0.3B)",
    "rotation by neighbours",
    {**COMMON, "num_key_value_heads": 2, "head_dim": 128},
    read,
    TensorNames(qkv_order=neighbours_rows),
)
