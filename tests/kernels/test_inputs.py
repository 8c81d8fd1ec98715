"""Inputs of linears: norm, SwiGLU and plain rows, as floats and as codes."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import (
    EPS,
    METHODS,
    assert_within,
    decode,
    decode_floats,
    empty_activations,
    on_threads,
    random_weight,
    scratch_of,
)

from tinychat.engine.arguments import ModelDims
from tinychat.engine.mlp_parameters import ACTIVATIONS
from tinychat.kernels.dot import DOT_ZERO
from tinychat.kernels.inputs import cut_gates, quantize_activated, quantize_normed, quantize_plain
from tinychat.kernels.variants import (
    CappedSwiglu,
    ClampedSwiglu,
    GeluTanh,
    LayerNorm,
    LimitedSilu,
    NoNorm,
    NormedActivation,
    Relu2,
    RmsNorm,
    Silu,
    Ungated,
    Xielu,
)

LENGTHS = (1, 2, 3, 17, 200)
# (size, padded size, group size): 172 is padded to a group, to a line of floats for f32.
SIZES = [(172, 192, 32), (32, 32, 32), (544, 544, 32), (700, 704, 32), (576, 576, 32), (2040, 2048, 128), (40, 64, 64)]
NORM_EPS = np.float32(1e-5)

methods = pytest.mark.parametrize("method", METHODS)
lengths = pytest.mark.parametrize("T", LENGTHS)
sizes = pytest.mark.parametrize(("size", "K", "group_size"), SIZES)
quantized = pytest.mark.parametrize("method", ["int4", "int8"])


def corrections_of(sums):
    """Return where products with codes of these sums begin: without the zero of the weights, as bits of a float."""
    return np.float32(1.5 * 2**23).view(np.int32) - (128 - DOT_ZERO) * sums


def dims_of(size):
    """Return sizes of which one row's is `size`."""
    return ModelDims(0, 0, 0, size, size, NORM_EPS)


def weight_of(method, K, group_size):
    return random_weight(np.random.default_rng(0), method, 16, K, group_size)[0]


def write(writer, method, T, K, group_size, *arguments, threads=1):
    """Run a kernel that writes activations; return them."""
    x = empty_activations(method, T, K, group_size)
    on_threads(writer, threads, T, *arguments, weight_of(method, K, group_size), scratch_of(x, threads, K))
    return x


def padded_rows(values, K):
    rows = np.zeros((len(values), K), np.float32)
    rows[:, : values.shape[1]] = values
    return rows


def assert_activations(method, x, expected, T, K, group_size, relative, absolute=0.0):
    """Compare written activations with float64 rows [T, K] whose values carry the given error themselves."""
    error = relative * np.abs(expected) + absolute
    if method == "f32":
        assert_within(decode_floats(x, T, K), expected, error)
        return
    codes, scales, corrections = decode(x, T, K, group_size)
    width = group_size
    peaks = np.abs(expected).reshape(T, -1, width).max(axis=2)
    peak_errors = error.reshape(T, -1, width).max(axis=2)
    assert_within(scales, peaks / 127, (peak_errors + EPS * peaks) / 127 + 1e-45)
    # A code may fall on either side of a tie, by no more than the value's own error and two roundings.
    per_column = np.repeat(peaks / 127, width, axis=1)
    units = np.divide(expected, per_column, out=np.zeros_like(expected), where=per_column > 0)
    doubt = np.divide(
        error + np.repeat(peak_errors, width, axis=1), per_column, out=np.zeros_like(error), where=per_column > 0
    )
    assert_within(codes, units, 0.5 + doubt + 4 * EPS * np.abs(units))
    assert np.abs(codes).max() <= 127
    sums = codes.reshape(T, -1, group_size).sum(axis=2)
    np.testing.assert_array_equal(corrections, corrections_of(sums))


@methods
@lengths
@sizes
def test_plain_rows(method, T, size, K, group_size, rng):
    values = padded_rows(rng.standard_normal((T, size)).astype(np.float32) * 3, K)
    x = write(quantize_plain, method, T, K, group_size, values)
    assert_activations(method, x, values.astype(np.float64), T, K, group_size, relative=0)


@methods
@lengths
@sizes
def test_normed_rows(method, T, size, K, group_size, rng):
    hidden = padded_rows(rng.standard_normal((T, size)).astype(np.float32) * 3, K)
    gain = padded_rows(rng.uniform(-2, 2, (1, size)).astype(np.float32), K)[0]
    x = write(quantize_normed, method, T, K, group_size, hidden, RmsNorm(gain), dims_of(size))
    expected = np.zeros((T, K))
    expected[:, :size] = reference.rms_norm(hidden[:, :size], gain[:size], float(NORM_EPS))
    assert_activations(method, x, expected, T, K, group_size, relative=(size / 32 + 8) * EPS)


@methods
@lengths
@sizes
def test_swiglu_rows(method, T, size, K, group_size, rng):
    gate, up = rng.standard_normal((2, T, size)).astype(np.float32) * 4
    slack = rng.standard_normal((T, 24)).astype(np.float32)  # whatever stands beyond must not leak in
    x = write(quantize_activated, method, T, K, group_size, np.concatenate([gate, up, slack], axis=1), Silu(), size)
    expected = np.zeros((T, K))
    expected[:, :size] = reference.swiglu(gate, up)
    # exp2's argument carries a rounding of |gate|; every other step one of the result.
    relative = (6 + np.abs(gate).max()) * EPS
    assert_activations(method, x, expected, T, K, group_size, relative)


@pytest.mark.parametrize("method", ["f32", "int4"])
@lengths
@pytest.mark.parametrize(("size", "K", "group_size"), [(172, 192, 32), (544, 544, 32)])
def test_normed_rows_of_gates(method, T, size, K, group_size, rng):
    gate, up = rng.standard_normal((2, T, size)).astype(np.float32)
    slack = rng.standard_normal((T, 24)).astype(np.float32)
    gain = padded_rows(rng.uniform(-2, 2, (1, size)).astype(np.float32), K)[0]
    activation = NormedActivation(Relu2(), gain, NORM_EPS)
    x = write(quantize_activated, method, T, K, group_size, np.concatenate([gate, up, slack], axis=1), activation, size)
    expected, inner = np.zeros((T, K)), reference.ACTIVATIONS["relu2"](gate.astype(np.float64)) * up
    expected[:, :size] = reference.rms_norm(inner, gain[:size], float(NORM_EPS))
    assert_activations(method, x, expected, T, K, group_size, relative=(size / 32 + 12) * EPS)


@methods
def test_swiglu_survives_extreme_gates(method):
    gate = np.array([-1e30, -200, -88, -1e-30, 0, 1e-30, 88, 200, 1e30, 1, 2, 3, 4, 5, 6, 7], np.float32)
    gate_up = np.concatenate([gate, np.full(16, 0.5, np.float32), np.zeros(16, np.float32)])[None]
    x = write(quantize_activated, "f32", 1, 16, 32, gate_up, Silu(), 16)
    expected = reference.swiglu(gate[None], np.float64(0.5))
    # The exponential stops at 2**127: a gate of -1e30 leaves 1e30 / 2**127.
    assert_within(decode_floats(x, 1, 16), expected, 100 * EPS * np.abs(expected) + np.abs(gate) * 2.0**-127)


def test_numbers_of_xielu():
    up = np.array([-1e30, -200, -88, -5, -1, -0.5, -1e-3, -1e-30, 0, 1e-30, 1e-3, 0.5, 1, 5, 88, 200], np.float32)
    rows, numbers = np.concatenate([up, np.zeros(16, np.float32)])[None], np.array([[0.8], [1.3]], np.float32)
    x = write(quantize_activated, "f32", 1, 16, 32, rows, Ungated(Xielu(*numbers)), 16)
    expected = reference.xielu(up[None], *numbers[:, 0])
    # Near 0 a power of almost 1 is rounded.
    assert_within(decode_floats(x, 1, 16), expected, 8 * EPS * (np.abs(expected) + 1) + 8 * EPS * np.abs(up))


@quantized
def test_values_on_the_scale_keep_their_codes(method, rng):
    codes = rng.integers(-127, 128, (3, 64))
    codes[:, ::32] = 127
    x = write(quantize_plain, method, 3, 64, 32, (codes * 0.25).astype(np.float32))
    np.testing.assert_array_equal(decode(x, 3, 64)[0], codes)
    np.testing.assert_array_equal(decode(x, 3, 64)[1], 0.25)


@quantized
def test_ties_round_to_even(method):
    ties = np.zeros((1, 32), np.float32)
    ties[0, :5] = 127, 0.5, 1.5, -2.5, -3.5
    x = write(quantize_plain, method, 1, 32, 32, ties)
    assert decode(x, 1, 32)[0][0, :5].tolist() == [127, 0, 2, -2, -4]


@quantized
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-39, 1e-36, 1e37])
def test_tiny_and_huge_rows_stay_themselves(method, magnitude):
    values = np.full((2, 64), magnitude, np.float32)
    values[1] *= -1
    x = write(quantize_plain, method, 2, 64, 32, values)
    codes, scales, corrections = decode(x, 2, 64)
    # Where 127 / max|x| overflows the row counts as zero: its products are below 1e-36 anyway.
    got = codes * np.repeat(scales.astype(np.float64), 32, axis=1)
    assert_within(got, values.astype(np.float64), 1e-6 * magnitude + 3e-37)
    np.testing.assert_array_equal(corrections, corrections_of(codes.reshape(2, 2, 32).sum(axis=2)))


@quantized
def test_codes_equal_the_reference_but_for_ties(method, rng):
    values = rng.standard_normal((17, 512)).astype(np.float32)
    x = write(quantize_plain, method, 17, 512, 32, values)
    codes, scales, _ = decode(x, 17, 512)
    expected_codes, expected_scales = reference.quantize_activations(values, 32)
    np.testing.assert_allclose(scales, expected_scales, rtol=EPS)
    assert np.mean(codes != expected_codes) < 1e-3
    assert np.abs(codes - expected_codes).max() <= 1


@methods
@lengths
def test_threads_share_tokens_and_groups(method, T, rng):
    hidden = rng.standard_normal((T, 192)).astype(np.float32)
    gain, gate_up = np.ones(192, np.float32), rng.standard_normal((T, 400)).astype(np.float32)
    for writer, arguments in [
        (quantize_plain, (hidden,)),
        (quantize_normed, (hidden, RmsNorm(gain), dims_of(192))),
        (quantize_activated, (gate_up, Silu(), 192)),
        (quantize_activated, (gate_up, NormedActivation(Relu2(), gain, NORM_EPS), 192)),
    ]:
        one, two, five = (write(writer, method, T, 192, 32, *arguments, threads=threads) for threads in (1, 2, 5))
        for a, b, c in zip(one, two, five):
            assert a.tobytes() == b.tobytes() == c.tobytes()


# What quantizes does not depend on what comes before it, so each norm and activation is quantized once.
@pytest.mark.parametrize(
    ("method", "writer", "kind"),
    [
        *[(method, quantize_normed, RmsNorm(np.ones(192, np.float32))) for method in METHODS],
        ("int4", quantize_normed, LayerNorm(*np.ones((2, 192), np.float32))),
        ("int4", quantize_normed, NoNorm()),
        ("int4", quantize_activated, Silu()),
        ("int4", quantize_activated, GeluTanh()),
        ("int4", quantize_activated, ClampedSwiglu(np.float32(1.702), np.float32(7))),
        ("int4", quantize_activated, CappedSwiglu(np.float32(4), np.float32(25))),
        ("int4", quantize_activated, LimitedSilu(np.float32(1.5))),
        ("int4", quantize_activated, NormedActivation(Relu2(), np.ones(192, np.float32), NORM_EPS)),
        ("int4", quantize_activated, Ungated(Xielu(*np.array([[0.8], [1.3]], np.float32)))),
        *[("int4", quantize_activated, Ungated(activation)) for activation in ACTIVATIONS.values()],
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_one_token_is_written_as_among_many(method, writer, kind, rng):
    rows = rng.standard_normal((17, 400)).astype(np.float32)
    size = dims_of(192) if writer is quantize_normed else 192
    many = write(writer, method, 17, 192, 32, rows, kind, size)
    for t in (0, 6, 16):
        one = write(writer, method, 1, 192, 32, rows[t : t + 1], kind, size)
        for alone, among in zip(contents(method, one, 1), contents(method, many, 17)):
            assert alone[0].tobytes() == among[t].tobytes()


def contents(method, x, T):
    return (decode_floats(x, T, 192),) if method == "f32" else decode(x, T, 192)


@pytest.mark.parametrize(("T", "threads"), [(1, 1), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [172, 544])
def test_all_but_the_largest_gates_are_closed(size, T, threads, rng):
    gate_up = rng.standard_normal((T + 1, 2 * size + 16)).astype(np.float32) + np.float32(0.5)
    found, cutoff = gate_up.copy(), np.float32(1.2)
    on_threads(cut_gates, threads, T, found, cutoff, size)
    expected = reference.gaussian_top_k(gate_up[:T, :size], float(cutoff))
    assert 0.02 < np.count_nonzero(expected) / expected.size < 0.3
    assert_within(found[:T, :size], expected, 4 * (size / 16 + 8) * EPS)
    np.testing.assert_array_equal(found[:, size:], gate_up[:, size:])
    np.testing.assert_array_equal(found[T], gate_up[T])
