"""Granite 4.0-H: Mamba-2 in most layers, attention in the others, with Granite's multipliers.

Attention has no positions: states know the order of tokens. The MLP is one that all tokens pass, called shared; some
models have experts beside it (IBM, 2025, https://github.com/ibm-granite/granite-4.0-language-models;
github.com/huggingface/transformers, models/granitemoehybrid).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, check_state_layers, read_layer_types
from tinychat.models.config_values import ConfigValues
from tinychat.models.experts import MOST, read_experts, with_num_experts
from tinychat.models.families import granite, granite_moe
from tinychat.models.family import Family
from tinychat.models.mamba import DEFAULTS, read_mamba, with_head_size

SHARED = granite_moe.SHARED
TENSORS = replace(granite_moe.TENSORS, gate_up=(f"{SHARED}input_linear",), down=f"{SHARED}output_linear")
# By their older names.
KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the kinds of layers, and the size of a head, as newer files have them."""
    found = dict(with_num_experts(with_head_size(raw)))
    names = raw.get("layer_types") or raw.get("layers_block_type")
    if isinstance(names, list):
        found["layer_types"] = [KINDS.get(name, name) if isinstance(name, str) else name for name in names]
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers have attention; all have an MLP, and all or none have experts beside it."""
    count, kinds = config.num_hidden_layers, list(KINDS.values())
    names = read_layer_types(values, count, kinds) or [kinds[0]] * count
    layers = [layer for layer in range(count) if names[layer] == kinds[0]]
    check_state_layers(values, config, layers, kinds)
    rotates = values.optional_text("position_embedding_type") == "rope"
    size, experts = values.integer("shared_intermediate_size", 1, 1 << 22), None
    if values.integer("num_experts", 0, MOST):
        experts = replace(read_experts(values, "intermediate_size", range(count)), shared_intermediate_size=size)
    return replace(
        granite.read(values, config),
        mlp_bias=False,
        intermediate_size=size,
        experts=experts,
        rotary_dims=config.rotary_dims if rotates else (0,) * count,
        mamba=read_mamba(values, layers),
    )


GRANITE_MOE_HYBRID = Family(
    "GraniteMoeHybridForCausalLM",
    "granitemoehybrid",
    "Granite 4.0-H (350M, 1B, Micro, Tiny, Small)",
    "Mamba-2 in most layers, attention without positions in the others, experts, multipliers as Granite",
    {
        **DEFAULTS,
        **granite_moe.DEFAULTS,
        "shared_intermediate_size": 1024,
    },
    read,
    TENSORS,
    granite_moe.linears,
    prepared=prepared,
)
