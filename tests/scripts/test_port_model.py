"""The model of cores: what instructions wait for, and the loops that assembly holds."""

import sys

import pytest
from import_graph import REPO

sys.path.insert(0, str(REPO / "scripts"))

from loop_cycles import cycles_of
from loop_nests import loop_nests
from port_tables import CORES

GOLDEN_COVE, FIRESTORM, ZEN3, ZEN4 = (CORES[name] for name in ("golden-cove", "firestorm", "zen3", "zen4"))
NESTED = """
f:
\txorl\t%eax, %eax
.LBB0_1:
\tmovl\t%eax, %ebx
.LBB0_2:
\tvpdpbusd\t%ymm0, %ymm1, %ymm2
\tdecl\t%ebx
\tjne\t.LBB0_2
\tjmp\t.LBB0_4
.LBB0_3:
\tretq
.LBB0_4:
\tincl\t%eax
\tcmpl\t$9, %eax
\tjne\t.LBB0_1
\tjmp\t.LBB0_3
"""


def repeated(line, count, register="%ymm"):
    """Return an instruction for each of so many targets."""
    return [f"{line}, {register}{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # A chain has the instruction's latency, many chains the rate of its two ports.
        (["\tvpdpbusd\t%ymm14, %ymm15, %ymm0"], 5),
        (repeated("\tvpdpbusd\t%ymm14, %ymm15", 12), 6),
        # One port for shuffles of 512 bits, to which the dot products leave it.
        (repeated("\tvpermb\t%zmm30, %zmm31", 8, "%zmm"), 8),
        (repeated("\tvpermb\t%zmm30, %zmm31", 4, "%zmm") + repeated("\tvpdpbusd\t%zmm28, %zmm29", 12, "%zmm"), 8),
        # Three loads a cycle, two of 512 bits; six operations are renamed.
        (repeated("\tvmovdqu\t(%rax)", 12), 4),
        (repeated("\tvmovdqu64\t(%rax)", 12, "%zmm"), 6),
        (["\tmovq\t%rax, %rbx"] * 12, 2),
        # An index in the address makes two operations, of which the first is one of four in a cycle.
        (["\tvpaddd\t(%rax,%rcx), %ymm1, %ymm0", "\tmovq\t%rax, %rbx", "\tmovq\t%rax, %rbx"] * 4, 4),
        (["\tvpaddd\t(%rax), %ymm1, %ymm0", "\tmovq\t%rax, %rbx", "\tmovq\t%rax, %rbx"] * 4, 2),
        (["\tvmovdqu\t(%rax,%rcx), %ymm0", "\tmovq\t%rax, %rbx", "\tmovq\t%rax, %rbx"] * 4, 2),
        # What is stored and loaded again is waited for.
        (["\tvmovups\t%ymm0, 32(%rsp)", "\tvaddps\t32(%rsp), %ymm1, %ymm0"], 11),
        # A comparison and its branch are one.
        (["\tcmpq\t%rax, %rcx", "\tjne\t.L1"] * 2, 1),
    ],
)
def test_golden_cove(lines, expected):
    assert cycles_of(lines, GOLDEN_COVE) == pytest.approx(expected, abs=0.35)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["\tsdot\tv0.4s, v30.16b, v31.16b"], 3),
        ([f"\tsdot.4s\tv{number}, v30, v31[0]" for number in range(16)], 4),
        ([f"\tusmmla.4s\tv{number}, v30, v31" for number in range(16)], 8),
        (["\tldp\tq0, q1, [x0]"] * 8, 8 / 3),
    ],
)
def test_firestorm(lines, expected):
    assert cycles_of(lines, FIRESTORM) == pytest.approx(expected, abs=0.35)


@pytest.mark.parametrize(
    ("lines", "measured"),
    [
        (["\tvpmaddwd\t%ymm0, %ymm15, %ymm0"], 3),
        (repeated("\tvfmadd231ps\t%ymm14, %ymm15", 12), 6),
        (repeated("\tvpand\t%ymm14, %ymm15", 12), 3),
        # Two loads of vectors a cycle, three in all.
        (repeated("\tvmovdqu\t(%rax)", 12), 6),
        (["\tvmovdqu\t(%rax), %ymm0", "\tmovq\t(%rax), %rbx"] * 6, 4),
        (["\tvpaddd\t32(%rsp), %ymm1, %ymm0", "\tvmovdqu\t%ymm0, 32(%rsp)"], 10.9),
        # Four pipes would take 12 cycles for them. Two schedulers have two each, and do not share their work well.
        (["\tvpsignb\t%ymm14, %ymm15, %ymm0", "\tvpmaddwd\t%ymm14, %ymm15, %ymm1"] * 24, 16.1),
        (
            ["\tvpsignb\t%ymm5, %ymm6, %ymm0", "\tvpmaddwd\t%ymm5, %ymm6, %ymm1", "\tvpshufb\t%ymm5, %ymm6, %ymm2"]
            * 16,
            15.3,
        ),
    ],
)
def test_zen_3(lines, measured):
    assert cycles_of(lines, ZEN3) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Two pipes for products, each of which holds 512 bits for two cycles; loads likewise.
        (repeated("\tvpdpbusd\t%ymm14, %ymm15", 12), 6),
        (repeated("\tvpdpbusd\t%zmm30, %zmm31", 12, "%zmm"), 12),
        (repeated("\tvmovdqu\t(%rax)", 12), 6),
        (repeated("\tvmovdqu64\t(%rax)", 12, "%zmm"), 12),
        (["\tvpdpbusd\t%zmm14, %zmm15, %zmm0"], 4),
    ],
)
def test_zen_4(lines, expected):
    assert cycles_of(lines, ZEN4) == pytest.approx(expected, abs=0.35)


def test_an_instruction_without_ports_is_named():
    with pytest.raises(SystemExit, match="no ports of vmadeup"):
        cycles_of(["\tvmadeup\t%ymm0, %ymm1"], GOLDEN_COVE)


def test_loops_lie_in_each_other():
    inner, outer = sorted(loop_nests(NESTED), key=lambda nest: len(nest.inner))
    assert [line.split()[0] for line in inner.lines] == ["vpdpbusd", "decl", "jne"]
    assert [line.split()[0] for line in outer.lines] == ["movl", "jmp", "incl", "cmpl", "jne"]
    assert outer.inner == [inner]
