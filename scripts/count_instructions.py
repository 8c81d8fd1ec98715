"""Count what the inner loops of kernels execute on each instruction set, by the assembly that LLVM writes.

    PYTHONPATH=. .venv/bin/python scripts/count_instructions.py [TARGET ...] [--pass] [--json]

For each processor of scripts/foreign_kernels.py, compiled in a process of its own and not run: of the linears of four
and eight bits, the loop of a tile of many tokens and that of one token.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from foreign_kernels import TARGETS, compile_for, forward_passes
from loop_nests import loop_nests

# Products of codes that an instruction makes, for each byte of its registers.
PRODUCTS = {
    **dict.fromkeys(("vpdpbusd", "vpmaddubsw", "sdot", "usdot"), 1.0),
    "usmmla": 2.0,
    **dict.fromkeys(("vpmullw", "mul", "vpmaddwd", "pmullw", "pmaddwd"), 0.5),
    **dict.fromkeys(("smull", "smull2", "umull", "umull2", "smlal", "smlal2"), 0.5),
}
_BYTES = {"zmm": 64, "ymm": 32, "xmm": 16}


class Loop(NamedTuple):
    """What one iteration of an innermost loop executes."""

    instructions: int
    products: int
    dots: dict[str, int]
    stores: int  # into the stack: registers that were not enough
    calls: int


def innermost_loops(assembly: str) -> list[list[str]]:
    """Return the instructions of each loop that has no other in it."""
    return [nest.lines for nest in loop_nests(assembly) if not nest.inner]


def mnemonic(line: str) -> str:
    """Return the name of an instruction, without the lanes that Apple's assembly writes behind it."""
    return re.sub(r"\{\w+\}", "", line).split()[0].partition(".")[0]


def products_of(line: str) -> int:
    """Return how many products of codes and activations an instruction makes."""
    width = next((size for name, size in _BYTES.items() if name in line), 16)
    is_vector = any(name in line for name in _BYTES) or re.search(r"\bv\d+\b", line)
    return int(PRODUCTS.get(mnemonic(line), 0) * width) if is_vector else 0


def byte_products_of(line: str) -> int:
    """Return how many products of bytes an instruction makes; those of words may only add them up."""
    return products_of(line) if PRODUCTS.get(mnemonic(line), 0) >= 1 else 0


def multiply_adds_of(line: str) -> int:
    """Return how many products of floats an instruction adds."""
    width = next((size for name, size in _BYTES.items() if name in line), 16)
    name = mnemonic(line)
    return width // 2 if name == "vdpbf16ps" else width // 4 if re.match(r"vfn?m(add|sub)\d+ps|fml[as]$", name) else 0


def is_spill(line: str) -> bool:
    """Return whether an instruction stores a vector into the stack."""
    arm = re.match(r"\s+(st[rp]|stur)\s+q.*\[(sp|x29)", line)
    return bool(arm or re.match(r"\s+v?mov[a-z]+\d*\s+%[xyz]mm\d+, .*\(%r[sb]p\)", line))


def counted(lines: list[str]) -> Loop:
    """Count a loop."""
    names = [mnemonic(line) for line in lines]
    used = [name for name, line in zip(names, lines) if products_of(line)]
    dots = {name: used.count(name) for name in sorted(set(used))}
    # Where products are made of bytes, those of words only add them up.
    bytewise = any(PRODUCTS[name] >= 1 for name in dots)
    products = sum(products_of(line) for name, line in zip(names, lines) if not bytewise or PRODUCTS.get(name, 0) >= 1)
    return Loop(len(lines), products, dots, sum(map(is_spill, lines)), sum(map(is_call, names)))


def is_call(name: str) -> bool:
    """Return whether an instruction of this name calls a function."""
    return name in ("bl", "blr") or name.startswith("call")


def assemblies(target: str) -> dict[str, str]:
    """Compile linears for a target; return their assembly. Imports Numba, for this target only."""
    with tempfile.TemporaryDirectory() as cache:
        compile_for(TARGETS[target], cache)
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
        import numpy as np
        from kernels.kernel_inputs import empty_activations, random_weight, scratch_of, team_of
        from kernels.test_affine import random_affine
        from numba import typeof

        from tinychat.kernels.linear import FIRST, multiply_rows
        from tinychat.kernels.weights import STORE

        rng: Any = np.random.default_rng(0)
        weights = {
            "int4": random_weight(rng, "int4", 64, 256)[0],
            "int8": random_weight(rng, "int8", 64, 256)[0],
            "affine": random_affine(rng, 4, 4, 256, 32, 8, np.int8)[0],
        }
        x, out = empty_activations("int4", 16, 256), np.zeros((16, 64), np.float32)
        calls = {
            name: (multiply_rows, (team_of(1)[0], 0, weight, x, out, FIRST, scratch_of(x, 1, 0).tiles, STORE))
            for name, weight in weights.items()
        }
        found = {}
        for name, (function, arguments) in calls.items():
            types = tuple(typeof(argument) for argument in arguments)
            function.compile(types)
            found[name] = function.inspect_asm(types)
        return found


def forward_assembly(target: str) -> dict[str, str]:
    """Compile the forward pass of a small model for a target; return its assembly."""
    with tempfile.TemporaryDirectory() as cache:
        compile_for(TARGETS[target], cache)
        return {title: library.get_asm_str() for title, library in forward_passes(["tinyllama"], ("int4",))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--json", action="store_true", help="write the assembly of one target, by kernel")
    parser.add_argument("--pass", action="store_true", dest="whole", help="of the forward pass of a small model")
    options = parser.parse_args()
    if options.json:
        json.dump((forward_assembly if options.whole else assemblies)(options.targets[0]), sys.stdout)
        return 0
    print("| processor | instruction set | kernel | tokens | instructions | products | a product | spills | dots |")
    print("|---|---|---|---|---|---|---|---|---|")
    for target in options.targets or TARGETS:
        for kernel, assembly in assembled(target, *(["--pass"] if options.whole else [])).items():
            for row in rows_of(assembly):
                print(f"| {target} | {TARGETS[target].isa} | {kernel} | {row} |")
    return 0


def assembled(target: str, *options: str) -> dict[str, str]:
    """Return the assembly that a process of its own compiles."""
    command = [sys.executable, __file__, target, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def rows_of(assembly: str) -> list[str]:
    """Return the table's cells for the loop of the smallest tile and that of fewest instructions a product."""
    loops = [loop for loop in map(counted, innermost_loops(assembly)) if loop.products]
    one = min(loops, key=lambda loop: loop.products)
    many = min(loops, key=lambda loop: loop.instructions / loop.products)
    return [
        f"{name} | {loop.instructions} | {loop.products} | {loop.instructions / loop.products:.4f} | {loop.stores} | "
        f"{', '.join(f'{count} {dot}' for dot, count in loop.dots.items())}"
        for name, loop in (("one", one), ("many", many))
    ]


if __name__ == "__main__":
    sys.exit(main())
