"""Every way to form dot products is exact, whichever of them this instruction set chose."""

import numpy as np
import pytest
from kernels.kernel_inputs import compiled
from numba import types
from numba.extending import intrinsic

from tinychat.kernels import dot4
from tinychat.kernels.memory import element_pointer
from tinychat.kernels.setup import ISA
from tinychat.kernels.simd import I32X16, U8X64

WAYS = {
    "generic": [(dot4.dot4_generic, 255)],
    "avx2": [(dot4.dot4_generic, 255), (dot4.dot4_maddubs, 15), (dot4.dot4_by_nibbles, 255)],
}
WAYS["avx512vnni"] = [*WAYS["avx2"], (dot4.dot4_vnni, 255)]
CHOSEN = [(dot4.dot4_nibbles, 15), (dot4.dot4_bytes, 255)]

ways = pytest.mark.parametrize(
    ("emit", "highest"), [*WAYS[ISA], *CHOSEN], ids=lambda v: getattr(v, "__name__", f"codes to {v}")
)


def dot_product(emit):
    """Return a function that adds 16 dot products of 64 codes and 64 activations to `sums`."""

    @intrinsic
    def apply(typingctx, sums, codes, x):
        def codegen(context, builder, signature, arguments):
            zero = context.get_constant(types.intp, 0)
            at = [
                element_pointer(context, builder, kind, value, zero, vector)
                for kind, value, vector in zip(signature.args, arguments, (I32X16, U8X64, I32X16))
            ]
            before, lines, activations = (builder.load(pointer, align=1) for pointer in at)
            builder.store(emit(builder, before, lines, activations), at[0], align=1)
            return context.get_dummy_value()

        return types.void(sums, codes, x), codegen

    @compiled
    def run(sums, codes, x):
        apply(sums, codes, x)

    return run


@ways
def test_dot_products_are_exact(emit, highest, rng):
    run = dot_product(emit)
    for codes_of, x_of in [((0, highest + 1), (-127, 128)), ((highest, highest + 1), (-127, 128))]:
        for extreme in (None, -127, 127):
            codes = rng.integers(*codes_of, 64, dtype=np.uint8)
            x = rng.integers(*x_of, 64, dtype=np.int8) if extreme is None else np.full(64, extreme, np.int8)
            sums = rng.integers(-(2**30), 2**30, 16, dtype=np.int32)
            expected = sums + (codes.astype(np.int32) * x).reshape(16, 4).sum(axis=1)
            run(sums, codes, x)
            np.testing.assert_array_equal(sums, expected)
