"""Granite 3 with experts: Granite's layers and multipliers, with a mixture in each layer.

One tensor has the weights of all experts of a layer. Some models have an expert beside them that all tokens pass (IBM,
2024, https://github.com/ibm-granite/granite-3.0-language-models; github.com/huggingface/transformers,
models/granitemoe and granitemoeshared).
"""

from dataclasses import replace
from typing import Any

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, ExpertNames, TensorNames, decoder_linears
from tinychat.models.experts import read_experts, with_num_experts
from tinychat.models.families import granite
from tinychat.models.family import Family
from tinychat.models.tensors import Linear

SPARSE, SHARED = f"{LAYER}block_sparse_moe.", f"{LAYER}shared_mlp."
TENSORS = TensorNames(
    experts=ExpertNames(
        (f"{SPARSE}router.layer",),
        (f"{SPARSE}experts.{{}}.input_linear",),
        f"{SPARSE}experts.{{}}.output_linear",
    )
)
DEFAULTS = {**granite.DEFAULTS, "num_experts": 8, "num_experts_per_tok": 2}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts, without biases."""
    experts = read_experts(values, "intermediate_size", range(config.num_hidden_layers))
    return replace(granite.read(values, config), mlp_bias=False, experts=experts)


def read_shared(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """One more expert may be for all tokens."""
    config = read(values, config)
    assert config.experts is not None
    shared = values.integer("shared_intermediate_size", 0, 1 << 22)
    return replace(config, experts=replace(config.experts, shared_intermediate_size=shared))


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; gates of the shared expert and what they let through are one tensor."""
    shared = config.experts.shared_intermediate_size if config.experts else 0
    changes: dict[str, dict[str, Any]] = {
        "shared_gate_up_proj": {"sources": (f"{SHARED}input_linear",), "rows": (2 * shared,)},
        "shared_down_proj": {"sources": (f"{SHARED}output_linear",)},
    }
    return [replace(each, **changes.get(each.name, {})) for each in decoder_linears(config, names)]


GRANITE_MOE = Family(
    "GraniteMoeForCausalLM",
    "granitemoe",
    "Granite 3 with experts (1B-A400M, 3B-A800M)",
    "experts, multipliers as Granite",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    prepared=with_num_experts,
)
GRANITE_MOE_SHARED = Family(
    "GraniteMoeSharedForCausalLM",
    "granitemoeshared",
    "Granite 3 with experts, one of them for all tokens",
    "experts, a shared expert, multipliers as Granite",
    {**DEFAULTS, "shared_intermediate_size": 0},
    read_shared,
    TENSORS,
    linears,
    prepared=with_num_experts,
)
