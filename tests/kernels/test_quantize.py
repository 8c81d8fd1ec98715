"""The quantizer: near the best there is, exact in what it writes, the same bits for any number of threads."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import reference
from kernels.kernel_inputs import in_shares, round_up

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.kernels.quantize import INT4_ENDS, INT4_TABLE, arrange_rows, quantize_share

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
LANES = 16
BITS = {"int4": 4, "int8": 8}
ZERO = {"int4": 8, "int8": 128}
UNPACK = {"int4": reference.unpack_int4, "int8": reference.unpack_int8}
# How much squared error the quantizer may have above the best scale's, over many groups.
ALLOWANCE = 1.01

methods = pytest.mark.parametrize("method", ["int4", "int8"])


def quantize(rows, method="int4", group_size=32, threads=1):
    """Return packed codes, scales, row scales and (squared error, square) of rows [N, K], padded."""
    blocks, K = round_up(rows.shape[0], LANES) // LANES, round_up(rows.shape[1], group_size)
    packed = np.full((blocks, K * BITS[method] // 32, LANES, 4), 0xA5, np.uint8)
    scales = np.full((blocks, K // group_size, LANES), 99, np.int8)
    row_scales = np.full((blocks, LANES), np.nan, np.float32)
    sums = np.zeros((threads, 2))
    in_shares(quantize_share, threads, rows, BITS[method], INT4_ENDS, packed, scales, row_scales, sums)
    return packed, scales, row_scales, sums.sum(axis=0)


def meaning(method, packed, scales, row_scales, shape=None):
    """Return the weights that the arrays stand for, float64."""
    if method == "int8":
        return reference.dequantize_int8(packed, scales, row_scales, shape)
    return reference.dequantize_int4(packed, scales, row_scales, INT4_TABLE, shape)


DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "laplace": lambda rng, shape: rng.laplace(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape),
    "one-sided": lambda rng, shape: np.abs(rng.standard_normal(shape)),
}


def assert_near_best(rows, group_size=32):
    *arrays, _ = quantize(rows, group_size=group_size)
    error = (meaning("int4", *arrays, rows.shape) - rows) ** 2
    groups = np.asarray(rows, np.float64).reshape(-1, group_size)
    best = sum(reference.best_scale(group)[1] for group in groups)
    assert error.sum() <= ALLOWANCE * best, f"{error.sum() / best - 1:.2%} above the best scales"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_int4_error_is_near_the_best_there_is(name, rng):
    assert_near_best((0.05 * DISTRIBUTIONS[name](rng, (16, 32))).astype(np.float32))


@pytest.mark.parametrize("group_size", [64, 128])
def test_int4_error_of_larger_groups_is_near_the_best(group_size, rng):
    assert_near_best(rng.standard_normal((16, group_size)).astype(np.float32), group_size)


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"needs a trained checkpoint at {STORIES}")
def test_int4_error_of_trained_weights_is_near_the_best():
    tensors = open_checkpoint(STORIES).tensors
    names = ("model.layers.0.self_attn.q_proj", "model.layers.2.mlp.gate_proj", "model.layers.4.self_attn.v_proj")
    rows = np.concatenate([tensors.read(f"{name}.weight")[:8] for name in names])
    assert_near_best(rows.astype(np.float32))


@methods
def test_the_error_it_reports_is_the_error_it_makes(method, rng):
    rows = rng.standard_normal((50, 172)).astype(np.float32)
    *arrays, (lost, square) = quantize(rows, method)
    error = meaning(method, *arrays, rows.shape) - rows
    # A difference is rounded in float32 before it is squared.
    assert lost == pytest.approx(np.sum(error**2), rel=1e-4)
    assert square == pytest.approx(np.sum(rows.astype(np.float64) ** 2), rel=1e-5)


def test_int8_is_off_by_half_a_code_at_most(rng):
    rows = rng.standard_normal((48, 128)).astype(np.float32)
    *arrays, _ = quantize(rows, "int8")
    steps = np.abs(rows).reshape(48, 4, 32).max(axis=2).astype(np.float64) / 127
    error = np.abs(meaning("int8", *arrays) - rows).reshape(48, 4, 32)
    # A scale rounded down, by up to half a 127th of the row's largest, clips the group's largest weight.
    clipped = 127 * steps.max(axis=1) / 254
    assert (error <= (0.5 * steps + clipped[:, None])[..., None]).all()


@methods
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_multiples_of_the_scale_are_exact(method, group_size, rng):
    highest = {"int4": 7, "int8": 127}[method]
    lowest = -8 if method == "int4" else -127
    codes = rng.integers(lowest, highest + 1, (32, 2 * group_size))
    codes[:, ::group_size] = lowest  # each group uses the end of the range
    steps = rng.choice([127, -127, 3, 60], (32, 2)) if method == "int4" else np.full((32, 2), 127)
    steps[:, 0] = 127
    steps = 2.0**-9 * steps
    rows = codes * np.repeat(steps, group_size, axis=1)
    packed, *scales, (lost, square) = quantize(rows.astype(np.float32), method, group_size)
    np.testing.assert_allclose(meaning(method, packed, *scales), rows, rtol=2e-7)
    np.testing.assert_array_equal(UNPACK[method](packed), codes + ZERO[method])
    assert lost <= 1e-13 * square


@methods
def test_zeros_and_padding_are_the_zero_code(method, rng):
    rows = rng.standard_normal((50, 172)).astype(np.float32)
    rows[3] = 0
    packed, _, row_scales, _ = quantize(rows, method)
    codes = UNPACK[method](packed)
    assert codes.shape == (64, 192)
    for part in (codes[3], codes[50:], codes[:, 172:]):
        assert (part == ZERO[method]).all()
    assert row_scales.reshape(-1)[3] == 0
    assert not row_scales.reshape(-1)[50:].any()


@methods
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_error_is_relative_to_the_weights(method, scale, rng):
    rows = (scale * rng.standard_normal((16, 64))).astype(np.float32)
    *arrays, _ = quantize(rows, method)
    error = meaning(method, *arrays) - rows
    assert np.sqrt(np.mean(error**2)) < {"int4": 0.1, "int8": 0.01}[method] * scale


@methods
def test_bfloat16_rows_equal_the_same_values_in_float32(method, rng):
    halves = rng.standard_normal((50, 172)).astype(ml_dtypes.bfloat16)
    narrow = quantize(halves.view(np.uint16), method)
    wide = quantize(halves.astype(np.float32), method)
    for a, b in zip(narrow, wide):
        assert a.tobytes() == b.tobytes()


@methods
def test_threads_write_the_same_bits(method, rng):
    rows = rng.standard_normal((100, 96)).astype(np.float32)
    one = quantize(rows, method)
    for threads in (2, 5, 9):
        for a, b in zip(quantize(rows, method, threads=threads)[:3], one):
            assert a.tobytes() == b.tobytes()


@methods
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_nonfinite_weights_show_in_the_error(method, bad, rng):
    for index in ((0, 0), (17, 40), (49, 171)):
        rows = rng.standard_normal((50, 172)).astype(np.float32)
        rows[index] = bad
        assert not np.isfinite(quantize(rows, method)[3]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_unquantized_rows_are_only_arranged(dtype, rng):
    rows = rng.standard_normal((50, 172)).astype(np.float32).astype(dtype)
    values = np.full((4, 176, LANES), np.nan, np.float32)
    arrange_rows(rows.view(np.uint16) if dtype == "bfloat16" else rows, values)
    expected = np.zeros((64, 176))
    expected[:50, :172] = rows
    np.testing.assert_array_equal(reference.unpack_f32(values), expected)
