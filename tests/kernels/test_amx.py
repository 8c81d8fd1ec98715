"""Linears on tile registers give the bits of those on vectors: on the registers themselves, or on a model of them.

The model runs in the same compiled code, in the place of the instructions, so that indices and the order of steps are
checked on any processor with AVX-512.
"""

import functools
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from kernels import test_affine, test_linear
from kernels.kernel_inputs import UNTOUCHED, compiled, on_threads, random_weight, round_up, scratch_of
from kernels.test_assembly import fresh_environment

from tinychat.kernels.amx import (
    configuration,
    load_of,
    product_of,
    release_registers,
    store_of,
    zero_of,
)
from tinychat.kernels.amx_buffer import BUFFER_FLOATS, CODES, FACTORS, RING, TOTALS
from tinychat.kernels.amx_linear import configure, multiply_panel
from tinychat.kernels.buffers import zeros_on_lines
from tinychat.kernels.inputs import quantize_plain
from tinychat.kernels.setup import ISA
from tinychat.kernels.weights import FINE_KINDS, FineRowActivations, RowActivations

pytestmark = pytest.mark.skipif(ISA != "avx512vnni", reason="tiles of sixteen tokens are AVX-512's")
LENGTHS = (9, 15, 16, 17, 31, 32, 33, 64, 65, 200, 256, 300, 512)
# (N, K, columns of a group): a slice, several, some of another size; one group; products of 64 and two of them.
SHAPES = [(80, 576, 32), (48, 64, 32), (16, 32, 32), (112, 832, 32), (96, 1280, 64), (64, 1664, 128), (16, 128, 128)]
# A row block has two slices, no divisor that a slice could have but all 43 groups, one slice of 13, too few groups; and
# more row blocks than there are totals.
ONE_TILE_SHAPES = [(80, 1024, 32), (48, 1376, 32), (32, 416, 32), (32, 352, 32), (4128, 384, 32)]
# Of affine weights, and groups of a span: columns of the input's groups are 32, or 16 of eight bits.
AFFINE_SHAPES = [(48, 64, 32, 2), (80, 544, 32, 1), (112, 1536, 128, 3), (16, 384, 64, 3)]
LANES = 16


@compiled
def run_panel(weight, x, start, T, out, buffer, add, first, last):
    multiply_panel(weight, x, start, T, out, 0, buffer, add, first, last)


@functools.cache
def draw(kind, shape):
    """Return a weight of a kind with a bias, and the columns of a group of its input."""
    rng = np.random.default_rng(5)
    if kind in test_affine.KINDS:
        weight, _, group = test_affine.random_kind(rng, kind, shape, bias=True)
        return weight, group
    N, K, group = shape
    return random_weight(rng, kind, N, K, group, bias=True)[0], group


def prepare(kind, weight, values, group):
    """Return the same activations for vectors and for tile registers."""
    if kind in test_affine.KINDS:
        plain = test_affine.prepare(kind, weight, values, group)
    else:
        plain = test_linear.prepare(weight, kind, values, group)
    in_rows = FineRowActivations if isinstance(plain, FINE_KINDS) else RowActivations
    x = in_rows(*(np.full_like(array, 55) for array in plain))
    on_threads(quantize_plain, 1, len(values), values, weight, scratch_of(x, 1, values.shape[1]))
    return plain, x


def on_registers(weight, x, T, N, residual=None, parts=(None,), shares=1):
    """Run the linear on tile registers, the tokens from each of `parts` on apart, and row blocks in shares."""
    out = np.full((T + 2, N + 48), UNTOUCHED)
    if residual is not None:
        out[:T, :N] = residual
    starts = [start or 0 for start in parts]
    borders = np.linspace(0, N // LANES, shares + 1).astype(int)
    for share, (first, last) in enumerate(itertools.pairwise(borders)):
        buffer = np.full(BUFFER_FLOATS + share, np.nan, np.float32)[share:]
        for start, stop in zip(starts, [*starts[1:], T]):
            run_panel(weight, x, start, stop, out, buffer, residual is not None, first, last)
    return test_linear.written(out, T, N)


# Codes of four and eight bits with and without offsets; others take as long to compile, and are the same lines.
ALWAYS = ("int4", "mixed fine")
KINDS = [(kind, shape) for kind in ("int4", "int8") for shape in SHAPES]
KINDS += [(kind, shape) for kind in test_affine.KINDS for shape in AFFINE_SHAPES]
kinds = pytest.mark.parametrize(
    ("kind", "shape"),
    [pytest.param(*each, marks=[] if each[0] in ALWAYS else pytest.mark.slow) for each in KINDS],
    ids=str,
)


def compare(kind, shape, T, rng):
    """Compare a linear of T tokens on tile registers with that on vectors, with a residual if T is odd."""
    (weight, group), (N, K) = draw(kind, shape), shape[:2]
    values = (rng.standard_normal((round_up(T, LANES), K)) * 10.0 ** rng.integers(-20, 15)).astype(np.float32)
    plain, x = prepare(kind, weight, values, group)
    residual = rng.standard_normal((len(values), N)).astype(np.float32) if T % 2 else None
    expected = test_linear.apply(weight, plain, len(values), N, residual=residual)
    got = on_registers(weight, x, T, N, None if residual is None else residual[:T])
    assert got.tobytes() == expected[:T].tobytes(), f"{T} tokens"


@kinds
def test_the_bits_are_those_of_vectors(kind, shape, rng):
    # Sixteen tokens, or several times as many, have tiles of sixteen also without tile registers.
    for T in LENGTHS:
        compare(kind, shape, T, rng)


@pytest.mark.parametrize("kind", ["int4", pytest.param("int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", ONE_TILE_SHAPES, ids=str)
def test_a_stream_of_one_tile_has_the_bits_of_vectors(kind, shape, rng):
    # The first tile, and the one behind sixteen others.
    for T in (9, 16, 267):
        compare(kind, shape, T, rng)


@pytest.mark.parametrize("kind", ["int4", "mixed fine"])
def test_parts_of_the_tokens_and_shares_of_the_rows_are_the_same_bits(kind, rng):
    shape = (112, 576, 32, 2)[: 3 if kind == "int4" else 4]
    (weight, group), T = draw(kind, shape), 200
    _, x = prepare(kind, weight, rng.standard_normal((T, 576)).astype(np.float32), group)
    whole = on_registers(weight, x, T, 112)
    for shares in (2, 3, 7):
        starts = sorted({0, *(rng.integers(1, T // LANES, 3) * LANES).tolist()})
        assert on_registers(weight, x, T, 112, parts=starts, shares=shares).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_extreme_codes_do_not_saturate(kind):
    """Whole numbers everywhere: nothing may be rounded."""
    N, K, T = 16, 128, 32
    weight = random_weight(np.random.default_rng(0), kind, N, K, 128)[0]
    weight.row_scales[:] = 1
    for code, value in ((0, -128), (255, 127)):
        weight.packed[:] = code
        if kind == "int4":
            weight.table[code & 15] = value
        for sign in (1, -1):
            _, x = prepare(kind, weight, np.full((T, K), sign * 127, np.float32), 128)
            for scale in (127, -127, 1):
                weight.scales[:] = scale
                assert (on_registers(weight, x, T, N) == np.float32(sign * 127 * value * K * scale)).all()


load_4, load_6, product, zero, store = load_of(4), load_of(6), product_of(1, 4, 6), zero_of(1), store_of(1)


@compiled
def multiply_once(columns, x, x_stride, w, buffer):
    configure(buffer, columns)
    load_4(buffer, x, 3, x_stride)
    load_6(buffer, w, 5, 64)
    zero(buffer)
    product(buffer)
    product(buffer)
    store(buffer, 0)
    release_registers(buffer)


@pytest.mark.parametrize("columns", [16, 32, 64])
def test_instructions_do_what_intel_says(columns, rng):
    """Sixteen rows of activations that stand apart, a row of weights for each four columns, two products added."""
    stride = columns + 7
    x, w = (rng.integers(-128, 128, size).astype(np.int8) for size in (3 + 16 * stride, 5 + 1024))
    buffer = np.full(BUFFER_FLOATS, np.nan, np.float32)
    multiply_once(columns, x, stride, w, buffer)
    rows = np.stack([x[3 + t * stride :][:columns] for t in range(16)]).astype(np.int64)
    lines = w[5 : 5 + 16 * columns].reshape(columns // 4, 16, 4).transpose(0, 2, 1).reshape(columns, 16)
    np.testing.assert_array_equal(buffer[:256].view(np.int32).reshape(16, 16), 2 * rows @ lines)


def test_the_configuration_is_as_the_processor_reads_it():
    table = configuration(32)
    assert len(table) == 64 and table[:16] == b"\1" + bytes(15)
    assert np.frombuffer(table[16:32], np.uint16).tolist() == [64] * 4 + [32] * 2 + [64] * 2
    assert list(table[48:56]) == [16] * 6 + [8] * 2


def test_what_tile_registers_load_begins_on_a_cache_line():
    assert all(part % LANES == 0 for part in (RING, TOTALS, FACTORS, CODES, BUFFER_FLOATS))
    for size in (1, 64, 1000):
        found = zeros_on_lines(size, np.float32)
        assert found.ctypes.data % 64 == 0 and found.size == size and not found.any()


PRINT_ASSEMBLY = """
import json, sys
from types import ModuleType
import llvmlite.binding as llvm
found = {**llvm.get_host_cpu_features(), "amx-tile": True, "amx-int8": True, "amx-bf16": True}
llvm.get_host_cpu_features = lambda: found
grant = sys.modules["tinychat.kernels.amx_grant"] = ModuleType("amx_grant")
grant.refusal = lambda: None
import numba
import numpy as np
from kernels.kernel_inputs import random_weight
from numba import types
from tinychat.kernels.amx_linear import stream_panel
from tinychat.kernels.amx_one_tile import Panel
from tinychat.kernels.amx_slice import Slice, add_fine_slice, add_slice
from tinychat.kernels.weights import FineRowActivations, RowActivations
codes, floats, whole = (numba.types.Array(kind, 1, "C") for kind in (types.int8, types.float32, types.int32))
kinds = [types.boolean if name in ("has_offsets", "is_first") else types.int64 for name in Slice._fields]
slices, x = types.NamedTuple(kinds, Slice), [codes, floats, whole, floats]
plain, fine = types.NamedTuple(x, RowActivations), types.NamedTuple([*x, codes], FineRowActivations)
weight = numba.typeof(random_weight(np.random.default_rng(0), "int4", 16, 512)[0])
panel, out = types.NamedTuple([types.int64] * len(Panel._fields), Panel), types.Array(types.float32, 2, "C")
found = {}
for function, *arguments in (
    (add_slice, slices, plain, floats, types.int64),
    (add_fine_slice, slices, fine, floats, types.int64),
    (stream_panel, weight, plain, panel, types.int64, out, types.int64, floats, types.boolean, types.int64),
):
    arguments = tuple(arguments)
    function.compile(arguments)
    found[function.py_func.__name__] = function.inspect_asm(arguments)
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def assemblies(tmp_path_factory):
    """Return the assembly of the streams for a processor that has tile registers, which this one need not have."""
    settings = {"TINYCHAT_ISA": "amx", "NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": ""}
    environment = fresh_environment(tmp_path_factory.mktemp("cache")) | settings
    command = [sys.executable, "-c", PRINT_ASSEMBLY]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


TILE_INSTRUCTIONS = ("tileload", "tilezero", "tdp", "tilestored")
# Of a step: runs of instructions, fma in numbers. In the first a second product follows where a group has two.
PLAIN = ["tileload", 8, "tileload", 8, "tilezero", "tdp", "tileload", "tdp", 8, "tilestored", 8 + 16]
FINE = ["tileload", 4, "tilezero", "tdp", "tileload", 4, "tilestored", 4, "tilezero", "tdp", "tilestored", 4 + 16]
ONE_TILE = ["tileload", 8, "tileload", 8, "tilezero", "tdp", 8, "tilestored", 8]


@pytest.mark.parametrize(("name", "step"), [("add_slice", PLAIN), ("add_fine_slice", FINE), ("stream_panel", ONE_TILE)])
def test_tile_instructions_and_floats_alternate_and_nothing_is_spilled(assemblies, name, step):
    lines = assemblies[name].splitlines()
    assert not [line for line in lines if "call" in line or ("zmm" in line and "(%rsp" in line)]
    # Behind the products that run ahead.
    begin = next(i for i, line in enumerate(lines) if "prefetcht1" in line)
    found = [kind for line in lines[begin:] for kind in (*TILE_INSTRUCTIONS, "fmadd") if kind in line]
    runs = [(kind, len(list(run))) for kind, run in itertools.groupby(found)]
    assert [count if kind == "fmadd" else kind for kind, count in runs] == 4 * step
