"""How many threads a job takes: all of them, or fewer where other programs hold the cores.

A thread that shares its core with a busy program is off it half of the time, for some milliseconds each, and at every
barrier the others wait for it. Whether fewer threads are faster then depends on the scheduler and on how many programs
there are, so it is measured: where threads wait for each other and for their cores, some jobs are tried with one
fewer, and with one more where cores are free. What comes out of a job does not depend on it.
"""

from collections.abc import Callable
from dataclasses import dataclass

# Seconds that a number of threads is judged by: some turns of the scheduler, and some jobs unless these are long.
WINDOW, LONGEST_WINDOW = 0.05, 0.5
JOBS = 4
# On cores of their own, threads wait for each other some 5 % of their time, and hardly for their cores.
LONG_WAIT, LONG_CORE_WAIT = 0.15, 0.1
# A try must take this part of the time to be kept, and may end early where it takes so many times as long.
WORTHWHILE, HOPELESS = 0.9, 1.5
LEAST_TRIED = 0.03
# Work between tries, so many times as long as a try: after one that led to another number, which is soon compared once
# more; and after one that failed, twice as long each time.
SHORT_PAUSE, FIRST_PAUSE, LONGEST_PAUSE = 2, 8, 64
# A job is expected to wait no longer than so many times what it should take in all.
PATIENCE = 4.0
PATIENCE_UNKNOWN = 0.1
# Seconds after which cores that others take, or let go, are no passing thing: tries then begin anew.
LASTING = 0.5


@dataclass(frozen=True)
class Cores:
    """What the system says of its cores at one moment; None where it does not say.

    Attributes
    ----------
    core_wait : float or None
        Seconds that the workers have waited for a core so far.
    free : int or None
        Cores that nobody uses.
    """

    core_wait: float | None = None
    free: int | None = None


class Pace:
    """The number of threads for jobs of one kind, and what a token costs with it.

    Parameters
    ----------
    fewest, most : int
        Bounds of the number.
    threads : int
        The number to begin with.
    """

    def __init__(self, fewest: int, most: int, threads: int) -> None:
        self.fewest, self.most, self.threads = fewest, most, threads
        self.cost: float | None = None  # seconds a token, with `threads`
        self._tried: int | None = None
        self._downwards = True
        self._hoped = True
        self._changed = False
        self._waits_before = False
        self._was_contended = False
        self._differs_since: float | None = None
        self._pause = SHORT_PAUSE
        self._worked = self._last_try = self._next_try = 0.0
        self._core_wait: float | None = None
        self._begin_window()

    @property
    def wanted(self) -> int:
        """Threads that the next job takes."""
        return self._tried or self.threads

    def patience(self, tokens: int) -> float:
        """Return how many seconds the threads of a job of `tokens` tokens may wait before it goes on with fewer."""
        return PATIENCE_UNKNOWN if self.cost is None else PATIENCE * self.cost * tokens

    def begin(self, ask_cores: Callable[[], Cores]) -> None:
        """Prepare for a job; ask the system, which takes some 50 us, if a window begins that may lead to a try."""
        if self._tokens == 0 and self._tried is None and self.fewest < self.most:
            self._core_wait = ask_cores().core_wait

    def note(self, tokens: int, seconds: float, waited: float, ask_cores: Callable[[], Cores]) -> None:
        """Take account of a job with the threads wanted.

        Parameters
        ----------
        tokens : int
        seconds : float
            What the job took.
        waited : float
            What its threads spent at barriers, in all.
        ask_cores : callable
            Asks the system: done where a window ends.
        """
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
        elif self._hoped:
            self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
            self._downwards = not self._downwards
        self._last_try = self._worked
        self._next_try = self._worked + self._pause * max(WINDOW, self._seconds)

    def _candidate(self, cores: Cores) -> int | None:
        """Return another number of threads to try; None if this one is right as far as one can tell."""
        waits_before = self._waits_before
        self._waits_before = waits = self._waited > LONG_WAIT * self.threads * self._seconds
        if cores.core_wait is None or self._core_wait is None:
            # Twice in a row: a single long wait may be the machine's own.
            contended = waits and waits_before
        else:
            contended = cores.core_wait - self._core_wait > LONG_CORE_WAIT * self.threads * self._seconds
        self._begin_anew_if_changed(contended)
        if self._worked < self._next_try:
            return None
        fewer = contended and waits and self.threads > self.fewest
        # More threads get more of contended cores. While a few have all that others leave, more are tried seldom, and
        # a failure then says nothing of the next try.
        self._hoped = contended or cores.free != 0
        rested = self._worked - self._last_try >= LONGEST_PAUSE * max(WINDOW, self._seconds)
        more = (self._hoped or rested) and self.threads < self.most
        if fewer and (self._downwards or not more):
            return self.threads - 1
        return self.threads + 1 if more else None

    def _begin_anew_if_changed(self, contended: bool) -> None:
        """Forget how tries failed once others have taken the cores, or have let them go."""
        if contended == self._was_contended:
            self._differs_since = None
            return
        if self._differs_since is None:
            self._differs_since = self._worked - self._seconds
        if self._worked - self._differs_since >= LASTING:
            self._was_contended, self._differs_since = contended, None
            self._pause, self._next_try = SHORT_PAUSE, self._worked

    def _begin_window(self) -> None:
        self._jobs, self._tokens, self._seconds, self._waited = 0, 0, 0.0, 0.0


class ThreadCount:
    """The number of threads for each kind of job: kinds differ in how many tokens they have, to a power of two.

    Parameters
    ----------
    fewest, most : int
    """

    def __init__(self, fewest: int, most: int) -> None:
        self.fewest, self.most = fewest, most
        self._paces: dict[int, Pace] = {}
        self._latest = Pace(fewest, most, most)

    def pace(self, tokens: int) -> Pace:
        """Return the pace of jobs of `tokens` tokens; a new kind begins as the last job of another ended."""
        kind = tokens.bit_length()
        if kind not in self._paces:
            self._paces[kind] = Pace(self.fewest, self.most, self._latest.threads)
        self._latest = self._paces[kind]
        return self._latest
