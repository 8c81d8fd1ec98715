"""Every way to look up four-bit codes gives what the table holds, whichever of them this instruction set chose."""

import llvmlite.binding as llvm
import numpy as np
import pytest
from kernels.kernel_inputs import compiled
from llvmlite import ir
from numba import types

from tinychat import processor
from tinychat.kernels import codes
from tinychat.kernels.dot import DOT_ZERO
from tinychat.kernels.intrinsics import ANY, I64, INDEX, U8X64, Emitter, operation
from tinychat.kernels.memory import load_line
from tinychat.kernels.setup import ISA

WAYS = [codes.shuffle_generic]
if ISA in ("avx512vnni", "avxvnni", "avx2"):
    WAYS.append(codes.shuffle_256)
if ISA == "avx512vnni":
    WAYS += [codes.shuffle_512, *([codes.shuffle_vbmi] if "avx512vbmi" in processor.features() else [])]

ways = pytest.mark.parametrize("shuffle", [*WAYS, codes.shuffle], ids=lambda way: way.__name__)


def look_up(shuffle):
    """Return a function that writes to `out` what `table` holds for the low four bits of each of 64 bytes."""

    @operation(types.void, ANY, ANY, ANY)
    def apply(builder, table, indices, out):
        out.store(
            I64(0), shuffle(builder, *(array.load(I64(0), U8X64, align=1) for array in (table, indices))), align=1
        )

    @compiled
    def run(table, indices, out):
        apply(table, indices, out)

    return run


@ways
def test_a_byte_is_looked_up_by_its_low_four_bits(shuffle, rng):
    run, out = look_up(shuffle), np.zeros(64, np.uint8)
    table = rng.permutation(256)[:16].astype(np.uint8)
    for start in range(0, 256, 64):
        indices = rng.permutation(np.arange(start, start + 64)).astype(np.uint8)
        run(np.tile(table, 4), indices, out)
        np.testing.assert_array_equal(out, table[indices & 15])


@compiled
def both_halves(table, line, out):
    """Write what the low halves of a line stand for, then what the high ones do."""
    entries = codes.load_table(table, 0)
    loaded = load_line(line, 0)
    write_line(out, 0, codes.look_up_low(entries, loaded))
    write_line(out, 64, codes.look_up_high(entries, loaded))


@operation(types.void, ANY, INDEX, ANY)
def write_line(builder, out, index, line):
    out.store(index, line, align=1)


def test_nibbles_of_a_line_become_entries(rng):
    table = np.concatenate([[-128, 127, 0], rng.integers(-128, 128, 13)]).astype(np.int8)
    line, out = rng.integers(0, 256, 64, dtype=np.uint8), np.zeros(128, np.uint8)
    both_halves(table, line, out)
    expected = np.concatenate([table[line & 15], table[line >> 4]]).astype(int)
    np.testing.assert_array_equal((out ^ np.uint8(DOT_ZERO)).astype(int), expected + 128)


def test_neon_looks_up_with_its_own_instruction():
    """On whatever processor this runs: only the assembly is looked at."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM compiles for its host only")
    module = ir.Module()
    module.triple = "aarch64-unknown-linux-gnu"
    function = ir.Function(module, ir.FunctionType(U8X64, [U8X64, U8X64]), "look_up")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(codes.shuffle_neon(Emitter(builder), *function.args))
    assembly = target.create_target_machine().emit_assembly(llvm.parse_assembly(str(module)))
    assert assembly.count("\ttbl\t") == 4, assembly
