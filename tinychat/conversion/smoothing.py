"""SmoothQuant: evens out the columns of activations, which are rounded to int8; the network's function stays the same.

The columns of a group share one scale, so a large column costs the others bits. Each column of a norm's output is
divided by a factor, in the norm's gains, and the matching columns of the weights that read it are multiplied by the
factor. The rows of ``up_proj`` and the columns of ``down_proj``, where no norm stands between them, are treated alike.
Inputs without a norm or a gate before them stay as they are. The factor is the square root of the column's root mean
square, which shares the difficulty between activations and weights (https://arxiv.org/abs/2211.10438, alpha = 0.5).
This is for weights of eight bits: four-bit weights lose more by it than activations gain.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Derived, Tensor, Tensors
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.pack import weight_names
from tinychat.conversion.source import Floats, Source
from tinychat.models.decoder import HEAD_GATES, OTHER_HEAD_GATES
from tinychat.models.delta_net import GATES, WIDE_DECAYS, WIDE_GATES
from tinychat.models.mamba import STEPS

ALPHA = 0.5
# Added to each column's size, as a share of the mean: the texts may not have used the column.
FLOOR = 0.01
Factors = dict[str, NDArray[np.float32]]
# The norm that gives a linear's inputs.
BEFORE = {
    "qkv_proj": "input_layernorm",
    "query_proj": "input_layernorm",
    "other_qkv_proj": "input_layernorm",
    "wide_qkv_proj": "input_layernorm",
    "wide_query_proj": "input_layernorm",
    "conv_in_proj": "input_layernorm",
    "delta_in_proj": "input_layernorm",
    "delta_low_proj": "input_layernorm",
    GATES: "input_layernorm",
    WIDE_DECAYS: "input_layernorm",
    WIDE_GATES: "input_layernorm",
    HEAD_GATES: "input_layernorm",
    OTHER_HEAD_GATES: "input_layernorm",
    "mamba_in_proj": "input_layernorm",
    STEPS: "input_layernorm",
    "gate_up_proj": "post_attention_layernorm",
    "wide_gate_up_proj": "post_attention_layernorm",
    "up_proj": "post_attention_layernorm",
    "o_proj": "attn_sub_norm",
    "down_proj": "ffn_sub_norm",
}


class ScaledTensor(Derived):
    """A tensor whose rows and columns are multiplied by factors, where it has any: float32."""

    def __init__(self, tensor: Tensor, rows: NDArray[np.float32] | None, columns: NDArray[np.float32] | None) -> None:
        super().__init__(tensor)
        self._rows, self._columns = rows, columns

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``, float32."""
        scaled = self._tensor.read(start, stop).astype(np.float32)
        if self._columns is not None:
            scaled *= self._columns
        if self._rows is not None:
            scaled *= self._rows[start:stop].reshape(-1, *[1] * (scaled.ndim - 1))
        return scaled


def smoothed(checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> Checkpoint:
    """Return a checkpoint of the same function with smoothed inputs of linears; token ids show the columns' sizes."""
    source, tensors = Source(checkpoint), checkpoint.tensors
    rows: Factors = {}
    columns: Factors = {}
    for (name, shard), factors in _factors(source, texts).items():
        columns |= dict.fromkeys(weight_names(source.layout(name), shard), factors)
        rows |= _before(source, name, shard, np.reciprocal(factors))
    scaled = {name: ScaledTensor(tensors[name], rows.get(name), columns.get(name)) for name in {*rows, *columns}}
    return replace(checkpoint, tensors=Tensors(tensors.folder, tensors.by_name | scaled))


def _before(source: Source, name: str, shard: int, factors: NDArray[np.float32]) -> Factors:
    """Return the factors for the rows of the tensors that give a linear its input columns."""
    if _follows_gates(source, name):
        gate_up = source.layout("gate_up_proj")
        up, rows = gate_up.names(shard)[-1], gate_up.rows[-1]
        # In one tensor with the gate's, they are its last rows.
        factors = np.concatenate([np.ones(rows - len(factors), np.float32), factors])
        return dict.fromkeys((f"{up}.weight", f"{up}.bias") if gate_up.bias else (f"{up}.weight",), factors)
    return dict.fromkeys(source.norm_tensors(BEFORE[name], source.layout(name).layer_of(shard)), factors)


def _follows_gates(source: Source, name: str) -> bool:
    """Return whether a linear reads what the gates of an MLP let through, with no norm between them."""
    return name == "down_proj" and not source.config.sub_norms


def _can_be_evened(source: Source, name: str, shard: int) -> bool:
    """Return whether a norm or a gated MLP half before a linear can take its factors."""
    if _follows_gates(source, name):
        return source.config.gated
    if BEFORE.get(name) == "input_layernorm" and (source.config.altup or source.config.mixtures):
        return False  # LAuReL adds what that norm gives to the residual stream; of mixtures, it norms several
    return name in BEFORE and source.has_norm(BEFORE[name], source.layout(name).layer_of(shard))


def _factors(source: Source, texts: Sequence[Sequence[int]]) -> dict[tuple[str, int], NDArray[np.float32]]:
    """Return the factor of each input column, by (linear, shard), for the linears whose inputs can be smoothed."""
    found: dict[tuple[str, int], NDArray[np.float32]] = {}

    def noting(name: str, shard: int, inputs: Floats, residual: Floats | None) -> Floats:
        if _can_be_evened(source, name, shard):
            size = np.sqrt(np.square(inputs).mean(axis=0))
            mean = size.mean()
            if np.isfinite(mean) and mean > 0:
                found[name, shard] = (size / mean + FLOOR) ** np.float32(ALPHA)
        return source.linear(name, shard, inputs, residual)

    float_pass = FloatPass(source, texts)
    hidden = float_pass.embed()
    for index in range(len(source.config.layer_runs)):
        hidden = float_pass.run_layer(index, hidden, noting)
    return found
