"""The number of threads of a job: all of them, or fewer where other programs hold the cores.

A thread that shares its core with a busy program does not run half of the time, for some milliseconds at a stretch, and
the others wait for it at every barrier. Whether fewer threads are then faster depends on the scheduler and on the
number of such programs, so it is measured: where threads wait for each other and for their cores, some jobs are
tried with one thread fewer, and where cores are free, with one more. The results of a job do not depend on it.
"""

from collections.abc import Callable
from dataclasses import dataclass

# Seconds of work by which a number of threads is judged: several turns of the scheduler, and `JOBS` jobs or more unless
# these are long.
WINDOW, LONGEST_WINDOW = 0.1, 0.2
JOBS = 4
# On cores of their own, threads wait for each other about 5 % of their time; longer than this share is long.
LONG_WAIT = 0.15
# Seconds that all threads together wait for cores in one second: hardly any on cores of their own, half a second beside
# one busy program, and a second beside two. And by how much another situation differs.
LONG_CORE_WAIT, OTHER_CORE_WAIT = 0.2, 0.3
# Cost a token beside the usual one: a try is kept below the first, and ends early above the second.
WORTHWHILE, HOPELESS = 0.9, 1.5
LEAST_TRIED = 0.06
# Work between tries, as a multiple of a try's length: after one that changed the number, which is soon tested again;
# and after one that failed, doubled each time.
SHORT_PAUSE, FIRST_PAUSE, LONGEST_PAUSE = 2, 8, 64
# The threads of a job may wait this many times what the whole job should take, or so many seconds if that is not known.
PATIENCE = 4.0
PATIENCE_UNKNOWN = 0.1
# After so many seconds, a change in how contended the cores are counts as lasting, and tries begin anew.
LASTING = 0.5


@dataclass(frozen=True)
class Cores:
    """A reading of the system's cores; None where it does not tell.

    worked : seconds of all jobs so far; core_wait : seconds that the workers have waited for a core so far; free :
    idle cores.
    """

    worked: float = 0.0
    core_wait: float | None = None
    free: int | None = None


class ThreadTuner:
    """The number of threads for jobs of one kind, from `fewest` to `most`, and the cost of a token with it."""

    def __init__(self, fewest: int, most: int, threads: int) -> None:
        self.fewest, self.most, self.threads = fewest, most, threads
        self.cost: float | None = None  # seconds a token, with `threads`
        self._tried: int | None = None
        self._downwards = True
        self._expects_gain = True
        self._changed = False
        self._waits_before = False
        self._is_contended = False
        self._core_wait: float | None = 0.0  # a second, where tries began anew
        self._differs_since: float | None = None
        self._failed: float | None = None  # seconds a token, with the number that was tried last without gain
        self._pause = SHORT_PAUSE
        self._worked = self._last_try = self._next_try = 0.0
        self._cores = Cores()  # as the window began
        self._begin_window()

    @property
    def wanted(self) -> int:
        """Number of threads of the next job."""
        return self._tried or self.threads

    @property
    def contended(self) -> bool:
        """Whether other programs held cores at the last judgement, or another number is tried."""
        return self._is_contended or self._tried is not None

    def patience(self, tokens: int) -> float:
        """Return the seconds that the threads of a job may wait before it goes on with fewer."""
        return PATIENCE_UNKNOWN if self.cost is None else PATIENCE * self.cost * tokens

    def begin(self, ask_cores: Callable[[], Cores]) -> None:
        """Prepare for a job; read the cores, which takes about 50 us, if a window begins that may lead to a try."""
        if self._tokens == 0 and self._tried is None and self.fewest < self.most:
            self._cores = ask_cores()

    def note(self, tokens: int, seconds: float, waited: float, ask_cores: Callable[[], Cores]) -> None:
        """Count a job of `seconds`, whose threads waited `waited` seconds at barriers, in all."""
        self._worked += seconds
        changed, self._changed = self._changed, False
        if changed and seconds < LONGEST_WINDOW:
            # The first job with another number of threads: some have just been woken, the scheduler moves others.
            return
        self._jobs += 1
        self._tokens += tokens
        self._seconds += seconds
        self._waited += waited
        cost = self._seconds / self._tokens
        if self._tried is None or self.cost is None:
            if self._is_judged:
                self.cost = cost
                self._tried = self._candidate(ask_cores()) if self.fewest < self.most else None
                self._changed = self._tried is not None
                self._begin_window()
        elif self._is_judged or (self._seconds >= LEAST_TRIED and cost > HOPELESS * self.cost):
            self._judge(self._tried, cost)
            self._changed = self._tried != self.threads
            self._tried = None
            self._begin_window()

    @property
    def _is_judged(self) -> bool:
        """Whether the window is long enough."""
        return self._seconds >= WINDOW and (self._jobs >= JOBS or self._seconds >= LONGEST_WINDOW)

    def _judge(self, tried: int, cost: float) -> None:
        """Keep the number that was tried if it was faster."""
        assert self.cost is not None
        if cost < WORTHWHILE * self.cost:
            self.threads, self.cost, self._pause = tried, cost, SHORT_PAUSE
            self._core_wait = self._failed = None
        else:
            self._failed = cost
            if self._expects_gain:
                self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
                self._downwards = not self._downwards
        self._last_try = self._worked
        self._next_try = self._worked + self._pause * max(WINDOW, self._seconds)

    def _candidate(self, cores: Cores) -> int | None:
        """Return another number of threads to try, or None."""
        core_wait = self._core_wait_a_second(cores)
        self._is_contended = contended = core_wait > LONG_CORE_WAIT
        self._begin_anew_if_changed(core_wait)
        if self._worked < self._next_try and not self._is_slower_than_what_failed:
            return None
        fewer = contended and self.threads > self.fewest
        # More threads get a larger part of contended cores. While no core is free and none is contended, more threads
        # are tried rarely, and a failure then says nothing about the next try.
        self._expects_gain = contended or cores.free != 0
        rested = self._worked - self._last_try >= LONGEST_PAUSE * max(WINDOW, self._seconds)
        more = (self._expects_gain or rested) and self.threads < self.most
        if fewer and (self._downwards or not more):
            return self.threads - 1
        return self.threads + 1 if more else None

    @property
    def _is_slower_than_what_failed(self) -> bool:
        """Whether the number that failed would be worth it now, after a short pause."""
        assert self.cost is not None
        rested = self._worked - self._last_try >= SHORT_PAUSE * WINDOW
        return rested and self._failed is not None and self._failed < WORTHWHILE * self.cost

    def _core_wait_a_second(self, cores: Cores) -> float:
        """Return the seconds that all threads together have waited for cores in a second of this window.

        Where the system does not tell, it is 1 if the threads have waited for each other in two windows in a row: a
        single long wait may be the machine's own.
        """
        before = self._cores
        if cores.core_wait is not None and before.core_wait is not None:
            # Jobs of other kinds may have come in between, and their threads have waited too.
            return (cores.core_wait - before.core_wait) / (cores.worked - before.worked)
        waits_before = self._waits_before
        self._waits_before = self._waited > LONG_WAIT * self.threads * self._seconds
        return float(self._waits_before and waits_before)

    def _begin_anew_if_changed(self, core_wait: float) -> None:
        """Drop the record of failed tries once other programs have begun, or ceased, to use cores."""
        if self._core_wait is None:
            self._core_wait = core_wait
        if abs(core_wait - self._core_wait) <= OTHER_CORE_WAIT:
            self._differs_since = None
            return
        if self._differs_since is None:
            self._differs_since = self._worked - self._seconds
        if self._worked - self._differs_since >= LASTING:
            self._core_wait, self._differs_since, self._failed = core_wait, None, None
            self._pause, self._next_try = SHORT_PAUSE, self._worked

    def _begin_window(self) -> None:
        self._jobs, self._tokens, self._seconds, self._waited = 0, 0, 0.0, 0.0


class ThreadCount:
    """A `ThreadTuner` for each kind of job: its number of tokens, up to the next power of two."""

    def __init__(self, fewest: int, most: int) -> None:
        self.fewest, self.most = fewest, most
        self.limit(most)

    def limit(self, threads: int) -> None:
        """Let jobs take at most so many threads from now on."""
        self._limit = min(threads, self.most)
        self._fewest = min(self.fewest, self._limit)
        self._tuners: dict[int, ThreadTuner] = {}
        self._latest = ThreadTuner(self._fewest, self._limit, self._limit)

    def tuner(self, tokens: int) -> ThreadTuner:
        """Return the tuner of jobs of `tokens` tokens; a new one begins with the latest number of threads."""
        kind = tokens.bit_length()
        if kind not in self._tuners:
            self._tuners[kind] = ThreadTuner(self._fewest, self._limit, self._latest.threads)
        self._latest = self._tuners[kind]
        return self._latest
