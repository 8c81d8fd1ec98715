"""Machine code of linears and of attention: dot products on 512-bit registers, and only work in their loops.

Compiled anew in a process of its own: code that comes from the kernel cache has no assembly to show.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinychat.kernels.setup import INSTRUCTION_SET

PRINT_ASSEMBLY = """
import json
import sys
import numpy as np
from numba import typeof
from kernels.cache_inputs import fill_cache
from kernels.kernel_inputs import empty_activations, random_weight, scratch_of, team_of
from kernels.test_affine import random_affine
from kernels.test_attention import NO_WINDOW, UNCHANGED, allocate
from tinychat.kernels.attention import Item, attend_chunk
from tinychat.kernels.buffers import SoftmaxState
from tinychat.kernels.linear import FIRST, multiply_rows
from tinychat.kernels.weights import STORE

rng = np.random.default_rng(0)
weights = {
    "int4": random_weight(rng, "int4", 64, 256)[0],
    "affine": random_affine(rng, 4, 4, 256, 32, 8, np.int8)[0],
}
x, out = empty_activations("int4", 16, 256), np.zeros((16, 64), np.float32)
found = {}
for kind, weight in weights.items():
    arguments = team_of(1)[0], 0, weight, x, out, FIRST, scratch_of(x, 1, 0).tiles, STORE
    types = tuple(typeof(argument) for argument in arguments)
    multiply_rows.compile(types)
    found[kind] = multiply_rows.inspect_asm(types)
*scratch, totals, _ = allocate("int8", 64, 64, 1)
pages = fill_cache("int8", *np.ones((2, 64, 1, 64), np.float32))[0]
item = Item(*(array[0] for array in scratch), pages.table, 0, 0, 1, 0, 48, 64, NO_WINDOW, UNCHANGED)
arguments = item, pages.layer(), SoftmaxState(*(array[0] for array in totals)), 0, 0
types = tuple(typeof(argument) for argument in arguments)
attend_chunk.compile(types)
found["attention"] = attend_chunk.inspect_asm(types)
json.dump(found, sys.stdout)
"""


def fresh_environment(cache):
    """Return an environment for a process that compiles on its own; Numba's settings are the parent's choices."""
    tests = Path(__file__).parents[1]
    others = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return others | {"TINYCHAT_CACHE": str(cache), "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}


@pytest.fixture(scope="module")
def assemblies(tmp_path_factory):
    """Return the assembly of the linear for each kind of weight."""
    if INSTRUCTION_SET != "avx512vnni":
        pytest.skip(f"looks for AVX-512 VNNI; these kernels are compiled for {INSTRUCTION_SET}")
    environment = fresh_environment(tmp_path_factory.mktemp("cache"))
    command = [sys.executable, "-c", PRINT_ASSEMBLY]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(params=["int4", "affine"])
def loops(request, assemblies):
    """Return the innermost loops of the linear that hold dot products, as text."""
    return [loop for loop in innermost_loops(assemblies[request.param]) if "vpdpbusd" in loop]


def dots_of(loop):
    return [line for line in loop.splitlines() if "vpdpbusd" in line]


def innermost_loops(assembly):
    """Return the text from a label to a backward jump to it, where no other such jump lies between."""
    lines = assembly.splitlines()
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\.L\w+):", line))}
    spans = []
    for i, line in enumerate(lines):
        jump = re.match(r"\s+j\w+\s+(\.L\w+)$", line)
        if jump and labels.get(jump[1], i) < i:
            spans.append((labels[jump[1]], i))
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return ["\n".join(lines[start : stop + 1]) for start, stop in inner]


def test_one_token_and_many_have_loops_of_their_own(loops):
    per_loop = sorted({loop.count("vpdpbusd") for loop in loops})
    # A line holds 8 columns: two dot products for each row block and token; loops may be unrolled.
    assert per_loop, "no loop with dot products"
    assert per_loop[0] % 2 == 0
    assert any(count % 32 == 0 for count in per_loop), f"no tile of sixteen among loops of {per_loop} dot products"
    assert any(count % 32 for count in per_loop), f"no loop for one token among loops of {per_loop} dot products"


def test_dot_products_use_the_widest_registers(loops):
    for loop in loops:
        assert all("%zmm" in line for line in dots_of(loop)), "\n".join(dots_of(loop))


def test_loops_call_nothing_and_keep_their_tile_in_registers(loops):
    for loop in loops:
        assert "call" not in loop, loop
        spills = [line for line in loop.splitlines() if re.search(r"vmov\w+\s+%zmm\d+, .*\(%r[sb]p\)", line)]
        assert not spills, "\n".join(spills)


def test_many_rows_attend_to_codes_with_nothing_but_products(assemblies):
    """Of keys and of values: 24 sums stay in registers, and what is left of a step is less than them."""
    loops = [loop for loop in innermost_loops(assemblies["attention"]) if len(dots_of(loop)) == 24]
    assert len(loops) == 2
    for loop in loops:
        assert all("%zmm" in line for line in dots_of(loop)), loop
        assert len(loop.splitlines()) <= 50, loop
        assert "(%rsp)" not in loop, loop
