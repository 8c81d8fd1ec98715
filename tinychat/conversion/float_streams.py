"""The stages of models with four residual streams in NumPy: see `conversion.float_stages`."""

import numpy as np

from tinychat.conversion.source import Floats, Source
from tinychat.models.altup import STREAMS


class StreamStages:
    """The part of `FloatStages` for streams, of which the others are [T, 3 D], and for sparse gates, and for bounds."""

    _source: Source

    def route_streams(self, T, hidden, router, sizes, out):
        weight = self._source.vector(router.weight).reshape(STREAMS, -1)
        found = np.tanh(self._source.normed(router.norm, hidden.value) @ weight.T)
        out.value = found @ self._source.vector(router.mixing).reshape(-1, STREAMS).T

    def predict_streams(self, T, factors, sizes, hidden, others, before):
        streams = _apart(np.concatenate([hidden.value, others.value], axis=1), STREAMS)
        predicted = streams + factors.take().reshape(T, STREAMS, STREAMS) @ streams
        hidden.value = before.value = predicted[:, 0]
        others.value = predicted[:, 1:].reshape(T, -1)

    def add_laurel(self, T, branch, norm, before, input_norm, sizes, hidden):
        found = hidden.value + self._source.normed(input_norm, before.value) + self._source.normed(norm, branch.take())
        hidden.value = found * np.float32(0.5**0.5)

    def correct_streams(self, T, factors, scale, sizes, before, hidden, others):
        parts, predicted = factors.take() + 1, before.take()
        news = hidden.value - predicted
        hidden.value = predicted + parts[:, :1] * news
        corrected = _apart(others.value, STREAMS - 1) + parts[:, 1:, None] * news[:, None]
        others.value = corrected.reshape(T, -1)
        before.value = hidden.value * self._source.vector(scale)

    def cut_gates(self, T, gate_up, cutoff, size):
        gates = gate_up.value[:, :size]
        cut = gates.mean(axis=1, keepdims=True) + cutoff * gates.std(axis=1, keepdims=True)
        gate_up.value[:, :size] = np.maximum(gates - cut, 0)

    def clip_columns(self, T, x, w, out):
        found = x.take().clip(*self._source.vector(w.bounds)[2:])
        out.value = np.concatenate([out.value, found], axis=1) if w.first else found

    def add_to_streams(self, T, branch, norm, sizes, others):
        others.value = others.value + np.tile(self._source.normed(norm, branch.take()), STREAMS - 1)

    def match_streams(self, T, hidden, sizes, others):
        found = _apart(others.value, STREAMS - 1)
        others.value = _brought_to(found, hidden.value[:, None]).reshape(T, -1)

    def pick_stream(self, T, rows, others, stream, sizes, out):
        out.value = _apart(others.value, STREAMS - 1)[:, stream]

    def pick_quarter(self, T, rows, hidden, out):
        out.value = hidden.value / STREAMS

    def add_quarter(self, T, rows, hidden, branch, sizes, out):
        out.value = out.value + _brought_to(branch.take(), hidden.value) / STREAMS


def _apart(streams: Floats, count: int) -> Floats:
    """Return streams that stand side by side as [T, count, D]."""
    return streams.reshape(len(streams), count, -1)


def _brought_to(x: Floats, wanted: Floats) -> Floats:
    """Return rows of the root mean square that others have."""
    size, own = (np.square(each).mean(axis=-1, keepdims=True) for each in (wanted, x))
    return np.asarray(x * np.sqrt(size / np.maximum(own, np.float32(1e-5))), np.float32)
