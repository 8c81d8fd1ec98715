"""Attention on tile registers gives the bits of that on vectors: on the registers themselves, or on a model of them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from kernels.kernel_inputs import compiled
from kernels.test_assembly import fresh_environment
from kernels.test_attention import NO_WINDOW, draw, run

from tinychat.kernels.amx import configure_64, release_registers
from tinychat.kernels.amx_attention import LEAST_ROWS, sums_of, widen
from tinychat.kernels.amx_buffer import BUFFER_FLOATS, TILE
from tinychat.kernels.setup import AMX, AMX_MODEL, INSTRUCTION_SET, ISA
from tinychat.kernels.sizes import LANES

pytestmark = pytest.mark.skipif(ISA != "avx512vnni", reason="tile registers stand beside AVX-512")

ON_VECTORS = "avx512vnni"
ON_TILES = AMX if INSTRUCTION_SET == AMX else AMX_MODEL
# Heads, KV heads and their size: alone and grouped, of one product of channels, of many, of none that is whole, and of
# more than a thread's buffer has room for.
HEADS = [(3, 3, 64), (9, 3, 64), (8, 1, 128), (6, 2, 80), (4, 2, 16), (4, 2, 24), (2, 1, 576), (2, 1, 4096)]
PRINT_OUTPUTS = """
import sys
import numpy as np
from kernels.test_amx_attention import outputs
np.savez(sys.argv[1], **outputs())
"""
clear_sums, load_sums, store_sums, add_product = sums_of(2)


def outputs():
    """Compute attention of few items and of many, at depths that begin and end anywhere."""
    found = {}
    for heads, kv_heads, d in HEADS:
        for T, start, window in (
            (1, 8, NO_WINDOW),
            (2, 700, NO_WINDOW),
            (3, 63, 50),
            (17, 130, NO_WINDOW),
            (200, 9, 70),
            (200, 430, NO_WINDOW),
        ):
            rng = np.random.default_rng(T)
            q, cache, *_ = draw(rng, start + T, T, heads, kv_heads, d, "bf16", spread=4.0)
            found[f"{heads} {kv_heads} {d} {T}"] = run("bf16", q, cache, start, window, threads=2)
    return found


def outputs_under(isa, folder):
    """Return the outputs of a process of its own that is told which instructions to use."""
    environment = fresh_environment(folder / "cache") | {"TINYCHAT_ISA": isa}
    target = folder / "outputs.npz"
    command = [sys.executable, "-c", PRINT_OUTPUTS, os.fspath(target)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    with np.load(target) as found:
        return dict(found)


def test_the_bits_are_those_of_vectors(tmp_path):
    other = ON_VECTORS if INSTRUCTION_SET in (AMX, AMX_MODEL) else ON_TILES
    expected, found = outputs(), outputs_under(other, tmp_path)
    assert expected.keys() == found.keys()
    assert not [name for name in found if found[name].tobytes() != expected[name].tobytes()]
    assert LEAST_ROWS < 8  # of one token: some cases are on tile registers, others are not


def halves(rng, *shape):
    """Return random float32 that are numbers of bfloat16."""
    return (rng.standard_normal(shape).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def as_pairs(numbers):
    """Return such numbers [rows, n], two rows after each other in each lane: uint32 [rows / 2, n]."""
    bits = numbers.view(np.uint32)
    return bits[0::2] >> np.uint32(16) | bits[1::2]


@compiled
def multiply_once(rows, pairs, sums, buffer):
    configure_64(buffer)
    for j in range(8):
        widen(buffer, TILE + 32 * j, pairs, 16 * j)
    load_sums(buffer, sums, 0, 16)
    add_product(buffer, rows, 3, 24, TILE)
    store_sums(buffer, sums, 0, 16)
    clear_sums(buffer)
    add_product(buffer, rows, 3, 24, TILE)
    store_sums(buffer, sums, 512, 16)
    release_registers(buffer)


def test_a_product_is_one_chain_that_is_added_to_the_sums(rng):
    """Sixteen numbers a row, odd ones first: each product is exact in float64, and each sum rounded to float32."""
    numbers, x = halves(rng, 16, LANES), halves(rng, 32, 24)
    sums = np.concatenate([rng.standard_normal((32, LANES)), np.full((32, LANES), np.nan)]).astype(np.float32)
    chain, begun = np.zeros((32, LANES), np.float32), sums[:32].copy()
    for k in range(16):
        step = x[:, 3 + k, None].astype(np.float64) * numbers[k ^ 1].astype(np.float64)
        chain = (chain.astype(np.float64) + step).astype(np.float32)
    buffer = np.zeros(BUFFER_FLOATS, np.float32)
    multiply_once(x, as_pairs(numbers), sums, buffer)
    np.testing.assert_array_equal(sums[:32], begun + chain)
    np.testing.assert_array_equal(sums[32:], chain)
