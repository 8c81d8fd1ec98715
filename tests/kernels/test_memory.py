from typing import NamedTuple

import numpy as np
import pytest
from kernels.kernel_inputs import compiled

from tinychat.kernels import memory
from tinychat.kernels.memory import from_pointers, load_f32, load_one, prefetch, prefetch_far, store_f32, store_one
from tinychat.kernels.pointers import pointers_of, sample_of

LANES = 16


def make_copy(one_by_one):
    """Return a compiled function that copies between arrays of either float type."""

    def vectors(source, target):
        for i in range(0, source.size, LANES):
            store_f32(target, i, load_f32(source, i))

    def elements(source, target):
        for i in range(source.size):
            store_one(target, i, load_one(source, i))

    return compiled(elements if one_by_one else vectors)


@pytest.fixture(params=["by instructions", "by hand"])
def copy(request, monkeypatch):
    """Return the copy function, compiled with the processor's conversions or with our own."""
    if request.param == "by instructions" and not memory.CONVERTS_HALVES:
        pytest.skip("this instruction set converts by hand")
    monkeypatch.setattr(memory, "CONVERTS_HALVES", request.param == "by instructions")
    return make_copy(one_by_one=False)


def finite_halves():
    every = np.arange(65536, dtype=np.uint16)
    return every[np.isfinite(every.view(np.float16))]


def test_every_float16_widens_exactly(copy):
    bits = np.arange(65536, dtype=np.uint16)
    wide = np.empty(bits.size, np.float32)
    copy(bits, wide)
    # NumPy warns of those that are no numbers where the processor tells, as ARM's do.
    with np.errstate(invalid="ignore"):
        expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(np.signbit(wide), bits >= 0x8000)


def test_every_float16_survives_the_round_trip(copy):
    bits = np.arange(65536, dtype=np.uint16)
    wide, back = np.empty(bits.size, np.float32), np.empty_like(bits)
    copy(bits, wide)
    copy(wide, back)
    number = ~np.isnan(bits.view(np.float16))
    np.testing.assert_array_equal(back[number], bits[number])
    assert np.isnan(back[~number].view(np.float16)).all()


def test_overflow_of_float16_is_infinite(copy):
    values = np.array([65519.996, 65520, 65536, 1e6, 1e9, 3e38, np.inf, np.nan], np.float32)
    rounded = np.empty(16, np.uint16)
    copy(np.concatenate([values, -values]), rounded)
    expected = np.array([65504] + [np.inf] * 6 + [np.nan])
    np.testing.assert_array_equal(rounded.view(np.float16), np.concatenate([expected, -expected]))


def test_float32_is_rounded_half_to_even(copy, rng):
    exact = finite_halves().view(np.float16).astype(np.float32)
    exact = np.sort(exact[exact >= 0])
    ties = (exact[:-1] + exact[1:]) / 2  # exact in float32
    values = np.concatenate(
        [ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9)), [1e-9, 65504, 65519]]
    )
    spread = np.exp2(rng.uniform(-27, 15, 100_000)) * rng.choice([-1, 1], 100_000)
    values = np.concatenate([values, -values, spread]).astype(np.float32)
    values = values[: values.size // LANES * LANES]
    rounded = np.empty(values.size, np.uint16)
    copy(values, rounded)
    np.testing.assert_array_equal(rounded, values.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_single_elements_convert_like_vectors(dtype, rng):
    values = rng.standard_normal(64).astype(np.float32)
    stored, back = np.zeros(64, dtype), np.zeros(64, np.float32)
    elements, vectors = make_copy(one_by_one=True), make_copy(one_by_one=False)
    elements(values, stored)
    expected = np.zeros(64, dtype)
    vectors(values, expected)
    np.testing.assert_array_equal(stored, expected)
    elements(stored, back)
    np.testing.assert_array_equal(back, values if dtype == np.float32 else values.astype(np.float16))


def test_vectors_may_begin_anywhere_and_touch_sixteen_elements_only(rng):
    @compiled
    def move(source, start, target, index):
        store_f32(target, index, load_f32(source, start))

    values, target = rng.standard_normal(40).astype(np.float32), np.zeros((4, 10), np.float32)
    move(values, 3, target, 7)
    expected = np.zeros(40, np.float32)
    expected[7:23] = values[3:19]
    np.testing.assert_array_equal(target.ravel(), expected)


def test_prefetch_past_the_end_is_harmless():
    @compiled
    def fetch(array, index):
        prefetch(array, index)
        prefetch_far(array, index)

    array = np.arange(8, dtype=np.uint8)
    fetch(array, 1 << 40)
    assert array.tolist() == list(range(8))


class Pair(NamedTuple):
    """A tuple in a tuple."""

    half: np.ndarray
    last: np.ndarray


@compiled
def add_one(like, pointers):
    """Add 1 to the numbers of the arrays of `pointers`; return the last one of each."""
    whole, pair = from_pointers(like, pointers)
    for array in (pair.half, pair.last):
        array += np.float32(1)
    whole += 1
    return whole[-1, -1, -1], pair.half[-1], pair.last[-1]


def test_arrays_are_made_from_pointers():
    half, last = np.arange(5, dtype=np.float32), np.arange(9, dtype=np.float32)
    arrays = np.arange(24, dtype=np.int64).reshape(2, 3, 4), half, last
    like = np.zeros((0, 0, 0), np.int64), Pair(np.zeros(0, np.float32), np.zeros(0, np.float32))
    expected = [array + 1 for array in arrays]
    assert add_one(like, pointers_of((arrays[0], Pair(half, last)))) == (24, 5.0, 9.0)
    for array, wanted in zip(arrays, expected):
        np.testing.assert_array_equal(array, wanted)


class Mixed(NamedTuple):
    """A tuple of every kind of argument."""

    count: int
    factor: np.float32
    is_on: bool
    nothing: tuple[()]
    values: np.ndarray


@compiled
def scaled_sum(kind, pointers):
    """Return a number that depends on every part of a tuple."""
    a = from_pointers(kind, pointers)
    return (a.values.sum() * a.factor + a.count) if a.is_on else np.float64(len(a.nothing))


def test_numbers_are_read_by_their_types():
    mixed = Mixed(-7, np.float32(0.1), True, (), np.arange(4.0))
    like, pointers = sample_of(mixed), pointers_of(mixed)
    assert scaled_sum(like, pointers) == 6 * np.float64(np.float32(0.1)) - 7
    assert scaled_sum(like, pointers_of(mixed._replace(is_on=False))) == 0
    assert len(scaled_sum.signatures) == 1
