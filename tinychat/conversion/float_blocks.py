"""The stages of layers that read mixtures of blocks in NumPy: see `conversion.float_stages`."""

import functools
from typing import Any

import numpy as np

from tinychat.conversion.float_states import by_text, convolved_channels
from tinychat.conversion.source import Floats, Source
from tinychat.models.config import ModelConfig
from tinychat.models.rope import query_scales

EPS = np.float32(1e-6)


class BlockStages:
    """The part of `FloatStages` for mixtures, of which the slots are [T, slots D]."""

    _source: Source
    _config: ModelConfig

    def mix_slots(self, T, slots, seen, hidden, takes_hidden, queries, query, sizes, factors, out):
        D = sizes.hidden_size
        held = [*range(seen.first), *range(seen.other, seen.other + seen.others)]
        found = [slots.value[:, slot * D : (slot + 1) * D] for slot in held] + [hidden.value] * takes_hidden
        stacked = np.stack(found, axis=1)
        stacked = stacked / np.sqrt(np.square(stacked).mean(axis=2, keepdims=True) + EPS)
        scores = stacked @ self._source.vector(queries)[query : query + D] / np.float32(D**0.5)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        out.value = np.einsum("tj,tjd->td", powers / powers.sum(axis=1, keepdims=True), stacked)

    def take_message(self, T, gates, message, sizes, x):
        kept, taken = np.split(np.tanh(gates.take()), 2, axis=1)
        x.value = (1 - kept) * x.value + taken * message.take()

    def store_slot(self, T, x, slot, sizes, slots):
        D = sizes.hidden_size
        found = np.zeros((len(x.value), self._config.mixtures.slots * D), np.float32)
        if slots.value is not None:
            found[:] = slots.value
        found[:, slot * D : (slot + 1) * D] = x.value
        slots.value = found

    def load_slot(self, T, slots, slot, sizes, x):
        x.value = slots.value[:, slot * sizes.hidden_size : (slot + 1) * sizes.hidden_size]

    def add_rows(self, T, first, second, sizes, out):
        out.value = first.value + second.value

    def convolve_rows(self, batch, x, taps, offset, sizes):
        factors = self._source.vector(taps).reshape(-1, sizes.taps)
        found = by_text(batch, functools.partial(convolved_channels, factors), x.value)
        x.value = (x.value + found) / np.float32((sizes.taps + 1) ** 0.5)

    def convolve_by_token(self, batch, x, taps, token_taps, offset, sizes):
        K = sizes.taps
        factors, own = self._source.vector(taps).reshape(K, -1), token_taps.take()

        def convolved(rows: Floats, own: Floats) -> Floats:
            by_channel = np.repeat(own.reshape(len(rows), -1, K), sizes.head_dim, axis=1)
            total = rows.copy()
            for lag in range(min(K, len(rows))):
                total[lag:] += (factors[lag] + by_channel[lag:, :, lag]) * rows[: len(rows) - lag]
            return total

        x.value = by_text(batch, convolved, x.value, own) / np.float32((2 * K + 1) ** 0.5)

    def clip_queries(self, T, batch, x, scales, sizes):
        H, d = sizes.num_attention_heads, sizes.head_dim
        queries, relative, sinks = np.split(
            x.take(), np.cumsum([H * d, H * self._config.mixtures.relative_size]), axis=1
        )
        growth = query_scales(self._config, batch.positions) if scales.grows else np.ones(T)
        parts = []
        for part, vector, bound, factor in (
            (queries, scales.queries, scales.bound, self._config.attention_scale),
            (relative, scales.relative, scales.relative_bound, 1.0),
        ):
            heads = _clipped((part * self._source.vector(vector)).reshape(T, H, -1), bound)
            parts.append((heads * (growth * factor)[:, None, None]).astype(np.float32))
        x.value = (*parts, sinks)

    def append_clipped(self, T, batch, keys, values, scales, sizes, cache):
        shape = T, cache.heads, cache.head_dim
        found = values.take().reshape(shape)
        normed = found / np.sqrt(np.square(found).mean(axis=2, keepdims=True) + sizes.rms_norm_eps)
        cache.held = _clipped(keys.take().reshape(shape), scales.bound), normed

    def attend_profiles(self, batch, window, scoring, cache, out):
        """Attend with biases by distance and sinks of each query."""
        profiles = self._source.vector(scoring.profiles).reshape(self._config.mixtures.relative_size, -1)
        out.value = by_text(batch, functools.partial(_attended, profiles, window), *scoring.weights.take(), *cache.held)
        cache.held = None


def _clipped(heads: Floats, bound: Any) -> Floats:
    lengths = np.sqrt(np.square(heads).sum(axis=2, keepdims=True))
    return np.asarray(heads * np.minimum(np.float32(1), np.float32(bound) / (lengths + EPS)), np.float32)


def _attended(profiles: Floats, window: int, q: Floats, weights: Floats, sinks: Floats, k: Floats, v: Floats) -> Floats:
    """Return attention's outputs [T, H d] of one text: q [T, H, d], weights [T, H, R], sinks [T, H], k, v [T, G, d]."""
    (T, H, _), reach = q.shape, profiles.shape[1]
    distances = np.arange(T)[:, None] - np.arange(T)
    is_seen, is_near = (distances >= 0) & (distances < window), (distances >= 0) & (distances < reach)
    outputs = np.empty_like(q)
    for h in range(H):
        g = h * k.shape[1] // H
        biases = np.take_along_axis(weights[:, h] @ profiles, distances.clip(0, reach - 1), axis=1)
        scores = np.where(is_seen, q[:, h] @ k[:, g].T + np.where(is_near, biases, 0), -np.inf)
        largest = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - largest)
        total = powers.sum(axis=1, keepdims=True) + np.exp(sinks[:, h : h + 1] - largest)
        outputs[:, h] = (powers / total) @ v[:, g]
    return outputs.reshape(T, -1)
