"""Families with Mamba in GGUF files: their keys, and the changes that llama.cpp's converter makes to tensors, undone.

Decays are stored as -exp(A), vectors with an axis more, and the gains of norms by group. Which layers are what follows
from how many heads of keys they have, and how wide their MLPs are. Files of Falcon-H1 have its multipliers in weights.
(github.com/ggml-org/llama.cpp: conversion/mamba.py, granite.py, falcon_h1.py and nemotron.py.)
"""

from typing import Any

from tinychat.checkpoint.adjusted import AdjustedTensor
from tinychat.checkpoint.gguf_delta_net import logarithms
from tinychat.checkpoint.gguf_values import GgufValues, positive, present
from tinychat.checkpoint.tensors import Tensor

DECAYS, FLATTENED = "ssm_a", ("ssm_a", "ssm_d", "ssm_norm")


def restored(tensor: Tensor, theirs: str) -> Tensor:
    """Return a tensor as the checkpoint has it; `theirs` is its name in the file."""
    kind = theirs.split(".")[2] if theirs.startswith("blk.") else ""
    found: Tensor = AdjustedTensor(tensor, flattened=True) if kind in FLATTENED else tensor
    return logarithms(found) if kind == DECAYS else found


def read_scan(values: GgufValues, groups: str, heads: str, state: str, head: str, taps: str) -> dict[str, Any]:
    """Return the sizes of Mamba-2, by the keys that a family has for them."""
    count = values.get("ssm.time_step_rank")
    return {
        groups: values.get("ssm.group_count"),
        heads: count,
        state: values.get("ssm.state_size"),
        head: int(values.number("ssm.inner_size", 0) / positive(count, 1)),
        taps: values.get("ssm.conv_kernel"),
    }


def read_bamba(values: GgufValues) -> dict[str, Any]:
    """Return the keys of Granite 4.0-H, Bamba and Falcon-H1 of Mamba-2."""
    return read_scan(values, "mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv")


def hybrid_layers(values: GgufValues) -> dict[str, Any]:
    """Return the kinds of layers, and the number of heads of keys that those with attention have."""
    heads = values.listed("attention.head_count_kv")
    attending = [layer for layer, count in enumerate(heads) if count]
    return {
        "layer_types": ["full_attention" if count else "linear_attention" for count in heads],
        "attn_layer_indices": attending,
        "num_key_value_heads": max(heads, default=None),
        "attention_bias": values.has_any("attn_q.bias"),
    }


def falcon_h1(values: GgufValues) -> dict[str, Any]:
    """Return the keys of Falcon-H1."""
    return {
        **read_bamba(values),
        "mamba_d_ssm": values.get("ssm.inner_size"),
        "mamba_rms_norm": values.has("ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def jamba(values: GgufValues) -> dict[str, Any]:
    """Return the keys of Jamba, whose layers with attention are as far apart as the first two are."""
    heads = values.listed("attention.head_count_kv")
    attending = [layer for layer, count in enumerate(heads) if count]
    sparse = [layer for layer in range(len(heads)) if f"blk.{layer}.ffn_gate_inp.weight" in values.tensors]
    width = positive(values.config.get("hidden_size"), 1)
    found: dict[str, Any] = {
        "num_key_value_heads": max(heads, default=None),
        "num_experts": values.get("expert_count") or 1,
        "num_experts_per_tok": values.get("expert_used_count") or 1,
        "mamba_d_state": values.get("ssm.state_size"),
        "mamba_d_conv": values.get("ssm.conv_kernel"),
        "mamba_dt_rank": values.get("ssm.time_step_rank"),
        "mamba_expand": int(values.number("ssm.inner_size", 0) / width),
    }
    for name, layers in (("attn", attending), ("expert", sparse)):
        if layers:
            period = (layers[1] if layers[1:] else len(heads) + layers[0]) - layers[0]
            found |= {f"{name}_layer_offset": layers[0], f"{name}_layer_period": period}
    return found


def nemotron_h(values: GgufValues) -> dict[str, Any]:
    """Return the keys of Nemotron-H."""
    widths = values.listed("feed_forward_length")

    def kind(layer: int, heads: object) -> str:
        if f"blk.{layer}.ffn_gate_inp.weight" in values.tensors:
            return "moe"
        if f"blk.{layer}.ffn_up.weight" in values.tensors:
            return "mlp"
        return "full_attention" if heads else "linear_attention"

    layers = hybrid_layers(values)
    found = {
        **read_scan(values, "n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel"),
        "layer_types": [kind(*each) for each in enumerate(values.listed("attention.head_count_kv"))][: values.layers()],
        "num_key_value_heads": layers["num_key_value_heads"],
        "intermediate_size": max(widths, default=None),
        "mlp_bias": values.has_any("ffn_down.bias"),
        "use_bias": values.has_any("ssm_in.bias"),
        # llama.cpp has no least step.
        "time_step_min": 0.0,
        "num_experts": values.get("expert_count"),
        "num_experts_per_tok": values.get("expert_used_count"),
        "moe_intermediate_size": values.get("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": values.get("expert_shared_feed_forward_length"),
        "moe_latent_size": values.get("moe_latent_size"),
        "norm_topk_prob": bool(values.get("expert_weights_norm", True)),
        "routed_scaling_factor": values.number("expert_weights_scale", 1.0),
    }
    return present(found)
