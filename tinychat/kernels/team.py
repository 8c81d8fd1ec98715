"""Threads that run one compiled function together: shares of work, a barrier, and the wait for a job.

Every thread is a Python thread inside a compiled function that has released the interpreter's lock. Between jobs a
worker spins here, in compiled code, so that the next token finds it awake; after some milliseconds without a job it
parks: it returns to Python and sleeps.

Beside busy programs, threads compute together only while all of them are on their cores. Linux's cores tick together,
so turns on them are either in step or alternate. A thread that waits in vain yields to other programs, which brings the
turns into step. It yields once, and then spins again: a yield counts as a whole turn, and many of them would keep it
off its core when the others are back.

Numba's own parallel loops are not used: they start a region a little slower (1-2 us under OpenMP, 30-100 us under
workqueue), and one around the whole forward pass takes as long to compile as all the rest.
"""

import time

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.intrinsics import ANY, I32, I64, INDEX, operation
from tinychat.kernels.jit import always_inline, inline, inline_call_only, noinline
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
    RANGE,
    SERVED,
    STAGE,
    STATES,
    THREADS,
    TICKETS,
    WAITED,
)

# Spins between two looks at the clock, some tens of microseconds. Shorter waits are not counted.
SPINS_BETWEEN_CLOCKS = 1024
# Nanoseconds from the first look to a yield: longer than threads wait for each other unless one was taken off its core,
# and short beside a turn of the scheduler (4 ms). And to the moment when a worker without a job parks.
YIELD_AFTER = 300_000
PARK_AFTER = 20_000_000
NO_TICKET = 2**62


@operation(types.int64, ANY, INDEX, types.int64)
def atomic_add(builder, array, index, value):
    """Add to an int64 element, atomically; return its old value."""
    return builder.atomic_rmw("add", array.pointer(index, I64), value, ordering="acq_rel")


@operation(types.int64, ANY, INDEX)
def atomic_load(builder, array, index):
    """Return an int64 element, no older than the last write that another thread released."""
    return builder.load_atomic(array.pointer(index, I64), ordering="acquire", align=8)


@operation(types.boolean, ANY, INDEX, types.int64, types.int64)
def exchange(builder, array, index, expected, value):
    """Compare and swap an int64 element, atomically; return whether it was `expected`."""
    swapped = builder.cmpxchg(array.pointer(index, I64), expected, value, "acq_rel", "acquire")
    return builder.extract_value(swapped, 1)


@operation(types.void)
def relax(builder):
    """Emit the processor's instruction for spin loops, if there is one."""
    if "x86" in builder.module.triple:
        builder.intrinsic("llvm.x86.sse2.pause", ir.VoidType())


def is_windows(builder):
    """Return whether code is made for Windows, on whichever machine."""
    return "windows" in builder.module.triple


@operation(types.int64)
def nanoseconds(builder):
    """Return the time of the monotonic clock."""
    if is_windows(builder):
        return counted_nanoseconds(builder)
    now = cgutils.alloca_once(builder, ir.LiteralStructType([I64, I64]))
    builder.intrinsic("clock_gettime", I32, I32(time.CLOCK_MONOTONIC), now)
    seconds, rest = (builder.extract_value(builder.load(now), i) for i in range(2))
    return builder.add(builder.mul(seconds, I64(10**9)), rest)


def counted_nanoseconds(builder):
    """Return the time of Windows' counter of ticks; a product of both would soon be too large."""
    cells = [cgutils.alloca_once(builder, I64) for _ in range(2)]
    for name, cell in zip(("QueryPerformanceCounter", "QueryPerformanceFrequency"), cells):
        builder.intrinsic(name, I32, cell)
    ticks, rate = (builder.load(cell) for cell in cells)
    rest = builder.udiv(builder.mul(builder.urem(ticks, rate), I64(10**9)), rate)
    return builder.add(builder.mul(builder.udiv(ticks, rate), I64(10**9)), rest)


@operation(types.void)
def yield_to_scheduler(builder):
    """Let another program that waits for this core go first."""
    builder.intrinsic("SwitchToThread" if is_windows(builder) else "sched_yield", I32)


@always_inline
def check_clock(since):
    """Return the time and the start of this spin (`since` 0: now); yield after `YIELD_AFTER`, and start another."""
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
    """Return the contiguous range of `items` of a thread; an empty one if it is not in the job."""
    if thread >= threads:
        return items, items
    return items * thread // threads, items * (thread + 1) // threads


@always_inline
def share_of(team, items):
    """Return this thread's contiguous range of `items`."""
    return share(team.thread, team.queue[THREADS], items)


@always_inline
def share_columns(team, T, vectors):
    """Return this thread's tokens and vectors (first, last, first, last): of a single token the vectors are shared."""
    if T == 1:
        first, last = share_of(team, vectors)
        return 0, T, first, last
    first, last = share_of(team, T)
    return first, last, 0, vectors


@always_inline
def next_tile(team):
    """Return the index of the next work tile, of a stage whose work tiles go to whichever thread is free.

    Cores are not equally fast, nor left alone by other programs. The counter of tickets is never reset: a stage of n
    work tiles hands out ``n + threads`` tickets, the last of them to threads that find nothing left, so every thread
    knows the first ticket of the next stage.
    """
    queue = team.queue
    if team.thread >= queue[THREADS]:
        return NO_TICKET
    return atomic_add(queue, TICKETS, 1) - queue[STATES + team.thread * LINE + FIRST_TICKET]


@always_inline
def finish_stage(team, tiles):
    """Move this thread's first ticket behind a stage of `tiles` work tiles."""
    team.queue[STATES + team.thread * LINE + FIRST_TICKET] += tiles + team.queue[THREADS]


@noinline
def barrier(queue, thread):
    """Wait until all threads of the job have arrived; what they wrote before is visible after.

    Returns the number of threads that go on. The others, the last ones, get no share, no ticket and no barrier until
    the job ends.
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
            # A thread that is late at each barrier would cost a turn of the scheduler for each.
            queue[THREADS] = threads - 1
        atomic_add(queue, PASSED, 1)
    return queue[THREADS]


@always_inline
def wait_for_others(queue, passed):
    """Wait until another barrier is passed; add a long wait to `WAITED`."""
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
    """Post a job if every worker of `threads` is awake, else change nothing; return whether it was posted."""
    for thread in range(1, threads):
        if not exchange(queue, STATES + thread * LINE, AWAKE, CLAIMED):
            for claimed in range(1, thread):
                exchange(queue, STATES + claimed * LINE, CLAIMED, AWAKE)
            return False
    queue[THREADS], queue[TICKETS], queue[WAITED] = threads, 0, 0
    for thread in range(threads):
        line = STATES + thread * LINE
        queue[line + FIRST_TICKET], queue[line + STAGE], queue[line + RANGE] = 0, 1, 0
    for thread in range(1, threads):
        atomic_add(queue, STATES + thread * LINE + POSTED, 1)
    atomic_add(queue, JOBS, 1)
    return True


@inline
def await_job(queue, thread):
    """Wait for the next job; return whether there is one: if not, the thread has parked.

    A claimed worker has not yet served the job that was posted, or is about to be. A worker that was dropped from
    a job is claimed as well, and parks: it must not use the core that it was too slow on. A worker that jobs go on
    without parks too: its core may be the only one that no other program holds.
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
    """Post a job for `threads` threads (thread 0) or wait for one; return whether there is one."""
    if thread < 0:
        return False
    return post(queue, threads) if thread == 0 else await_job(queue, thread)


@always_inline
def record_time(team):
    """Append a timestamp to `clocks` when profiling is on: `clocks[0]` is the next index, 0 when it is off."""
    clocks = team.clocks
    index = clocks[0]
    if team.thread == 0 and 0 < index < clocks.shape[0]:
        clocks[index], clocks[0] = nanoseconds(), index + 1


@noinline
def end_stage(team):
    """Wait for all threads, and record the time."""
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
    """End a job: its workers may park again."""
    for thread in range(1, queue[THREADS]):
        exchange(queue, STATES + thread * LINE, CLAIMED, AWAKE)
