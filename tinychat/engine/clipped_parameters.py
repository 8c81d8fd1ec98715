"""The parameters of linears with bounds (`models.clipped_linears`), as a configuration has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinychat.engine.folder_tensors import Tensors
from tinychat.engine.patch_parts import ClippedAttention, ClippedLinear, ClippedMlp
from tinychat.models.clipped_linears import bounds_of
from tinychat.models.config import ModelConfig


def clipped_attention(
    config: ModelConfig, tensors: Tensors, positions: Mapping[str, Any], scoring: Any
) -> ClippedAttention:
    """Return attention, stacked over all layers; positions : its parts by name that depend on them."""
    layers = range(config.num_hidden_layers)
    queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    return ClippedAttention(
        tensors.norm("input_layernorm", layers),
        _linear(tensors, "q_proj", queries, layers),
        _linear(tensors, "k_proj", keys, layers, queries),
        _linear(tensors, "v_proj", keys, layers, queries + keys),
        tensors.vectors("q_norm"),
        tensors.vectors("k_norm"),
        **positions,
        scoring=scoring,
        output=_linear(tensors, "o_proj", config.hidden_size, layers),
        post_self_attn_layernorm=tensors.norm("post_self_attn_layernorm", layers),
    )


def clipped_mlp(config: ModelConfig, tensors: Tensors, activation: Any) -> ClippedMlp:
    """Return the MLPs of all layers."""
    layers, inner = range(config.num_hidden_layers), config.intermediate_size
    return ClippedMlp(
        tensors.norm("post_attention_layernorm", layers),
        _linear(tensors, "gate_proj", inner, layers),
        _linear(tensors, "up_proj", inner, layers, inner),
        activation,
        np.full(len(layers), inner, np.int64),
        _linear(tensors, "down_proj", config.hidden_size, layers),
        tensors.norm("post_mlp_layernorm", layers),
    )


def _linear(tensors: Tensors, name: str, size: int, layers: Sequence[int], first: int = 0) -> ClippedLinear:
    """Return a linear of some layers whose outputs begin at a column of those of several."""
    firsts, sizes = (np.full(len(layers), number, np.int64) for number in (first, size))
    return ClippedLinear(tensors.weight(name), tensors.vectors(bounds_of(name)), firsts, sizes)
