"""The linear kernel on exactly the codes it reads: integers add nothing to the error, floats one rounding a step."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import (
    EPS,
    METHODS,
    UNTOUCHED,
    assert_within,
    empty_activations,
    meaning,
    on_threads,
    random_weight,
    round_up,
    scratch_of,
    team_of,
    tokens_of,
)

from tinychat.kernels.inputs import quantize_plain
from tinychat.kernels.linear import head, linear
from tinychat.kernels.sizes import TILES
from tinychat.kernels.weights import ADD, STORE, SplitWeight

LENGTHS = (1, 2, 3, 6, 7, 17, 24, 200)
# (N, K, group size): odd and even numbers of row blocks, many groups and one in all.
SHAPES = [(48, 64, 32), (80, 544, 32), (16, 32, 32), (32, 704, 32), (80, 576, 32), (96, 1280, 64), (64, 128, 128)]

methods = pytest.mark.parametrize("method", METHODS)
lengths = pytest.mark.parametrize("T", LENGTHS)
shapes = pytest.mark.parametrize(("N", "K", "group_size"), SHAPES)


def prepare(weight, method, values, group_size=32):
    """Return activations of `values` for `weight`."""
    T, K = values.shape
    x = empty_activations(method, T, K, group_size)
    on_threads(quantize_plain, 1, T, values, weight, scratch_of(x, 1, K))
    return x


def apply(weight, x, T, N, threads=1, residual=None):
    """Run the linear into a wider array; check that nothing else was written; return [T, N]."""
    out = np.full((T + 2, N + 48), UNTOUCHED)
    if residual is not None:
        out[:T, :N] = residual
    on_threads(linear, threads, T, weight, scratch_of(x, threads, 0), out, STORE if residual is None else ADD)
    return written(out, T, N)


def apply_head(weight, x, T, N, threads):
    """Run the head into a wider array."""
    out = np.full((T + 2, N + 48), UNTOUCHED)
    on_threads(head, threads, T, weight, scratch_of(x, threads, 0), out)
    return written(out, T, N)


def written(out, T, N):
    """Return the part [T, N] of an array; check that nothing else was written."""
    assert (out[T:] == UNTOUCHED).all(), "rows beyond T were written"
    assert (out[:, N:] == UNTOUCHED).all(), "columns beyond N were written"
    return out[:T, :N]


def tolerance(method, x, w, added, group_size):
    """Return the bound of the rounding error: a half ulp of everything that is summed, for each step of the sum."""
    K = x.shape[1]
    steps = K if method == "f32" else 2 * K // group_size + 1
    return (steps + 4) * EPS / 2 * (np.abs(x) @ np.abs(w).T + added)


@methods
@lengths
@shapes
def test_linear_of_dequantized_weights(method, T, N, K, group_size, rng):
    weight, w = random_weight(rng, method, N, K, group_size)
    x = prepare(weight, method, rng.standard_normal((T, K)).astype(np.float32), group_size)
    exact = meaning(method, x, T, K, group_size)
    got = apply(weight, x, T, N)
    assert_within(got, reference.linear(exact, w), tolerance(method, exact, w, 0, group_size))


@methods
@lengths
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("added", [False, True], ids=["", "residual"])
def test_bias_and_residual(method, T, bias, added, rng):
    weight, w = random_weight(rng, method, 48, 96, bias=bias)
    x = prepare(weight, method, rng.standard_normal((T, 96)).astype(np.float32))
    residual = rng.standard_normal((T, 48)).astype(np.float32) if added else None
    exact = meaning(method, x, T, 96)
    expected = reference.linear(exact, w, weight.bias if bias else None) + (0 if residual is None else residual)
    extra = (np.abs(weight.bias) if bias else 0) + (0 if residual is None else np.abs(residual))
    got = apply(weight, x, T, 48, residual=residual)
    assert_within(got, expected, tolerance(method, exact, w, extra, 32))


@pytest.mark.parametrize("has_tile_registers", [False, True])
@pytest.mark.parametrize("unpacking", [1, 2])
@pytest.mark.parametrize("lengths", {*TILES.values(), (4, 4, 4, 4)}, ids=str)
def test_the_tiles_of_any_number_of_tokens_fit_into_the_largest(lengths, unpacking, has_tile_registers, monkeypatch):
    """Scratch has room for the largest tiles, whichever instruction set there is."""
    named = dict(zip(("FEW_TOKENS", "SEVERAL_TOKENS", "SOME_TOKENS", "TOKENS"), ((0,) * n for n in lengths)))
    named |= {"TILE_LENGTHS": lengths, "UNPACKING": unpacking, "HAS_TILE_REGISTERS": has_tile_registers}
    for name, value in named.items():
        monkeypatch.setattr(f"tinychat.kernels.linear.{name}", value)
    for T in range(2, 2049):
        assert round_up(T, tokens_of(T)) <= round_up(T, lengths[-1])
    used = {tokens_of(T) for T in range(2, 2049)}
    assert used == {*lengths}, "each length pays for some number of tokens"


@methods
def test_error_of_quantized_activations_is_half_a_code(method, rng):
    weight, w = random_weight(rng, method, 64, 256)
    values = rng.standard_normal((17, 256)).astype(np.float32)
    x = prepare(weight, method, values)
    exact = meaning(method, x, 17, 256)
    half_a_code = 0 if method == "f32" else np.repeat(np.abs(values).reshape(17, 8, 32).max(axis=2) / 254, 32, axis=1)
    lost = (half_a_code * np.ones_like(values)) @ np.abs(w).T * 1.001
    got = apply(weight, x, 17, 64)
    assert_within(got, reference.linear(values, w), lost + tolerance(method, exact, w, 0, 32))


@methods
@lengths
def test_rows_split_over_threads_are_the_same_bits(method, T, rng):
    weight, _ = random_weight(rng, method, 112, 192, bias=True)
    x = prepare(weight, method, rng.standard_normal((T, 192)).astype(np.float32))
    residual = rng.standard_normal((T, 112)).astype(np.float32)
    one = apply(weight, x, T, 112, threads=1, residual=residual)
    for threads in (2, 3, 11):
        assert apply(weight, x, T, 112, threads=threads, residual=residual).tobytes() == one.tobytes()


@methods
def test_each_row_is_written_by_one_thread(method, rng):
    weight, _ = random_weight(rng, method, 80, 64)
    for T in (1, 17):
        x = prepare(weight, method, rng.standard_normal((T, 64)).astype(np.float32))
        outs = [np.full((T, 80), UNTOUCHED) for _ in range(2)]
        scratch = scratch_of(x, 2, 0)
        with ThreadPoolExecutor(2) as pool:
            shares = [
                pool.submit(linear, member, T, weight, scratch, outs[member.thread], STORE) for member in team_of(2)
            ]
        for share in shares:
            share.result()
        assert ((outs[0] != UNTOUCHED) ^ (outs[1] != UNTOUCHED)).all(), "each output belongs to exactly one thread"


@methods
@pytest.mark.parametrize("T", [2, 3, 5, 6, 7, 10, 12, 17, 24, 25, 33, 40, 65, 200])
def test_one_token_and_many_are_the_same_bits(method, T, rng):
    weight, _ = random_weight(rng, method, 80, 576, bias=True)
    values = rng.standard_normal((T, 576)).astype(np.float32)
    many = apply(weight, prepare(weight, method, values), T, 80)
    for t in {0, 1, T // 2, T - 1}:
        alone = apply(weight, prepare(weight, method, values[t : t + 1]), 1, 80)
        assert alone.tobytes() == many[t].tobytes()


@methods
@pytest.mark.parametrize("T", [1, 17])
def test_more_rows_than_one_cache_panel(method, T, rng):
    N, K = 21 * 16, 2048
    weight, w = random_weight(rng, method, N, K)
    x = prepare(weight, method, rng.standard_normal((T, K)).astype(np.float32))
    exact = meaning(method, x, T, K)
    assert_within(apply(weight, x, T, N), reference.linear(exact, w), tolerance(method, exact, w, 0, 32))


@lengths
@pytest.mark.parametrize("threads", [1, 3])
def test_split_weight_equals_both_parts(T, threads, rng):
    (frequent, _), (rest, _) = (random_weight(rng, method, N, 96) for method, N in [("int8", 32), ("int4", 48)])
    x = prepare(rest, "int4", rng.standard_normal((T, 96)).astype(np.float32))
    expected = np.concatenate([apply(frequent, x, T, 32), apply(rest, x, T, 48)], axis=1)
    got = apply_head(SplitWeight(frequent, rest), x, T, 80, threads)
    assert got.tobytes() == expected.tobytes()
    assert apply_head(rest, x, T, 48, threads).tobytes() == expected[:, 32:].tobytes()


@pytest.mark.parametrize("method", ["int4", "int8"])
@pytest.mark.parametrize("T", [1, 17])
def test_extreme_codes_do_not_saturate(method, T, rng):
    N, K, highest = 16, 128, 127
    weight, _ = random_weight(rng, method, N, K, 128)
    weight.row_scales[:] = 1
    for code, value in ((0, -128), (255, 127)):
        weight.packed[:] = code
        if method == "int4":
            weight.table[code & 15] = value
        for sign in (1, -1):
            x = prepare(weight, method, np.full((T, K), sign * highest, np.float32), 128)
            for scale in (127, -127, 1):
                weight.scales[:] = scale
                expected = np.float32(sign * highest * value * K * scale)
                assert (apply(weight, x, T, N) == expected).all()
