"""The checkpoint's own forward pass in float32, one layer at a time for all texts, for calibration and certificates.

It serves conversion alone, so it uses NumPy's matrix products over thousands of tokens, in attention over one sequence
at a time. The caller says what a linear layer does: it may look at the inputs, and quantize the layer before it gives
its outputs.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.conversion.cores import on_each
from tinychat.conversion.pack import check_finite
from tinychat.models.architectures import linears, norms
from tinychat.models.config import ModelConfig
from tinychat.models.rope import rope_tables
from tinychat.models.tensors import Linear as LinearLayout

Floats = NDArray[np.float32]
Linear = Callable[[str, Floats, Floats | None], Floats]
"""Called with a linear's name, its inputs [T, K], and the residual stream [T, D] if its outputs are added to that, else
None; returns the outputs [T, N], bias included."""

# Rows of the embedding or the output matrix that are widened to float32 at a time.
SLAB_ROWS = 8192
# Tokens whose gates are computed at a time: their intermediate results stay in the processor's cache.
GATED_ROWS = 64


class Source:
    """The tensors of a checkpoint in float32, read when asked for.

    Parameters
    ----------
    checkpoint : Checkpoint
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self._tensors = checkpoint.tensors
        self._linears = {linear.name: linear for linear in linears(self.config)}
        self._norms = {norm.name: norm for norm in norms(self.config)}

    def layout(self, name: str) -> LinearLayout:
        """Return the layout of a linear; a tied ``lm_head`` is the embedding."""
        return self._linears.get(name) or self._linears["embed_tokens"]

    def weight(self, name: str, layer: int) -> Floats:
        """Return a linear's weight [N, K].

        Raises
        ------
        ConversionError
            If it is not finite.
        """
        parts = [f"{source.format(layer)}.weight" for source in self.layout(name).sources]
        rows = np.concatenate([self._tensors.read(part).astype(np.float32) for part in parts])
        check_finite(rows, " + ".join(parts))
        return rows

    def slabs(self, linear: LinearLayout, rows: int) -> Iterator[Floats]:
        """Yield the weight of a linear outside the layers, `rows` rows at a time.

        Raises
        ------
        ConversionError
            If it is not finite.
        """
        part, end = f"{linear.sources[0]}.weight", linear.first + linear.rows[0]
        for first in range(linear.first, end, rows):
            slab = self._tensors.read(part, first, min(first + rows, end)).astype(np.float32)
            check_finite(slab, part)
            yield slab

    def linear(self, layer: int) -> Linear:
        """Return the checkpoint's own linears of a layer, as `run_layer` takes them."""

        def run(name: str, inputs: Floats, residual: Floats | None) -> Floats:
            outputs = inputs @ self.weight(name, layer).T
            bias = self.bias(name, layer)
            return outputs if bias is None else outputs + bias

        return run

    def bias(self, name: str, layer: int) -> Floats | None:
        """Return a linear's bias [N], None where it has none."""
        linear = self.layout(name)
        if not linear.bias:
            return None
        parts = [self._tensors.read(f"{source.format(layer)}.bias") for source in linear.sources]
        return np.concatenate([part.astype(np.float32) for part in parts])

    def gain(self, name: str, layer: int = 0) -> Floats | None:
        """Return a norm's gains, None where the model has no such norm."""
        if name not in self._norms:
            return None
        return self._tensors.read(self.norm_weight(name, layer)).astype(np.float32)

    def norm_weight(self, name: str, layer: int = 0) -> str:
        """Return the checkpoint's name of a norm's gains."""
        return f"{self._norms[name].source.format(layer)}.weight"

    def embed(self, ids: Sequence[int]) -> Floats:
        """Return the embeddings [T, D] of some ids."""
        name = f"{self._linears['embed_tokens'].sources[0]}.weight"
        rows = {i: self._tensors.read(name, i, i + 1).astype(np.float32)[0] for i in sorted(set(ids))}
        return np.stack([rows[i] for i in ids])

    def outputs(self, inputs: Floats) -> Floats:
        """Return the output matrix's products [T, V] with normed hidden states."""
        slabs = [inputs @ rows.T for rows in self.slabs(self.layout("lm_head"), SLAB_ROWS)]
        return np.concatenate(slabs, axis=1)


# Callers refuse results that are not finite.
@np.errstate(over="ignore", invalid="ignore")
def run_layer(source: Source, layer: int, hidden: Floats, cuts: Sequence[int], linear: Linear) -> Floats:
    """Run one decoder layer over several sequences.

    Parameters
    ----------
    source : Source
        For norms and sizes.
    layer : int
    hidden : float32 [T, D]
        The residual stream of all sequences, one after another.
    cuts : sequence of int
        Where sequences begin, and T.
    linear : callable
        See `Linear`.

    Returns
    -------
    float32 [T, D]
    """
    config = source.config
    x = normed(hidden, source.gain("input_layernorm", layer), config.rms_norm_eps)
    qkv = linear("qkv_proj", x, None)
    parts = [_attended(source, layer, qkv[start:stop]) for start, stop in pairwise(cuts)]
    hidden = hidden + linear("o_proj", np.concatenate(parts), hidden)
    x = normed(hidden, source.gain("post_attention_layernorm", layer), config.rms_norm_eps)
    gate_up = linear("gate_up_proj", x, None)
    blocks = [gate_up[start : start + GATED_ROWS] for start in range(0, len(gate_up), GATED_ROWS)]
    return hidden + linear("down_proj", np.concatenate(on_each(gated, blocks)), hidden)


def last_inputs(source: Source, hidden: Floats) -> Floats:
    """Return the inputs of the output matrix: the hidden states behind the last norm."""
    return normed(hidden, source.gain("norm"), source.config.rms_norm_eps)


def normed(x: Floats, gain: Floats | None, eps: float) -> Floats:
    """Return ``x / rms(x) * gain`` over the last axis; x itself without a gain."""
    if gain is None:
        return x
    scale = 1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(x * scale * gain, np.float32)


def gated(gate_up: Floats) -> Floats:
    """Return ``silu(gate) * up`` [T, F] of [T, 2 F]."""
    gate, up = np.split(gate_up, 2, axis=1)
    return np.asarray(gate / (1 + np.exp(-gate)) * up, np.float32)


def _attended(source: Source, layer: int, qkv: Floats) -> Floats:
    """Return attention's outputs [T, H d] for one sequence's queries, keys and values."""
    config = source.config
    T, d, H, G = len(qkv), config.head_dim, config.num_attention_heads, config.num_key_value_heads
    heads = qkv.reshape(T, H + 2 * G, d).transpose(1, 0, 2)
    q = normed(heads[:H], source.gain("q_norm", layer), config.rms_norm_eps)
    k = normed(heads[H : H + G], source.gain("k_norm", layer), config.rms_norm_eps)
    table = _angles(config, T)[:, : config.rotary_dims[layer]]
    q, k, v = _rotated(q, table) * np.float32(d**-0.5), _rotated(k, table), heads[H + G :]
    mask = _mask(config.sliding_windows[layer], T)

    def softmax(scores: Floats) -> Floats:
        scores += mask
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores

    # All queries of one key/value head go into one matrix product.
    scores = (q.reshape(G, H // G * T, d) @ k.transpose(0, 2, 1)).reshape(H, T, T)
    on_each(softmax, scores)
    mixed = scores.reshape(G, H // G * T, T) @ v
    return np.asarray(mixed.reshape(H, T, d).transpose(1, 0, 2).reshape(T, H * d), np.float32)


def _rotated(heads: Floats, table: Floats) -> Floats:
    """Rotate the first channels of heads [n, T, d] by the positions' cosines and sines [T, rotary_dim]."""
    rotary_dim = table.shape[1]
    cos, sin = np.split(table, 2, axis=1)
    first, second = np.split(heads[..., :rotary_dim], 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, heads[..., rotary_dim:]], axis=-1)


@functools.lru_cache(maxsize=8)
def _angles(config: ModelConfig, T: int) -> Floats:
    """Return the cosines and sines of positions 0 to T - 1; kept, as many texts have the same length."""
    return rope_tables(config, 0, T)


@functools.lru_cache(maxsize=8)
def _mask(window: int, T: int) -> Floats:
    """Return the mask that is added to the scores [T, T]: minus infinity after a query, and before its window."""
    distance = np.arange(T)[:, None] - np.arange(T)
    return np.where((distance >= 0) & (distance < (window or T)), np.float32(0), np.float32(-np.inf))
