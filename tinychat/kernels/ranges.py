"""Ranges of a stage's items: each thread works through its own share, then takes half of what another has left.

A thread so reads weights as one stream: in turns with another thread, in units of 256 KB, two threads of a Xeon read
them a tenth more slowly. Only where another program, or a slower core, delays a thread do others read from its range.

A range is one int64, which whoever takes items swaps: the number of the stage, the first item, the last. If the stage
is an earlier one, its thread has not begun, and the range is its whole share. Items that were taken never come back
into a range, so no swap mistakes one range for another.
"""

from tinychat.kernels.jit import always_inline, noinline
from tinychat.kernels.team import atomic_load, exchange, share
from tinychat.kernels.team_queue import LINE, RANGE, STAGE, STATES, THREADS

ITEM_BITS = 22
MASK = (1 << ITEM_BITS) - 1


@always_inline
def as_number(stage, first, last):
    """Return the number of a range of items of a stage."""
    return (stage << 2 * ITEM_BITS) + (first << ITEM_BITS) + last


@always_inline
def range_of(queue, thread, stage, items):
    """Return the number that stands for a thread's range, and the range: first and last item."""
    number = atomic_load(queue, STATES + thread * LINE + RANGE)
    if number >> 2 * ITEM_BITS == stage:
        return number, number >> ITEM_BITS & MASK, number & MASK
    first, last = share(thread, queue[THREADS], items)
    return number, first, last


@noinline
def take(queue, thread, items, unit):
    """Return the next items of the current stage for a thread: first and last, at most `unit` of them, or none.

    items : of the stage, fewer than ``2**ITEM_BITS``; the same for all threads, like `unit`.
    """
    if thread >= queue[THREADS]:
        return items, items
    own = STATES + thread * LINE
    stage = queue[own + STAGE]
    while True:
        number, first, last = range_of(queue, thread, stage, items)
        if first < last:
            stop = min(first + unit, last)
            if exchange(queue, own + RANGE, number, as_number(stage, stop, last)):
                return first, stop
        else:
            first, last = take_half(queue, thread, stage, items, unit)
            if first == last:
                return items, items
            exchange(queue, own + RANGE, number, as_number(stage, first, last))


@always_inline
def take_half(queue, thread, stage, items, unit):
    """Take the last half, but no less than `unit`, of another thread's range; return it, or an empty one."""
    threads, other = queue[THREADS], 1
    while other < threads:
        victim = (thread + other) % threads
        number, first, last = range_of(queue, victim, stage, items)
        if first == last:
            other += 1
            continue
        middle = max(first, last - max(unit, (last - first) // 2))
        if exchange(queue, STATES + victim * LINE + RANGE, number, as_number(stage, first, middle)):
            return middle, last
    return items, items


@always_inline
def end_ranges(team):
    """Let the next items that this thread takes be those of another stage."""
    team.queue[STATES + team.thread * LINE + STAGE] += 1
