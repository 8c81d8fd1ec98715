"""The number of threads: kept where cores are free, lowered where fewer are faster, raised again when they are."""

import pytest

from tinychat.engine.thread_count import LASTING, LONGEST_PAUSE, LONGEST_WINDOW, WINDOW, Cores, ThreadCount, ThreadTuner

TOKEN = 0.004


class Machine:
    """A machine whose jobs take `seconds[threads]` each, of which threads wait `waited[threads]`.

    A machine that tells of its cores says that threads have waited for them `core_waits[threads]` a job, and that
    `free` are free.
    """

    def __init__(self, seconds, waited, core_waits=None, free=None):
        self.seconds, self.waited, self.core_waits, self.free = seconds, waited, core_waits, free
        self.worked = self.core_wait = 0.0

    def cores(self):
        return Cores(self.worked, None if self.core_waits is None else self.core_wait, self.free)

    def run(self, tuner, jobs):
        """Run jobs of one token; return the threads of each."""
        used = []
        for _ in range(jobs):
            threads = tuner.wanted
            tuner.begin(self.cores)
            self.worked += self.seconds[threads]
            self.core_wait += self.core_waits[threads] if self.core_waits else 0.0
            tuner.note(1, self.seconds[threads], self.waited[threads], self.cores)
            used.append(threads)
        return used


ALONE = {1: TOKEN, 2: TOKEN / 2, 3: TOKEN / 3}, {1: 0.0, 2: 0.1 * TOKEN / 2, 3: 0.1 * TOKEN / 3}


def test_free_cores_are_all_used():
    tuner = ThreadTuner(1, 3, 3)
    assert set(Machine(*ALONE).run(tuner, 2000)) == {3}


def test_fewer_threads_are_taken_where_they_are_faster_and_more_again_when_those_are():
    tuner = ThreadTuner(1, 2, 2)
    contended = Machine({1: TOKEN, 2: 3 * TOKEN}, {1: 0.0, 2: 2 * TOKEN})
    used = contended.run(tuner, 4000)
    assert tuner.threads == 1
    assert used.index(1) <= 3 * WINDOW / TOKEN
    # Tries with two go on, and cost little.
    late = used[2000:]
    assert 0 < late.count(2) * 3 * TOKEN < 0.15 * len(late) * TOKEN
    used = Machine(*ALONE).run(tuner, 4000)
    assert set(used[-500:]) == {2}
    assert sum(TOKEN for _ in used[: used.index(2)]) < 2 * LONGEST_PAUSE * WINDOW


def test_threads_that_wait_stay_where_fewer_are_slower():
    tuner = ThreadTuner(1, 2, 2)
    # On two cores that other programs share, two threads wait for each other and are faster still.
    used = Machine({1: 2 * TOKEN, 2: 1.2 * TOKEN}, {1: 0.0, 2: TOKEN}).run(tuner, 2000)
    assert tuner.threads == 2
    assert 0 < used[1000:].count(1) < 0.05 * 1000


BESIDE_ONE = {1: TOKEN, 2: 3 * TOKEN}, {1: 0.0, 2: 2 * TOKEN}, {1: 0.0, 2: 1.5 * TOKEN}


def test_threads_that_wait_for_each_other_on_cores_of_their_own_stay():
    slow_machine = Machine({1: TOKEN, 2: 3 * TOKEN}, {1: 0.0, 2: 2 * TOKEN}, {1: 0.0, 2: 0.0}, free=0)
    assert set(slow_machine.run(ThreadTuner(1, 2, 2), 2000)) == {2}


def test_one_window_beside_others_is_enough_where_the_system_tells():
    tuner = ThreadTuner(1, 2, 2)
    Machine(*ALONE, {1: 0.0, 2: 0.0}, free=0).run(tuner, 100)
    used = Machine(*BESIDE_ONE, free=0).run(tuner, 100)
    assert tuner.threads == 1
    assert used.index(1) <= 1.5 * WINDOW / (2 * TOKEN)


def test_more_threads_are_tried_seldom_while_no_core_is_free_and_soon_when_one_is():
    tuner = ThreadTuner(1, 2, 2)
    beside_one = Machine(*BESIDE_ONE, free=0)
    beside_one.run(tuner, 500)
    used = beside_one.run(tuner, 20_000)
    assert 0 < used.count(2) * 3 * TOKEN < 0.06 * len(used) * TOKEN
    used = Machine(*ALONE, {1: 0.0, 2: 0.0}, free=1).run(tuner, 200)
    assert used.index(2) <= 2 * WINDOW / TOKEN
    assert tuner.threads == 2


def test_of_many_threads_the_fastest_number_is_found_from_either_side():
    seconds = {1: 4 * TOKEN, 2: 2 * TOKEN, 3: TOKEN, 4: 1.5 * TOKEN}
    waited = {1: 0.0, 2: 0.5 * TOKEN, 3: TOKEN, 4: 2 * TOKEN}
    for first in (1, 2, 4):
        tuner = ThreadTuner(1, 4, first)
        Machine(seconds, waited).run(tuner, 3000)
        assert tuner.threads == 3


def test_a_fixed_number_stays():
    tuner = ThreadTuner(2, 2, 2)
    assert set(Machine({2: 3 * TOKEN}, {2: 2 * TOKEN}).run(tuner, 500)) == {2}


def test_kinds_of_jobs_differ_and_a_new_one_begins_as_the_last_ended():
    count = ThreadCount(1, 2)
    Machine({1: TOKEN, 2: 3 * TOKEN}, {1: 0.0, 2: 2 * TOKEN}).run(count.tuner(1), 200)
    assert count.tuner(1).threads == 1
    assert count.tuner(256) is count.tuner(300)
    assert count.tuner(256) is not count.tuner(1)
    assert count.tuner(256).threads == 1
    assert ThreadCount(1, 2).tuner(256).threads == 2


@pytest.mark.parametrize("tokens", [1, 256])
def test_patience_follows_from_what_a_token_costs(tokens):
    tuner = ThreadTuner(1, 2, 2)
    assert tuner.patience(tokens) > 0
    Machine(*ALONE).run(tuner, 100)
    assert tuner.patience(tokens) == pytest.approx(4 * tokens * TOKEN / 2, rel=0.01)


def test_tries_begin_anew_where_others_have_taken_the_cores():
    tuner = ThreadTuner(1, 2, 2)
    beside_one = Machine(*BESIDE_ONE, free=1)
    beside_one.run(tuner, 20000)
    assert tuner.threads == 1
    # All cores are taken now: two threads get more of them, and are faster.
    beside_two = Machine({1: 2 * TOKEN, 2: 1.2 * TOKEN}, {1: 0.0, 2: TOKEN}, {1: TOKEN, 2: TOKEN}, free=0)
    used = beside_two.run(tuner, 2000)
    assert tuner.threads == 2
    assert used.index(2) * 2 * TOKEN < 2 * LASTING


def test_a_try_that_failed_beside_lucky_jobs_is_repeated_when_they_are_dearer():
    tuner = ThreadTuner(1, 2, 2)
    lucky = Machine({1: 1.2 * TOKEN, 2: TOKEN}, {1: 0.0, 2: 0.5 * TOKEN}, {1: 0.0, 2: TOKEN}, free=0)
    assert 1 in lucky.run(tuner, round((LASTING + 3 * WINDOW) / TOKEN))
    assert (tuner.threads, tuner.wanted) == (2, 2)
    usual = Machine({1: 1.2 * TOKEN, 2: 1.6 * TOKEN}, {1: 0.0, 2: 0.5 * TOKEN}, {1: 0.0, 2: TOKEN}, free=0)
    usual.run(tuner, round(4 * WINDOW / TOKEN))
    assert tuner.threads == 1


def test_tries_begin_anew_where_one_of_two_other_programs_has_ended():
    tuner = ThreadTuner(1, 2, 2)
    beside_two = Machine({1: 3 * TOKEN, 2: TOKEN}, {1: 0.0, 2: 0.5 * TOKEN}, {1: 1.5 * TOKEN, 2: TOKEN}, free=0)
    beside_two.run(tuner, 20_000)
    assert tuner.threads == 2
    beside_one = Machine({1: 0.7 * TOKEN, 2: TOKEN}, {1: 0.0, 2: 0.5 * TOKEN}, {1: 0.0, 2: 0.5 * TOKEN}, free=0)
    used = beside_one.run(tuner, 1000)
    assert tuner.threads == 1
    assert used.index(1) * TOKEN < 2 * LASTING


def test_waits_of_other_jobs_in_between_do_not_count_as_ones_own():
    tuner = ThreadTuner(1, 2, 1)
    tuner.begin(lambda: Cores(0.0, 0.0, 0))
    tuner.note(1, WINDOW / 8, 0.0, lambda: Cores(WINDOW / 8, 0.0, 0))
    # A long prompt was read meanwhile, beside another program at first.
    for _ in range(8):
        tuner.begin(lambda: Cores(10.0, 1.0, 0))
        tuner.note(1, WINDOW / 8, 0.0, lambda: Cores(10.0, 1.0, 0))
    assert not tuner.contended


def test_a_few_long_jobs_are_enough():
    tuner, second = ThreadTuner(1, 2, 1), 1.0
    beside_two = Machine({1: 2 * second, 2: 1.2 * second}, {1: 0.0, 2: 0.8}, {1: second, 2: second}, free=0)
    assert beside_two.run(tuner, 8) == [1, 2, 2, 2, 1, 2, 2, 2]


def test_one_long_job_of_each_number_is_enough_to_choose():
    tuner = ThreadTuner(1, 2, 2)
    Machine({2: LONGEST_WINDOW / 2}, {2: 0.0}, {2: 0.0}, free=0).run(tuner, 2)
    long, longer = 1.2 * LONGEST_WINDOW, 2 * LONGEST_WINDOW
    beside_one = Machine({1: long, 2: longer}, {1: 0.0, 2: 0.8 * longer}, {1: 0.0, 2: 0.5 * longer}, free=0)
    assert beside_one.run(tuner, 8) == [2, *[1] * 7]


@pytest.mark.parametrize("core_wait", [0.0, TOKEN])
def test_cores_are_contended_from_the_window_on_that_shows_it_and_while_another_number_is_tried(core_wait):
    tuner = ThreadTuner(1, 2, 2)
    assert not tuner.contended
    machine = Machine({1: TOKEN, 2: TOKEN}, {1: 0.0, 2: TOKEN}, {1: 0.0, 2: core_wait}, free=0)
    machine.run(tuner, 2 * round(WINDOW / TOKEN))
    assert tuner.contended == (core_wait > 0)
    tried = ThreadTuner(1, 2, 1)
    Machine({1: TOKEN, 2: TOKEN}, {1: 0.0, 2: 0.0}, {1: 0.0, 2: 0.0}, free=1).run(tried, 2 * round(WINDOW / TOKEN))
    assert tried.wanted == 2
    assert tried.contended


def test_jobs_of_some_length_are_judged_by_several():
    tuner = ThreadTuner(1, 2, 2)
    machine = Machine({1: 12 * TOKEN, 2: 10 * TOKEN}, {1: 0.0, 2: 4 * TOKEN}, {1: 0.0, 2: 8 * TOKEN}, free=0)
    assert machine.run(tuner, 5).count(2) == 4
    # One that happens to be fast says nothing.
    lucky = Machine({1: 6 * TOKEN, 2: 10 * TOKEN}, {1: 0.0, 2: 4 * TOKEN}, {1: 0.0, 2: 8 * TOKEN}, free=0)
    lucky.run(tuner, 1)
    machine.run(tuner, 4)
    assert tuner.threads == 2
