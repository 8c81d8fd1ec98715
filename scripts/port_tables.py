"""Published tables of processor cores: execution ports, latencies and buffers, by kinds of instructions.

Golden Cove (Alder Lake, Sapphire Rapids): uops.info and LLVM's model of Sapphire Rapids; of 512 bits, with the second
unit of server processors, OSACA's tables (spr.yml) and Intel's optimization manual. Zen 5: OSACA's tables (zen5.yml)
and AMD's software optimization guide (58455). Zen 3: AMD's guide (56665), LLVM's model and measurements of ours, of
which the cycles from a store to a load. Zen 4: Zen 3's but for AMD's guide (57647) and uops.info. Firestorm: Dougall
Johnson's measurements of the Apple M1 (dougallj.github.io/applecpu). Avalanche, of the M2: the same, as no table of it
is published; `usmmla` takes two operations, since others measured products of matrices of int8 on M3 at the rate of dot
products.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_KINDS = [
    (kind, re.compile(names))
    for kind, names in (
        ("dot", r"vpdpbusd|sdot|usdot"),
        ("matrix", r"usmmla"),
        ("pairs", r"vdpbf16ps"),
        ("multiply", r"vpmaddubsw|vpmaddwd"),
        ("fma", r"vfn?m(add|sub)\d+[ps]s|vmul[ps]s|fml[as]|fmul"),
        ("float add", r"v(add|sub|max|min|cmp\w*)[ps]s|f(add|sub|max\w*|min\w*)"),
        ("sign", r"vpsign\w"),
        ("size", r"vpabs\w"),
        ("convert", r"vcvt\w+|scvtf|fcvt\w+"),
        ("shuffle", r"vpshuf\w+|vunpck\w+|vpunpck\w+|vshufps|tbl|zip[12]|uzp[12]|trn[12]|ext|rev\w+|dup"),
        (
            "permute",
            r"vperm\w+|vshuf[fi]\w+|v\w*insert\w+|vextract\w+|vp?broadcast\w+|vpmov[sz]x\w+|vpmov\w+|sshll2?|ushll2?",
        ),
        ("logic", r"vp?(and|or|xor|andn|ternlog)\w*|vp?blend\w+|and|orr|eor|bic|bs[lf]|bit|mvn|movi"),
        ("add", r"vp(add|sub|max|min|cmp)\w+|add|sub|cm\w\w|smax|smin|abs|neg"),
        ("shift", r"vps[rl][lar]\w+|u?shr|shl|sshr|shll2?|sli|sri"),
    )
]


class Core(NamedTuple):
    """A core, and its instructions by kinds: ports, one letter each, and cycles until results can be used."""

    width: int  # operations that it renames in a cycle
    waiting: int  # operations that wait for ports, at most
    window: int  # those that are not retired
    ports: dict[str, str]
    cycles: dict[str, int]  # 1 where it says nothing
    wide: dict[str, str]  # ports of registers of 512 bits, where they differ
    doubled: tuple[str, ...] = ()  # kinds that take two operations
    schedulers: tuple[tuple[str, int], ...] = ()  # ports whose operations wait in one of their own, and how many
    line: int = 0  # operations that wait for a place in one of these
    split: int = 0  # where an index splits instructions: of those renamed in a cycle, how many may be the first of two
    pumped: bool = False  # whether operations of 512 bits hold their port for two cycles


_GOLDEN_COVE = Core(
    6,
    97,
    512,
    dict.fromkeys(("dot", "multiply", "fma", "sign", "size", "convert", "shift"), "01")
    | {"logic": "015", "add": "015", "float add": "15", "shuffle": "15", "permute": "5"}
    | {"load": "23B", "store": "78", "stored": "49", "scalar": "0156A", "branch": "06"},
    {"dot": 5, "multiply": 5, "fma": 4, "convert": 4, "float add": 3, "permute": 3, "load": 7},
    dict.fromkeys(("dot", "multiply", "fma", "logic", "add", "float add", "convert"), "05")
    | {"shift": "0", "shuffle": "5", "size": "0", "load": "23", "stored": "4"},
    split=4,
)
_ZEN5 = Core(
    8,
    114,
    448,
    dict.fromkeys(("dot", "multiply", "fma", "pairs", "sign"), "02")
    | dict.fromkeys(("shift", "convert", "float add"), "13")
    | {"logic": "0123", "add": "0123", "size": "03", "shuffle": "12", "permute": "12"}
    | {"load": "LMNO", "vector load": "LM", "store": "CDEF", "stored": "45", "scalar": "6789AB", "branch": "6789AB"},
    dict.fromkeys((kind for kind, _ in _KINDS), 2)
    | {"dot": 4, "multiply": 3, "fma": 4, "pairs": 6, "convert": 3, "permute": 5, "load": 7},
    {},
)
_ZEN3 = Core(
    6,
    96,
    256,
    dict.fromkeys(("fma", "sign", "size"), "01")
    | dict.fromkeys(("float add", "convert"), "23")
    | dict.fromkeys(("shift", "shuffle"), "12")
    | {"multiply": "03", "logic": "0123", "add": "0123", "permute": "1"}
    | {"load": "LMN", "vector load": "LM", "store": "LM", "stored": "4", "scalar": "6789", "branch": "6B"},
    {"multiply": 3, "fma": 4, "convert": 3, "float add": 3, "permute": 4, "load": 7, "vector store": 3},
    {},
    schedulers=(("02", 32), ("13", 32)),
    line=64,
)
_ZEN4 = _ZEN3._replace(
    window=320,
    ports=_ZEN3.ports | {"dot": "01", "pairs": "01", "permute": "12"},
    cycles=_ZEN3.cycles | {"dot": 4, "pairs": 6},
    pumped=True,
)
_FIRESTORM = Core(
    8,
    144,
    600,
    dict.fromkeys((kind for kind, _ in _KINDS), "bcde")
    | {"load": "89a", "store": "78", "scalar": "123456", "branch": "12"},
    dict.fromkeys((kind for kind, _ in _KINDS), 2)
    | {"dot": 3, "matrix": 3, "multiply": 3, "fma": 4, "float add": 3, "convert": 3, "load": 5},
    {},
    doubled=("matrix",),
)
CORES = {
    "golden-cove": _GOLDEN_COVE,
    "zen3": _ZEN3,
    "zen4": _ZEN4,
    "zen5": _ZEN5,
    "firestorm": _FIRESTORM,
    "avalanche": _FIRESTORM,
}


def is_vector(line: str) -> bool:
    """Return whether an instruction names a vector register."""
    return bool(re.search(r"%[xyz]mm\d|\b[vq]\d+\b", line))


def name_of(line: str) -> str:
    """Return the name of an instruction, without encodings in front and without Apple's lanes behind."""
    return re.sub(r"\{\w+\}", "", line).split()[0].partition(".")[0]


def kind_of(line: str) -> str:
    """Return the kind of a vector instruction; moves have none."""
    name = name_of(line)
    if re.fullmatch(r"v?mov\w*|fmov", name) and name != "movi":
        return ""
    found = [kind for kind, names in _KINDS if names.fullmatch(name)]
    if not found:
        raise SystemExit(f"scripts/port_tables.py has no ports of {name}: {line.strip()}")
    return found[0]
