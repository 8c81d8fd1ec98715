"""How a linear's rows come together: several weights, slabs, padding, biases."""

import ml_dtypes
import numpy as np
import pytest
import reference
from memory_tensors import MemoryTensor, memory_tensors

from tinychat.conversion.pack import SLAB_ROWS, pack_codes, pack_linear, relative_error, slabs
from tinychat.errors import ConversionError
from tinychat.models.layout import Quantization
from tinychat.models.tensors import Linear

METHODS = ("int4", "int8", "f32")
methods = pytest.mark.parametrize("method", METHODS)


def linear_of(rows, columns, bias=False):
    return Linear("x_proj", tuple(f"layers.{{}}.x{i}" for i in range(len(rows))), rows, columns, 3, bias)


def draw(rng, linear, dtype="float32", layer=1):
    """Return tensors of one layer, and their rows one below the other."""
    weights = [rng.standard_normal((rows, linear.columns)).astype(dtype) for rows in linear.rows]
    tensors = {f"{name.format(layer)}.weight": w for name, w in zip(linear.sources, weights)}
    if linear.bias:
        tensors |= {
            f"{name.format(layer)}.bias": rng.standard_normal(rows).astype(dtype)
            for name, rows in zip(linear.sources, linear.rows)
        }
    return memory_tensors(tensors), np.concatenate(weights).astype(np.float32)


def meaning(method, arrays):
    """Return packed arrays as float64 [N, K], padding included."""
    if method == "f32":
        return reference.unpack_f32(arrays["values"])
    dequantize = {"int4": reference.dequantize_int4, "int8": reference.dequantize_int8}[method]
    return dequantize(*arrays.values())


def assert_means(method, arrays, rows):
    """Check that packed arrays stand for `rows`, and for zeros beyond them."""
    got = meaning(method, arrays)
    N, K = rows.shape
    assert not got[N:].any()
    assert not got[:, K:].any()
    error = np.sqrt(np.mean((got[:N, :K] - rows) ** 2) / np.mean(rows**2))
    assert error <= {"int4": 0.1, "int8": 0.01, "f32": 0}[method]


@methods
@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [(48,), (32, 16, 16), (24, 8, 8), (172, 172), (5,)], ids=str)
def test_rows_of_several_weights_stand_one_below_the_other(method, dtype, rows, rng):
    linear = linear_of(rows, 172)
    tensors, expected = draw(rng, linear, dtype)
    assert_means(method, pack_linear(tensors, linear, 1, Quantization(method, 32))[0], expected)


@methods
@pytest.mark.parametrize("rows", [(2 * SLAB_ROWS + 37,), (SLAB_ROWS + 16, 48), (SLAB_ROWS + 8, 24)], ids=str)
def test_slabs_join_without_a_seam(method, rows, rng):
    linear = linear_of(rows, 32)
    tensors, expected = draw(rng, linear)
    arrays = pack_linear(tensors, linear, 1, Quantization(method, 32))[0]
    assert_means(method, arrays, expected)
    tail = linear_of((sum(rows) % 16 or 16,), 32)
    last = memory_tensors({"layers.1.x0.weight": expected[-tail.rows[0] :]})
    for name, array in pack_linear(last, tail, 1, Quantization(method, 32))[0].items():
        if name != "table":
            assert array[-1].tobytes() == arrays[name][-1].tobytes()


def test_a_slab_is_a_bounded_piece(rng):
    linear = linear_of((3 * SLAB_ROWS, 160), 4)
    tensors, _ = draw(rng, linear)
    pieces = list(slabs(tensors, linear, 1))
    assert max(len(rows) for _, _, rows in pieces) == SLAB_ROWS
    assert [block for _, block, _ in pieces] == [0, 256, 512, 768]


@methods
def test_biases_are_joined_and_padded(method, rng):
    linear = linear_of((24, 8, 8), 40, bias=True)
    tensors, _ = draw(rng, linear, "float16")
    bias = pack_linear(tensors, linear, 1, Quantization(method, 32))[0]["bias"]
    expected = np.concatenate([tensors.read(f"layers.1.x{i}.bias") for i in range(3)])
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, np.concatenate([expected, np.zeros(8)]))


@methods
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_what_is_not_finite_is_named(method, bad, part, rng):
    linear = linear_of((32, 16), 40, bias=True)
    tensors, _ = draw(rng, linear)
    tensors.read(f"layers.1.x1.{part}")[3] = bad
    with pytest.raises(ConversionError, match=rf"layers\.1\.x\d\.{part}"):
        pack_linear(tensors, linear, 1, Quantization(method, 32))[0]


@pytest.mark.parametrize("method", ["int4", "int8"])
def test_too_large_to_be_squared_is_named(method, rng):
    linear = linear_of((32,), 40)
    tensors, _ = draw(rng, linear)
    tensors.read("layers.1.x0.weight")[9, 7] = 3e38
    with pytest.raises(ConversionError, match=r"layers\.1\.x0\.weight"):
        pack_linear(tensors, linear, 1, Quantization(method, 32))[0]


def test_error_is_that_of_the_weights(rng):
    linear = linear_of((64,), 96)
    tensors, rows = draw(rng, linear)
    arrays, sums = pack_linear(tensors, linear, 1, Quantization("int4", 32))
    got = meaning("int4", arrays)
    expected = np.sqrt(np.sum((got - rows) ** 2) / np.sum(rows.astype(np.float64) ** 2))
    assert relative_error([sums]) == pytest.approx(expected, abs=2e-5)
    assert relative_error([(0.0, 0.0)]) == 0


def test_joined_rows_of_different_types_keep_their_values(rng):
    linear = linear_of((24, 8, 8), 32)
    tensors, rows = draw(rng, linear)
    name = f"{linear.sources[1].format(1)}.weight"
    tensors.by_name[name] = MemoryTensor(tensors.read(name).astype(ml_dtypes.bfloat16))
    rows[24:32] = rows[24:32].astype(ml_dtypes.bfloat16)
    (_, _, joined), *rest = slabs(tensors, linear, 1)
    assert rest == []
    np.testing.assert_array_equal(joined, rows)


@pytest.mark.parametrize(("bits", "unpack"), [(4, reference.unpack_int4), (8, reference.unpack_int8)], ids=["4", "8"])
@pytest.mark.parametrize(("N", "K"), [(16, 8), (48, 96)])
def test_packed_codes_are_where_the_layout_says(bits, unpack, N, K, rng):
    codes = rng.integers(0, 2**bits, (N, K), np.uint8)
    packed = pack_codes(codes, bits)
    assert packed.flags.c_contiguous
    np.testing.assert_array_equal(unpack(packed), codes)
