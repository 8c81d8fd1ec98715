"""Processors that kernels are compiled for, from any machine: LLVM has the targets of all in its wheel."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_AVX2 = {"avx2", "f16c", "fma"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}


class Target(NamedTuple):
    """A processor of a system, by LLVM's names, and the instruction set that tinychat takes there."""

    isa: str
    triple: str
    cpu: str
    features: set[str]
    flags: str = ""  # features that the processor's name does not imply


TARGETS = {
    "x86-64": Target("generic", _X86, "x86-64", {"fma"}, "+fma"),
    "haswell": Target("avx2", _X86, "haswell", _AVX2),
    "alderlake": Target("avxvnni", _X86, "alderlake", _AVX2 | {"avxvnni"}),
    "znver4": Target("avx512vnni", _X86, "znver4", _AVX512 | {"avx512vbmi", "avx512bf16"}),
    "cortex-a72": Target("generic", _ARM, "cortex-a72", set()),
    "apple-m1": Target("neon-dotprod", _ARM, "apple-m1", {"dotprod"}),
    "apple-m2": Target("neon-i8mm", _ARM, "apple-m2", {"dotprod", "i8mm"}),
}


def compile_for(target: Target, cache: str) -> None:
    """Let this process compile for a target from now on; before Numba is imported. cache : an empty folder."""
    import llvmlite.binding as llvm

    from tinychat import processor

    architecture = "arm64" if target.triple.startswith("aarch64") else "x86_64"
    known: Any = processor
    known.architecture, known.features = lambda: architecture, lambda: frozenset(target.features)
    os.environ |= {
        "TINYCHAT_CACHE": cache,
        "TINYCHAT_ISA": target.isa,
        "NUMBA_CPU_NAME": target.cpu,
        "NUMBA_CPU_FEATURES": target.flags,
        "NUMBA_OPT": "2",
    }
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: target.triple
