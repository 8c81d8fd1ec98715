"""Instructions of inner loops are counted, also for processors that no test runs on."""

import json
import os
import subprocess
import sys
from itertools import groupby

import pytest
from import_graph import REPO

sys.path.insert(0, str(REPO / "scripts"))

import count_instructions
from count_instructions import Loop, counted, innermost_loops, mnemonic, multiply_adds_of

APPLE = """
LBB0_1:                                 ; a loop around another
\tldr\tx9, [x0]
LBB0_2:
\tldp\tq0, q5, [x15]
\tstr\tq0, [sp, #16]
\tsdot\tv31, v17, v2[0]
\tsdot.4s\tv1, v6, v2
\tbl\t_called
\tb.ne\tLBB0_2
\tcbnz\tx8, LBB0_1
"""
X86 = """
.LBB0_1:
\tvmovdqa\t%ymm1, 32(%rsp)
\t{vex}\tvpdpbusd\t(%rax), %ymm1, %ymm2
\tvpmaddwd\t%ymm1, %ymm2, %ymm3
\tcallq\t*%rax
\tjne\t.LBB0_1
"""
# The dot product of each processor, and the most instructions for each product of a code and an activation.
EXPECTED = {"apple-m1": ({"sdot"}, 0.1), "apple-m2": ({"usdot", "usmmla"}, 0.075), "alderlake": ({"vpdpbusd"}, 0.1)}


def test_a_loop_of_arm_is_counted():
    (loop,) = innermost_loops(APPLE)
    assert counted(loop) == Loop(6, 32, {"sdot": 2}, 1, 1)


def test_a_loop_of_x86_is_counted():
    (loop,) = innermost_loops(X86)
    assert counted(loop) == Loop(5, 32, {"vpdpbusd": 1, "vpmaddwd": 1}, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("target", EXPECTED)
def test_forward_passes_of_other_processors(target):
    """Each of their symbols is found, or the process that compiles them would end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "TINYCHAT_"))}
    command = [sys.executable, count_instructions.__file__, target, "--json", "--pass"]
    environment["PYTHONPATH"] = str(REPO)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    innermost = innermost_loops("".join(json.loads(done.stdout).values()))
    loops = [loop for loop in map(counted, innermost) if loop.products]
    dots, most = EXPECTED[target]
    assert set().union(*(loop.dots for loop in loops)) == dots
    assert not any(loop.calls for loop in loops)
    assert max(loop.stores for loop in loops) <= 2, loops
    many = max(loops, key=lambda loop: loop.products)
    assert many.instructions <= most * many.products, many
    # Attention's products with keys and values: of several tile shapes.
    products = [lines for lines in innermost if 3 * sum(multiply_adds_of(line) > 0 for line in lines) > len(lines)]
    assert len(products) >= 4
    assert max(counted(lines).stores for lines in products) <= 2
    # One token is bound by memory: its loop has a line's products at least, and fewer than the tile's.
    assert 128 <= min(loop.products for loop in loops) < many.products


@pytest.mark.slow
def test_prefetches_of_one_token_stand_apart_on_a_xeon():
    """Four in a row cost a sixth of the rate there."""
    loops = innermost_loops(count_instructions.assembled("sapphirerapids")["int4"])
    one = max(
        (lines for lines in loops if counted(lines).dots == {"vpdpbusd": 8}),
        key=lambda lines: sum(map(is_prefetch, lines)),
    )
    together = [len([*group]) for is_one, group in groupby(one, is_prefetch) if is_one]
    # Four of weights, and one of scales.
    assert sum(together) == 5
    assert max(together) <= 2


@pytest.mark.slow
def test_zen_4_prefetches_one_line_of_four_for_one_token():
    """Two cores read codes of eight bits up to 1.4 times as fast as with a prefetch for each line."""
    loops = innermost_loops(count_instructions.assembled("znver4")["int8"])
    (one,) = [lines for lines in loops if counted(lines).dots == {"vpdpbusd": 8}]
    assert sum(map(is_prefetch, one)) == 2


def is_prefetch(line):
    return mnemonic(line) == "prefetcht1"
