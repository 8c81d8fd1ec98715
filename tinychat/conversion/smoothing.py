"""SmoothQuant: evens out the columns of activations, which are rounded to int8; the network's function stays the same.

The columns of a group share one scale, so a large column costs the others bits. Each column of a norm's output is
divided by a factor, in the norm's gains, and the matching columns of the weights that read it are multiplied by the
factor. The rows of ``up_proj`` and the columns of ``down_proj`` are treated alike. Inputs without a norm or a gate
before them stay as they are. The factor is the square root of the column's root mean square, which shares the
difficulty between activations and weights (https://arxiv.org/abs/2211.10438, alpha = 0.5). This is for weights of eight
bits: four-bit weights lose more by it than activations gain.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Tensors
from tinychat.conversion.source import Floats, Source, run_layer

ALPHA = 0.5
# Added to each column's size, as a share of the mean: the texts may not have used the column.
FLOOR = 0.01
Factors = dict[str, NDArray[np.float32]]
# The norm that gives a linear's inputs.
BEFORE = {
    "qkv_proj": "input_layernorm",
    "conv_in_proj": "input_layernorm",
    "gate_up_proj": "post_attention_layernorm",
    "up_proj": "post_attention_layernorm",
}


class ScaledTensors(Tensors):
    """Tensors of a checkpoint, some with rows and columns multiplied by factors.

    Parameters
    ----------
    tensors : Tensors
    rows, columns : dict
        Factors, float32, by the tensors' names.
    """

    def __init__(self, tensors: Tensors, rows: Factors, columns: Factors) -> None:
        super().__init__(tensors.folder, tensors.files)
        self._rows, self._columns = rows, columns

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Read as `Tensors.read` does; tensors with factors become float32."""
        values = super().read(name, start, stop)
        if name not in self._rows and name not in self._columns:
            return values
        scaled = values.astype(np.float32)
        if name in self._columns:
            scaled *= self._columns[name]
        if name in self._rows:
            rows = self._rows[name][start:stop]
            scaled *= rows.reshape(-1, *[1] * (scaled.ndim - 1))
        return scaled


def smoothed(checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> Checkpoint:
    """Return a checkpoint of the same function whose linears have smoothed inputs.

    Parameters
    ----------
    checkpoint : Checkpoint
    texts : sequence of sequences of int
        Token ids that show how large each column is.
    """
    source = Source(checkpoint)
    rows: Factors = {}
    columns: Factors = {}
    for (name, shard), factors in _factors(source, texts).items():
        linear = source.layout(name)
        columns.update({f"{part}.weight": factors for part in linear.names(shard)})
        rows.update(_before(source, name, shard, np.reciprocal(factors)))
    return replace(checkpoint, tensors=ScaledTensors(checkpoint.tensors, rows, columns))


def _before(source: Source, name: str, shard: int, factors: NDArray[np.float32]) -> Factors:
    """Return the factors for the rows of the tensors that give a linear its input columns."""
    if name == "down_proj":
        gate_up = source.layout("gate_up_proj")
        up, rows = gate_up.names(shard)[-1], gate_up.rows[-1]
        # In one tensor with the gate's, they are its last rows.
        factors = np.concatenate([np.ones(rows - len(factors), np.float32), factors])
        return dict.fromkeys((f"{up}.weight", f"{up}.bias") if gate_up.bias else (f"{up}.weight",), factors)
    return dict.fromkeys(source.norm_tensors(BEFORE[name], source.layout(name).layer_of(shard)), factors)


def _can_be_evened(source: Source, name: str) -> bool:
    """Say whether something before a linear can take the factors along: a norm, or the half of an MLP that is gated."""
    return source.config.gated if name == "down_proj" else name in BEFORE and source.has_norm(BEFORE[name])


def _factors(source: Source, texts: Sequence[Sequence[int]]) -> dict[tuple[str, int], NDArray[np.float32]]:
    """Return the factor of each input column, by (linear, shard), for the linears whose inputs can be smoothed."""
    found: dict[tuple[str, int], NDArray[np.float32]] = {}

    def noting(name: str, shard: int, inputs: Floats, residual: Floats | None) -> Floats:
        if _can_be_evened(source, name):
            size = np.sqrt(np.square(inputs).mean(axis=0))
            mean = size.mean()
            if np.isfinite(mean) and mean > 0:
                found[name, shard] = (size / mean + FLOOR) ** np.float32(ALPHA)
        return source.linear(name, shard, inputs, residual)

    cuts = [0, *accumulate(len(text) for text in texts)]
    hidden = source.embed([token for text in texts for token in text], cuts)
    for layer in range(source.config.num_hidden_layers):
        hidden = run_layer(source, layer, hidden, cuts, noting)
    return found
