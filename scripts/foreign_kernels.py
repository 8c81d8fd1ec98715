"""Processors that kernels are compiled for, from any machine: LLVM has the targets of all in its wheel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_X86, _ARM, _APPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-darwin"
_AVX2 = {"avx2", "f16c", "fma"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}
# What compilers may make kernels call, of a library that every process of macOS has.
EXPORTED = ("memcpy", "memmove", "memset", "bzero", "sched_yield")


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
    "znver3": Target("avx2", _X86, "znver3", _AVX2),
    "alderlake": Target("avxvnni", _X86, "alderlake", _AVX2 | {"avxvnni"}),
    "znver4": Target("avx512vnni", _X86, "znver4", _AVX512 | {"avx512vbmi", "avx512bf16"}),
    "znver5": Target("avx512vnni", _X86, "znver5", _AVX512 | {"avx512vbmi", "avx512bf16"}),
    "sapphirerapids": Target("avx512vnni", _X86, "sapphirerapids", _AVX512 | {"avx512vbmi", "avx512bf16"}),
    "cortex-a72": Target("generic", _ARM, "cortex-a72", set()),
    "apple-m1": Target("neon-dotprod", _APPLE, "apple-m1", {"dotprod"}),
    "apple-m2": Target("neon-i8mm", _APPLE, "apple-m2", {"dotprod", "i8mm"}),
}


def compile_for(target: Target, cache: str) -> None:
    """Let this process compile for a target from now on; before Numba is imported. cache : an empty folder."""
    import llvmlite.binding as llvm

    from tinychat import processor

    architecture = "arm64" if target.triple.startswith(("aarch64", "arm64")) else "x86_64"
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
    llvm.get_process_triple, llvm.get_host_cpu_name = lambda: target.triple, lambda: target.cpu
    if target.triple == _APPLE:
        _name_as_apple(llvm)


def _name_as_apple(llvm: Any) -> None:
    """Let LLVM find symbols by Apple's names too: any other symbol that kernels call ends the process."""
    add = llvm.add_symbol

    def add_both(name: str, address: int) -> None:
        add(name, address)
        add(f"_{name}", address)

    for name in EXPORTED:
        add(f"_{name}", llvm.address_of_symbol(name))
    llvm.add_symbol = add_both


def forward_passes(names: list[str], methods: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Compile the forward passes of variants of tests/families.py; yield title and library. After `compile_for`."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import numba
    import numpy as np
    from variants import BY_NAME

    from tinychat.engine.compiled import worker_loop
    from tinychat.engine.engine import Engine
    from tinychat.engine.loading import default_kv
    from tinychat.kernels.memory import KindType
    from tinychat.models.architectures import parse_config
    from tinychat.models.folder import MAPPED_AS, ModelFolder
    from tinychat.models.layout import Quantization, tensor_specs

    if unknown := [name for name in names if name not in BY_NAME]:
        raise SystemExit(f"unknown variants: {', '.join(unknown)}; expected some of {', '.join(BY_NAME)}")
    for name in names:
        config = parse_config(BY_NAME[name].config, name)
        for quantization in map(Quantization, methods):
            specs = tensor_specs(config, quantization)
            tensors = {key: np.zeros(spec.shape, MAPPED_AS[spec.dtype]) for key, spec in specs.items()}
            engine = Engine(ModelFolder(Path(), config, quantization, tensors), 1, default_kv(config, quantization))
            types = (*[numba.int64] * 4, KindType(numba.typeof(engine.forward_pass.sample)))
            worker_loop.compile(types)
            yield f"{name}, {quantization.dtype}", worker_loop.overloads[types].library
