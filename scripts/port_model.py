"""Tell what share of a processor's peak the inner loops can reach, by published tables of its execution ports.

    PYTHONPATH=. .venv/bin/python scripts/port_model.py
    PYTHONPATH=. .venv/bin/python scripts/port_model.py --check      on a processor of one of these cores

A core is simulated by its tables (scripts/port_tables.py, scripts/loop_cycles.py). The loops are those of a group of
columns of an int4 linear, for a tile of many tokens and for one, and of attention's products with a block of keys and
of values, of a bfloat16 cache and of 64 channels.

With --check the same loops run here, from the first cache, on each of this processor's instruction sets. Cycles are
counted by a chain of multiplications of three cycles each, right behind each measurement. Exit code 1 if a difference
is over 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from count_instructions import byte_products_of, multiply_adds_of
from foreign_kernels import TARGETS, compile_for
from loop_cycles import cycles_of
from loop_nests import Nest, loop_nests
from port_tables import CORES, Core

# What is compiled for each core.
CORE_OF = {
    "apple-m1": "firestorm",
    "apple-m2": "avalanche",
    "znver3": "zen3",
    "alderlake": "golden-cove",
    "haswell": "golden-cove",
    "sapphirerapids": "golden-cove",
    "znver4": "zen4",
    "znver5": "zen5",
}
# The cores of processors that --check runs on, by LLVM's names.
CORE_HERE = {
    **dict.fromkeys(("alderlake", "raptorlake", "sapphirerapids", "emeraldrapids", "graniterapids"), "golden-cove"),
    "znver3": "zen3",
    "znver4": "zen4",
    "znver5": "zen5",
}
# Instructions that make most products of bytes and of floats.
PEAKS = {
    "neon-dotprod": ("\tsdot\tv0, v30, v31", "\tfmla\tv0, v30, v31"),
    "neon-i8mm": ("\tusmmla\tv0, v30, v31", "\tfmla\tv0, v30, v31"),
    "avx2": (
        "\tvpmaddubsw\t%ymm30, %ymm31, %ymm0\n\tvpmaddwd\t%ymm30, %ymm31, %ymm0",
        "\tvfmadd231ps\t%ymm30, %ymm31, %ymm0",
    ),
    "avxvnni": ("\tvpdpbusd\t%ymm30, %ymm31, %ymm0", "\tvfmadd231ps\t%ymm30, %ymm31, %ymm0"),
    "avx512vnni": ("\tvpdpbusd\t%zmm30, %zmm31, %zmm0", "\tvfmadd231ps\t%zmm30, %zmm31, %zmm0"),
    "pairs": ("", "\tvdpbf16ps\t%zmm30, %zmm31, %zmm0"),
}
GROUP, COLUMNS, CHANNELS, POSITIONS = 32, 1024, 64, 64
PASSES, PAUSE = 120, 0.05  # seconds between passes
MEASUREMENTS, CYCLES = 25, 1e5  # of each pass, and of a measurement
CHAIN, CHAINS = 64, 32
MANY_TICKS = 1 << 62
MOST_TIMES = 64  # that a loop is run for a group or a block
ALLOWED = 0.15


class Work(NamedTuple):
    """The work of a loop for a group of columns, or for a block of positions."""

    products: int
    is_float: bool  # whether they are of floats, not of codes
    scalings: int = 0  # products of floats besides, that add a group's sums to the totals


class Probe(NamedTuple):
    """A compiled loop: what runs it, of which arguments, and its work each time."""

    function: Any
    assembly: str
    arguments: tuple[Any, ...]
    work: Work
    times: int  # groups or blocks in a call, less those in one of `fewer`
    fewer: tuple[Any, ...] | None = None  # arguments of a call that does less, and the same around it


class Estimate(NamedTuple):
    """The model's figures of a loop."""

    instructions: int
    cycles: float
    share: float  # of the peak


def probes(runs_here: bool) -> dict[str, Probe]:
    """Compile the loops. Imports Numba, for the target that is set."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from numba import njit

    from tinychat.kernels.jit import FLAGS

    # Python's part of a call has symbols that no other system's library is at hand for.
    compiled = njit(**FLAGS | {"_nrt": True, "no_cpython_wrapper": not runs_here})
    return linear_probes(compiled) | attention_probes(compiled)


def linear_probes(compiled: Any) -> dict[str, Probe]:
    """Return those of an int4 linear, whose weights and activations fit into the first cache."""
    import numpy as np
    from kernels.kernel_inputs import empty_activations, random_weight, team_of
    from numba import int64, typeof

    from tinychat.kernels.buffers import zeros_on_lines
    from tinychat.kernels.linear import FIRST, multiply_rows
    from tinychat.kernels.sizes import LANES, TILE_FLOATS, TOKENS
    from tinychat.kernels.sums import ROUNDER_BITS
    from tinychat.kernels.team import post
    from tinychat.kernels.weights import STORE

    @compiled
    def repeat(rounds, team, T, weight, x, out, first, buffers, add):
        # The stages of a job are counted, in few bits.
        post(team.queue, 1)
        for _ in range(rounds):
            multiply_rows(team, T, weight, x, out, first, buffers, add)

    def arguments(T, columns):
        """Return arguments for `columns`, and for the first half of them, in the same memory."""
        weight = random_weight(np.random.default_rng(0), "int4", LANES, columns)[0]
        x = empty_activations("int4", T, columns)
        # Behind the weights is what the loop reads too, so that what it prefetches is in the first cache.
        packed, codes, scales, steps, corrections = together(
            weight.packed, x.codes, weight.scales, x.scales, x.corrections
        )
        steps.fill(1), corrections.fill(ROUNDER_BITS)
        out, buffers, team = (
            zeros_on_lines((T, LANES), np.float32),
            zeros_on_lines((1, TILE_FLOATS), np.float32),
            team_of(1),
        )
        for part in (1, 2):
            w = weight._replace(
                packed=packed[:, : packed.shape[1] // part], scales=scales[:, : scales.shape[1] // part]
            )
            inputs = {"codes": codes, "scales": steps, "corrections": corrections}
            a = x._replace(**{field: array[: len(array) // part] for field, array in inputs.items()})
            yield team[0], T, w, a, out, FIRST, buffers, STORE

    found = {}
    for name, T, columns in (("many", len(TOKENS), COLUMNS), ("one", 1, 4 * COLUMNS)):
        more, fewer = arguments(T, columns)
        # Its own assembly, since LLVM optimizes what it links once more.
        types = (int64, *map(typeof, more))
        repeat.compile(types)
        groups = columns // 2 // GROUP
        work = Work(T * LANES * GROUP, False, 2 * T * LANES)
        found[f"linear, {name}"] = Probe(repeat, repeat.inspect_asm(types), more, work, groups, fewer)
    return found


def together(*arrays: Any) -> list[Any]:
    """Return copies that follow each other in memory, each from a cache line on."""
    import numpy as np

    from tinychat.kernels.buffers import LINE, zeros_on_lines

    ends = np.cumsum([-(-array.nbytes // LINE) * LINE for array in arrays])
    memory, found = zeros_on_lines(int(ends[-1]), np.uint8), []
    for array, end in zip(arrays, ends):
        start = end + -(-array.nbytes // LINE) * -LINE
        found.append(memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape))
        found[-1][:] = array
    return found


def attention_probes(compiled: Any) -> dict[str, Probe]:
    """Return those of attention, for the largest tile."""
    import numpy as np
    from kernels.cache_inputs import fill_cache
    from kernels.test_attention import NO_WINDOW, UNCHANGED, allocate
    from numba import int64, typeof

    from tinychat.kernels.attention import MANY, MANY_VECTORS, Item, add_vectors, score_vectors
    from tinychat.kernels.sizes import ITEM_ROWS, LANES

    @compiled
    def keys(rounds, item, cache, acc, stop):
        for _ in range(rounds):
            score_vectors(item, cache, 0, 0, 0, 0, LANES, MANY, MANY_VECTORS)

    @compiled
    def values(rounds, item, cache, acc, stop):
        for _ in range(rounds):
            add_vectors(item, cache, acc, 0, 0, 0, 0, stop, 0, LANES, MANY, MANY_VECTORS)

    scratch = allocate("bf16", CHANNELS, POSITIONS, 1)
    for array in scratch[:-2]:
        array.view(np.uint8)[:] = 0
    pages = fill_cache("bf16", *np.ones((2, POSITIONS, 1, CHANNELS), np.float32))[0]
    arrays = (array[0] for array in scratch[:-2])
    item = Item(*arrays, pages.table, 0, 0, 1, 0, ITEM_ROWS, POSITIONS, NO_WINDOW, UNCHANGED)
    acc = np.zeros((ITEM_ROWS, CHANNELS), np.float32)
    cache = pages.layer()
    arguments = (item, cache, acc, POSITIONS // (2 if cache.keys.dtype == np.uint32 else 1))
    types = (int64, *(typeof(argument) for argument in arguments))
    work = Work(len(MANY) * len(MANY_VECTORS) * LANES * CHANNELS, True)
    found = {}
    for function in (keys, values):
        function.compile(types)
        assembly = function.inspect_asm(types)
        found[f"attention, {function.__name__}"] = Probe(function, assembly, arguments, work, 1)
    return found


def estimate(assembly: str, work: Work, isa: str, core: Core) -> Estimate:
    """Return the model's figures of one group, or of one block."""
    made = multiply_adds_of if work.is_float else byte_products_of
    lines = loop_lines(assembly, work, made)
    cycles = cycles_of(lines, core)
    peak_name = "pairs" if "vdpbf16ps" in assembly else isa
    return Estimate(len(lines), cycles, work.products / cycles / peak(PEAKS[peak_name][work.is_float], made, core))


def loop_lines(assembly: str, work: Work, made: Any) -> list[str]:
    """Return the instructions of one group, or of one block: those of the shortest loop that does all of its work."""
    found = []
    for nest in loop_nests(assembly):
        inner = executed(nest, made)
        done = sum(products_of_loop(each, made) for each in inner or [nest])
        if not done or work.products % done or work.products // done > MOST_TIMES:
            continue
        lines = [line for block in nest.blocks if not inner or not any(map(made, block)) for line in block]
        for each in inner:
            lines += each.lines * (work.products // done)
        if sum(map(multiply_adds_of, lines)) == work.scalings + work.products * work.is_float:
            found.append(lines)
    return min(found, key=len)


def products_of_loop(nest: Nest, made: Any) -> int:
    """Return the products of an iteration of a loop."""
    return sum(map(made, nest.lines))


def executed(nest: Nest, made: Any) -> list[Nest]:
    """Return the inner loops that make products, and have none in them that do.

    Where LLVM has unrolled one, that of what is left over does not run.
    """
    innermost = [each for each in nest.inner if not executed(each, made)]
    most = max((products_of_loop(each, made) for each in innermost), default=0)
    return [each for each in innermost if most and products_of_loop(each, made) == most]


def peak(lines: str, made: Any, core: Core) -> float:
    """Return the products in a cycle of instructions of which nothing waits for another."""
    every = [re.sub(r"(?<=mm|\tv)0\b", str(number), line) for number in range(24) for line in lines.splitlines()]
    return sum(map(made, every)) / cycles_of(every, core)


def timer() -> Any:
    """Return a function that returns a compiled one: of rounds and arguments, ticks of so many rounds and of a chain.

    Both are the fewest of several measurements. The chain, multiplications of three cycles each, measures the clock as
    soon as the rounds are done: heavy instructions lower it, and it rises some 5 microseconds after them.
    """
    import llvmlite.binding as llvm
    from kernels.kernel_inputs import compiled
    from llvmlite import ir
    from numba import types

    from tinychat.kernels.intrinsics import operation

    llvm.initialize_native_asmparser()
    number = ir.IntType(64)

    @operation(types.int64)
    def ticks(builder):
        text = "lfence\nrdtsc\nshlq $$32, %rdx\norq %rdx, %rax"
        return builder.asm(ir.FunctionType(number, []), text, "={rax},~{rdx}", [], side_effect=True)

    @operation(types.int64, types.int64)
    def multiplied(builder, x):
        kind = ir.FunctionType(number, [number])
        return builder.asm(kind, "imulq $0, $0\n" * CHAIN, "=r,0", [x], side_effect=True)

    def timed(function: Any) -> Any:
        @compiled
        def ticks_of(rounds, arguments):
            fewest, fewest_of_chain = MANY_TICKS, MANY_TICKS
            for _ in range(MEASUREMENTS):
                before = ticks()
                function(rounds, *arguments)
                after = ticks()
                x = after
                for _ in range(CHAINS):
                    x = multiplied(x)
                fewest, fewest_of_chain = min(fewest, after - before), min(fewest_of_chain, ticks() - after)
            return fewest, fewest_of_chain

        return ticks_of

    return timed


def measure() -> dict[str, dict[str, Any]]:
    """Run the probes here; return the assembly of each, its work, and the cycles of a group or a block."""
    compiled_probes, timed = probes(runs_here=True), timer()
    runs = [
        (timed(probe.function), arguments)
        for probe in compiled_probes.values()
        for arguments in (probe.arguments, probe.fewer)
        if arguments
    ]
    rounds = [max(1, round(CYCLES / undisturbed_cycles(*run, 100))) for run in runs]
    passes = []
    for _ in range(PASSES):
        passes.append([undisturbed_cycles(*run, count) for run, count in zip(runs, rounds)])
        time.sleep(PAUSE)
    taken = iter(sorted(cycles)[1] for cycles in zip(*passes))
    return {
        name: {
            "assembly": probe.assembly,
            "work": probe.work,
            "cycles": (next(taken) - (next(taken) if probe.fewer else 0)) / probe.times,
        }
        for name, probe in compiled_probes.items()
    }


def undisturbed_cycles(ticks_of: Any, arguments: tuple[Any, ...], rounds: int) -> float:
    """Return the cycles of a round, by the fastest of several measurements.

    Interrupts, and what other guests of a machine run on the core's other thread, only take cycles away.
    """
    ticks, of_chain = ticks_of(rounds, arguments)
    return ticks / of_chain * (CHAINS * CHAIN * 3) / rounds


def in_process(word: str, **variables: str) -> dict[str, dict[str, Any]]:
    """Return the findings of a process of its own: compiled for a target, or measured on an instruction set."""
    with tempfile.TemporaryDirectory() as cache:
        others = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "TINYCHAT_"))}
        command = [sys.executable, __file__, "--json", word]
        environment = others | {"TINYCHAT_CACHE": cache} | variables
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return dict(json.loads(done.stdout))


def compile_target(target: str) -> dict[str, dict[str, Any]]:
    """Return the assembly of the probes for a target."""
    with tempfile.TemporaryDirectory() as cache:
        compile_for(TARGETS[target], cache)
        return {
            name: {"assembly": probe.assembly, "work": probe.work} for name, probe in probes(runs_here=False).items()
        }


def estimates_table() -> None:
    """Print what each core is expected to reach."""
    print("| processor | core | instruction set | loop | instructions | cycles | of the peak |")
    print("|---|---|---|---|---|---|---|")
    for target, name in CORE_OF.items():
        isa = TARGETS[target].isa
        for loop, found in in_process(target).items():
            each = estimate(found["assembly"], Work(*found["work"]), isa, CORES[name])
            shown = f"{each.instructions} | {each.cycles:.0f} | {each.share:.0%}"
            print(f"| {target} | {name} | {isa} | {loop} | {shown} |")


def core_here() -> Core:
    """Return the core of this machine's processor."""
    import llvmlite.binding as llvm

    name = llvm.get_host_cpu_name()
    if name not in CORE_HERE:
        raise SystemExit(f"no table of the core of this processor, {name}: have {', '.join(CORE_HERE)}")
    return CORES[CORE_HERE[name]]


def vectors_here() -> list[str]:
    """Return the instruction sets of this machine's processor, but for the one that all have."""
    from tinychat.kernels.setup import host_vectors

    return [isa for isa in host_vectors() if isa in PEAKS]


def check() -> int:
    """Print model and measurement on this machine; return 1 if they differ by more than is allowed."""
    print("| instruction set | loop | model, cycles | measured | difference | measured, of the peak |")
    print("|---|---|---|---|---|---|")
    core, worst = core_here(), 0.0
    for isa in vectors_here():
        for loop, found in in_process("here", TINYCHAT_ISA=isa).items():
            each = estimate(found["assembly"], Work(*found["work"]), isa, core)
            off = found["cycles"] / each.cycles - 1
            worst = max(worst, abs(off))
            share = each.share * each.cycles / found["cycles"]
            print(
                f"| {isa} | {loop} | {each.cycles:.1f} | {found['cycles']:.1f} | {off:+.1%} | {share:.0%} |", flush=True
            )
    return int(worst > ALLOWED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="measure the loops here")
    parser.add_argument("--json", metavar="TARGET", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json:
        json.dump(measure() if options.json == "here" else compile_target(options.json), sys.stdout)
    elif options.check:
        return check()
    else:
        estimates_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
