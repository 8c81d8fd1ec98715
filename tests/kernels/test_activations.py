"""Activations of an MLP, and the soft cap of logits."""

import numpy as np
import pytest
import reference
import reference_mixtures
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, decode_floats, on_threads
from kernels.test_inputs import write

from tinychat.engine.mlp_parameters import ACTIVATIONS
from tinychat.kernels.inputs import quantize_activated
from tinychat.kernels.scores import cap_rows
from tinychat.kernels.variants import CappedSwiglu, ClampedSwiglu, ClippedActivation, LimitedSilu, SoftCap, Ungated

EXTREME = [-1e30, -1e4, -88.0, -1e-30, 0.0, 1e-30, 88.0, 1e4]
# How far Abramowitz and Stegun's formula is off, and float64 where ``1 + tanh`` is nearly 0; each times half of the
# number. The others round each step.
ABSOLUTE = {"gelu": 1e-7, "gelu_tanh": 1e-15}


@pytest.mark.parametrize("T", [1, 17])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rows_without_gates(name, T, rng):
    up = rng.standard_normal((T, 173)).astype(np.float32) * 4
    up[0, : len(EXTREME)] = EXTREME
    slack = rng.standard_normal((T, 24)).astype(np.float32)  # whatever stands beyond must not leak in
    rows = np.concatenate([up, slack], axis=1)
    x = write(quantize_activated, "f32", T, 192, 32, rows, Ungated(ACTIVATIONS[name]), 173)
    five = write(quantize_activated, "f32", T, 192, 32, rows, Ungated(ACTIVATIONS[name]), 173, threads=5)
    assert x.values.tobytes() == five.values.tobytes()
    expected = np.zeros((T, 192))
    expected[:, :173] = reference.ACTIVATIONS[name](up)
    padded = np.pad(up, ((0, 0), (0, 19)))
    # The argument of an exponential carries a rounding of itself; one stops at 2**-126.
    relative = (8 + 4 * np.minimum(np.abs(padded), 100)) * EPS
    error = 1e-37 + relative * np.abs(expected) + ABSOLUTE.get(name, 0) * np.abs(padded) + 2.0**-126 * np.abs(padded)
    assert_within(decode_floats(x, T, 192), expected, error)


def test_gated_by_another_activation(rng):
    gate, up = rng.standard_normal((2, 3, 40)).astype(np.float32)
    rows = np.concatenate([gate, up, np.zeros((3, 16), np.float32)], axis=1)
    x = write(quantize_activated, "f32", 3, 48, 32, rows, ACTIVATIONS["gelu_tanh"], 40)
    expected = reference.gelu_tanh(gate) * up
    assert_within(decode_floats(x, 3, 48)[:, :40], expected, 20 * EPS * np.abs(expected) + 1e-9)


def test_products_between_bounds(rng):
    gate, up = rng.standard_normal((2, 3, 40)).astype(np.float32) * 3
    rows = np.concatenate([gate, up, np.zeros((3, 16), np.float32)], axis=1)
    activation = ClippedActivation(ACTIVATIONS["gelu_tanh"], np.array([-0.5, 2, 7, 9], np.float32))
    x = write(quantize_activated, "f32", 3, 48, 32, rows, activation, 40)
    expected = (reference.gelu_tanh(gate) * up).clip(-0.5, 2)
    assert 10 < (np.abs(expected) == 2).sum() < 110
    assert_within(decode_floats(x, 3, 48)[:, :40], expected, 64 * EPS * np.abs(expected) + 1e-7)
    # Zeros behind them stay, whatever the bounds are.
    above = activation._replace(bounds=np.array([1, 2, 0, 0], np.float32))
    x = write(quantize_activated, "f32", 3, 48, 32, rows, above, 40)
    assert decode_floats(x, 3, 48)[:, :40].min() == 1 and not decode_floats(x, 3, 48)[:, 40:].any()


def test_clamped_gates(rng):
    gate, up = rng.standard_normal((2, 3, 40)).astype(np.float32) * 5
    gate[0, 1:8], up[1, :8] = EXTREME[1:], EXTREME
    gate[0, 1] = -400.0
    rows = np.concatenate([gate, up, np.zeros((3, 16), np.float32)], axis=1)
    activation = ClampedSwiglu(np.float32(1.702), np.float32(7))
    x = write(quantize_activated, "f32", 3, 48, 32, rows, activation, 40)
    expected = reference.clamped_swiglu(gate, up, 1.702, 7.0)
    assert_within(decode_floats(x, 3, 48)[:, :40], expected, 100 * EPS * np.abs(expected) + 2.0**-90 * np.abs(gate))


@pytest.mark.parametrize("T", [1, 17])
def test_capped_gates(T, rng):
    gate, up = rng.standard_normal((2, T, 43)).astype(np.float32) * 5
    gate[0, 1:9], up[-1, :8] = EXTREME, EXTREME
    slack = rng.standard_normal((T, 24)).astype(np.float32)
    rows, activation = np.concatenate([gate, up, slack], axis=1), CappedSwiglu(np.float32(4), np.float32(25))
    x = write(quantize_activated, "f32", T, 64, 32, rows, activation, 43)
    five = write(quantize_activated, "f32", T, 64, 32, rows, activation, 43, threads=5)
    assert x.values.tobytes() == five.values.tobytes()
    with np.errstate(over="ignore"):
        expected = reference_mixtures.capped_swiglu(gate, up, 4.0, 25.0)
        sigmoids = 1 / (1 + np.exp(-gate.astype(np.float64)))
    # Each cap is off by less than an ulp of itself; the exponential carries a rounding of its argument, and stops.
    gates, ups = (np.abs(cap * np.tanh(each.astype(np.float64) / cap)) for each, cap in ((gate, 4.0), (up, 25.0)))
    error = (8 + np.minimum(np.abs(gate), 100)) * EPS * np.abs(expected)
    error += 2 * EPS * sigmoids * (4 * ups + 25 * gates) + 2.0**-120
    found = decode_floats(x, T, 64)
    assert_within(found[:, :43], expected, error)
    assert not found[:, 43:].any()


def test_limited_gates(rng):
    gate, up = rng.standard_normal((2, 3, 40)).astype(np.float32) * 5
    gate[0, :8], up[1, :8] = EXTREME, EXTREME
    rows = np.concatenate([gate, up, np.zeros((3, 16), np.float32)], axis=1)
    x = write(quantize_activated, "f32", 3, 48, 32, rows, LimitedSilu(np.float32(4)), 40)
    expected = reference.limited_swiglu(gate, up, 4.0)
    assert_within(decode_floats(x, 3, 48)[:, :40], expected, 20 * EPS * np.abs(expected) + 2.0**-90 * np.abs(gate))


@pytest.mark.parametrize("rows", [1, 3])
def test_logits_are_capped(rows, rng):
    logits = (rng.standard_normal((rows, 64)) * 40).astype(np.float32)
    logits[0, :8] = [-1e30, -1e4, -50, 0, 1e-6, 50, 1e4, 1e30]
    for threads in (1, 5):
        out = np.concatenate([logits, np.full((1, 64), UNTOUCHED)])
        on_threads(cap_rows, threads, rows, out, SoftCap(np.float32(30)))
        assert_within(out[:rows], reference.soft_cap(logits.astype(np.float64), 30.0), 30 * 4 * EPS)
        assert (out[rows] == UNTOUCHED).all()
