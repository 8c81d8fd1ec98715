"""Compressed attention's convolutions against the formulas; the same bits however rows are shared out."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads
from kernels.test_recurrence import LAYER, LAYERS, Rows

from tinychat.engine.arguments import ModelDims
from tinychat.engine.states import State
from tinychat.kernels.compressed import convolve_heads, norm_lengths
from tinychat.kernels.sizes import SNAPSHOT

SIZES = pytest.mark.parametrize(("H", "G", "d"), [(6, 2, 32), (4, 1, 96), (3, 3, 64)])


class Inputs:
    """The projections of T positions, and the parameters of a layer."""

    def __init__(self, rng, T, H, G, d):
        self.H, self.G, self.d, heads = H, G, d, H + G
        self.sizes = ModelDims(0, H, d, 0, 0, np.float32(1e-5), key_heads=G, value_heads=heads, value_dim=d, taps=2)
        self.x = rng.standard_normal((T, (H + 2 * G) * d + 16)).astype(np.float32)
        self.taps, self.matrices = rng.standard_normal((heads * d, 2)), rng.standard_normal((heads, d, 2 * d))
        self.taps, self.matrices = (array.astype(np.float32) for array in (self.taps, self.matrices / np.sqrt(d)))
        self.bias, self.biases = rng.standard_normal((2, heads, d)).astype(np.float32)
        self.key_scales = rng.standard_normal(G).astype(np.float32)

    def new_state(self):
        state = State(LAYERS * (2 * (self.H + self.G) * self.d + self.G * self.d // 2))
        state.numbers[:] = UNTOUCHED
        return state

    def run(self, parts, threads=1):
        """Run rows of some sequences, as `test_recurrence.Inputs.run`; return queries, keys and values."""
        at = np.concatenate([np.arange(first, last) for first, last, *_ in parts])
        ends = np.cumsum([0, *(last - first for first, last, *_ in parts)])
        states = np.array([[state.address if state else 0 for state in held] for _, _, *held in parts], np.int64).T
        wanted = [(first // SNAPSHOT + 1) * SNAPSHOT if held[2] else 0 for first, _, *held in parts]
        batch = Rows(np.array([len(at), 0, len(parts)]), at, ends, np.ascontiguousarray(np.vstack([states, wanted])))
        x, T, heads, d = self.x[at].copy(), len(at), self.H + self.G, self.d
        pairs = np.full((T, heads * 2 * d + 16), UNTOUCHED, np.float32)
        taps = np.ascontiguousarray(self.taps.T).reshape(-1)
        on_threads(convolve_heads, threads, batch, x, taps, self.bias.reshape(-1), np.int64(LAYER), self.sizes, pairs)
        assert (pairs[:, -16:] == UNTOUCHED).all()
        # The same sums for any rows.
        inputs = pairs[:, :-16].reshape(T, heads, 2 * d)
        convolved = np.stack([np.stack([self.matrices[h] @ row[h] for h in range(heads)]) for row in inputs])
        convolved = (convolved + self.biases).reshape(T, -1)
        on_threads(norm_lengths, threads, T, convolved, self.key_scales, self.sizes, x)
        np.testing.assert_array_equal(x[:, -16:], self.x[at, -16:])
        return x[:, :-16]

    def expected(self):
        q, k, v, _ = np.split(self.x.astype(np.float64), np.cumsum([self.H, self.G, self.G]) * self.d, axis=1)
        T, heads = len(self.x), self.H + self.G
        found = reference.compressed_heads(
            q.reshape(T, self.H, -1),
            k.reshape(T, self.G, -1),
            v,
            self.taps.reshape(heads, self.d, 2).astype(np.float64),
            self.bias,
            self.matrices.astype(np.float64),
            self.biases,
            self.key_scales,
        )
        return np.concatenate([part.reshape(T, -1) for part in found], axis=1)


@SIZES
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
def test_formulas(H, G, d, T, rng):
    inputs = Inputs(rng, T, H, G, d)
    after = inputs.new_state()
    out, expected = inputs.run([(0, T, None, after, None)], threads=2), inputs.expected()
    assert_within(out, expected, 100 * EPS * (1 + np.abs(expected)))
    assert (after.numbers.reshape(LAYERS, -1)[0] == UNTOUCHED).all(), "another layer's part stays as it is"


@SIZES
def test_same_bits_in_any_chunks_on_any_threads_beside_others(H, G, d, rng):
    T = SNAPSHOT + 40
    inputs = Inputs(rng, T, H, G, d)
    last, between = inputs.new_state(), inputs.new_state()
    together = inputs.run([(0, T, None, last, between)], threads=3)
    state, other, parts = None, inputs.new_state(), []
    for first, end in ((0, 1), (1, 8), (8, 9), (9, SNAPSHOT), (SNAPSHOT, T)):
        after, held = inputs.new_state(), inputs.new_state() if end == T else None
        # Another sequence stands before it.
        rows = inputs.run([(0, 5, None, other, None), (first, end, state, after, held)])
        parts.append(rows[5:])
        np.testing.assert_array_equal(rows[:5], together[:5])
        state = after
        if end == SNAPSHOT:
            np.testing.assert_array_equal(after.numbers, between.numbers)
    np.testing.assert_array_equal(np.concatenate(parts), together)
    np.testing.assert_array_equal(state.numbers, last.numbers)


def test_vectors_of_no_length_stay():
    inputs = Inputs(np.random.default_rng(1), 1, 2, 1, 32)
    x = np.zeros((1, 4 * 32), np.float32)
    on_threads(norm_lengths, 1, 1, np.zeros((1, 3 * 32), np.float32), inputs.key_scales, inputs.sizes, x)
    assert not x.any()
    # A shorter one than the shortest is not brought to length.
    x[0, 0], tiny = 1e-9, np.finfo(np.float32).eps
    on_threads(norm_lengths, 1, 1, np.zeros((1, 3 * 32), np.float32), inputs.key_scales, inputs.sizes, x)
    np.testing.assert_allclose(x[0, 0], 1e-9 * np.sqrt(32) / tiny, rtol=1e-5)
