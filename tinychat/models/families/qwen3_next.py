"""Qwen3-Next: Gated DeltaNet in most layers, attention with gated outputs in the others, experts as MLPs.

A query comes with a gate of the same size, which multiplies what the head gives; the first quarter of a head's channels
is rotated; the gains of norms are 1 + weight (Qwen Team, 2025; github.com/huggingface/transformers,
models/qwen3_next).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinychat.models.config import ModelConfig, check_state_layers, read_layer_types, with_attention_bias, with_gates
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, TensorNames, decoder_linears, decoder_norms
from tinychat.models.delta_net import GATES, DeltaNet, read_delta_net
from tinychat.models.draft_head import INPUT_NORMS, INPUTS
from tinychat.models.experts import with_num_experts, with_shared_expert
from tinychat.models.families import experts
from tinychat.models.family import DraftHead, Family
from tinychat.models.tensors import Linear, Norm, Order, columns_of

DELTA = f"{LAYER}linear_attn."
KINDS = ("linear_attention", "full_attention")


def gated_queries(config: ModelConfig) -> Order:
    """Order of queries and gates that alternate by head: all queries first."""
    d = config.head_dim
    heads = np.arange(2 * config.num_attention_heads * d).reshape(-1, 2, d)
    return heads.transpose(1, 0, 2).reshape(-1), None, None


TENSORS = replace(experts.TENSORS, qkv_order=gated_queries, norm_offset=1.0)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts, but those that the file names."""
    sparse = with_shared_expert(values, experts.read_sparse(values, config), gated=True)
    return replace(read_hybrid(values, config), experts=sparse)


def read_hybrid(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers have attention; all MLPs are dense."""
    config = with_gates(values, with_attention_bias(values, config))
    layers = read_state_layers(values, config, lambda: values.integer("full_attention_interval", 1, 4096))
    return replace(
        config,
        qk_norm="head",
        delta_net=read_delta_net(values, layers, config.rms_norm_eps),
    )


def read_state_layers(values: ConfigValues, config: ModelConfig, interval: Callable[[], int]) -> list[int]:
    """Read which layers have Gated DeltaNet, one at least; the others have attention.

    interval : returns in one of how many layers, where the file does not list them.
    """
    count = config.num_hidden_layers
    names = read_layer_types(values, count, KINDS)
    if names is None:
        names = [KINDS[(layer + 1) % interval() == 0] for layer in range(count)]
    layers = [layer for layer in range(count) if names[layer] == KINDS[0]]
    check_state_layers(values, config, layers, KINDS)
    return layers


def split_heads(groups: int, *sizes: int) -> NDArray[np.intp]:
    """Return the order of rows of parts of these sizes, which alternate by group: all of the first part first."""
    rows = np.arange(groups * sum(sizes)).reshape(groups, -1)
    return np.concatenate([part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)])


def hybrid_linears(
    config: ModelConfig, names: TensorNames, inputs: list[Linear], last: str = f"{DELTA}out_proj"
) -> list[Linear]:
    """List the linear layers, with the first ones of Gated DeltaNet, and `last`."""
    net, found = net_of(config), decoder_linears(config, names)
    output = Linear("delta_out_proj", (last,), (config.hidden_size,), net.value_size, None)
    return found + [replace(each, layers=len(net.layers), at=net.layers) for each in (*inputs, output)]


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: those before the convolution stand together for each head of keys."""
    net, D = net_of(config), config.hidden_size
    group = net.value_heads // net.key_heads
    of_values = group * net.value_dim
    inputs = split_heads(net.key_heads, net.key_dim, net.key_dim, of_values, of_values)
    gates = split_heads(net.key_heads, group, group)
    projections = [
        Linear("delta_in_proj", (f"{DELTA}in_proj_qkvz",), (len(inputs),), D, None, order=(inputs,)),
        Linear(GATES, (f"{DELTA}in_proj_ba",), (len(gates),), D, None, order=(gates,)),
    ]
    return hybrid_linears(config, names, projections)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the other vectors of Gated DeltaNet; only its own norm has plain gains."""
    return [*decoder_norms(config, names), *delta_vectors(net_of(config))]


def delta_vectors(net: DeltaNet, norm: str = "norm", taps: str = f"{DELTA}conv1d") -> list[Norm]:
    """List the norm of Gated DeltaNet and the other vectors; `norm`, `taps` : their names in the checkpoint."""
    sources = {"A_log": "A_log", "dt_bias": "dt_bias", "norm": norm}
    sizes = {"A_log": net.value_heads, "dt_bias": net.value_heads, "norm": net.value_dim}
    count, at = len(net.layers), net.layers
    found = [
        Norm(f"delta_{name}", f"{DELTA}{source}", sizes[name], count, padded=False, at=at)
        for name, source in sources.items()
    ]
    size = net.taps * net.channels
    return [*found, Norm("delta_taps", taps, size, count, padded=False, at=at, flattened=True)]


def head_linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers of the draft head: one matrix reads an embedding and a hidden state."""
    D = config.hidden_size
    inputs = zip(INPUTS, columns_of("model.fc", D, D))
    return [*decoder_linears(config, names), *(Linear(name, (source,), (D,), D, None) for name, source in inputs)]


def head_norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms of the draft head."""
    inputs = {name: f"model.pre_fc_norm_{name.removesuffix('_norm')}" for name in INPUT_NORMS}
    return decoder_norms(config, replace(names, norms={**names.norms, **inputs}))


DRAFT_HEAD = DraftHead("mtp.", head_linears, head_norms)


def net_of(config: ModelConfig) -> DeltaNet:
    """Return the sizes of Gated DeltaNet of a model that has it."""
    assert config.delta_net is not None
    return config.delta_net


HYBRID_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
DEFAULTS = {
    **HYBRID_DEFAULTS,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
}

QWEN3_NEXT = Family(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    "Qwen3-Next",
    "Gated DeltaNet in most layers, gated attention in the others, experts, a shared expert",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    partial_rotary=True,
    prepared=with_num_experts,
    draft_head=DRAFT_HEAD,
)
