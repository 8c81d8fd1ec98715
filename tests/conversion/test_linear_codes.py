"""Four-bit codes of a linear: near the best there is, under the inputs that it gets."""

import numpy as np
import pytest
import reference

from tinychat.conversion.gptq import (
    CORRECTION_SHRINKAGE,
    TrueLinear,
    correction,
    importance_of,
    output_error,
    second_moments,
    some,
    transposed,
)
from tinychat.conversion.linear_codes import DAMPING, SHRINKAGE, Coder, arrays_of
from tinychat.kernels.codebook import TABLE

GROUP = 32


def correlated_inputs(rng, tokens=400, columns=96):
    """Return inputs as a decoder's are: some columns far larger than others, and all correlated."""
    mixing = np.eye(columns) + 0.5 * rng.standard_normal((columns, columns)) / columns**0.5
    return (rng.standard_normal((tokens, columns)) @ mixing * np.exp(rng.standard_normal(columns))).astype(np.float32)


def with_feedback(weights, moments):
    """Return the codes of transposed weights under the second moments of their inputs."""
    coder = Coder()
    return coder.code_with_feedback(weights, coder.feedback(moments))


def best_weighted_error(group, importance):
    """Return the least weighted squared error of one group over 4000 scales of either sign, by brute force."""
    group, table = np.asarray(group, np.float64), TABLE.astype(np.float64)
    peak = np.abs(group).max()
    scales = np.concatenate([sign * peak / np.linspace(40, 200, 2000) for sign in (1, -1)])
    values = scales[:, None, None] * table
    nearest = np.abs(group[None, :, None] - values).min(axis=2)
    return ((nearest**2) * importance).sum(axis=1).min()


def test_scales_are_near_the_best_there_are(rng):
    weights = (0.05 * rng.standard_normal((16, GROUP))).astype(np.float32)
    importance = np.exp(rng.standard_normal(GROUP)).astype(np.float32)
    values = Coder().code(transposed(weights, GROUP), importance).values()
    lost = ((values.T - weights).astype(np.float64) ** 2 * importance).sum()
    best = sum(best_weighted_error(row, importance) for row in weights)
    assert lost <= 1.04 * best, f"{lost / best - 1:.2%} above the best scales"


def test_importance_serves_the_columns_that_weigh_most(rng):
    weights = rng.standard_normal((32, 96)).astype(np.float32)
    importance = np.where(np.arange(96) % 8 == 0, 100.0, 1.0).astype(np.float32)
    even = Coder().code(transposed(weights, 96), np.ones(96, np.float32)).values().T - weights
    weighed = Coder().code(transposed(weights, 96), importance).values().T - weights
    assert (weighed[:, ::8] ** 2).sum() < 0.8 * (even[:, ::8] ** 2).sum()


def test_feedback_takes_error_off_the_outputs(rng):
    inputs = correlated_inputs(rng)
    weights = rng.standard_normal((64, 96)).astype(np.float32)
    moments = second_moments(inputs, 96)
    stored = transposed(weights, 96)
    by_importance = Coder().code(stored, importance_of(moments)).values()
    fed = with_feedback(stored, moments).values()
    errors = [np.square(inputs @ (values - weights.T)).sum() for values in (by_importance, fed)]
    assert errors[1] < 0.8 * errors[0]
    reported = output_error(some(inputs @ fed), some(inputs @ weights.T))
    assert reported == pytest.approx((errors[1] / np.square(inputs @ weights.T).sum()) ** 0.5, rel=0.1)


def test_feedback_follows_the_formula(rng):
    """One column after the other, each with what the errors before it ask for: float64, without blocks."""
    K, group = 192, 32
    moments = second_moments(correlated_inputs(rng, 600, K), K)
    weights = transposed(rng.standard_normal((16, K)).astype(np.float32), K)
    coder = Coder(group)
    coded, (order, R, D) = coder.code_with_feedback(weights, coder.feedback(moments)), coder.feedback(moments)
    errors = (weights - coded.values())[order].astype(np.float64)
    table, scales = TABLE.astype(np.float64), coded.scales.astype(np.float64) * coded.row_scales
    differing = 0
    for i, k in enumerate(order):
        wanted = weights[k] + errors[:i].T @ R[:i, i].astype(np.float64)
        values = scales[k // group][:, None] * table
        nearest = np.abs(wanted[:, None] - values).argmin(axis=1)
        differing += int((nearest != coded.codes[k]).sum())
    # Sums in float32 may fall on the other side of a border between two codes.
    assert differing <= 0.01 * weights.size
    damped = moments[np.ix_(order, order)].astype(np.float64)
    damped += np.diag(SHRINKAGE * np.diag(damped)) + np.eye(K) * DAMPING * np.diag(moments).mean()
    np.testing.assert_allclose(R @ np.diag(D) @ R.T, damped, rtol=1e-4, atol=1e-4 * np.abs(damped).max())


@pytest.mark.parametrize("shape", [(16, 32), (50, 172), (5, 96)], ids=str)
def test_the_packed_arrays_stand_for_the_values(shape, rng):
    weights = rng.standard_normal(shape).astype(np.float32)
    columns = -(-shape[1] // GROUP) * GROUP
    coded = Coder().code(transposed(weights, columns), np.ones(columns, np.float32))
    arrays = arrays_of(coded)
    values = reference.dequantize_int4(arrays["packed"], arrays["scales"], arrays["row_scales"], arrays["table"])
    np.testing.assert_allclose(values, coded.values().T, rtol=1e-6)
    assert not values[shape[0] :].any()


def test_columns_that_no_text_uses_keep_their_weights(rng):
    inputs = correlated_inputs(rng)
    inputs[:, 32:64] = 0
    weights = rng.standard_normal((32, 96)).astype(np.float32)
    moments = second_moments(inputs, 96)
    for values in (
        Coder().code(transposed(weights, 96), importance_of(moments)).values(),
        with_feedback(transposed(weights, 96), moments).values(),
    ):
        error = (values.T - weights)[:, 32:64]
        assert np.sqrt(np.mean(error**2)) < 0.12


def test_threads_write_the_same_bits(rng, monkeypatch):
    weights = transposed(rng.standard_normal((100, 96)).astype(np.float32), 96)
    moments = second_moments(correlated_inputs(rng), 96)
    one = with_feedback(weights, moments)
    monkeypatch.setattr("tinychat.conversion.cores.THREADS", 5)
    five = with_feedback(weights, moments)
    for a, b in zip(one, five):
        assert a.tobytes() == b.tobytes()


def test_corrected_weights_give_what_the_checkpoint_would(rng):
    """Errors that follow from the inputs are made up for; those that do not are left alone."""
    true_inputs = correlated_inputs(rng, 4000)
    inputs = true_inputs @ (np.eye(96) + 0.1 * rng.standard_normal((96, 96)) / 96**0.5).astype(np.float32)
    residual = rng.standard_normal((4000, 64)).astype(np.float32)
    true_residual = residual + inputs @ (0.05 * rng.standard_normal((96, 64))).astype(np.float32)
    weights = rng.standard_normal((96, 64)).astype(np.float32)
    wanted = true_inputs @ weights + true_residual - residual
    moments = second_moments(inputs, 96)
    true = TrueLinear(true_inputs, true_residual, true_inputs @ weights)
    fixed = weights + correction(weights, moments, inputs, residual, true)
    before, after = (np.square(inputs @ w - wanted).sum() for w in (weights, fixed))
    assert after < 0.35 * before
    nothing = correction(weights, moments, inputs, residual, TrueLinear(inputs, residual, inputs @ weights))
    np.testing.assert_allclose(nothing, 0, atol=1e-5)


@pytest.mark.parametrize("rows", [64, 160])
@pytest.mark.parametrize("tokens", [60, 300])
@pytest.mark.parametrize("has_residual", [False, True])
def test_corrections_follow_the_formula(tokens, rows, has_residual, rng):
    """However many equations there are: W + (H + D)**-1 (E[y (x - y)'] W + E[y r']), in float64."""
    K, T = 96, tokens
    true_inputs = correlated_inputs(rng, T)
    inputs = (true_inputs + 0.1 * rng.standard_normal((T, K))).astype(np.float32)
    residuals = [rng.standard_normal((T, rows)).astype(np.float32) for _ in range(2)] if has_residual else [None, None]
    weights = rng.standard_normal((K, rows)).astype(np.float32)
    y, x, W = (array.astype(np.float64) for array in (inputs, true_inputs, weights))
    H = y.T @ y / T
    H += np.diag(CORRECTION_SHRINKAGE * (np.diag(H) + np.diag(H).mean()) + 1e-12)
    wanted = y.T @ (x - y) / T @ W
    if has_residual:
        wanted += y.T @ (residuals[1].astype(np.float64) - residuals[0]) / T
    true = TrueLinear(true_inputs, residuals[1], true_inputs @ weights)
    found = correction(weights, second_moments(inputs, K), inputs, residuals[0], true)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.linalg.solve(H, wanted), atol=2e-4)
