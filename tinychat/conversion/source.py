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
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.experts import ROUTER, Experts
from tinychat.models.rope import query_scales, rope_tables, sliding_rope
from tinychat.models.tensors import Linear as LinearLayout

Floats = NDArray[np.float32]
Linear = Callable[[str, int, Floats, Floats | None], Floats]
"""Called with a linear's name, which piece of its kind it is (`models.tensors.Linear`), its inputs [T, K], and the
residual stream [T, D] if its outputs are added to that, else None; returns the outputs [T, N], bias included."""

# Rows of the embedding or the output matrix that are widened to float32 at a time.
SLAB_ROWS = 8192
# Tokens whose activations are computed at a time: their intermediate results stay in the processor's cache.
ACTIVATED_ROWS = 64
# Queries whose attention is computed at a time.
ATTENDING_ROWS = 128
# An expert that fewer tokens chose is shown what all tokens would give it: it has to be quantized by something.
FEWEST_ROWS = 16


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

    def piece(self, name: str, layer: int) -> int:
        """Return which piece of its kind a layer's linear is; of experts, the first."""
        linear = self.layout(name)
        return (linear.at.index(layer) if linear.at else layer) * (linear.experts or 1)

    def weight(self, name: str, piece: int) -> Floats:
        """Return a linear's weight [N, K].

        Raises
        ------
        ConversionError
            If it is not finite.
        """
        layout = self.layout(name)
        parts = [f"{source}.weight" for source in layout.names(piece)]
        weight = np.empty((sum(layout.rows), layout.columns), np.float32)
        first = 0
        for part, rows in zip(parts, layout.rows):
            weight[first : first + rows] = self._tensors.read(part)
            first += rows
        check_finite(weight, " + ".join(parts))
        return weight

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

    def linear(self, name: str, piece: int, inputs: Floats, residual: Floats | None) -> Floats:
        """Apply one of the checkpoint's own linears; a `Linear` as `run_layer` takes it."""
        outputs = inputs @ self.weight(name, piece).T
        bias = self.bias(name, piece)
        return outputs if bias is None else outputs + bias

    def bias(self, name: str, piece: int) -> Floats | None:
        """Return a linear's bias [N], None where it has none."""
        linear = self.layout(name)
        if not linear.bias:
            return None
        parts = [self._tensors.read(f"{source}.bias") for source in linear.names(piece)]
        return np.concatenate([part.astype(np.float32) for part in parts])

    def has_norm(self, name: str) -> bool:
        """Say whether the model has a norm."""
        return name in self._norms

    def normed(self, name: str, layer: int, x: Floats) -> Floats:
        """Return what a norm makes of the last axis; `x` itself where the model has no such norm."""
        if name not in self._norms:
            return x
        gain, *bias = (self._tensors.read(tensor).astype(np.float32) for tensor in self.norm_tensors(name, layer))
        eps = np.float32(self.config.rms_norm_eps)
        if self.config.layer_norm:
            x = x - x.mean(axis=-1, keepdims=True)
        scaled = x * (1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)) * gain
        return np.asarray(scaled + bias[0] if bias else scaled, np.float32)

    def sinks(self, layer: int) -> Floats:
        """Return attention's sinks [H]."""
        (name,) = self.norm_tensors("sinks", layer)
        return self._tensors.read(name).astype(np.float32)

    def taps(self, layer: int) -> Floats:
        """Return the taps of a layer's convolution [D, K]."""
        (name,) = self.norm_tensors("conv_taps", layer)
        return self._tensors.read(name).astype(np.float32).reshape(self.config.hidden_size, -1)

    def norm_tensors(self, name: str, layer: int = 0) -> list[str]:
        """Return the checkpoint's names of a norm's gains and, if it has them, biases."""
        norm = self._norms[name]
        return [f"{norm.source.format(layer)}.{part}" for part in ("weight", "bias")[: 1 + norm.bias]]

    def embed(self, ids: Sequence[int], cuts: Sequence[int]) -> Floats:
        """Return the embeddings [T, D] of some sequences' ids; cuts : where sequences begin, and T."""
        name = f"{self._linears['embed_tokens'].sources[0]}.weight"
        rows = {i: self._tensors.read(name, i, i + 1).astype(np.float32)[0] for i in sorted(set(ids))}
        hidden: Floats = np.stack([rows[i] for i in ids]) * np.float32(self.config.embedding_multiplier)
        for table in tables(self.config):
            for start, stop in pairwise(cuts):
                first = table.first
                vectors = self._tensors.read(f"{table.source}.weight", first, first + stop - start)
                hidden[start:stop] += vectors.astype(np.float32)
        return self.normed("embed_norm", 0, hidden)

    def outputs(self, inputs: Floats) -> Floats:
        """Return the logits [T, V] that the output matrix gives for normed hidden states."""
        slabs = [inputs @ rows.T for rows in self.slabs(self.layout("lm_head"), SLAB_ROWS)]
        bias = self.bias("lm_head", 0)
        logits = np.concatenate(slabs, axis=1)
        return soft_capped(logits if bias is None else logits + bias, self.config.logits_softcap)


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

    def first_of_mlp() -> Floats:
        x = source.normed("post_attention_layernorm", layer, hidden)
        name = "gate_up_proj" if config.gated else "up_proj"
        return linear(name, source.piece(name, layer), x, None)

    def added(name: str, x: Floats, norm: str) -> Floats:
        piece = source.piece(name, layer)
        if source.has_norm(norm):
            return hidden + source.normed(norm, layer, linear(name, piece, x, None))
        return hidden + linear(name, piece, x, hidden)

    config = source.config
    x = source.normed("input_layernorm", layer, hidden)
    if layer in config.conv_layers:
        bcx = linear("conv_in_proj", source.piece("conv_in_proj", layer), x, None)
        parts = [_convolved(source.taps(layer), bcx[start:stop]) for start, stop in pairwise(cuts)]
        hidden = added("conv_out_proj", np.concatenate(parts), "post_self_attn_layernorm")
        return added("down_proj", _activated_by_block(config, first_of_mlp()), "post_mlp_layernorm")
    qkv = linear("qkv_proj", source.piece("qkv_proj", layer), x, None)
    # An MLP beside attention reads what attention reads.
    inner = first_of_mlp() if config.parallel else None
    mixed = np.concatenate([_attended(source, layer, qkv[start:stop]) for start, stop in pairwise(cuts)])
    del qkv
    hidden = added("o_proj", mixed, "post_self_attn_layernorm")
    if config.experts and layer in config.experts.layers:
        return hidden + mixture(source, layer, source.normed("post_attention_layernorm", layer, hidden), linear)
    inner = _activated_by_block(config, first_of_mlp() if inner is None else inner)
    return added("down_proj", inner, "post_mlp_layernorm")


def mixture(source: Source, layer: int, x: Floats, linear: Linear) -> Floats:
    """Return what the experts of a layer give for normed hidden states [T, D]; see `kernels.experts`."""
    experts, first = source.config.experts, source.piece("expert_gate_up_proj", layer)
    assert experts is not None
    place = source.piece(ROUTER, layer)
    scores = linear(ROUTER, place, x, None)
    chosen, weights = _choices(scores[:, : experts.num_experts], experts)
    total = np.zeros_like(x)
    for expert in range(experts.num_experts):
        rows, ranks = np.nonzero(chosen == expert)
        shown = np.arange(len(x)) if len(rows) < FEWEST_ROWS else rows
        inner = linear("expert_gate_up_proj", first + expert, x[shown], None)
        outputs = linear("expert_down_proj", first + expert, _activated_by_block(source.config, inner), None)
        total[rows] += weights[rows, ranks, None] * outputs[rows if len(shown) > len(rows) else slice(None)]
    if experts.shared_intermediate_size:
        inner = linear("shared_gate_up_proj", place, x, None)
        outputs = linear("shared_down_proj", place, _activated_by_block(source.config, inner), None)
        total += outputs / (1 + np.exp(-scores[:, experts.num_experts :]))
    return total


def _choices(logits: Floats, experts: Experts) -> tuple[NDArray[np.intp], Floats]:
    """Return the experts of each token [T, k], the likeliest first, and what each is multiplied by."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : experts.num_experts_per_tok]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights = np.take_along_axis(powers, chosen, axis=1)
    return chosen, weights / (weights if experts.norm_topk_prob else powers).sum(axis=1, keepdims=True)


def _activated_by_block(config: ModelConfig, inner: Floats) -> Floats:
    """Return what `activated` does, some tokens at a time."""
    blocks = [inner[start : start + ACTIVATED_ROWS] for start in range(0, len(inner), ACTIVATED_ROWS)]
    return np.concatenate(on_each(functools.partial(activated, config), blocks))


def last_inputs(source: Source, hidden: Floats) -> Floats:
    """Return the inputs of the output matrix: the hidden states behind the last norm."""
    return source.normed("norm", 0, hidden)


def activated(config: ModelConfig, inner: Floats) -> Floats:
    """Return ``activation(gate) * up`` [T, F] of [T, 2 F], or of an MLP without gates ``activation(up)`` of [T, F]."""
    activation = ACTIVATIONS[config.hidden_act]
    if not config.gated:
        return np.asarray(activation(inner), np.float32)
    gate, up = np.split(inner, 2, axis=1)
    if config.swiglu_limit is not None:
        gate, up = np.minimum(gate, config.swiglu_limit), np.clip(up, -config.swiglu_limit, config.swiglu_limit)
        return np.asarray(gate / (1 + np.exp(-config.swiglu_alpha * gate)) * (up + 1), np.float32)
    return np.asarray(activation(gate) * up, np.float32)


def _gelu(v: Floats) -> Floats:
    """Return ``v / 2 * (1 + erf(v / sqrt(2)))``; see `kernels.activations`."""
    t = 1 / (1 + np.float32(0.3275911 * 0.5**0.5) * np.abs(v))
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    tail = functools.reduce(lambda p, factor: (p * t + np.float32(factor)).astype(np.float32), factors, 0 * t) * t
    return np.asarray(np.maximum(v, 0) - np.abs(v) / 2 * tail * np.exp(-np.square(v) / 2), np.float32)


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": lambda v: v / (1 + np.exp(-v)),
    "gelu": _gelu,
    "gelu_tanh": lambda v: v / (1 + np.exp(np.float32(-2 * (2 / np.pi) ** 0.5) * (v + np.float32(0.044715) * v**3))),
    "relu": lambda v: np.maximum(v, 0),
    "relu2": lambda v: np.square(np.maximum(v, 0)),
}


def soft_capped(x: Floats, cap: float | None) -> Floats:
    """Return ``cap * tanh(x / cap)``, or `x` itself where there is no cap."""
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def _convolved(taps: Floats, bcx: Floats) -> Floats:
    """Return what a short convolution gives for one sequence's b, c and x [T, 3 D]; see `kernels.short_convolution`."""
    b, c, x = np.split(bcx, 3, axis=1)
    K = taps.shape[1]
    padded = np.pad(b * x, ((K - 1, 0), (0, 0)))
    total = np.zeros_like(x)
    for k in range(K):
        total += taps[:, k] * padded[k : k + len(x)]
    return c * total


def _attended(source: Source, layer: int, qkv: Floats) -> Floats:
    """Return attention's outputs [T, H d] for one sequence's queries, keys and values."""
    config = source.config
    T, d, H, G = len(qkv), config.head_dim, config.num_attention_heads, config.num_key_value_heads
    if config.qk_norm == "width":
        q, k, v = np.split(qkv, [H * d, (H + G) * d], axis=1)
        qkv = np.concatenate([source.normed("q_norm", layer, q), source.normed("k_norm", layer, k), v], axis=1)
    heads = qkv.reshape(T, H + 2 * G, d).transpose(1, 0, 2)
    q, k, v = heads[:H], heads[H : H + G], heads[H + G :]
    if config.qk_norm == "head":
        q, k = source.normed("q_norm", layer, q), source.normed("k_norm", layer, k)
    table = _angles(sliding_rope(config) if config.angle_sets[layer] else config, T)[:, : config.rotary_dims[layer]]
    factors = (config.attention_scale * query_scales(config, range(T))).astype(np.float32)
    q, k = _rotated(q, table) * factors[:, None], _rotated(k, table)
    mask = _mask(config.sliding_windows[layer], T)
    slopes = np.array(config.alibi_slopes, np.float32)[:, None, None]
    sinks = source.sinks(layer) if config.sinks else [None] * H

    def softmax(head: tuple[Floats, Floats | None], masked: Floats) -> None:
        scores, sink = head
        scores[:] = soft_capped(scores, config.attention_softcap)
        scores += masked
        largest = scores.max(axis=-1, keepdims=True)
        scores -= largest
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True) + (0 if sink is None else np.exp(sink - largest))

    mixed = np.empty((H, T, d), np.float32)
    for start in range(0, T, ATTENDING_ROWS):
        # No query sees keys after its own. All queries of one key/value head go into one matrix product.
        stop = min(start + ATTENDING_ROWS, T)
        scores = (q[:, start:stop].reshape(G, -1, d) @ k[:, :stop].transpose(0, 2, 1)).reshape(H, -1, stop)
        if config.alibi_slopes:
            scores += slopes * (np.arange(stop) - np.arange(start, stop)[:, None])
        on_each(functools.partial(softmax, masked=mask[start:stop, :stop]), zip(scores, sinks))
        mixed[:, start:stop] = (scores.reshape(G, -1, stop) @ v[:, :stop]).reshape(H, -1, d)
    return mixed.transpose(1, 0, 2).reshape(T, H * d)


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
