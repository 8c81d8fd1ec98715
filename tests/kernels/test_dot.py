"""Every way to form dot products is exact, whichever of them this instruction set chose."""

import numpy as np
import pytest
from kernels.kernel_inputs import compiled
from numba import types

from tinychat.kernels import dot
from tinychat.kernels.intrinsics import ANY, I32X16, I64, U8X64, operation
from tinychat.kernels.setup import ISA

# Ways, and the code that each takes for 0. Kernels that are compiled for a lesser set have its ways only.
WAYS = [(dot.dot4_generic, 0)]
if ISA in ("avx512vnni", "avxvnni", "avx2"):
    WAYS.append((dot.dot4_signs, 128))
if ISA == "avx512vnni":
    WAYS += [(dot.dot4_vnni, 0), (dot.dot4_vnni_256, 0)]
if ISA.startswith("neon"):
    WAYS.append((dot.dot4_sdot, 128))

ways = pytest.mark.parametrize(
    ("emit", "zero"), [*WAYS, (dot.dot4, dot.DOT_ZERO)], ids=lambda v: getattr(v, "__name__", f"zero {v}")
)


def dot_product(emit):
    """Return a function that adds 16 dot products of 64 codes and 64 activations to `sums`."""

    @operation(types.void, ANY, ANY, ANY)
    def apply(builder, sums, codes, x):
        vectors = (array.load(I64(0), kind, align=1) for array, kind in ((sums, I32X16), (codes, U8X64), (x, I32X16)))
        sums.store(I64(0), emit(builder, *vectors), align=1)

    @compiled
    def run(sums, codes, x):
        apply(sums, codes, x)

    return run


@ways
def test_dot_products_are_exact(emit, zero, rng):
    run = dot_product(emit)
    for lowest, highest in [(0, 256), (0, 1), (255, 256)]:
        for extreme in (None, -127, 127):
            codes = rng.integers(lowest, highest, 64, dtype=np.uint8)
            x = rng.integers(-127, 128, 64, dtype=np.int8) if extreme is None else np.full(64, extreme, np.int8)
            sums = rng.integers(-(2**30), 2**30, 16, dtype=np.int32)
            expected = sums + ((codes.astype(np.int32) - zero) * x).reshape(16, 4).sum(axis=1)
            run(sums, codes ^ np.uint8(zero), x)
            np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("emit", [dot.dot4_small, *([dot.dot4_pairs] if "avx" in ISA else [])])
def test_dot_products_of_small_codes_are_exact(emit, rng):
    run = dot_product(emit)
    for lowest in (0, 15):
        for extreme in (None, -127, 127):
            codes = rng.integers(lowest, 16, 64, dtype=np.uint8)
            x = rng.integers(-127, 128, 64, dtype=np.int8) if extreme is None else np.full(64, extreme, np.int8)
            sums = rng.integers(-(2**30), 2**30, 16, dtype=np.int32)
            expected = sums + (codes.astype(np.int32) * x).reshape(16, 4).sum(axis=1)
            run(sums, codes, x)
            np.testing.assert_array_equal(sums, expected)
