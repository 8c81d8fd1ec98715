"""Gated DeltaNet: a layer whose past is a matrix for each head, its state, instead of keys and values.

Of each position, the state first forgets a share of everything, then replaces what it holds for the position's key by a
part of the position's value; the output is what it holds for the query (Yang et al., 2024,
https://arxiv.org/abs/2412.06464). Queries, keys and values pass a short convolution before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinychat.models.config_values import ConfigValues
from tinychat.models.state_layers import LONGEST, MOST_HEADS, StateLayers, read_dim

# Of decays and rates: few weights that decide much, like a router's.
GATES, DECAYS = "delta_gates_proj", "delta_decay_proj"
# Of decays of channels, and of gates of the output, that are linears of the layer's input.
WIDE_DECAYS, WIDE_GATES = "delta_wide_decay_proj", "delta_wide_gate_proj"


@dataclass(frozen=True, slots=True)
class DeltaNet(StateLayers):
    """The Gated DeltaNet layers of one model."""

    norm_eps: float  # added to the mean square of a head's result
    rate_scale: float = 1.0  # of the rates, which are sigmoids: with 2, a state may also change its sign
    by_channel: bool = False  # each channel of a key has a decay (Kimi Delta Attention)
    rank: int = 0  # of the vectors that these decays and gates of the output are linears of; 0: of the layer's input
    decay_bound: float = 0.0  # logarithms of decays are a sigmoid times this; 0: they have no bound (Ling 3.0)


def read_delta_net(values: ConfigValues, layers: Sequence[int], norm_eps: float, rate_scale: float = 1.0) -> DeltaNet:
    """Read the values that all families have of Gated DeltaNet."""
    key_heads = values.integer("linear_num_key_heads", 1, MOST_HEADS)
    value_heads = values.integer("linear_num_value_heads", 1, MOST_HEADS)
    if value_heads % key_heads:
        raise values.error("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    return DeltaNet(
        layers=tuple(layers),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=read_dim(values, "linear_key_head_dim"),
        value_dim=read_dim(values, "linear_value_head_dim"),
        taps=values.integer("linear_conv_kernel_dim", 2, LONGEST),
        norm_eps=norm_eps,
        rate_scale=rate_scale,
    )
