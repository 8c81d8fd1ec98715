"""Attention whose queries weigh profiles of biases by distance, and have sinks, against the formula."""

from itertools import pairwise

import numpy as np
import pytest
from covering import covering
from kernels.cache_inputs import KVS, Pages, kvs
from kernels.kernel_inputs import EPS, assert_within
from kernels.test_attention import LOG2_E, NO_WINDOW, attention_of_codes, draw, run, run_together, tolerance
from reference_mixtures import profiled_attention

from tinychat.kernels.buffers import CacheBuffers
from tinychat.kernels.sizes import BLOCK, PER_LANE
from tinychat.kernels.variants import ProfileBias

FIRST = 5  # columns before the weights of profiles


class Scores:
    """The weights of profiles and the sinks of T queries, and the profiles."""

    def __init__(self, rng, T, H, R, reach):
        self.weights = rng.standard_normal((T, H, R)).astype(np.float32)
        self.profiles = rng.standard_normal((R, reach)).astype(np.float32)
        self.sinks = rng.standard_normal((T, H)).astype(np.float32)

    def rows(self, first=0, last=None):
        """Return the scores of some of the queries."""
        part = object.__new__(Scores)
        part.weights, part.sinks, part.profiles = self.weights[first:last], self.sinks[first:last], self.profiles
        return part

    def scoring(self):
        """Return these as the kernel takes them."""
        T, H, _ = self.weights.shape
        rows = [self.weights.reshape(T, -1), self.sinks]
        rows = np.pad(np.concatenate(rows, axis=1), ((0, 0), (FIRST, 3)), constant_values=np.nan)
        around = np.pad(self.profiles[:, ::-1] * np.float32(LOG2_E), ((0, 0), (BLOCK, BLOCK)))
        return ProfileBias(around.astype(np.float32), rows, FIRST, H)

    def expected(self, kv, q, k, v, window=0):
        """Return the attention of a cache of that type, and a tolerance."""
        (T, H, d), S, (R, reach) = q.shape, len(k), self.profiles.shape
        q64, weights, profiles, sinks = (x.astype(np.float64) for x in (q, self.weights, self.profiles, self.sinks))
        distances = np.arange(S - T, S)[:, None] - np.arange(S)
        by_key = np.broadcast_to(distances.clip(0, reach - 1)[:, None], (T, H, S))
        biases = np.where(distances[:, None] < reach, np.take_along_axis(weights @ profiles, by_key, axis=2), 0)
        parts = weights, profiles, sinks, window, d**-0.5
        expected = profiled_attention(q64, k, v, *parts)
        limit = tolerance(kv, q64, k, v, window or NO_WINDOW, biases=biases, sinks=sinks)
        # Each product of a weight and a profile is rounded, and so are sinks.
        steps = (R + 4) * LOG2_E * (np.abs(weights) @ np.abs(profiles)).max(axis=2) + 4 * np.abs(sinks)
        limit += EPS * steps[..., None] * profiled_attention(q64, k, np.abs(v), *parts)
        if kv != "int8":
            return expected, limit
        rounded, slack = attention_of_codes(q, k, v, window or NO_WINDOW, biases=biases, sinks=sinks)
        assert np.sqrt(np.mean((rounded - expected) ** 2)) < 0.02 * np.sqrt(np.mean(expected**2))
        return rounded, slack + 2 * limit


def check(kv, scores, q, cache, k, v, window=0):
    got = run(kv, q, cache, len(k) - len(q), window or NO_WINDOW, scoring=scores.scoring())
    assert_within(got, *scores.expected(kv, q, k, v, window))


# Any three of type, reach, window and part meet; windows are shorter and longer than what profiles reach.
@pytest.mark.parametrize(
    ("kv", "reach", "window", "part"),
    covering(
        KVS,
        [1, 37, 64, 65, 600],
        [0, 1, 22, 64, 90, 530],
        [(0, 1), (9, 1), (600, 1), (1100, 2), (62, 3), (0, 200), (500, 40), (1015, 17)],
        strength=3,
    ),
    ids=str,
)
def test_windows_and_reaches(kv, reach, window, part, rng):
    start, T = part
    q, *buffers = draw(rng, start + T, T, 4, 2, 24, kv)
    check(kv, Scores(rng, T, 4, 6, reach), q, *buffers, window)


@pytest.mark.parametrize(
    ("kv", "d", "heads", "R", "T"),
    [
        case
        for case in covering(KVS, [6, 48, 128], [(3, 3), (9, 3), (5, 1), (40, 1)], [1, 3, 16], [1, 2, 3, 17])
        if case[1] % PER_LANE.get(case[0], 1) == 0
    ],
    ids=str,
)
def test_heads_of_all_shapes(kv, d, heads, R, T, rng):
    H, G = heads
    q, *buffers = draw(rng, 70 + T, T, H, G, d, kv)
    check(kv, Scores(rng, T, H, R, 37), q, *buffers)


# The positions of what all weight goes to: those at the ends of the reach, in blocks and chunks before the query's.
@kvs
@pytest.mark.parametrize("reach", [1, 40, 64, 700])
@pytest.mark.parametrize(("start", "T"), [(8, 1), (767, 1), (1100, 1), (630, 17)])
def test_the_ends_of_the_reach(kv, reach, start, T, rng):
    q, cache, k, v = draw(rng, start + T, T, 4, 2, 24, kv)
    scores = Scores(rng, T, 4, 2, reach)
    scores.sinks[:], scores.weights[:] = -90, [1, 0.5]
    for distance in {0, reach // 2, reach - 1}:
        scores.profiles[:] = 0
        scores.profiles[:, distance] = 40
        got = run(kv, q, cache, start, scoring=scores.scoring())
        assert_within(got, *scores.expected(kv, q, k, v))
        reached = np.arange(start, start + T) >= distance
        wanted = np.repeat(v, 2, axis=1)[np.arange(start, start + T)[reached] - distance]
        np.testing.assert_allclose(got[reached], wanted, rtol=0.02, atol=0.02)
    # What is beyond has no bias: all weight goes to it.
    scores.profiles[:] = -60
    got = run(kv, q, cache, start, scoring=scores.scoring())
    far = Scores(rng, T, 4, 1, 1)
    far.weights[:], far.sinks[:] = 0, -90
    for t in np.flatnonzero(np.arange(start, start + T) >= reach):
        seen = start + t + 1 - reach
        alone, limit = far.rows(t, t + 1).expected(kv, q[t : t + 1], k[:seen], v[:seen])
        assert_within(got[t : t + 1], alone, limit + 1e-6)


@kvs
@pytest.mark.parametrize(("start", "T"), [(9, 1), (600, 1), (60, 17)])
def test_sinks_take_weight(kv, start, T, rng):
    q, *buffers = draw(rng, start + T, T, 4, 2, 24, kv)
    scores = Scores(rng, T, 4, 6, 37)
    # Each query has its own: one that takes nearly all, and one that takes nothing.
    scores.sinks[:, 1], scores.sinks[:, 2], scores.sinks[T // 2, 0] = 40, -90, 30
    got = run(kv, q, buffers[0], start, scoring=scores.scoring())
    assert_within(got, *scores.expected(kv, q, *buffers[1:]))
    assert np.abs(got[:, 1]).max() < 1e-6 and np.abs(got[T // 2, 0]).max() < 1e-6


@pytest.mark.parametrize(("kv", "window", "start"), covering(KVS, [0, 1, 50, 530], [0, 480, 1000], strength=2), ids=str)
def test_same_bits_in_any_chunks_on_any_threads(kv, window, start, rng):
    T, seen = 70, window or NO_WINDOW
    q, cache, *_ = draw(rng, start + T, T, 6, 2, 24, kv)
    scores = Scores(rng, T, 6, 6, 90)
    whole = run(kv, q, cache, start, seen, scoring=scores.scoring())
    for threads in (2, 3):
        assert run(kv, q, cache, start, seen, threads, scoring=scores.scoring()).tobytes() == whole.tobytes()
    for cuts in ([*range(T + 1)], [0, *np.sort(rng.choice(np.arange(1, T), 6, replace=False)), T]):
        parts = [
            run(
                kv, q[first:last], cache, start + first, seen, 1 + first % 3, scoring=scores.rows(first, last).scoring()
            )
            for first, last in pairwise(map(int, cuts))
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


@kvs
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize(
    "parts",
    [[(600, 1), (8, 1)], [(0, 40), (1100, 1), (63, 1), (509, 17)], [(70 * i, 1) for i in range(12)]],
    ids=["two", "a prompt beside others", "many"],
)
def test_sequences_of_a_step_have_their_own_scores(kv, parts, window, rng):
    H, seen, ends = 4, window or NO_WINDOW, np.cumsum([0, *(count for _, count in parts)])
    caches = [draw(rng, start + count, count, H, 2, 24, kv) for start, count in parts]
    scores = Scores(rng, ends[-1], H, 6, 90)
    alone = [
        run(kv, q, cache, start, seen, scoring=scores.rows(*rows).scoring())
        for (start, _), (q, cache, *_), rows in zip(parts, caches, pairwise(ends))
    ]
    firsts = np.cumsum([0] + [len(cache.table) + 2 for _, cache, *_ in caches])
    buffers = CacheBuffers(*(np.concatenate(each) for each in zip(*(cache.buffers for _, cache, *_ in caches))))
    tables = [cache.table + first for first, (_, cache, *_) in zip(firsts, caches)]
    q = np.concatenate([queries for queries, *_ in caches])
    for threads in (1, 3):
        got = run_together(kv, q, Pages(buffers, None), parts, tables, seen, threads, scoring=scores.scoring())
        assert got.tobytes() == np.concatenate(alone).tobytes()
