"""The processor that kernels are compiled for: its architecture, and its features by LLVM's names."""

import ctypes
import platform
import sys
from functools import cache

import llvmlite.binding as llvm
from llvmlite.binding.targets import FeatureMap

from tinychat import macos

X86, ARM = "x86_64", "arm64"
_NAMES = {"x86_64": X86, "amd64": X86, "arm64": ARM, "aarch64": ARM}
# LLVM does not find these on ARM by itself. Linux: the entry of the auxiliary vector, and the bit of it.
_LINUX_BITS = {"dotprod": (16, 20), "i8mm": (26, 13)}
_MACOS_NAMES = {"dotprod": "hw.optional.arm.FEAT_DotProd", "i8mm": "hw.optional.arm.FEAT_I8MM"}


def architecture() -> str:
    """Return `X86`, `ARM`, or what the system calls another one."""
    machine = platform.machine().lower()
    return _NAMES.get(machine, machine)


@cache
def features() -> frozenset[str]:
    """Return the names of the features that this processor has."""
    return frozenset(name for name, present in _all_features().items() if present)


def flags() -> str:
    """Return the features that this processor has and lacks, as LLVM reads them."""
    return str(_all_features().flatten())


def _all_features() -> FeatureMap:
    found = llvm.get_host_cpu_features()
    if architecture() == ARM:
        found |= dict.fromkeys(_arm_features(), True)
    return found


def _arm_features() -> set[str]:
    if sys.platform == "darwin":
        return {feature for feature, name in _MACOS_NAMES.items() if macos.system_number(name)}
    if sys.platform == "linux":
        ask = ctypes.CDLL(None).getauxval
        ask.restype = ctypes.c_ulong
        return {feature for feature, (entry, bit) in _LINUX_BITS.items() if ask(ctypes.c_ulong(entry)) >> bit & 1}
    return set()
