"""Layers with a state: the last inputs of a short convolution and, mostly, a matrix for each head, behind it."""

from dataclasses import dataclass, field

from tinychat.models.config_values import ConfigValues

LANES = 16
MOST_HEADS = 4096
LONGEST = 64  # positions that a convolution sees, at most


@dataclass(frozen=True, slots=True)
class StateLayers:
    """The layers with a state of one model."""

    layers: tuple[int, ...]
    key_heads: int  # each is read by as many value heads
    value_heads: int
    key_dim: int  # of one head
    value_dim: int
    taps: int  # positions that the convolution sees, its own included
    beside_attention: bool = field(default=False, kw_only=True)  # these layers have attention too

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


def read_dim(values: ConfigValues, key: str) -> int:
    """Read the size of a head, whole vectors."""
    size = values.integer(key, LANES, 1024)
    if size % LANES:
        raise values.error(key, f"a multiple of {LANES}")
    return size
