"""Parameters that only vision towers have, which read patches of images instead of ids: see `models.vision`."""

from collections import namedtuple
from typing import Any, NamedTuple


class PatchInput(NamedTuple):
    """The linear of patches, which stands where others embed ids."""

    projection: Any


class PlacedPatchInput(NamedTuple):
    """The same of a tower that gets the vectors of the patches' positions with them, in place of hidden states."""

    projection: Any


class ClippedLinear(NamedTuple):
    """A linear whose inputs and outputs are brought between bounds."""

    weight: Any
    bounds: Any  # float32 [4]: the least input, the largest, the least output, the largest
    first: Any  # int64: column that its outputs begin at, of those of several linears
    size: Any  # int64: its outputs


class ClippedAttention(NamedTuple):
    """Attention of such linears, whose values are normed."""

    input_layernorm: Any  # these are as in `arguments.Attention`
    queries: ClippedLinear
    keys: ClippedLinear
    values: ClippedLinear
    q_norm: Any
    k_norm: Any
    angles: Any
    rotary_dim: Any
    window: Any
    scoring: Any
    output: ClippedLinear
    post_self_attn_layernorm: Any


class ClippedMlp(NamedTuple):
    """An MLP of such linears."""

    post_attention_layernorm: Any  # these are as in `arguments.Mlp`
    gate: ClippedLinear
    up: ClippedLinear
    activation: Any
    size: Any
    down: ClippedLinear
    post_mlp_layernorm: Any


NoOutput = namedtuple("NoOutput", ())  # of a model without logits
