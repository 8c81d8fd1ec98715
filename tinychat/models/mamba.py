"""Mamba-2: a layer whose past is a matrix for each head, its state, instead of keys and values.

Of each position, the state first forgets a share of everything, then adds the product of the position's value (x) and
key (B), times a step; the output is what it holds for the query (C), and a share of the value (Dao and Gu, 2024,
https://arxiv.org/abs/2405.21060). Values, keys and queries pass a short convolution before; gates (z) multiply the
output.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinychat.models.config_values import ConfigValues
from tinychat.models.state_layers import LONGEST, MOST_HEADS, StateLayers, read_dim
from tinychat.models.tensors import Linear, Norm, rows_of

# Of steps: few weights that decide much, as the gates of Gated DeltaNet.
STEPS = "mamba_steps_proj"
DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


@dataclass(frozen=True, slots=True)
class Mamba(StateLayers):
    """The Mamba-2 layers of one model; C and B are queries and keys, x values."""

    bias: bool = False  # biases of the projections
    step_limits: tuple[float, float] = (0.0, math.inf)
    normed: bool = True  # what the gates let through is normed, the values of each head of keys together


def read_mamba(values: ConfigValues, layers: Sequence[int]) -> Mamba:
    """Read the values that all families have of Mamba-2."""
    values.require(mamba_conv_bias=True)
    groups, heads = (values.integer(key, 1, MOST_HEADS) for key in ("mamba_n_groups", "mamba_n_heads"))
    if heads % groups:
        raise values.error("mamba_n_heads", f"a multiple of {values.name_of('mamba_n_groups')} ({groups})")
    return Mamba(
        layers=tuple(layers),
        key_heads=groups,
        value_heads=heads,
        key_dim=read_dim(values, "mamba_d_state"),
        value_dim=read_dim(values, "mamba_d_head"),
        taps=values.integer("mamba_d_conv", 2, LONGEST),
        bias=values.flag("mamba_proj_bias", False),
        step_limits=_read_limits(values),
    )


def _read_limits(values: ConfigValues) -> tuple[float, float]:
    """Read ``time_step_limit``, of which JSON may have no number for infinity."""
    found = values.get("time_step_limit")
    if found is None:
        return 0.0, math.inf
    limits = [math.inf if each == {"__float__": "Infinity"} else each for each in found] if type(found) is list else []
    if len(limits) != 2 or not all(type(each) in (int, float) for each in limits) or not 0 <= limits[0] <= limits[1]:
        raise values.error("time_step_limit", "two numbers, the second one not below the first")
    return float(limits[0]), float(limits[1])


def with_head_size(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the size of a head, where it is "auto"."""
    if raw.get("mamba_d_head", "auto") != "auto":
        return raw
    expand, width, heads = raw.get("mamba_expand", 2), raw.get("hidden_size"), raw.get("mamba_n_heads", 128)
    if not (type(expand) is int and type(width) is int and type(heads) is int and heads > 0):
        return raw
    return {**raw, "mamba_d_head": expand * width // heads}


def mamba_linears(net: Mamba, hidden_size: int, prefix: str) -> list[Linear]:
    """List the linear layers; one tensor has the rows of gates, values, keys and queries, and steps."""
    inner, count, at = net.value_size, len(net.layers), net.layers
    gates, mixed, steps = rows_of(f"{prefix}in_proj", inner, net.channels, net.value_heads)
    return [
        Linear("mamba_in_proj", (mixed, gates), (net.channels, inner), hidden_size, count, net.bias, at=at),
        Linear(STEPS, (steps,), (net.value_heads,), hidden_size, count, net.bias, at=at),
        Linear("mamba_out_proj", (f"{prefix}out_proj",), (hidden_size,), inner, count, net.bias, at=at),
    ]


def mamba_norms(net: Mamba, prefix: str) -> list[Norm]:
    """List the norm, and the other vectors."""
    count, at, heads = len(net.layers), net.layers, net.value_heads
    sizes = {"A_log": heads, "dt_bias": heads, "D": heads} | ({"norm": net.value_size} if net.normed else {})
    found = [Norm(f"mamba_{name}", f"{prefix}{name}", size, count, padded=False, at=at) for name, size in sizes.items()]
    bias = Norm("mamba_taps_bias", f"{prefix}conv1d.bias", net.channels, count, padded=False, at=at)
    taps = Norm("mamba_taps", f"{prefix}conv1d", net.taps * net.channels, count, padded=False, at=at, flattened=True)
    return [*found, bias, taps]
