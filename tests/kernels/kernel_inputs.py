"""Inputs for the kernels: random packed weights and what they mean, activations and scratch of the right sizes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numba
import numpy as np
import reference

from tinychat.kernels.amx_buffer import BUFFER_FLOATS, HAS_TILE_REGISTERS
from tinychat.kernels.jit import FLAGS
from tinychat.kernels.linear import tokens_per_tile
from tinychat.kernels.sizes import RUN, SUMS_FLOATS, TILE_FLOATS
from tinychat.kernels.team_queue import Team, new_queue
from tinychat.kernels.weights import (
    ACTIVATION_GROUP,
    PRODUCT_COLUMNS,
    ROW_KINDS,
    FineActivations,
    FineRowActivations,
    Float32Weight,
    FloatActivations,
    Int4Weight,
    Int8Weight,
    QuantizedActivations,
    RowActivations,
)

LANES = 16
METHODS = ("int4", "int8", "f32")
# The activations of quantized linears here, of one part and of two.
ACTIVATIONS, FINE_ACTIVATIONS = (
    (RowActivations, FineRowActivations) if HAS_TILE_REGISTERS else (QuantizedActivations, FineActivations)
)
EPS = np.finfo(np.float32).eps
UNTOUCHED = np.float32(-1234.5)

# How tests compile functions of their own: like a kernel, but not cached on disk, and with numpy's functions.
compiled = numba.njit(**FLAGS | {"_nrt": True})


def round_up(size, multiple):
    return -(-size // multiple) * multiple


def random_scales(rng, blocks, groups):
    """Draw whole numbers of both signs, some of them 0 or at an end."""
    scales = rng.integers(-127, 128, (blocks, groups, LANES), dtype=np.int8)
    odd = np.array([0, 1, 127, -127], np.int8)
    return np.where(rng.random(scales.shape) < 0.1, rng.choice(odd, scales.shape), scales)


def random_weight(rng, method, N, K, group_size=32, bias=False):
    """Return a weight [N, K] as the kernels take it, and its float64 meaning; codes use their whole range."""
    blocks = N // LANES
    b = rng.standard_normal(N).astype(np.float32) if bias else np.zeros(0, np.float32)
    if method == "f32":
        values = (rng.standard_normal((blocks, K, LANES)) / np.sqrt(K)).astype(np.float32)
        return Float32Weight(values, b), reference.unpack_f32(values)
    scales = random_scales(rng, blocks, K // group_size)
    row_scales = (rng.uniform(0.5, 1.5, (blocks, LANES)) / (5000 * np.sqrt(K))).astype(np.float32)
    row_scales[0, 0] = 0
    packed = rng.integers(0, 256, (blocks, K // (8 if method == "int4" else 4), LANES, 4), dtype=np.uint8)
    packed[0] = 0  # the lowest code everywhere, then the highest
    packed[-1, :, 1:] = 255
    if method == "int8":
        return Int8Weight(packed, scales, row_scales, b), reference.dequantize_int8(packed, scales, row_scales)
    table = random_table(rng)
    weight = Int4Weight(packed, scales, row_scales, table, b)
    return weight, reference.dequantize_int4(packed, scales, row_scales, table)


def random_table(rng):
    """Draw what the 16 codes stand for; both ends are among it."""
    table = rng.integers(-127, 128, 16).astype(np.int8)
    table[rng.permutation(16)[:2]] = -128, 127
    return table


def tokens_of(T):
    """Return the tokens that a tile of activations holds."""
    return tokens_per_tile.py_func(T)


def empty_activations(method, T, K, group_size=32):
    """Return a linear's input for `T` tokens, full of rubbish."""
    size = round_up(T, tokens_of(T)) * K
    if method == "f32":
        return FloatActivations(np.full(size, np.nan, np.float32))
    groups = size // group_size
    floats = np.full((2, groups), np.nan, np.float32)
    return ACTIVATIONS(np.full(size, 77, np.int8), floats[0], np.full(groups, 99, np.int32), floats[1])


def decode(x, T, K, group_size=32):
    """Return the content of activations: codes int [T, K], scales [T, groups], corrections [T, groups]."""
    tokens = tokens_of(T)
    tiles, groups = round_up(T, tokens) // tokens, K // group_size
    run = min(group_size, PRODUCT_COLUMNS) if isinstance(x, ROW_KINDS) and tokens == LANES else RUN
    codes = x.codes.reshape(tiles, K // run, tokens, run).transpose(0, 2, 1, 3).reshape(-1, K)[:T]
    scales, corrections = (
        array.reshape(tiles, groups, tokens).transpose(0, 2, 1).reshape(-1, groups)[:T]
        for array in (x.scales, x.corrections)
    )
    return codes.astype(np.int64), scales, corrections


def decode_floats(x, T, K):
    """Return float activations as [T, K]."""
    tokens = tokens_of(T)
    return x.values.reshape(-1, K, tokens).transpose(0, 2, 1).reshape(-1, K)[:T]


def meaning(method, x, T, K, group_size=32):
    """Return activations as float64 [T, K]."""
    if method == "f32":
        return decode_floats(x, T, K).astype(np.float64)
    codes, scales, _ = decode(x, T, K, group_size)
    return codes * np.repeat(scales.astype(np.float64), group_size, axis=1)


class Scratch(NamedTuple):
    """The scratch of the stages around a linear."""

    x: Any
    rows: np.ndarray
    tiles: np.ndarray


def scratch_of(x, threads, K):
    """Return scratch for `threads` threads and rows of K, with activations `x`."""
    floats = BUFFER_FLOATS if isinstance(x, ROW_KINDS) else TILE_FLOATS
    floats = max(floats, TILE_FLOATS + x[0].size // ACTIVATION_GROUP * SUMS_FLOATS)
    return Scratch(x, np.zeros((threads, K + LANES), np.float32), np.full((threads, floats), np.nan, np.float32))


def team_of(threads):
    """Return the `Team` of each thread."""
    queue, clocks = new_queue(threads, threads), np.zeros(1, np.int64)
    return [Team(thread, queue, clocks) for thread in range(threads)]


def on_threads(stage, threads, *arguments):
    """Call a stage for each thread, all at once: compiled code releases the interpreter's lock."""
    with ThreadPoolExecutor(threads) as pool:
        for result in [pool.submit(stage, member, *arguments) for member in team_of(threads)]:
            result.result()


def in_shares(kernel, threads, *arguments):
    """Call a kernel that knows no team for each thread, all at once."""
    with ThreadPoolExecutor(threads) as pool:
        for result in [pool.submit(kernel, thread, threads, *arguments) for thread in range(threads)]:
            result.result()


def assert_within(got, expected, tolerance):
    """Compare element by element with an array of tolerances; say where it is worst."""
    error = np.abs(np.asarray(got, np.float64) - expected)
    assert np.isfinite(got).all(), "not finite"
    excess = error / np.maximum(tolerance, np.finfo(np.float64).tiny)
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 1, (
        f"at {tuple(map(int, worst))}: got {got[worst]!r}, expected {expected[worst]!r}, "
        f"{excess[worst]:.2f} times the tolerance; max error {error.max():.3e}, mean {error.mean():.3e}"
    )
