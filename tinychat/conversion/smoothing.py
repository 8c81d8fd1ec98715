"""Evens out the columns of activations before they are rounded to int8: the network stays the same function.

Columns of a group share one scale, so that a large one costs the others bits. What a norm gives is divided by a factor
for each column, in its gains, and the weights that read it are multiplied by it; so are the rows of ``up_proj`` and the
columns of ``down_proj``. The factor is the root of the column's root mean square, which shares the difficulty between
activations and weights (SmoothQuant, https://arxiv.org/abs/2211.10438, with alpha = 0.5). For weights of eight bits: of
four, it costs them more than activations gain.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Tensors
from tinychat.conversion.source import Floats, Linear, Source, run_layer

ALPHA = 0.5
# What a column counts at least, as a share of the mean: no text may have used it.
FLOOR = 0.01
Factors = dict[str, NDArray[np.float32]]


class ScaledTensors(Tensors):
    """Tensors of a checkpoint, some with rows and columns multiplied by factors.

    Parameters
    ----------
    tensors : Tensors
    rows, columns : dict
        Factors, float32, by the tensors' names.
    """

    def __init__(self, tensors: Tensors, rows: Factors, columns: Factors) -> None:
        super().__init__(tensors._folder, tensors._files)
        self._rows, self._columns = rows, columns

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """See `Tensors.read`; what is multiplied is float32."""
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
    """Return the same network, the inputs of its linears evened out.

    Parameters
    ----------
    checkpoint : Checkpoint
    texts : sequence of sequences of int
        Token ids that show how large each column is.
    """
    source = Source(checkpoint)
    rows: Factors = {}
    columns: Factors = {}
    for (name, layer), factors in _factors(source, texts).items():
        linear = source.layout(name)
        columns.update({f"{part.format(layer)}.weight": factors for part in linear.sources})
        rows.update(_before(source, name, layer, np.reciprocal(factors)))
    return replace(checkpoint, tensors=ScaledTensors(checkpoint.tensors, rows, columns))


def _before(source: Source, name: str, layer: int, factors: NDArray[np.float32]) -> Factors:
    """Return by what the rows are multiplied, of the tensors that give the inputs of a linear, column by column."""
    if name == "down_proj":
        gate_up = source.layout("gate_up_proj")
        up, rows = gate_up.sources[-1].format(layer), gate_up.rows[-1]
        # In one tensor with the gate's, they are its last rows.
        factors = np.concatenate([np.ones(rows - len(factors), np.float32), factors])
        return dict.fromkeys((f"{up}.weight", f"{up}.bias") if gate_up.bias else (f"{up}.weight",), factors)
    norm = {"qkv_proj": "input_layernorm", "gate_up_proj": "post_attention_layernorm"}[name]
    return {source.norm_weight(norm, layer): factors}


def _factors(source: Source, texts: Sequence[Sequence[int]]) -> dict[tuple[str, int], NDArray[np.float32]]:
    """Return the factor of each column of what can be evened out, by (linear, layer)."""
    found: dict[tuple[str, int], NDArray[np.float32]] = {}

    def noting(layer: int) -> Linear:
        run = source.linear(layer)

        def linear(name: str, inputs: Floats, residual: Floats | None) -> Floats:
            if name != "o_proj":
                size = np.sqrt(np.square(inputs).mean(axis=0))
                mean = size.mean()
                if np.isfinite(mean) and mean > 0:
                    found[name, layer] = (size / mean + FLOOR) ** np.float32(ALPHA)
            return run(name, inputs, residual)

        return linear

    hidden = source.embed([token for text in texts for token in text])
    cuts = [0, *accumulate(len(text) for text in texts)]
    for layer in range(source.config.num_hidden_layers):
        hidden = run_layer(source, layer, hidden, cuts, noting(layer))
    return found
