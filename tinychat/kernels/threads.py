"""Sharing work between the threads of one parallel region: a split and a barrier."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.memory import element_pointer
from tinychat.kernels.policy import inlined, kernel

SPINS_BEFORE_YIELD = 4096


@intrinsic
def atomic_add(typingctx, array, index, value):
    """Add to an int64 element, atomically; return what it held before."""

    def codegen(context, builder, signature, arguments):
        container, position, addend = arguments
        pointer = element_pointer(context, builder, signature.args[0], container, position, ir.IntType(64))
        return builder.atomic_rmw("add", pointer, addend, ordering="acq_rel")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def atomic_load(typingctx, array, index):
    """Return an int64 element, no older than the last write that another thread released."""

    def codegen(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], *arguments, ir.IntType(64))
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(array, types.intp), codegen


@intrinsic
def relax(typingctx):
    """Tell the processor that this is a spin loop, where there is an instruction for it."""

    def codegen(context, builder, signature, arguments):
        if "x86" in builder.module.triple:
            void = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, void, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


yield_to_scheduler = types.ExternalFunction("sched_yield", types.int32())


@inlined
def share(thread, threads, items):
    """Return the contiguous range of `items` that is thread `thread`'s."""
    return items * thread // threads, items * (thread + 1) // threads


@kernel
def barrier(arrivals, threads):
    """Wait until all threads have arrived here; what they wrote before is visible after.

    `arrivals` is int64 [1] or longer, shared, and only ever grows: no reset, nothing to race for.
    """
    if threads > 1:
        ticket = atomic_add(arrivals, 0, 1)
        complete = (ticket // threads + 1) * threads
        spins = 0
        while atomic_load(arrivals, 0) < complete:
            spins += 1
            if spins < SPINS_BEFORE_YIELD:
                relax()
            else:
                yield_to_scheduler()
