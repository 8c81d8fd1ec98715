"""Compile what runs small models for Windows on any machine, and list the symbols that their kernels import.

    PYTHONPATH=. .venv/bin/python scripts/windows_kernels.py [VARIANT ...] [--isa avx2]

LLVM has the targets of all systems in its wheel. The object code is not run: a symbol that no library has which every
process on Windows loads is an error, since the kernels could not be loaded there. Variants are those of
tests/families.py, each with unquantized, four-bit and eight-bit weights.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from typing import NamedTuple

from foreign_kernels import forward_passes

TRIPLE = "x86_64-pc-windows-msvc"
CPUS = {"avx512vnni": "cascadelake", "avx2": "x86-64-v3", "generic": "x86-64"}
VARIANTS = ("tinyllama", "qwen3", "gemma2", "mixtral", "qwen3_next")
# Of each library, what compilers may make kernels call: Microsoft documents these as exported. LLVM looks for them in
# all libraries of the process, and Python itself has loaded these.
EXPORTED = {
    "kernel32.dll": {"QueryPerformanceCounter", "QueryPerformanceFrequency", "SwitchToThread"},
    "ntdll.dll": {"__chkstk"},
    "vcruntime140.dll": {"memchr", "memcmp", "memcpy", "memmove", "memset"},
    "ucrtbase.dll": {
        *("cos", "cosf", "exp", "exp2", "exp2f", "expf", "fma", "fmaf", "log", "log2", "log2f", "logf"),
        *(
            "pow",
            "powf",
            "sin",
            "sinf",
            "tanh",
            "tanhf",
            "ldexp",
            "fmod",
            "fmodf",
            "floorf",
            "ceilf",
            "rintf",
            "roundf",
        ),
    },
}

_HEADER, _SECTION, _RELOCATION, _SYMBOL = struct.Struct("<HHIIIHH"), 40, struct.Struct("<IIH"), 18
_MACHINE, _EXTERNAL = 0x8664, 2


class Imports(NamedTuple):
    """Symbols that object code calls: the library of each that is known, and those that no library has."""

    found: dict[str, str]
    missing: list[str]


def imported_symbols(code: bytes) -> set[str]:
    """Return the external symbols to which an object file (COFF) has relocations; ValueError if it is none."""
    if len(code) < _HEADER.size:
        raise ValueError("the object file is too short")
    machine, sections, _, table, count, optional, _ = _HEADER.unpack_from(code)
    if machine != _MACHINE:
        raise ValueError(f"machine {machine:#x} is not x86-64 of Windows")
    names, used = code[table + count * _SYMBOL :], set[int]()
    for i in range(sections):
        offset = _HEADER.size + optional + i * _SECTION
        at, _, relocations, _ = struct.unpack_from("<IIHH", code, offset + 24)
        if relocations == 0xFFFF:
            # The number is too large for its field, and is in the place of the first address.
            relocations = struct.unpack_from("<I", code, at)[0]
        used |= {_RELOCATION.unpack_from(code, at + 10 * j)[1] for j in range(relocations)}
    return {
        _name(code, table + index * _SYMBOL, names) for index in used if _is_imported(code, table + index * _SYMBOL)
    }


def _is_imported(code: bytes, at: int) -> bool:
    value, section, _, storage = struct.unpack_from("<IhHB", code, at + 8)
    return section == 0 and storage == _EXTERNAL and value == 0


def _name(code: bytes, at: int, names: bytes) -> str:
    zeros, offset = struct.unpack_from("<II", code, at)
    text = code[at : at + 8] if zeros else names[offset:]
    return text.partition(b"\0")[0].decode()


def look_up(symbols: set[str]) -> Imports:
    """Find the library of each symbol."""
    owners = {name: library for library, names in EXPORTED.items() for name in names}
    found = {name: owners[name] for name in sorted(symbols) if name in owners}
    return Imports(found, sorted(symbols - owners.keys()))


def compile_all(names: list[str], isa: str) -> dict[str, bytes]:
    """Return the object code of the forward passes of variants, by name and number format; imports Numba."""
    import llvmlite.binding as llvm

    os.environ |= {"TINYCHAT_ISA": isa, "NUMBA_CPU_NAME": CPUS[isa], "NUMBA_CPU_FEATURES": "", "NUMBA_OPT": "2"}
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: TRIPLE
    passes = forward_passes(names, ("int4", "int8", "f32"))
    return {title: library.object_code() for title, library in passes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("variants", nargs="*", default=[], metavar="VARIANT", help=f"by default {', '.join(VARIANTS)}")
    parser.add_argument("--isa", choices=CPUS, default="avx2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        # Nothing of another system may be loaded from a cache, or stay in one.
        os.environ["TINYCHAT_CACHE"] = cache
        codes = compile_all(options.variants or list(VARIANTS), options.isa)
    missing = set[str]()
    for name, code in codes.items():
        imports = look_up(imported_symbols(code))
        listed = ", ".join(f"{symbol} ({library})" for symbol, library in imports.found.items())
        print(f"{name}: {len(code) >> 10} KiB; {listed}{''.join(f'; MISSING {each}' for each in imports.missing)}")
        missing |= set(imports.missing)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
