"""The memory that a team of threads shares."""

from typing import NamedTuple

import numpy as np

# Indices of a queue, int64; what different threads write is on different cache lines.
LINE = 8
THREADS = 0  # of the job, from the next barrier on
MIN_THREADS = 1  # with which a job may go on
MAX_WAIT = 2  # nanoseconds that the threads of a job may wait before it goes on with one fewer
CLOSING = LINE
JOBS = LINE + 1  # posted so far
ARRIVALS = 2 * LINE
TICKETS = 3 * LINE
PASSED = 4 * LINE  # barriers that all threads have reached
WAITED = 5 * LINE  # nanoseconds that threads have waited at barriers in this job
# From here on a line for each thread: its state, jobs served, first ticket of the stage, jobs posted, the stages of the
# job that had ranges, counted from 1 on, and its range (`kernels.ranges`).
STATES = 6 * LINE
SERVED, FIRST_TICKET, POSTED, STAGE, RANGE = 1, 2, 3, 4, 5
AWAKE, PARKED, CLAIMED = 0, 1, 2


class Team(NamedTuple):
    """A thread and the team that it belongs to: the first argument of every stage."""

    thread: int  # from 0 on
    queue: np.ndarray  # int64: see `new_queue`
    clocks: np.ndarray  # int64: see `record_time`


def new_queue(threads: int, fewest: int = 1) -> np.ndarray:
    """Return the queue of a team, its workers parked; a job may lose threads until `fewest` are left."""
    queue = np.zeros(STATES + threads * LINE, np.int64)
    queue[THREADS], queue[MIN_THREADS] = threads, fewest
    queue[STATES::LINE], queue[STATES + STAGE :: LINE] = PARKED, 1
    return queue
