"""Threads that run one compiled function together: a split of work, a barrier, and how a worker waits for a job.

Every thread is an ordinary Python thread inside a compiled function that has let go of the interpreter's lock. Between
jobs a worker waits here, in compiled code, so that the next token finds it awake; after some milliseconds of nothing it
parks and goes back to Python to sleep.

Beside busy programs, threads compute together only while all of them are on their cores. Linux's cores tick together,
so turns on them are either in step or alternate. A thread that waits in vain lets other programs go first, which brings
the turns into step. It does so once, and then spins anew: a yield counts as a whole turn, and many of them would keep
it off its core when the others are back.

Numba's own parallel loops are not used: they start a region a little slower (1-2 us under OpenMP, 30-100 us under
workqueue), and one around the whole forward pass takes as long to compile as all the rest.
"""

import time

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.jit import always_inline, inline, inline_call_only, noinline
from tinychat.kernels.memory import element_pointer
from tinychat.kernels.team_queue import (
    ARRIVALS,
    AWAKE,
    CLAIMED,
    CLOSING,
    FIRST_TICKET,
    JOBS,
    LINE,
    MAX_WAIT,
    MIN_THREADS,
    PARKED,
    PASSED,
    POSTED,
    SERVED,
    STATES,
    THREADS,
    TICKETS,
    WAITED,
)

# A thread that waits looks at the clock after so many spins, some tens of microseconds, and then again and again.
# Shorter waits are not counted.
SPINS_BETWEEN_CLOCKS = 1024
# Nanoseconds from the first such look to a yield: longer than threads wait for each other unless one has been taken off
# its core, and short beside a turn of the scheduler (4 ms). And to the end of a worker's waiting for a job.
YIELD_AFTER = 300_000
PARK_AFTER = 20_000_000
NO_TICKET = 2**62


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
def exchange(typingctx, array, index, expected, value):
    """Replace `expected` by `value` in an int64 element, atomically; return whether it was there."""

    def codegen(context, builder, signature, arguments):
        container, position, old, new = arguments
        pointer = element_pointer(context, builder, signature.args[0], container, position, ir.IntType(64))
        return builder.extract_value(builder.cmpxchg(pointer, old, new, "acq_rel", "acquire"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), codegen


@intrinsic
def relax(typingctx):
    """Tell the processor that this is a spin loop, where there is an instruction for it."""

    def codegen(context, builder, signature, arguments):
        if "x86" in builder.module.triple:
            void = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, void, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def nanoseconds(typingctx):
    """Return the time of a clock that never goes back."""
    integer, pair = ir.IntType(64), ir.LiteralStructType([ir.IntType(64)] * 2)

    def codegen(context, builder, signature, arguments):
        signature = ir.FunctionType(ir.IntType(32), [ir.IntType(32), pair.as_pointer()])
        now = cgutils.alloca_once(builder, pair)
        function = cgutils.get_or_insert_function(builder.module, signature, "clock_gettime")
        builder.call(function, [ir.Constant(ir.IntType(32), time.CLOCK_MONOTONIC), now])
        seconds, rest = (builder.extract_value(builder.load(now), i) for i in range(2))
        return builder.add(builder.mul(seconds, ir.Constant(integer, 10**9)), rest)

    return types.int64(), codegen


yield_to_scheduler = types.ExternalFunction("sched_yield", types.int32())


@always_inline
def check_clock(since):
    """Return the time, and since when this thread has spun (0: not yet); if for long, other programs go first once."""
    now = nanoseconds()
    if since == 0:
        return now, now
    if now - since > YIELD_AFTER:
        yield_to_scheduler()
        now = nanoseconds()
        return now, now
    return now, since


@always_inline
def share(thread, threads, items):
    """Return the contiguous range of `items` that is thread `thread`'s; an empty one if it takes no part."""
    if thread >= threads:
        return items, items
    return items * thread // threads, items * (thread + 1) // threads


@always_inline
def share_of(team, items):
    """Return the contiguous range of `items` that is this thread's in the present stage."""
    return share(team.thread, team.queue[THREADS], items)


@always_inline
def next_tile(team):
    """Return the next unit of a stage whose units go to whichever thread is free.

    Cores are not equally fast, nor left alone by other programs. Tickets are numbered without end: a stage of n
    units hands out ``n + threads`` of them, the last to each thread that finds nothing left, so all know where the
    next stage begins.
    """
    queue = team.queue
    if team.thread >= queue[THREADS]:
        return NO_TICKET
    return atomic_add(queue, TICKETS, 1) - queue[STATES + team.thread * LINE + FIRST_TICKET]


@always_inline
def finish_stage(team, units):
    """Note that this thread has seen the end of a stage of `units` units."""
    team.queue[STATES + team.thread * LINE + FIRST_TICKET] += units + team.queue[THREADS]


@noinline
def barrier(queue, thread):
    """Wait until all threads of the job have arrived here; what they wrote before is visible after.

    Returns how many threads go on. Those that do not, the last ones, find nothing to do until the job's end: no
    share, no ticket, no barrier that waits for them.
    """
    threads = queue[THREADS]
    if thread >= threads or threads == 1:
        return threads
    passed = atomic_load(queue, PASSED)
    if atomic_add(queue, ARRIVALS, 1) < threads - 1:
        wait_for_others(queue, passed)
    else:
        queue[ARRIVALS] = 0
        if queue[WAITED] > queue[MAX_WAIT] and threads > queue[MIN_THREADS]:
            # One that is late at each barrier would cost a turn of the scheduler for each.
            queue[THREADS] = threads - 1
        atomic_add(queue, PASSED, 1)
    return queue[THREADS]


@always_inline
def wait_for_others(queue, passed):
    """Wait until more barriers are passed; count the time if it is long."""
    spins, before, since = 0, 0, 0
    while atomic_load(queue, PASSED) == passed:
        relax()
        spins += 1
        if spins % SPINS_BETWEEN_CLOCKS == 0:
            now, since = check_clock(since)
            if before > 0:
                atomic_add(queue, WAITED, now - before)
            before = now


@inline
def post(queue, threads):
    """Begin a job if every worker of `threads` is awake to take it, else change nothing; return whether it began."""
    for thread in range(1, threads):
        if not exchange(queue, STATES + thread * LINE, AWAKE, CLAIMED):
            for claimed in range(1, thread):
                exchange(queue, STATES + claimed * LINE, CLAIMED, AWAKE)
            return False
    queue[THREADS], queue[TICKETS], queue[WAITED] = threads, 0, 0
    for thread in range(threads):
        queue[STATES + thread * LINE + FIRST_TICKET] = 0
    for thread in range(1, threads):
        atomic_add(queue, STATES + thread * LINE + POSTED, 1)
    atomic_add(queue, JOBS, 1)
    return True


@inline
def await_job(queue, thread):
    """Wait for the next job; return whether there is one, or the thread has parked instead.

    A worker that is claimed has not yet served the job that was posted, or the caller is about to post it. One that a
    job has let go is claimed as well, and parks: it must not take from others the core that it was too slow on. One
    that jobs go on without parks too: its core may be the only one that no other program holds.
    """
    state, served = STATES + thread * LINE, STATES + thread * LINE + SERVED
    posted = STATES + thread * LINE + POSTED
    if thread >= queue[THREADS] and exchange(queue, state, CLAIMED, PARKED):
        return False
    exchange(queue, state, PARKED, AWAKE)
    spins, began, since, jobs = 0, 0, 0, atomic_load(queue, JOBS)
    while atomic_load(queue, posted) == queue[served]:
        relax()
        spins += 1
        if spins % SPINS_BETWEEN_CLOCKS == 0:
            now, since = check_clock(since)
            began = began or now
            idle = now - began > PARK_AFTER or atomic_load(queue, CLOSING) > 0 or atomic_load(queue, JOBS) != jobs
            if idle and exchange(queue, state, AWAKE, PARKED):
                return False
    queue[served] += 1
    return True


@noinline
def begin(queue, thread, threads):
    """Post a job for `threads` threads (thread 0) or wait for one; return whether there is one to do."""
    if thread < 0:
        return False
    return post(queue, threads) if thread == 0 else await_job(queue, thread)


@always_inline
def record_time(team):
    """Note the time if that is asked for: `clocks[0]` says where it goes and moves on, 0 that nobody asks."""
    clocks = team.clocks
    place = clocks[0]
    if team.thread == 0 and 0 < place < clocks.shape[0]:
        clocks[place], clocks[0] = nanoseconds(), place + 1


@noinline
def end_stage(team):
    """Wait until all threads have done their part of a stage, and note the time."""
    barrier(team.queue, team.thread)
    record_time(team)


def stage(function):
    """Compile a stage of the forward pass: a deferred function, whose first parameter is a `Team`, and a barrier.

    A function that is compiled already stays as it is. The caller inlines the two calls.
    """
    body = function if hasattr(function, "py_func") else deferred(function)
    code = body.py_func.__code__
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    source = f"def {code.co_name}({parameters}):\n    body({parameters})\n    end_stage(team)\n"
    names = {"body": body, "end_stage": end_stage, "__name__": function.__module__}
    exec(compile(source, code.co_filename, "exec"), names)
    names[code.co_name].__doc__ = function.__doc__
    return inline_call_only(names[code.co_name])


@noinline
def release(queue):
    """Let the workers that are still in the job park again: it is done."""
    for thread in range(1, queue[THREADS]):
        exchange(queue, STATES + thread * LINE, CLAIMED, AWAKE)
