"""The stages of convolutions, and of layers with a state, in NumPy: see `conversion.float_stages`."""

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from tinychat.conversion.activations import ACTIVATIONS
from tinychat.conversion.recurrence import (
    delta_outputs,
    group_norm,
    head_norm,
    selective_outputs,
    sigmoid,
    state_outputs,
)
from tinychat.conversion.source import Floats, Source
from tinychat.engine.named_tensors import NamedVector
from tinychat.models.config import ModelConfig


class StateStages:
    """The part of `FloatStages` for convolutions and states."""

    _source: Source
    _config: ModelConfig

    def short_convolution(self, T, batch, bcx, taps, rows, sizes, cache, out):
        found, factors = bcx.take(), self._source.vector(taps).reshape(sizes.hidden_size, -1)
        out.value = by_text(batch, functools.partial(_convolved, factors), found)

    def convolve_heads(self, batch, x, taps, bias, layer, sizes, pairs):
        C, G, d = sizes.value_heads * sizes.value_dim, sizes.key_heads, sizes.value_dim
        factors, shift, texts = self._source.vector(taps).reshape(C, -1), self._source.vector(bias), []
        for start, stop in pairwise(batch.firsts):
            text = x.value[start:stop]
            outputs = convolved_channels(factors, text[:, :C]) + shift
            before = np.concatenate([shift[None], outputs[:-1]])
            texts.append(np.concatenate([part.reshape(-1, C // d, d) for part in (before, outputs)], axis=2))
            delayed = text[:, C + G * d // 2 :]
            delayed[1:], delayed[0] = delayed[:-1].copy(), 0
        pairs.value = np.concatenate(texts).reshape(len(x.value), -1)
        heads = x.value[:, :C].reshape(len(x.value), -1, d)
        keys = heads[:, -G:]
        queries = (heads[:, :-G] + np.repeat(keys, C // d // G - 1, axis=1)) / 2
        means = queries.reshape(len(queries), G, -1, d).mean(axis=2)
        x.value[:, :C] = np.concatenate([queries, means], axis=1).reshape(len(x.value), C)

    def norm_lengths(self, T, convolved, key_scales, sizes, qkv):
        G, d = sizes.key_heads, sizes.value_dim
        heads, values = np.split(qkv.take(), [sizes.value_heads * d], axis=1)
        heads = (heads + convolved.take()).reshape(T, -1, d)
        lengths = np.sqrt(np.square(heads).sum(axis=2, keepdims=True))
        heads = heads * (np.sqrt(np.float32(d)) / np.maximum(lengths, np.finfo(np.float32).eps))
        heads[:, -G:] *= self._source.vector(key_scales)[:, None]
        qkv.value = np.concatenate([heads.reshape(T, -1), values], axis=1)

    def convolve(self, batch, x, taps, bias, layer, sizes):
        factors = self._source.vector(taps).reshape(-1, sizes.taps)
        shift = self._source.vector(bias) if isinstance(bias, NamedVector) else np.float32(0)
        C = len(factors)
        for start, stop in pairwise(batch.firsts):
            channels = x.value[start:stop, :C]
            channels[:] = ACTIVATIONS["silu"](convolved_channels(factors, channels) + shift)

    def delta_factors(self, T, gates, log_decay, bias, x, sizes, factors):
        rates, steps = np.split(gates.take(), 2, axis=1)
        speed = np.exp(self._source.vector(log_decay))
        decays = np.exp(-speed * np.logaddexp(np.float32(0), steps + self._source.vector(bias)))
        factors.value = decays, sizes.rate_scale * sigmoid(rates)

    def delta_rule(self, batch, x, factors, layer, sizes, out):
        rule = functools.partial(delta_outputs, net=self._config.delta_net)
        out.value = by_text(batch, rule, x.value, *factors.take())

    def norm_gated(self, T, x, gain, sizes, out):
        gates = x.take()[:, self._config.delta_net.channels :]
        normed = head_norm(out.take(), self._source.vector(gain), sizes.state_norm_eps)
        out.value = normed * gates * sigmoid(gates)

    def channel_factors(self, T, gates, log_decay, bias, x, sizes, decays, factors):
        steps, bound = decays.take() + self._source.vector(bias), sizes.decay_bound
        speed = np.repeat(np.exp(self._source.vector(log_decay)), sizes.key_dim)
        powers = bound * sigmoid(speed * steps) if bound else -speed * np.logaddexp(np.float32(0), steps)
        factors.value = np.exp(powers), sizes.rate_scale * sigmoid(gates.take())

    def channel_rule(self, batch, x, decays, factors, layer, sizes, out):
        self.delta_rule(batch, x, factors, layer, sizes, out)

    def norm_sigmoid(self, T, gates, gain, sizes, out):
        normed = head_norm(out.take(), self._source.vector(gain), sizes.state_norm_eps)
        out.value = normed * sigmoid(gates.take())

    def step_factors(self, T, steps, log_decay, bias, limits, sizes, factors):
        found = np.logaddexp(np.float32(0), steps.take() + self._source.vector(bias)).clip(*limits)
        factors.value = np.exp(-np.exp(self._source.vector(log_decay)) * found), found

    def scan_steps(self, batch, x, factors, skip, layer, sizes, out):
        net, mixed = self._config.mamba, x.take()
        share = np.repeat(self._source.vector(skip), net.value_dim)
        outputs = by_text(batch, functools.partial(state_outputs, net=net), mixed, *factors.take())
        gates = mixed[:, net.channels :]
        out.value = (outputs + share * mixed[:, : net.value_size]) * gates * sigmoid(gates)

    def norm_selective(self, T, gains, sizes, low):
        rank, d = self._config.selective.step_rank, sizes.key_dim
        parts = zip(gains, np.split(low.take(), [rank, rank + d], axis=1))
        low.value = np.concatenate([self._source.normed(gain, part) for gain, part in parts], axis=1)

    def scan_selective(self, batch, x, steps, low, gains, decays, skip, layer, sizes, out):
        values, gates = np.split(x.take(), 2, axis=1)
        found, (b, c) = np.logaddexp(np.float32(0), steps.take()), np.split(low.take(), 2, axis=1)
        speeds = self._source.vector(decays).reshape(values.shape[1], -1)
        outputs = by_text(batch, functools.partial(selective_outputs, speeds=speeds), values, found, b, c)
        out.value = (outputs + self._source.vector(skip) * values) * gates * sigmoid(gates)

    def norm_groups(self, T, gain, sizes, out):
        out.value = group_norm(out.take(), self._source.vector(gain), sizes.key_heads, sizes.rms_norm_eps)


def by_text(batch: Any, function: Callable[..., Floats], *arrays: Floats) -> Floats:
    """Return the results of a function of the rows of each text, one text after another."""
    texts = pairwise(batch.firsts)
    return np.concatenate([function(*(array[start:stop] for array in arrays)) for start, stop in texts])


def _convolved(taps: Floats, bcx: Floats) -> Floats:
    """Return the output of a short convolution of b, c and x [T, 3 D]; see `kernels.short_convolution`."""
    b, c, x = np.split(bcx, 3, axis=1)
    return c * convolved_channels(taps, b * x)


def convolved_channels(taps: Floats, x: Floats) -> Floats:
    """Return the causal convolution of channels [T, D] with their taps [D, K]."""
    K = taps.shape[1]
    padded = np.pad(x, ((K - 1, 0), (0, 0)))
    total = np.zeros_like(x)
    for k in range(K):
        total += taps[:, k] * padded[k : k + len(x)]
    return total
