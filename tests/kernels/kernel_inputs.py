"""Inputs for the kernels: random packed weights and what they mean, activations and scratch of the right sizes."""

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import reference

from tinychat.kernels.linear import TILE_FLOATS, TOKENS
from tinychat.kernels.policy import FLAGS
from tinychat.kernels.weights import (
    Float32Weight,
    FloatActivations,
    Int4Weight,
    Int8Weight,
    QuantizedActivations,
)

LANES = 16
METHODS = ("int4", "int8", "f32")
EPS = np.finfo(np.float32).eps
UNTOUCHED = np.float32(-1234.5)

# How tests compile functions of their own: like a kernel, but not kept on disk.
compiled = numba.njit(**FLAGS)


def round_up(size, multiple):
    return -(-size // multiple) * multiple


def random_scales(rng, blocks, groups, columns):
    """Draw float16 scales of both signs, some of them 0, the smallest subnormal, or far above the rest."""
    scales = rng.uniform(0.5, 1.5, (blocks, groups, LANES)) * rng.choice([-1, 1], (blocks, groups, LANES))
    scales = (scales / (4 * np.sqrt(columns))).astype(np.float16)
    odd = np.array([0, 2.0**-24, -1.0], np.float16)
    return np.where(rng.random(scales.shape) < 0.1, rng.choice(odd, scales.shape), scales)


def random_weight(rng, method, N, K, group_size=32, bias=False):
    """Return a weight [N, K] as the kernels take it, and its float64 meaning; codes use their whole range."""
    blocks = N // LANES
    b = rng.standard_normal(N).astype(np.float32) if bias else np.zeros(0, np.float32)
    if method == "f32":
        values = (rng.standard_normal((blocks, K, LANES)) / np.sqrt(K)).astype(np.float32)
        return Float32Weight(values, b), reference.unpack_f32(values)
    scales = random_scales(rng, blocks, K // group_size, K)
    per_line, kind, dequantize = {
        "int4": (8, Int4Weight, reference.dequantize_int4),
        "int8": (4, Int8Weight, reference.dequantize_int8),
    }[method]
    packed = rng.integers(0, 256, (blocks, K // per_line, LANES, 4), dtype=np.uint8)
    packed[0] = 0  # the lowest code everywhere, then the highest
    packed[-1, :, 1:] = 255
    return kind(packed, scales.view(np.uint16), b), dequantize(packed, scales)


def tokens_of(T):
    """Return the tokens that a tile of activations holds."""
    return 1 if T == 1 else len(TOKENS)


def empty_activations(method, T, K, group_size=32):
    """Return a linear's input for `T` tokens, full of rubbish."""
    size = round_up(T, tokens_of(T)) * K
    if method == "f32":
        return FloatActivations(np.full(size, np.nan, np.float32))
    groups = size // group_size
    return QuantizedActivations(
        np.full(size, 77, np.int8), np.full(groups, np.nan, np.float32), np.full(groups, 99, np.int32)
    )


def activation_width(K, group_size):
    """Return the columns that share one activation scale: up to four weight groups, one in a narrow input."""
    groups = K // group_size
    if groups < 16:
        return group_size
    return group_size * next(count for count in (4, 3, 2, 1) if groups % count == 0)


def decode(x, T, K, group_size=32):
    """Return what activations hold: codes int [T, K], scales [T, activation groups], seeds [T, weight groups]."""
    tokens = tokens_of(T)
    tiles = round_up(T, tokens) // tokens
    codes = x.codes.reshape(tiles, K // 4, tokens, 4).transpose(0, 2, 1, 3).reshape(-1, K)[:T]
    count, groups = K // activation_width(K, group_size), K // group_size
    scales = x.scales[: tiles * count * tokens].reshape(tiles, count, tokens).transpose(0, 2, 1)
    seeds = x.seeds.reshape(tiles, groups, tokens).transpose(0, 2, 1)
    return codes.astype(np.int64), scales.reshape(-1, count)[:T], seeds.reshape(-1, groups)[:T]


def decode_floats(x, T, K):
    """Return what float activations hold, [T, K]."""
    tokens = tokens_of(T)
    return x.values.reshape(-1, K, tokens).transpose(0, 2, 1).reshape(-1, K)[:T]


def meaning(method, x, T, K, group_size=32):
    """Return activations as float64 [T, K]."""
    if method == "f32":
        return decode_floats(x, T, K).astype(np.float64)
    codes, scales, _ = decode(x, T, K, group_size)
    return codes * np.repeat(scales.astype(np.float64), activation_width(K, group_size), axis=1)


def scratch_rows(threads, K):
    return np.zeros((threads, K + LANES), np.float32)


def tile_buffers(threads):
    return np.zeros((threads, TILE_FLOATS), np.float32)


def on_threads(kernel, threads, *arguments):
    """Call a kernel for each thread, all at once: kernels release the interpreter's lock."""
    if threads == 1:
        kernel(0, 1, *arguments)
        return
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
