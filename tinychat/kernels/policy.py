"""The one way tinychat compiles.

No ``fastmath``: it would let LLVM assume that there is no NaN, reorder sums, and fuse a multiply
with an add here but not there, so that two routes to the same number would round differently.
Every fma and every order of summation is written out instead.
"""

from typing import Any

from numba import njit

FLAGS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False}

# A function of its own; one that LLVM merges into its callers; one written into its only caller before compilation,
# where a function of its own would be compiled and optimized a second time.
kernel = njit(**FLAGS)
inlined = njit(**FLAGS, forceinline=True)
written_in = njit(**FLAGS, inline="always")
