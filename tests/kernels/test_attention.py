"""Attention over a cache that holds NaN wherever nothing was stored: what must not be read is not read."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import reference
from covering import covering
from kernels.cache_inputs import HALF_ULP, KVS, Pages, fill_cache, kvs
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.attend import attend
from tinychat.kernels.buffers import CacheBuffers, attention_scratch, max_partials
from tinychat.kernels.sizes import BLOCK, HAS_BF16, ITEM_ROWS, MULTIPLIES_PAIRS, PER_LANE
from tinychat.kernels.variants import AttentionSink, Before, BothWays, JointImages, SoftCap, Unchanged

NO_WINDOW = 2**31
UNCHANGED = Unchanged()
LOG2_E = np.log2(np.e)


class Rows(NamedTuple):
    """The fields of a batch that the kernel reads."""

    counts: np.ndarray
    firsts: np.ndarray
    positions: np.ndarray
    tables: np.ndarray
    images: np.ndarray


def allocate(kv, d, context, threads, multiplies_pairs=MULTIPLIES_PAIRS):
    """Return scratch full of rubbish."""
    scratch = attention_scratch(kv, d, threads, max_partials(context, threads), multiplies_pairs)
    *arrays, totals, partials = scratch
    for array in (*arrays, *totals, *partials):
        array.view(np.uint8)[:] = 0xFF
    return scratch


def run(kv, q, cache, start, window=NO_WINDOW, threads=1, **options):
    """Run the kernel for queries [T, H, d] at positions from `start` on; return [T, H, d]."""
    return run_together(kv, q, cache, [(start, len(q))], [cache.table], window, threads, **options)


def run_together(
    kv,
    q,
    cache,
    parts,
    tables,
    window=NO_WINDOW,
    threads=1,
    scoring=UNCHANGED,
    multiplies_pairs=MULTIPLIES_PAIRS,
    ends=(),
):
    """Attend from several sequences: (start, count) of each, and its blocks of the cache; ends : of images."""
    T, H, d = q.shape
    context = max(map(len, tables)) * BLOCK
    scaled = (q.reshape(T, H * d) * np.float32(LOG2_E / np.sqrt(d))).astype(np.float32)
    qkv = np.concatenate([scaled, np.full((T, 48), np.nan, np.float32)], axis=1)
    out = np.full((T + 1, H * d + 16), UNTOUCHED)
    scratch = allocate(kv, d, context, threads, multiplies_pairs)
    job = Rows(
        np.array([T, T, len(parts)]),
        np.cumsum([0] + [count for _, count in parts]),
        np.concatenate([np.arange(start, start + count) for start, count in parts]),
        np.full((len(parts), max(map(len, tables)) + 1), -1, np.int32),
        np.array(ends, np.int64),
    )
    for i, table in enumerate(tables):
        job.tables[i, : len(table)] = table
    sizes = ModelDims(0, H, d, 0, 0, EPS)
    on_threads(attend, threads, job, qkv, sizes, window, scoring, cache.layer(), scratch, out)
    assert (out[T:] == UNTOUCHED).all()
    assert (out[:, H * d :] == UNTOUCHED).all()
    return out[:T, : H * d].reshape(T, H, d)


def draw(rng, S, T, H, G, d, kv, spread=1.0):
    """Return queries of the last T of S positions, and a cache with what it means."""
    q = (spread * rng.standard_normal((T, H, d))).astype(np.float32)
    k, v = rng.standard_normal((2, S, G, d)).astype(np.float32)
    return q, *fill_cache(kv, k, v)


def attention_of_codes(q, k, v, window, both_ways=False, biases=None, sinks=None, ends=()):
    """Return attention by the rounding of `kernels.quads` in float64, and by how much numbers near a tie may move it.

    q : float32; k, v : what a cache of int8 holds. A query is rounded in float32, as the kernel does it. biases [T, H,
    S] and sinks [T, H] : those of scores, in models that have them.
    """
    (T, H, d), (S, G) = q.shape, k.shape[:2]
    q = (q * np.float32(LOG2_E / np.sqrt(d))).astype(np.float32)
    peaks = np.abs(q).max(axis=-1, keepdims=True)
    q = np.rint(q * (np.float32(127) / peaks)).astype(np.float64) * (peaks / np.float32(127))
    v_steps = np.abs(v).max(axis=-1) / 127
    biases, sinks = (
        np.zeros((T, H, S)) if biases is None else biases,
        np.full((T, H), -np.inf) if sinks is None else sinks,
    )
    out, slack = np.empty(q.shape), np.zeros(q.shape)
    for t, h in np.ndindex(T, H):
        stop = S - T + t + 1
        end = min(stop - 1 + window, S) if both_ways else max([stop, *ends[t : t + 1]])
        seen = np.arange(max(0, stop - window), end)
        g = h // (H // G)
        scores = k[seen, g] @ q[t, h] + LOG2_E * biases[t, h, seen]
        weights = 2 ** (scores - scores.max())
        total = weights.sum() + 2 ** (LOG2_E * sinks[t, h] - scores.max())
        factors, codes = weights * v_steps[seen, g], v[seen, g] / v_steps[seen, g, None]
        largest = np.array([factors[seen // BLOCK == block].max() for block in seen // BLOCK])
        whole = 127 * factors / largest
        out[t, h] = (np.rint(whole) * largest / 127) @ codes / total
        may_differ = np.abs(whole % 1 - 0.5) < 2e-3
        slack[t, h] = (may_differ * largest / 127) @ np.abs(codes) / total
    return out, slack


def expected_attention(kv, q, k, v, window=0, both_ways=False, ends=()):
    """Return the attention of a cache of that type, and a tolerance."""
    expected = reference.attention(q, k, v, window, both_ways=both_ways, ends=ends)
    limit = tolerance(kv, q.astype(np.float64), k, v, window or NO_WINDOW, both_ways, ends=ends)
    if kv != "int8":
        return expected, limit
    rounded, slack = attention_of_codes(q, k, v, window or NO_WINDOW, both_ways, ends=ends)
    # Rounding to codes costs little: a hundredth of what there is.
    assert np.sqrt(np.mean((rounded - expected) ** 2)) < 0.02 * np.sqrt(np.mean(expected**2))
    return rounded, slack + 2 * limit


def tolerance(kv, q, k, v, window, both_ways=False, biases=None, sinks=None, ends=()):
    """Bound the error: a score is off by some ulp of its absolute sum, a weight by that much relative to itself.

    Beside a cache of pairs, queries and weights are pairs too, and as coarse.
    """
    T, H, d = q.shape
    S, G = k.shape[:2]
    unit = 2 * HALF_ULP["bf16"] if kv == "bf16" else EPS
    biases, sinks = (
        np.zeros((T, H, S)) if biases is None else biases,
        np.full((T, H), -np.inf) if sinks is None else sinks,
    )
    bound = np.empty(q.shape)
    for t in range(T):
        stop = S - T + t + 1
        end = min(stop - 1 + window, S) if both_ways else max([stop, *ends[t : t + 1]])
        seen = slice(max(0, stop - window), end)
        for h in range(H):
            products = np.abs(k[seen, h // (H // G)]) @ np.abs(q[t, h]) / np.sqrt(d) * LOG2_E
            # Of float32 each of d sums is rounded; of pairs each product, once.
            steps = products.max() / 2 if kv == "bf16" else (np.sqrt(d) * products.max() + np.sqrt(stop)) / 2
            scores = k[seen, h // (H // G)] @ q[t, h] / np.sqrt(d) + biases[t, h, seen]
            weights = reference.softmax(np.append(scores, sinks[t, h]))[:-1]
            bound[t, h] = (steps + 4) * unit * (weights @ np.abs(v[seen, h // (H // G)]))
    return bound


def check(kv, q, cache, k, v, window=0, threads=1):
    got = run(kv, q, cache, len(k) - len(q), window or NO_WINDOW, threads)
    assert_within(got, *expected_attention(kv, q, k, v, window))


# Any three of type, size, grouping and part meet: what is stored in pairs or lanes, how rows fill an item of work, and
# where a block ends.
@pytest.mark.parametrize(
    ("kv", "d", "heads", "part"),
    [
        (kv, d, *others)
        for kv, d, *others in covering(
            KVS,
            [6, 12, 24, 64, 80, 128],
            [(3, 3), (4, 2), (9, 3), (5, 1)],
            [(0, 1), (9, 1), (70, 1), (0, 17), (60, 7)],
            strength=3,
        )
        if d % PER_LANE.get(kv, 1) == 0
    ],
    ids=str,
)
def test_heads_of_all_shapes(kv, d, heads, part, rng):
    (H, G), (start, T) = heads, part
    q, *buffers = draw(rng, start + T, T, H, G, d, kv)
    check(kv, q, *buffers)


@pytest.mark.parametrize(("start", "T"), [(9, 1), (600, 1), (60, 17)])
def test_scores_are_capped(start, T, rng):
    cap = 1.5
    q, cache, k, v = draw(rng, start + T, T, 4, 2, 24, "f32", spread=3.0)
    got = run("f32", q, cache, start, scoring=SoftCap(np.float32(cap * LOG2_E)))
    expected = reference.attention(q, k, v, cap=cap)
    assert np.abs(expected - reference.attention(q, k, v)).max() > 0.1
    # Each score is off by some ulp of the cap.
    assert_within(got, expected, tolerance("f32", q.astype(np.float64), k, v, NO_WINDOW) + 8 * cap * EPS)


@pytest.mark.parametrize(("start", "T"), [(9, 1), (600, 1), (60, 17)])
def test_sinks_take_weight(start, T, rng):
    # Among them one that takes nearly all, and one that takes nothing.
    sinks = np.array([0.5, 40.0, -90.0, 6.0], np.float32)
    q, cache, k, v = draw(rng, start + T, T, 4, 2, 24, "f32")
    got = run("f32", q, cache, start, scoring=AttentionSink((sinks * LOG2_E).astype(np.float32)))
    expected = reference.attention(q, k, v, sinks=sinks.astype(np.float64))
    assert np.abs(expected[:, 3] - reference.attention(q, k, v)[:, 3]).max() > 1e-2
    assert np.abs(expected[:, 1]).max() < 1e-3
    # The sink's score is off by an ulp.
    assert_within(got, expected, tolerance("f32", q.astype(np.float64), k, v, NO_WINDOW) + 64 * EPS * np.abs(expected))


@kvs
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
@pytest.mark.parametrize("start", [0, 8, 62, 63, 64, 500, 511, 512, 1023])
def test_past_of_all_lengths(kv, T, start, rng):
    q, *buffers = draw(rng, start + T, T, 4, 2, 24, kv)
    check(kv, q, *buffers)


@kvs
@pytest.mark.parametrize("window", [1, 2, 16, 20, 64, 65, 512, 700])
@pytest.mark.parametrize(("start", "T"), [(0, 1), (640, 1), (1100, 1), (0, 200), (55, 17), (1000, 60)])
def test_windows(kv, window, start, T, rng):
    q, *buffers = draw(rng, start + T, T, 4, 2, 24, kv)
    check(kv, q, *buffers, window)


@kvs
@pytest.mark.parametrize("window", [0, 1, 2, 20, 65, 300])
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200, 601])
def test_windows_of_both_sides(kv, window, T, rng):
    q, cache, k, v = draw(rng, T, T, 4, 2, 24, kv)
    got = [run(kv, q, cache, 0, BothWays(np.int64(window or NO_WINDOW)), threads) for threads in (1, 3)]
    assert_within(got[0], *expected_attention(kv, q, k, v, window, both_ways=True))
    assert got[0].tobytes() == got[1].tobytes()


def ends_of(start, T, images):
    """Return the ends of the images of T tokens from `start` on; images : (first position, end) of each."""
    ends = np.zeros(start + T, np.int64)
    for first, end in images:
        ends[first:end] = end
    return ends[start:]


# Images at the beginning, side by side, across the borders of blocks and chunks, and one whose beginning is cached.
IMAGES = [(0, 7), (9, 30), (30, 70), (500, 515), (520, 590), (630, 640)]


@pytest.mark.parametrize("kv", ["bf16", "int8"])  # each is compiled for these tests alone
@pytest.mark.parametrize("window", [0, 1, 20, 65])
@pytest.mark.parametrize(("start", "T"), [(0, 9), (0, 71), (40, 40), (510, 5), (0, 640), (589, 1), (640, 1)])
def test_images_are_seen_as_a_whole(kv, window, start, T, rng):
    images = [image for image in IMAGES if image[1] <= start + T]
    q, cache, k, v = draw(rng, start + T, T, 4, 2, 24, kv)
    ends, seen = ends_of(start, T, images), JointImages(np.int64(window or NO_WINDOW))
    got = [run(kv, q, cache, start, seen, threads, ends=ends) for threads in (1, 3)]
    assert_within(got[0], *expected_attention(kv, q, k, v, window, ends=ends))
    assert got[0].tobytes() == got[1].tobytes()
    # Where no image is, the bits are those of other models.
    plain = run(kv, q, cache, start, window or NO_WINDOW)
    alike = (ends <= np.arange(start, start + T) + 1).nonzero()[0]
    assert got[0][alike].tobytes() == plain[alike].tobytes()
    if len(alike) < T and window != 1:
        assert (np.delete(got[0], alike, 0) != np.delete(plain, alike, 0)).any()


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("window", [0, 50])
def test_chunks_between_images_give_the_same_bits(kv, window, rng):
    T, images = 640, IMAGES
    q, cache, _, _ = draw(rng, T, T, 6, 2, 24, kv)
    ends, seen = ends_of(0, T, images), JointImages(np.int64(window or NO_WINDOW))
    whole = run(kv, q, cache, 0, seen, ends=ends)
    inside = {position for first, end in images for position in range(first + 1, end)}
    outside = [position for position in range(1, T) if position not in inside]
    for count in (3, 40):
        cuts = [0, *sorted(rng.choice(outside, count, replace=False).tolist()), T]
        parts = [run(kv, q[a:b], cache, a, seen, 2, ends=ends[a:b]) for a, b in pairwise(cuts)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kv", ["bf16", "int8"])  # each is compiled for this test alone
@pytest.mark.parametrize("window", [0, 2, 3, 24, 65, 514])
def test_windows_that_end_before_the_query(kv, window, rng):
    positions = [1, 9, 64, 65, 512, 640, 1100]
    together = []
    for position in positions:
        q, cache, k, v = draw(rng, position + 1, 1, 4, 2, 24, kv)
        got = [run(kv, q, cache, position, Before(np.int64(window or NO_WINDOW)), threads) for threads in (1, 3)]
        assert_within(got[0], *expected_attention(kv, q, k[:position], v[:position], max(0, window - 1)))
        assert got[0].tobytes() == got[1].tobytes()
        together.append((q, cache, got[0]))
    firsts = np.cumsum([0] + [len(cache.table) + 2 for _, cache, _ in together])
    buffers = CacheBuffers(*(np.concatenate(parts) for parts in zip(*(cache.buffers for _, cache, _ in together))))
    tables = [cache.table + first for first, (_, cache, _) in zip(firsts, together)]
    q = np.concatenate([queries for queries, *_ in together])
    parts = [(position, 1) for position in positions]
    for threads in (1, 3):
        got = run_together(kv, q, Pages(buffers, None), parts, tables, Before(np.int64(window or NO_WINDOW)), threads)
        assert got.tobytes() == np.concatenate([alone for *_, alone in together]).tobytes()


@kvs
@pytest.mark.parametrize("T", [1, 3, 17])
def test_more_rows_than_one_item_of_work(kv, T, rng):
    H = 2 * ITEM_ROWS + 5
    q, *buffers = draw(rng, 90 + T, T, H, 1, 8, kv)
    check(kv, q, *buffers)


@pytest.mark.parametrize("T", [1, 17])
@pytest.mark.parametrize("spread", [0.0, 30.0, 1000.0])
def test_flat_and_spiked_scores(T, spread, rng):
    q, *buffers = draw(rng, 600, T, 4, 2, 24, "f32", spread)
    check("f32", q, *buffers)


@pytest.mark.skipif(not HAS_BF16, reason="this instruction set has no product of pairs")
@pytest.mark.parametrize(("start", "T"), [(0, 1), (530, 2), (1000, 5), (500, 40)])
@pytest.mark.parametrize("d", [6, 80])
def test_products_of_pairs_give_the_bits_of_floats(start, T, d, rng):
    """Processors that have both take the faster; the other compiles an attention of its own here."""
    q, cache, _, _ = draw(rng, start + T, T, 6, 2, d, "bf16")
    one, other = (run("bf16", q, cache, start, multiplies_pairs=pairs) for pairs in (False, True))
    assert one.tobytes() == other.tobytes()


# Rows of an item fill tiles of several heights: in all of them, and wherever in one it stands, a row has the same bits.
@kvs
@pytest.mark.parametrize("heads", [(3, 1), (8, 1), (5, 5)])
def test_rows_have_the_same_bits_in_tiles_of_all_heights(kv, heads, rng):
    T, (H, G) = 17, heads
    q, cache, _, _ = draw(rng, 550 + T, T, H, G, 24, kv)
    single = np.concatenate([run(kv, q[t : t + 1], cache, 550 + t) for t in range(T)])
    for count in range(2, T + 1):
        assert run(kv, q[:count], cache, 550).tobytes() == single[:count].tobytes()


@kvs
@pytest.mark.parametrize(
    ("start", "T", "window"), [(500, 1, 0), (1300, 1, 0), (1300, 1, 600), (490, 40, 0), (40, 33, 20)]
)
def test_threads_give_the_same_bits(kv, start, T, window, rng):
    q, cache, _, _ = draw(rng, start + T, T, 6, 2, 40, kv)
    one = run(kv, q, cache, start, window or NO_WINDOW)
    for threads in (2, 3):
        assert run(kv, q, cache, start, window or NO_WINDOW, threads).tobytes() == one.tobytes()


# How queries are cut meets each type, each window and each part of the first.
@pytest.mark.parametrize(("kv", "window", "start"), covering(KVS, [0, 1, 50, 530], [0, 480, 1000]))
def test_chunks_of_queries_give_the_same_bits(kv, window, start, rng):
    T = 70
    q, cache, _, _ = draw(rng, start + T, T, 6, 2, 24, kv)
    whole = run(kv, q, cache, start, window or NO_WINDOW)
    for size in (1, 7, 33):
        parts = [run(kv, q[t : t + size], cache, start + t, window or NO_WINDOW, 2) for t in range(0, T, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_a_window_of_one_returns_the_tokens_value(rng):
    q, cache, _, v = draw(rng, 40, 17, 4, 2, 24, "f32")
    got = run("f32", q, cache, 23, window=1)
    np.testing.assert_allclose(got, np.repeat(v[23:], 2, axis=1), rtol=EPS)


def test_equal_weights_of_pairs_average_exactly(rng):
    """Whatever a weight is rounded to, the sum it is divided by has been rounded alike."""
    q, cache, _, v = draw(rng, 200, 3, 2, 2, 16, "bf16", spread=0.0)
    got = run("bf16", q, cache, 197)
    np.testing.assert_allclose(got[2], v.mean(axis=0), rtol=1e-4, atol=1e-6)


@kvs
@pytest.mark.parametrize("T", [1, 17])
def test_a_nan_key_gives_nan(kv, T, rng):
    q, cache, _, _ = draw(rng, 100, T, 4, 2, 24, kv)
    keys, _, scales = cache.buffers
    for block in cache.table:
        if kv == "int8":
            scales[block, 0, 0, 0] = np.nan
        else:
            keys[block, 0, 0].view(np.uint8)[:] = 0xFF
    assert np.isnan(run(kv, q, cache, 100 - T)[:, :2]).all()


@kvs
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize(
    "parts",
    [
        [(600, 1), (8, 1)],
        [(0, 40), (1100, 1), (63, 1), (509, 17)],
        [(70 * i, 1) for i in range(12)],
        [(9, 2), (9, 3), (640, 5)],
    ],
    ids=["two", "a prompt beside others", "many", "few rows each"],
)
def test_sequences_of_a_step_do_not_see_each_other(kv, parts, window, rng):
    H, G, d = 4, 2, 24
    caches = [draw(rng, start + count, count, H, G, d, kv) for start, count in parts]
    firsts = np.cumsum([0] + [len(cache.table) + 2 for _, cache, *_ in caches])
    together = Pages(
        CacheBuffers(*(np.concatenate(parts) for parts in zip(*(cache.buffers for _, cache, *_ in caches)))), None
    )
    tables = [cache.table + first for first, (_, cache, *_) in zip(firsts, caches)]
    q = np.concatenate([queries for queries, *_ in caches])
    for seen in (window or NO_WINDOW, BothWays(np.int64(window or NO_WINDOW))):
        alone = [run(kv, queries, cache, start, seen) for (start, _), (queries, cache, *_) in zip(parts, caches)]
        for threads in (1, 3):
            got = run_together(kv, q, together, parts, tables, seen, threads)
            assert got.tobytes() == np.concatenate(alone).tobytes()
