"""Compressed convolutional attention (CCA): queries and keys see the positions just before their own.

Queries, keys and values are linears of few channels. Each channel of queries and keys is convolved over two positions,
then the channels of each head together over two more; half of the values are those of the position before (Zyphra,
2025, https://arxiv.org/abs/2510.04476). So a sequence has a state beside its keys and values.
"""

from dataclasses import dataclass

from tinychat.models.state_layers import StateLayers
from tinychat.models.tensors import Linear, Norm

# Of the second convolution: few weights that decide much.
HEADS = "conv_heads_proj"
PROJECTIONS = "q_proj", "k_proj", "v_proj_current", "v_proj_delayed"


@dataclass(frozen=True, slots=True)
class CompressedHeads(StateLayers):
    """The heads of one model that are convolved: all `value_heads`, of which the last `key_heads` are those of keys.

    There are no matrices, so `key_dim` is 0; `channels` are those of queries and keys.
    """

    @property
    def layer_floats(self) -> int:
        """Numbers of one layer's state: inputs and outputs of the first convolution, and half of the values."""
        return 2 * self.channels + self.key_heads * self.value_dim // 2


def compressed_heads(layers: int, heads: int, key_heads: int, head_dim: int) -> CompressedHeads:
    """Return the sizes of a model all of whose layers have compressed attention."""
    return CompressedHeads(
        layers=tuple(range(layers)),
        key_heads=key_heads,
        value_heads=heads + key_heads,
        key_dim=0,
        value_dim=head_dim,
        taps=2,
        beside_attention=True,
    )


def compressed_linears(net: CompressedHeads, hidden_size: int, prefix: str) -> list[Linear]:
    """List the linear layers before attention; those of heads have the columns of a position and the one before."""
    values, d, count = net.key_heads * net.value_dim // 2, net.value_dim, len(net.layers)
    rows = net.channels - 2 * values, 2 * values, values, values
    return [
        Linear("qkv_proj", tuple(f"{prefix}{name}" for name in PROJECTIONS), rows, hidden_size, count),
        Linear(HEADS, (f"{prefix}conv_qk_grouped.{{}}",), (d,), 2 * d, count, bias=True, heads=net.value_heads),
    ]


def compressed_norms(net: CompressedHeads, attention: str, prefix: str) -> list[Norm]:
    """List the first convolution's taps and biases, and the scale of each head of keys."""
    convolution, count = f"{prefix}conv_qk_depthwise", len(net.layers)
    return [
        Norm("conv_taps", convolution, net.taps * net.channels, count, padded=False, flattened=True),
        Norm("conv_taps_bias", f"{convolution}.bias", net.channels, count, padded=False),
        Norm("key_scales", f"{attention}qk_norm.temp", net.key_heads, count, padded=False),
    ]
