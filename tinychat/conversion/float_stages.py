"""The stages of `engine.forward` in NumPy, float32, for the texts of a conversion; see `engine.stages`.

Texts stand one after another. Matrix products take all tokens at once, attention those of one text. Arrays between
stages are slots, which hold what a stage gave until the next takes it. What each text, or each expert, gives is often
computed only when the next stage asks for it: it is never there for all of them at once.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.conversion.activations import activated
from tinychat.conversion.cores import on_each
from tinychat.conversion.float_blocks import BlockStages
from tinychat.conversion.float_states import StateStages
from tinychat.conversion.float_streams import StreamStages
from tinychat.conversion.recurrence import sigmoid
from tinychat.conversion.source import Floats, Source
from tinychat.engine.mlp_parameters import ACTIVATIONS
from tinychat.engine.named_tensors import NamedVector
from tinychat.kernels.variants import (
    AttentionSink,
    BothWays,
    ClippedActivation,
    DistanceBias,
    JointImages,
    LimitedSilu,
    NormedActivation,
    NoTable,
    ProfileBias,
    RotatedGains,
    Ungated,
)
from tinychat.models.config import ModelConfig
from tinychat.models.distance_biases import by_distance
from tinychat.models.experts import Experts
from tinychat.models.rope import query_scales, rope_tables, sliding_rope
from tinychat.models.selective import LOW

Linear = Callable[[str, int, Floats, Floats | None], Floats]
"""Called with a linear's name, the shard of its kind (`models.tensors.Linear`), its inputs [T, K], and the residual
stream [T, D] if its outputs are added to that, else None; returns the outputs [T, N], bias included."""

# Queries whose attention is computed at a time.
ATTENDING_ROWS = 128
# An expert that fewer tokens chose gets all tokens: it has to be quantized by some.
FEWEST_ROWS = 16


class Cell:
    """An array between stages; a stage that is the last to read it takes it out."""

    value: Any = None

    def take(self):
        """Return the array, and keep it no longer."""
        taken, self.value = self.value, None
        return taken


class FloatStages(StateStages, StreamStages, BlockStages):
    """A team that runs stages in NumPy.

    `linear` may look at the inputs, and quantize the layer before it gives its outputs.
    """

    def __init__(self, source: Source, linear: Linear) -> None:
        self._source, self._config, self._linear = source, source.config, linear

    def run(self, stage, *arguments):
        """Run a stage."""
        getattr(self, stage.__name__)(*arguments)

    def embed(self, T, weight, ids, sizes, hidden):
        hidden.value = self._source.embeddings(ids) * np.float32(self._config.embedding_multiplier)

    def place_rows(self, T, replaced, images, hidden):
        """Do nothing: the texts of a conversion have no images."""

    def add_image_rows(self, T, replaced, images, part, hidden):
        """Do nothing, as `place_rows`."""

    def add_positions(self, T, vectors, rows, hidden):
        hidden.value += self._source.table(vectors, 1 + rows.max())[rows]

    def norm_rows(self, T, norm, sizes, hidden):
        hidden.value = self._source.normed(norm, hidden.value)

    def quantize_normed(self, T, hidden, norm, sizes, weight, s):
        s.x.value = self._source.normed(norm, hidden.value)

    def quantize_plain(self, T, values, weight, s):
        if weight.name == LOW:
            # The scan reads them once more.
            s.x.value = values.value[:, : weight.columns]
            return
        s.x.value, rest = np.split(values.take(), [weight.columns], axis=1)
        # What is behind them, a later stage takes.
        values.value = rest if rest.shape[1] else None

    def quantize_activated(self, T, gate_up, activation, size, weight, s):
        if isinstance(activation, ClippedActivation):
            self.quantize_activated(T, gate_up, activation.activation, size, weight, s)
            s.x.value = s.x.value.clip(*self._source.vector(activation.bounds)[:2])
            return
        if isinstance(activation, NormedActivation):
            self.quantize_activated(T, gate_up, activation.activation, size, weight, s)
            s.x.value = self._source.normed(activation.gain, s.x.value)
            return
        config, numbers = self._config, activation.activation if isinstance(activation, Ungated) else ()
        if config.gated and isinstance(activation, Ungated):
            # That of a router's MLP.
            name = next(name for name, kind in ACTIVATIONS.items() if isinstance(activation.activation, type(kind)))
            config = replace(config, gated=False, hidden_act=name)
        numbers = [self._source.vector(each) for each in numbers]
        s.x.value = activated(config, gate_up.take(), numbers, _limit_of(activation))

    def linear(self, T, weight, s, out, add):
        residual = out.value if add else None
        outputs = self._linear(weight.name, weight.shard, s.x.take(), residual)
        out.value = residual + outputs if add else outputs

    def add_normed(self, T, branch, norm, sizes, hidden):
        hidden.value = hidden.value + self._source.normed(norm, branch.take(), sizes.post_norm_eps)

    def add_scaled(self, T, branch, scales, hidden):
        added = self._source.normed(scales.branch, branch.take())
        hidden.value = self._source.normed(scales.stream, hidden.value) + added

    def interpolate(self, T, branch, rates, sizes, hidden):
        towards = self._source.normed(rates.norm, branch.take()) - hidden.value
        hidden.value = self._source.normed(rates.norm, hidden.value + self._source.vector(rates.rate) * towards)

    def hold_rows(self, T, hidden, held):
        held.value = hidden.value

    def rejoin_rows(self, T, held, norm, sizes, hidden):
        hidden.value = self._source.normed(norm, hidden.value + held.value)

    def norm_width(self, T, qkv, norm, sizes):
        H, G, d = sizes.num_attention_heads, self._config.num_key_value_heads, sizes.head_dim
        q, k, v = np.split(qkv.take(), [H * d, (H + G) * d], axis=1)
        q, k = self._source.normed(norm.queries, q), self._source.normed(norm.keys, k)
        qkv.value = np.concatenate([q, k, v], axis=1)

    def norm_heads(self, T, qkv, norm, sizes):
        H, G, d = sizes.num_attention_heads, self._config.num_key_value_heads, sizes.head_dim
        heads, others = np.split(qkv.take(), [(H + G) * d], axis=1)
        gains = np.concatenate([self._source.vector(norm.queries), self._source.vector(norm.keys)])
        centred = heads.reshape(T, H + G, d) - heads.reshape(T, H + G, d).mean(axis=-1, keepdims=True)
        scale = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(sizes.rms_norm_eps))
        qkv.value = np.concatenate([(centred * scale).reshape(T, -1) * gains, others], axis=1)

    def scale_queries(self, T, qkv, gains, sizes):
        factors = self._source.vector(gains.queries).reshape(-1, 1, sizes.head_dim)
        if isinstance(gains, RotatedGains):
            factors = factors * self._source.vector(gains.keys)
        texts = qkv.take()
        qkv.value = ((q * factors, k, v) for q, k, v in texts)

    def rope_append(self, T, batch, qkv, q_gain, k_gain, angles, rotary_dim, sizes, cache):
        """Leave queries, keys and values of each text, heads first."""
        H, G = sizes.num_attention_heads, cache.heads

        def parts(text):
            cuts = [H * cache.head_dim, (H + G) * cache.head_dim]
            q, k, v = (_heads_first(part, n) for part, n in zip(np.split(text, cuts, axis=1), (H, G, G)))
            return self._queries(q, q_gain, angles, rotary_dim), self._keys(k, k_gain, angles, rotary_dim), v

        found = qkv.take()
        qkv.value = (parts(found[start:stop]) for start, stop in pairwise(batch.firsts))
        if cache.is_shared:
            qkv.value = [*qkv.value]
            cache.held = [(k, v) for _, k, v in qkv.value]

    def norm_values(self, T, qkv, sizes, cache):
        first = (sizes.num_attention_heads + cache.heads) * cache.head_dim
        values = qkv.value[:, first:].reshape(len(qkv.value), -1, cache.head_dim)
        values /= np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + sizes.rms_norm_eps)

    def rotate_queries(self, T, batch, qkv, q_gain, angles, rotary_dim, sizes, cache):
        found = qkv.take()
        texts = zip(pairwise(batch.firsts), cache.held)
        qkv.value = (
            (
                self._queries(_heads_first(found[start:stop], sizes.num_attention_heads), q_gain, angles, rotary_dim),
                k,
                v,
            )
            for (start, stop), (k, v) in texts
        )

    def _queries(self, q, gain, angles, rotary_dim):
        factors = (self._config.attention_scale * query_scales(self._config, range(q.shape[1]))).astype(np.float32)
        return self._keys(q, gain, angles, rotary_dim) * factors[:, None]

    def _keys(self, k, gain, angles, rotary_dim):
        if isinstance(gain, NamedVector):
            k = self._source.normed(gain, k)
        table = _angles(sliding_rope(self._config) if angles else self._config, k.shape[1])[:, :rotary_dim]
        return _rotated(k, table)

    def attend(self, batch, qkv, sizes, window, scoring, cache, scratch, out):
        if isinstance(scoring, ProfileBias):
            self.attend_profiles(batch, window, scoring, cache, out)
            return
        sinks = self._source.vector(scoring.sinks) if isinstance(scoring, AttentionSink) else None
        biases = self._source.vector(scoring.biases) if isinstance(scoring, DistanceBias) else None
        out.value = np.concatenate([_attended(self._config, *heads, window, sinks, biases) for heads in qkv.take()])

    def norm_latents(self, T, down, q_gain, kv_gain, sizes, low, qkv):
        found, rank, d = down.take(), sizes.kv_lora_rank, sizes.head_dim
        down.value, latent, rotated = np.split(found, [found.shape[1] - d, found.shape[1] - d + rank], axis=1)
        if isinstance(q_gain, NamedVector):
            low.value = _latent_normed(down.take(), self._source.vector(q_gain))
        latent = _latent_normed(latent, self._source.vector(kv_gain))
        queries = np.empty((T, sizes.num_attention_heads * d), np.float32)
        qkv.value = np.concatenate([queries, rotated, latent, latent], axis=1)

    def split_queries(self, T, queries, sizes, weight, s, qkv):
        d, size = sizes.head_dim, sizes.qk_nope_head_dim
        heads = np.split(queries.take(), sizes.num_attention_heads, axis=1)
        for h, head in enumerate(heads):
            qkv.value[:, h * d : h * d + d - sizes.kv_lora_rank] = head[:, size:]
        s.latents.x.value = [head[:, :size] for head in heads]

    def quantize_heads(self, T, values, heads, size, weight, s):
        s.latents.x.value = np.split(values.take(), heads, axis=1)

    def linear_heads(self, T, weight, s, out, heads, stride):
        if out.value is None:
            out.value = np.empty((T, heads * stride), np.float32)
        for h, x in enumerate(s.latents.x.take()):
            outputs = self._linear(weight.name, weight.shard + h, x, None)
            out.value[:, (h + 1) * stride - outputs.shape[1] : (h + 1) * stride] = outputs

    def take_gates(self, T, qkv, sizes, gates):
        size = sizes.num_attention_heads * sizes.head_dim
        queries, gates.value, rest = np.split(qkv.take(), [size, 2 * size], axis=1)
        qkv.value = np.concatenate([queries, rest], axis=1)

    def gate_attended(self, T, gates, sizes, attended):
        attended.value *= sigmoid(gates.take())

    def gate_heads(self, T, gates, with_softplus, sizes, size, attended):
        found = gates.take()
        factors = np.logaddexp(0, found) if with_softplus else sigmoid(found)
        attended.value *= np.repeat(factors, size, axis=1)

    def take_inputs(self, T, table, ids, projected, gain, layer, sizes, gate_up):
        size = sizes.layer_input_size
        of_layer = self._source.normed(gain, projected.value[:, layer * size : (layer + 1) * size])
        if not isinstance(table, NoTable):
            rows = np.where(ids < sizes.layer_input_ids, ids, 0) * sizes.num_hidden_layers + layer
            of_layer = of_layer + self._source.rows(table.layout, rows)
        gate_up.value = np.concatenate([gate_up.value, of_layer], axis=1)

    def scale_rows(self, T, factor, hidden):
        hidden.value = hidden.value * self._source.vector(factor)

    def choose_experts(self, T, sizes, e):
        count = self._config.experts.num_experts
        e.chosen.value, e.weights.value = _choices(e.logits.value[:, :count], self._config.experts)

    def choose_scored(self, T, routing, sizes, e):
        experts, logits = self._config.experts, e.logits.value
        scores = sigmoid(logits) if experts.sigmoid else _shares(logits)
        wanted = (logits if experts.by_logits else scores) + 0
        if experts.biased:
            wanted += self._source.vector(routing.bias)
        if experts.n_group > 1:
            groups = np.sort(wanted.reshape(T, experts.n_group, -1), axis=2)[:, :, -2:].sum(axis=2)
            ranks = np.argsort(np.argsort(-groups, axis=1, kind="stable"), axis=1)
            wanted[np.repeat(ranks >= experts.topk_group, scores.shape[1] // experts.n_group, axis=1)] = -np.inf
        order = np.argsort(-wanted, axis=1, kind="stable")
        e.chosen.value = order[:, : experts.num_experts_per_tok]
        weights = np.take_along_axis(scores, e.chosen.value, axis=1)
        e.weights.value = weights / weights.sum(axis=1, keepdims=True) if experts.norm_topk_prob else weights

    def choose_mixed(self, T, routing, e):
        experts, left = self._config.experts, e.logits.value.copy()
        order = np.argsort(-left, axis=1, kind="stable")
        e.chosen.value = order[:, : experts.num_experts_per_tok]
        e.weights.value = np.empty(e.chosen.value.shape, np.float32)
        for rank, chosen in enumerate(e.chosen.value.T):
            largest = np.take_along_axis(left, chosen[:, None], axis=1)
            near = largest - left <= experts.mixing_reach * np.maximum(np.abs(left), largest)
            powers = np.where(near, np.exp(left - largest), 0)
            e.weights.value[:, rank] = 1 / powers.sum(axis=1)
            np.put_along_axis(left, chosen[:, None], -np.inf, axis=1)

    def carry_states(self, T, scale, states):
        states.value = states.value * self._source.vector(scale)

    def scale_choices(self, T, scale, e):
        e.weights.value = e.weights.value * self._source.vector(scale)[e.chosen.value]

    def group_rows(self, T, e):
        pass

    def quantize_routed(self, T, hidden, norm, sizes, weight, rows, e):
        """Leave the inputs of each expert."""
        x, chosen = self._source.normed(norm, hidden.value), e.chosen.value

        def inputs_of(expert: int) -> Floats:
            rows, _ = np.nonzero(chosen == expert)
            return x if len(rows) < FEWEST_ROWS else x[rows]

        e.x.value = (inputs_of(expert) for expert in range(self._config.experts.num_experts))

    def quantize_routed_activated(self, T, activation, size, weight, rows, e):
        limit = _limit_of(activation)
        e.x.value = (activated(self._config, gate_up, limit=limit) for gate_up in e.gate_up.take())

    def linear_routed(self, weight, out, buffers, e):
        by_expert = enumerate(e.x.take(), weight.shard)
        out.value = (self._linear(weight.name, shard, x, None) for shard, x in by_expert)

    def clear_rows(self, T, hidden, out):
        out.value = np.zeros_like(hidden.value)

    def add_routed(self, T, shared, branch, hidden, e):
        chosen, weights = e.chosen.take(), e.weights.take()
        total = np.zeros_like(hidden.value)
        for expert, outputs in enumerate(e.down.take()):
            rows, ranks = np.nonzero(chosen == expert)
            total[rows] += weights[rows, ranks, None] * (outputs if len(outputs) == len(rows) else outputs[rows])
        if shared:
            gate = e.logits.value[:, self._config.experts.num_experts :]
            total += branch.take() * (sigmoid(gate) if gate.shape[1] else 1)
        hidden.value = hidden.value + total

    def pick_rows(self, T, rows, hidden, out):
        out.value = hidden.value

    def head(self, T, weight, s, out):
        x = s.x.take()
        logits = np.concatenate([x @ rows.T for rows in self._source.slabs(weight.layout)], axis=1)
        bias = self._source.bias(weight.name, 0)
        out.value = logits if bias is None else logits + bias

    def cap_rows(self, rows, logits, cap):
        logits.value = _soft_capped(logits.value, self._config.logits_softcap)


def _limit_of(activation: Any) -> float:
    """Return the limit of an activation, which most have not."""
    return float(activation.limit) if isinstance(activation, LimitedSilu) else np.inf


def _heads_first(text: Floats, heads: int) -> Floats:
    """Return one text's heads [heads, T, d]."""
    return text.reshape(len(text), heads, -1).transpose(1, 0, 2)


def _latent_normed(x: Floats, gain: Floats) -> Floats:
    """RMS-norm the last axis, as `kernels.latent` does."""
    return np.asarray(x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(1e-6)) * gain, np.float32)


def _choices(logits: Floats, experts: Experts) -> tuple[NDArray[np.intp], Floats]:
    """Return the experts of each token [T, k], the likeliest first, and what each is multiplied by."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : experts.num_experts_per_tok]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights = np.take_along_axis(powers, chosen, axis=1)
    return chosen, weights / (weights if experts.norm_topk_prob else powers).sum(axis=1, keepdims=True)


def _shares(logits: Floats) -> Floats:
    """Return the probabilities of a softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _soft_capped(x: Floats, cap: float | None) -> Floats:
    """Return ``cap * tanh(x / cap)``, or `x` itself where there is no cap."""
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def _attended(
    config: ModelConfig,
    q: Floats,
    k: Floats,
    v: Floats,
    window: Any,
    sinks: Floats | None,
    biases: Floats | None,
) -> Floats:
    """Return attention's outputs [T, H m] for one text's queries [H, T, d], keys [G, T, d] and values [G, T, m]."""
    (H, T, d), G = q.shape, len(k)
    mask = _mask(window, T)
    slopes = np.array(config.alibi_slopes, np.float32)[:, None, None]
    of_distances = None if biases is None else by_distance(biases, T)

    def softmax(head: tuple[Floats, np.float32 | None], masked: Floats) -> None:
        scores, sink = head
        scores[:] = _soft_capped(scores, config.attention_softcap)
        scores += masked
        largest = scores.max(axis=-1, keepdims=True)
        scores -= largest
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True) + (0 if sink is None else np.exp(sink - largest))

    mixed = np.empty((H, T, v.shape[2]), np.float32)
    for start in range(0, T, ATTENDING_ROWS):
        # All queries of one key/value head go into one matrix product, with the keys that they may see.
        stop = min(start + ATTENDING_ROWS, T)
        seen = T if isinstance(window, BothWays) else stop
        scores = (q[:, start:stop].reshape(G, -1, d) @ k[:, :seen].transpose(0, 2, 1)).reshape(H, -1, seen)
        distances = np.arange(seen) - np.arange(start, stop)[:, None]
        if config.alibi_slopes:
            scores -= slopes * np.abs(distances)
        if of_distances is not None:
            scores += of_distances[:, distances + T - 1]
        heads = zip(scores, [None] * H if sinks is None else sinks)
        on_each(functools.partial(softmax, masked=mask[start:stop, :seen]), heads)
        mixed[:, start:stop] = (scores.reshape(G, -1, seen) @ v[:, :seen]).reshape(H, stop - start, -1)
    return mixed.transpose(1, 0, 2).reshape(T, -1)


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
def _mask(window: Any, T: int) -> Floats:
    """Return the mask that is added to the scores [T, T]: minus infinity where a query does not see a key."""
    distance = np.arange(T)[:, None] - np.arange(T)
    if isinstance(window, BothWays):
        seen = abs(distance) < window.window
    else:
        # Texts of a conversion have no images.
        size = window.window if isinstance(window, JointImages) else window
        seen = (distance >= 0) & (distance < size)
    return np.where(seen, np.float32(0), np.float32(-np.inf))
