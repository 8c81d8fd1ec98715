"""Attention over a cache that holds NaN wherever nothing was stored: what must not be read is not read."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import (
    EPS,
    UNTOUCHED,
    assert_within,
    fill_cache,
    on_threads,
    round_up,
)

from tinychat.kernels.attention import BLOCK, CHUNK, ITEM_ROWS, ROWS, TILES, AttentionScratch, attend

NO_WINDOW = 2**31
LOG2_E = np.log2(np.e)
LANES = 16

kvs = pytest.mark.parametrize("kv", ["f16", "f32"])


def allocate(G, group, d, context, threads):
    """Return scratch full of rubbish."""
    state = TILES * (2 * LANES + round_up(d, LANES) * ROWS)
    slots = max(threads, G * -(-group // ITEM_ROWS) * (context // CHUNK + 1))
    shapes = [
        (threads, TILES * ROWS * d + LANES),
        (threads, BLOCK * ROWS + 2 * LANES),
        (threads, state),
        (slots, state),
    ]
    return AttentionScratch(*(np.full(shape, np.nan, np.float32) for shape in shapes))


def run(q, keys, values, start, window=NO_WINDOW, threads=1):
    """Run the kernel for queries [T, H, d] at positions from `start` on; return [T, H, d]."""
    T, H, d = q.shape
    G, context = keys.shape[0], values.shape[1]
    scaled = (q.reshape(T, H * d) * np.float32(LOG2_E / np.sqrt(d))).astype(np.float32)
    qkv = np.concatenate([scaled, np.full((T, 48), np.nan, np.float32)], axis=1)
    out = np.full((T + 1, H * d + 16), UNTOUCHED)
    mailbox = np.zeros(256, np.int64)
    scratch = allocate(G, H // G, d, context, threads)
    on_threads(attend, threads, mailbox, T, qkv, H, start, window, keys, values, scratch, out)
    assert (out[T:] == UNTOUCHED).all()
    assert (out[:, H * d :] == UNTOUCHED).all()
    return out[:T, : H * d].reshape(T, H, d)


def draw(rng, S, T, H, G, d, kv, spread=1.0):
    """Return queries of the last T of S positions, and a cache with what it means."""
    q = (spread * rng.standard_normal((T, H, d))).astype(np.float32)
    k, v = rng.standard_normal((2, S, G, d)).astype(np.float32)
    return q, *fill_cache(kv, k, v)


def tolerance(q, k, v, window):
    """Bound the error: a score is off by some ulp of its absolute sum, a weight by that much relative to itself."""
    T, H, d = q.shape
    S, G = k.shape[:2]
    bound = np.empty(q.shape)
    for t in range(T):
        stop = S - T + t + 1
        seen = slice(max(0, stop - window), stop)
        for h in range(H):
            products = np.abs(k[seen, h // (H // G)]) @ np.abs(q[t, h]) / np.sqrt(d) * LOG2_E
            steps = (np.sqrt(d) * products.max() + np.sqrt(stop)) / 2 + 4
            weights = reference.softmax(k[seen, h // (H // G)] @ q[t, h] / np.sqrt(d))
            bound[t, h] = steps * EPS * (weights @ np.abs(v[seen, h // (H // G)]))
    return bound


def check(q, buffers, window=0, threads=1):
    keys, values, k, v = buffers
    got = run(q, keys, values, len(k) - len(q), window or NO_WINDOW, threads)
    expected = reference.attention(q, k, v, window)
    assert_within(got, expected, tolerance(q.astype(np.float64), k, v, window or NO_WINDOW))


@kvs
@pytest.mark.parametrize("d", [6, 8, 24, 64, 80, 128])
@pytest.mark.parametrize(("H", "G"), [(3, 3), (4, 2), (9, 3), (5, 1)])
@pytest.mark.parametrize(("start", "T"), [(0, 1), (9, 1), (70, 1), (0, 17), (60, 7)])
def test_heads_of_all_shapes(kv, d, H, G, start, T, rng):
    q, *buffers = draw(rng, start + T, T, H, G, d, kv)
    check(q, buffers)


@kvs
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
@pytest.mark.parametrize("start", [0, 8, 62, 63, 64, 500, 511, 512, 1023])
def test_past_of_all_lengths(kv, T, start, rng):
    q, *buffers = draw(rng, start + T, T, 4, 2, 24, kv)
    check(q, buffers)


@pytest.mark.parametrize("window", [1, 2, 16, 20, 64, 65, 512, 700])
@pytest.mark.parametrize(("start", "T"), [(0, 1), (640, 1), (1100, 1), (0, 200), (55, 17), (1000, 60)])
def test_windows(window, start, T, rng):
    q, *buffers = draw(rng, start + T, T, 4, 2, 24, "f32")
    check(q, buffers, window)


@pytest.mark.parametrize("T", [1, 3, 17])
def test_more_rows_than_one_item_of_work(T, rng):
    H = 2 * ITEM_ROWS + 5
    q, *buffers = draw(rng, 90 + T, T, H, 1, 8, "f16")
    check(q, buffers)


@pytest.mark.parametrize("T", [1, 17])
@pytest.mark.parametrize("spread", [0.0, 30.0, 1000.0])
def test_flat_and_spiked_scores(T, spread, rng):
    q, *buffers = draw(rng, 600, T, 4, 2, 24, "f32", spread)
    check(q, buffers)


@kvs
@pytest.mark.parametrize(
    ("start", "T", "window"), [(500, 1, 0), (1300, 1, 0), (1300, 1, 600), (490, 40, 0), (40, 33, 20)]
)
def test_threads_give_the_same_bits(kv, start, T, window, rng):
    q, keys, values, _, _ = draw(rng, start + T, T, 6, 2, 40, kv)
    one = run(q, keys, values, start, window or NO_WINDOW)
    for threads in (2, 3):
        assert run(q, keys, values, start, window or NO_WINDOW, threads).tobytes() == one.tobytes()


@kvs
@pytest.mark.parametrize("window", [0, 1, 50, 530])
@pytest.mark.parametrize("start", [0, 480, 1000])
def test_chunks_of_queries_give_the_same_bits(kv, window, start, rng):
    T = 70
    q, keys, values, _, _ = draw(rng, start + T, T, 6, 2, 24, kv)
    whole = run(q, keys, values, start, window or NO_WINDOW)
    for size in (1, 7, 33):
        parts = [run(q[t : t + size], keys, values, start + t, window or NO_WINDOW, 2) for t in range(0, T, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_a_window_of_one_returns_the_own_value(rng):
    q, *buffers = draw(rng, 40, 17, 4, 2, 24, "f32")
    _, _, _, v = buffers
    got = run(q, *buffers[:2], 23, window=1)
    np.testing.assert_allclose(got, np.repeat(v[23:], 2, axis=1), rtol=EPS)
