"""Four residual streams and LAuReL: predictions, corrections, and how streams begin and end."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, assert_within, on_threads

from tinychat.engine.arguments import ModelDims
from tinychat.engine.stream_parts import StreamRouter
from tinychat.kernels.altup import (
    add_laurel,
    add_quarter,
    add_to_streams,
    correct_streams,
    match_streams,
    pick_quarter,
    pick_stream,
    predict_streams,
    route_streams,
)
from tinychat.kernels.variants import RmsNorm

D, PADDED = 80, 96
SIZES = ModelDims(0, 0, 0, D, 0, np.float32(1e-6))
shapes = pytest.mark.parametrize(("T", "threads"), [(1, 1), (1, 3), (7, 1), (7, 2)])


def rows_of(rng, T):
    """Draw rows of D numbers and zeros behind them; one more, which no thread may write."""
    return np.pad(rng.standard_normal((T + 1, D)).astype(np.float32), ((0, 0), (0, PADDED - D)))


def others_of(rng, T):
    return rng.standard_normal((T + 1, 3 * D)).astype(np.float32)


def apart(others):
    return others.reshape(len(others), 3, D).swapaxes(0, 1)


def gains(rng):
    return np.pad(rng.uniform(0.5, 1.5, D).astype(np.float32), (0, PADDED - D))


def route(rng, T, threads, count, hidden):
    router = StreamRouter(
        RmsNorm(gains(rng)),
        (rng.standard_normal(4 * D) / np.sqrt(D)).astype(np.float32),
        rng.uniform(-1, 1, 4 * count).astype(np.float32),
    )
    out = np.zeros((T + 1, 32), np.float32)
    on_threads(route_streams, threads, T, hidden, router, SIZES, out)
    return router, out


@shapes
@pytest.mark.parametrize("count", [4, 16])
def test_streams_are_routed(count, T, threads, rng):
    hidden = rows_of(rng, T)
    router, out = route(rng, T, threads, count, hidden)
    normed = reference.rms_norm(hidden[:T, :D], router.norm.gain[:D], 1e-6)
    m = reference.modalities(normed, router.weight.reshape(4, D))
    mixing = router.mixing.reshape(count, 4)
    # Rounding of the sums over D, of tanh, and of the sum over four.
    error = np.abs(normed) @ np.abs(router.weight.reshape(4, D)).T * (D / 16 + 10) * EPS + 4 * EPS
    assert_within(out[:T, :count], m @ mixing.T, error @ np.abs(mixing).T + 8 * EPS)
    assert not out[T].any()


@shapes
def test_streams_are_predicted(T, threads, rng):
    hidden, others, before = rows_of(rng, T), others_of(rng, T), np.zeros((T + 1, PADDED), np.float32)
    factors = rng.uniform(-1, 1, (T + 1, 32)).astype(np.float32)
    streams = np.concatenate([hidden[None, :T, :D], apart(others)[:, :T]])
    m, coefficients = np.eye(4)[:1].repeat(T, 0), factors[:T, :16]
    expected = np.stack(
        [reference.predict_streams(streams[:, t : t + 1], m[:1], _first(coefficients[t]))[:, 0] for t in range(T)], 1
    )
    sizes = np.abs(streams) + np.abs(coefficients).max() * np.abs(streams).sum(axis=0)
    last = others[T].copy()
    on_threads(predict_streams, threads, T, factors, SIZES, hidden, others, before)
    assert_within(hidden[:T, :D], expected[0], 6 * EPS * sizes[0])
    assert_within(apart(others)[:, :T], expected[1:], 6 * EPS * sizes[1:])
    np.testing.assert_array_equal(before[:T], hidden[:T])
    np.testing.assert_array_equal(others[T], last)


def _first(column):
    """Return a matrix ``[n, 4]`` whose product with (1, 0, 0, 0) is the column."""
    return np.concatenate([column[:, None], np.zeros((len(column), 3))], axis=1)


@shapes
def test_streams_are_corrected(T, threads, rng):
    predicted, hidden, others, scale = rows_of(rng, T), rows_of(rng, T), others_of(rng, T), gains(rng)[:D]
    factors = rng.uniform(-1, 1, (T + 1, 32)).astype(np.float32)
    before = predicted.copy()
    streams = np.concatenate([predicted[None, :T, :D], apart(others)[:, :T]])
    expected = np.stack(
        [
            reference.correct_streams(
                streams[:, t : t + 1], hidden[t : t + 1, :D].astype(np.float64), np.eye(4)[:1], _first(factors[t, :4])
            )[:, 0]
            for t in range(T)
        ],
        1,
    )
    sizes = np.abs(streams) + 2 * (np.abs(hidden[:T, :D]) + np.abs(streams[0]))
    last = others[T].copy()
    on_threads(correct_streams, threads, T, factors, scale, SIZES, before, hidden, others)
    assert_within(hidden[:T, :D], expected[0], 4 * EPS * sizes[0])
    assert_within(apart(others)[:, :T], expected[1:], 4 * EPS * sizes[1:])
    np.testing.assert_array_equal(before[:T, :D], hidden[:T, :D] * scale)
    np.testing.assert_array_equal(before[T], predicted[T])
    np.testing.assert_array_equal(others[T], last)


@shapes
def test_laurel_is_added(T, threads, rng):
    branch, before, hidden = rows_of(rng, T), rows_of(rng, T), rows_of(rng, T)
    norm, of_input, x = RmsNorm(gains(rng)), RmsNorm(gains(rng)), hidden.copy()
    on_threads(add_laurel, threads, T, branch, norm, before, of_input, SIZES, x)
    parts = [hidden[:T, :D]]
    parts += [reference.rms_norm(v[:T, :D], n.gain[:D], 1e-6) for v, n in ((before, of_input), (branch, norm))]
    assert_within(x[:T, :D], np.sqrt(0.5) * sum(parts), (D / 16 + 8) * EPS * sum(map(np.abs, parts)))
    np.testing.assert_array_equal(x[T], hidden[T])


@shapes
def test_a_branch_is_added_to_all_others(T, threads, rng):
    branch, others, norm = rows_of(rng, T), others_of(rng, T), RmsNorm(gains(rng))
    found = others.copy()
    on_threads(add_to_streams, threads, T, branch, norm, SIZES, found)
    normed = reference.rms_norm(branch[:T, :D], norm.gain[:D], 1e-6)
    sizes = np.abs(apart(others)[:, :T]) + np.abs(normed)
    assert_within(apart(found)[:, :T], apart(others)[:, :T] + normed, (D / 16 + 8) * EPS * sizes)
    np.testing.assert_array_equal(found[T], others[T])


@shapes
def test_streams_begin_as_large_as_the_first(T, threads, rng):
    hidden, others = rows_of(rng, T), others_of(rng, T)
    others[0, :D] *= 1e-4  # less than the least size
    found = others.copy()
    on_threads(match_streams, threads, T, hidden, SIZES, found)
    expected = np.stack([reference.matched(other, hidden[:T, :D].astype(float)) for other in apart(others)[:, :T]])
    assert_within(apart(found)[:, :T], expected, (D / 16 + 8) * EPS * np.abs(expected))
    np.testing.assert_array_equal(found[T], others[T])


@shapes
def test_streams_end_in_their_mean(T, threads, rng):
    hidden, others, wanted = rows_of(rng, 9), others_of(rng, 9), rng.permutation(9)[:T]
    out, branch = np.zeros((T + 1, PADDED), np.float32), np.zeros((T + 1, PADDED), np.float32)
    on_threads(pick_quarter, threads, T, wanted, hidden, out)
    parts = [hidden[wanted, :D].astype(float)]
    for stream in range(3):
        on_threads(pick_stream, threads, T, wanted, others, stream, SIZES, branch)
        np.testing.assert_array_equal(branch[:T, :D], apart(others)[stream, wanted])
        on_threads(add_quarter, threads, T, wanted, hidden, branch, SIZES, out)
        parts.append(reference.matched(apart(others)[stream, wanted].astype(float), parts[0]))
    assert_within(out[:T, :D], np.mean(parts, axis=0), (D / 16 + 8) * EPS * np.abs(parts).sum(axis=0))
    assert not out[T].any() and not branch[T].any()


def results(tokens, threads):
    """Return the results of all stages for some of seven tokens."""
    rng, T = np.random.default_rng(5), len(tokens)
    rows = [*tokens, 7]
    hidden, branch, before, out = (rows_of(rng, 7)[rows] for _ in range(4))
    others, norm = others_of(rng, 7)[rows], RmsNorm(gains(rng))
    on_threads(match_streams, threads, T, hidden, SIZES, others)
    _, factors = route(rng, T, threads, 16, hidden)
    on_threads(predict_streams, threads, T, factors, SIZES, hidden, others, before)
    on_threads(add_laurel, threads, T, branch, norm, before, norm, SIZES, hidden)
    _, factors = route(rng, T, threads, 4, hidden)
    on_threads(correct_streams, threads, T, factors, norm.gain, SIZES, before, hidden, others)
    on_threads(add_to_streams, threads, T, branch, norm, SIZES, others)
    on_threads(pick_quarter, threads, T, np.arange(T), hidden, out)
    on_threads(add_quarter, threads, T, np.arange(T), hidden, branch, SIZES, out)
    return np.concatenate([array[:T] for array in (hidden, others, before, out)], axis=1)


def test_threads_and_chunks_write_the_same_bits():
    one = results(range(7), 1)
    for threads in (1, 3):
        assert one.tobytes() == results(range(7), threads).tobytes()
        assert one[2:3].tobytes() == results([2], threads).tobytes()
