"""Affine weights, of codes with scales and offsets: the linear and the embedding on exactly the numbers they read."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import (
    EPS,
    FINE_ACTIVATIONS,
    LANES,
    UNTOUCHED,
    assert_within,
    decode,
    empty_activations,
    on_threads,
    random_table,
    scratch_of,
)

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.embedding import embed
from tinychat.kernels.inputs import quantize_plain
from tinychat.kernels.linear import linear
from tinychat.kernels.weights import (
    ACTIVATION_GROUP,
    ADD,
    FINE_KINDS,
    STORE,
    ZERO,
    Affine1Weight,
    Affine2Weight,
    Affine4Weight,
    Affine8Weight,
    MixedWeight,
    Table4Weight,
)

AFFINE = {1: Affine1Weight, 2: Affine2Weight, 4: Affine4Weight, 8: Affine8Weight}
LENGTHS = (1, 2, 3, 17, 200)
SIZES = ModelDims(0, 0, 0, 0, 0, np.float32(0))
# Those that are fine have activations of two parts.
KINDS = (
    "one",
    "two",
    "two offset",
    "two fine",
    "four",
    "four offset",
    "four fine",
    "table",
    "table offset",
    "table fine",
    "eight",
    "mixed",
    "mixed fine",
    "mixed table",
)
# (N, K, columns of a group, groups of a span); 17 spans; a group for each span.
SHAPES = [(48, 64, 32, 2), (80, 544, 32, 1), (16, 384, 64, 3), (112, 256, 128, 2)]

kinds = pytest.mark.parametrize("kind", KINDS)
lengths = pytest.mark.parametrize("T", LENGTHS)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random_numbers(rng, shape, dtype):
    if dtype == np.int8:
        return rng.integers(-63, 64, shape, np.int8)
    if dtype == np.uint8:
        return np.where(rng.random(shape) < 0.1, 0, rng.integers(120, 135, shape)).astype(np.uint8)
    return (rng.standard_normal(shape) * 16).astype(np.float16).view(np.uint16)


def random_affine(rng, bits, blocks, K, group, per_span, dtype, offsets=True, table=False):
    """Return a weight without bias, and its float64 meaning; codes use their whole range."""
    groups = K // group
    packed = rng.integers(0, 256, (blocks, K * bits // 32, LANES, 4), np.uint8)
    packed[:1], packed[-1:, :, 1:] = 0, 255
    scales = random_numbers(rng, (blocks, groups, LANES), dtype)
    offset = random_numbers(rng, (blocks, groups if offsets else 0, LANES), dtype)
    # Few bits, so that scales, and what they make of a code, are exact.
    factors = rng.integers(-63, 64, (blocks, groups // per_span, 2, LANES)).astype(np.float32) / 65536
    none = np.zeros(0, np.float32)
    if table:
        tables = np.stack([random_table(rng) for _ in range(blocks)])
        codes = codes_of(packed, bits, offsets, tables)
        weight = Table4Weight(packed, scales, offset, factors, tables, none)
    else:
        codes, weight = codes_of(packed, bits, offsets), AFFINE[bits](packed, scales, offset, factors, none)
    return weight, reference.dequantize_affine(codes.astype(np.float64), scales, offset, factors)


def codes_of(packed, bits, offsets, tables=None):
    """Return the whole numbers that codes of packed weights stand for, int64 [N, K]; tables : int8 [N/16, 16]."""
    if bits == 8:
        return reference.unpack_int8(packed).astype(np.int64) - ZERO
    if tables is not None:
        codes = reference.unpack_int4(packed)
        return np.take_along_axis(np.repeat(tables, LANES, axis=0), codes, axis=1).astype(np.int64)
    if bits == 4:
        return reference.unpack_int4(packed).astype(np.int64) - (0 if offsets else 8)
    return (reference.unpack_bits(packed, bits).astype(np.int64) << (bits == 1)) - (0 if offsets else 1)


def random_kind(rng, kind, shape, bias=False):
    """Return a weight [N, K] of a kind, its meaning, and the columns of a group of its input."""
    N, K, group, per_span = shape
    blocks = N // LANES
    b = rng.standard_normal(N).astype(np.float32) if bias else np.zeros(0, np.float32)
    if kind == "one":
        weight, w = random_affine(rng, 1, blocks, K, group, per_span, np.uint16, offsets=False)
        return weight._replace(bias=b), w, min(group, ACTIVATION_GROUP)
    if "two" in kind:
        columns, dtype = (group // 2, np.int8) if "offset" in kind else (group, np.uint16)
        spans = per_span * group // columns
        weight, w = random_affine(rng, 2, blocks, K, columns, spans, dtype, offsets="offset" in kind)
        return weight._replace(bias=b), w, min(columns, ACTIVATION_GROUP)
    if "four" in kind or kind.startswith("table"):
        offsets, table = "offset" in kind, kind.startswith("table")
        dtype = np.uint8 if table and not offsets else np.uint16
        # With offsets, groups of the input may have 16 columns.
        columns = group // 2 if offsets else group
        weight, w = random_affine(rng, 4, blocks, K, columns, per_span * group // columns, dtype, offsets, table)
        return weight._replace(bias=b), w, min(columns, ACTIVATION_GROUP)
    if kind == "eight":
        weight, w = random_affine(rng, 8, blocks, K, group // 2, 2 * per_span, np.int8, offsets=N > 48)
        return weight._replace(bias=b), w, min(group // 2, ACTIVATION_GROUP)
    # Blocks of both kinds, some neighbours, some not, out of order, among blocks of other layers.
    is_four = rng.random(blocks) < 0.6
    indices = np.where(is_four, rng.permutation(blocks + 2)[:blocks], -1 - rng.permutation(blocks + 2)[:blocks])
    if blocks > 4:
        indices[1:4] = 2, 3, 4
    table = "table" in kind
    # A table says how codes count, so offsets are there or not.
    offsets = not table or N > 48
    four, w4 = random_affine(rng, 4, blocks + 2, K, group, per_span, np.int8, offsets=offsets, table=table)
    eight, w8 = random_affine(rng, 8, blocks + 2, K, group // 2, 2 * per_span, np.int8, offsets=False)
    w4, w8 = (w.reshape(-1, LANES, K) for w in (w4, w8))
    rows = np.concatenate([w4[index] if index >= 0 else w8[-1 - index] for index in indices])
    return MixedWeight(indices.astype(np.int32), four, eight, b), rows, min(group // 2, ACTIVATION_GROUP)


def prepare(kind, weight, values, group):
    """Return activations of `values` for `weight`."""
    T, K = values.shape
    x = empty_activations("int8", T, K, group)
    if "fine" in kind:
        x = FINE_ACTIVATIONS(*x, np.full_like(x.codes, 55))
    on_threads(quantize_plain, 1, T, values, weight, scratch_of(x, 1, K))
    return x


def meaning(x, T, K, group):
    """Return activations as float64 [T, K]."""
    codes, scales, _ = decode(x, T, K, group)
    if isinstance(x, FINE_KINDS):
        codes = codes * 128 + decode(x._replace(codes=x.fine), T, K, group)[0]
    return codes * np.repeat(scales.astype(np.float64), group, axis=1)


def apply(weight, x, T, N, threads=1, residual=None):
    out = np.full((T + 2, N + 48), UNTOUCHED)
    if residual is not None:
        out[:T, :N] = residual
    on_threads(linear, threads, T, weight, scratch_of(x, threads, 0), out, STORE if residual is None else ADD)
    assert (out[T:] == UNTOUCHED).all()
    assert (out[:, N:] == UNTOUCHED).all()
    return out[:T, :N]


@kinds
@lengths
@shapes
def test_linear_of_dequantized_weights(kind, T, shape, rng):
    N, K = shape[:2]
    weight, w, group = random_kind(rng, kind, shape, bias=True)
    residual = rng.standard_normal((T, N)).astype(np.float32)
    values = rng.standard_normal((T, K)).astype(np.float32)
    x = prepare(kind, weight, values, group)
    exact = meaning(x, T, K, group)
    step = np.repeat(np.abs(values).reshape(T, -1, group).max(axis=2), group, axis=1) / (
        16256 if "fine" in kind else 127
    )
    assert (np.abs(exact - values) <= 0.501 * step).all()
    expected = reference.linear(exact, w, weight.bias) + residual
    # Scales and offsets count apart, so each may be larger than the weight; an offset's sum is rounded too.
    parts = np.abs(exact) @ (np.abs(w) + 2 * largest_offset(weight)).T + np.abs(weight.bias) + np.abs(residual)
    got = apply(weight, x, T, N, residual=residual)
    assert_within(got, expected, (4 * K // group + 8) * EPS / 2 * parts)


def largest_offset(weight):
    """Return the largest absolute value of an offset that counts."""
    if isinstance(weight, MixedWeight):
        return max(largest_offset(weight.four), largest_offset(weight.eight))
    if not weight.offsets.size:
        return 0.0
    offsets = weight.offsets.view(np.float16) if weight.offsets.dtype == np.uint16 else weight.offsets
    return float(np.abs(offsets.astype(np.float64)).max() * np.abs(weight.factors).max())


@kinds
@lengths
def test_threads_and_other_tokens_change_no_bits(kind, T, rng):
    shape = (112, 192, 32, 3)
    weight, _, group = random_kind(rng, kind, shape, bias=True)
    values = rng.standard_normal((T, 192)).astype(np.float32)
    one = apply(weight, prepare(kind, weight, values, group), T, 112)
    assert apply(weight, prepare(kind, weight, values, group), T, 112, threads=3).tobytes() == one.tobytes()
    for t in {0, T // 2, T - 1}:
        alone = apply(weight, prepare(kind, weight, values[t : t + 1], group), 1, 112)
        assert alone.tobytes() == one[t].tobytes()


@kinds
@pytest.mark.parametrize("T", [1, 17])
def test_extreme_codes_do_not_saturate(kind, T, rng):
    """Whole numbers everywhere: nothing may be rounded."""
    N, K = 48, 256
    weight, _, group = random_kind(rng, kind, (N, K, 128, 2))
    parts = (weight.four, weight.eight) if "mixed" in kind else (weight,)
    for part in parts:
        part.factors[:] = 1
        one = {np.uint16: np.float16(1).view(np.uint16), np.uint8: 127}.get(part.scales.dtype.type, 1)
        part.scales[:] = one
        part.offsets[:] = one
        if isinstance(part, Table4Weight):
            part.table[:, 0], part.table[:, 15] = -128, 127
    for sign in (1, -1):
        x = prepare(kind, weight, np.full((T, K), sign * 127, np.float32), group)
        for byte in (0, 255):
            for part in parts:
                part.packed[:] = byte
            value = {type(part): value_of(part, byte) for part in parts}
            by_block = [type(parts[0])] * (N // LANES)
            if "mixed" in kind:
                by_block = [type(weight.four if index >= 0 else weight.eight) for index in weight.indices]
            expected = np.repeat([value[block] for block in by_block], LANES) * sign * 127 * K
            # What stands for 1 in activations of two parts is 127 / 16256, rounded.
            np.testing.assert_allclose(
                apply(weight, x, T, N), np.tile(expected, (T, 1)), rtol=3e-7 if "fine" in kind else 0
            )


def value_of(weight, byte):
    """Return the weight of a byte whose codes are all lowest or all highest, where scales and offsets are 1."""
    has_offsets = bool(weight.offsets.size)
    codes = {
        Affine1Weight: 2 * (byte & 1) - 1,
        Affine2Weight: (byte & 3) - (0 if has_offsets else 1),
        Affine4Weight: (byte & 15) - (0 if has_offsets else 8),
        Affine8Weight: byte - ZERO,
        Table4Weight: -128 if byte == 0 else 127,
    }
    return codes[type(weight)] + has_offsets


@kinds
@shapes
def test_embedding_rows_are_dequantized_weights(kind, shape, rng):
    weight, w, _ = random_kind(rng, kind, shape)
    N, K = shape[:2]
    ids = rng.integers(0, N, 17)
    hidden = np.full((18, K + 16), UNTOUCHED)
    on_threads(embed, 2, 17, weight, ids, SIZES, hidden)
    # Scales times factors and times codes are exact here; adding an offset, which is too, rounds once.
    np.testing.assert_array_equal(hidden[:17, :K], w[ids].astype(np.float32))
    assert (hidden[17:] == UNTOUCHED).all()
    assert (hidden[:, K:] == UNTOUCHED).all()
