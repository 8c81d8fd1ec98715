"""Gated DeltaNet: a layer whose past is a matrix for each head, its state, instead of keys and values.

Of each position, the state first forgets a share of everything, then replaces what it holds for the position's key by a
part of the position's value; the output is what it holds for the query (Yang et al., 2024,
https://arxiv.org/abs/2412.06464). Queries, keys and values pass a short convolution before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinychat.models.config_values import ConfigValues

LANES = 16
# Of decays and rates: few weights that decide much, like a router's.
GATES = "delta_gates_proj"
MOST_HEADS = 4096
LONGEST = 64  # positions that a convolution sees, at most


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The Gated DeltaNet layers of one model."""

    layers: tuple[int, ...]
    key_heads: int  # each is read by as many value heads
    value_heads: int
    key_dim: int  # of one head
    value_dim: int
    taps: int  # positions that the convolution sees, its own included

    @property
    def key_size(self) -> int:
        """Channels of all heads' keys, or queries."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Channels of all heads' values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def layer_floats(self) -> int:
        """Numbers of one layer's state: the convolution's last inputs, and the heads' matrices."""
        return (self.taps - 1) * self.channels + self.value_heads * self.key_dim * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of a sequence, float32, over all layers."""
        return 4 * len(self.layers) * self.layer_floats


def read_delta_net(values: ConfigValues, layers: Sequence[int]) -> DeltaNet:
    """Read the values that all families have of Gated DeltaNet."""
    key_heads = values.integer("linear_num_key_heads", 1, MOST_HEADS)
    value_heads = values.integer("linear_num_value_heads", 1, MOST_HEADS)
    if value_heads % key_heads:
        raise values.error("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    return DeltaNet(
        layers=tuple(layers),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=_read_dim(values, "linear_key_head_dim"),
        value_dim=_read_dim(values, "linear_value_head_dim"),
        taps=values.integer("linear_conv_kernel_dim", 2, LONGEST),
    )


def _read_dim(values: ConfigValues, key: str) -> int:
    size = values.integer(key, LANES, 1024)
    if size % LANES:
        raise values.error(key, f"a multiple of {LANES}")
    return size
