"""A share of the cores: fewer threads, and pauses that bound the processor time of all of them."""

import time

import engines
import pytest

from tinychat.engine.share import BETWEEN, LONGEST_SLEEP, SAVED, ProcessorShare
from tinychat.engine.thread_count import ThreadCount
from tinychat.machine import available_cores


class Machine:
    """A clock, and the processor time of a process that computes on some cores."""

    def __init__(self):
        self.now = self.used = 0.0
        self.pauses = []

    def share(self, percent, cores):
        return ProcessorShare(percent, cores, lambda: self.now, lambda: self.used, self.sleep)

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def work(self, seconds, cores):
        self.now += seconds
        self.used += seconds * cores


@pytest.mark.parametrize(
    ("percent", "cores", "threads"), [(100, 8, 8), (50, 8, 4), (51, 8, 5), (10, 8, 1), (1, 1, 1), (60, 4, 3)]
)
def test_no_more_threads_than_the_share_has_cores(percent, cores, threads):
    assert Machine().share(percent, cores).threads == threads


@pytest.mark.parametrize(("percent", "cores"), [(25, 2), (60, 4), (10, 8), (1, 2)])
@pytest.mark.parametrize("seconds", [0.003, 0.4, 3.0])
def test_pauses_bring_the_processor_time_to_the_share(percent, cores, seconds):
    machine = Machine()
    share = machine.share(percent, cores)
    for _ in range(50):
        share.wait()
        machine.work(seconds, share.threads)
        share.note()
    share.wait()
    assert machine.used <= share.rate * (machine.now + SAVED) + 1e-6
    # All of it is used, too.
    assert machine.used >= 0.99 * share.rate * machine.now - share.rate * LONGEST_SLEEP


def test_all_of_the_cores_is_no_bound():
    machine = Machine()
    share = machine.share(100, 4)
    for _ in range(10):
        share.wait()
        machine.work(1, 4)
        share.note()
    assert machine.pauses == []


def test_a_rest_saves_up_little():
    machine = Machine()
    share = machine.share(50, 2)
    machine.now += 1000
    share.wait()
    machine.work(1, 2)
    share.note()
    share.wait()
    assert sum(machine.pauses) == pytest.approx(1 - SAVED)


def test_work_between_steps_costs_a_short_pause_only():
    machine = Machine()
    share = machine.share(10, 2)
    share.note()
    machine.work(0, 1)
    machine.used += 60
    share.wait()
    assert sum(machine.pauses) == pytest.approx(BETWEEN / 0.2)


def test_signals_act_in_a_pause():
    machine = Machine()
    share = machine.share(10, 2)
    machine.work(1, 2)
    share.note()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share.wait(interrupt)
    assert machine.pauses == [LONGEST_SLEEP]


def test_fewer_threads_are_tuned_and_all_of_them_again():
    count = ThreadCount(1, 8)
    assert count.tuner(1).wanted == 8
    count.limit(3)
    assert [count.tuner(1).wanted, count.tuner(64).most] == [3, 3]
    count.limit(100)
    assert count.tuner(1).wanted == 8


@pytest.mark.parametrize("percent", [60, 25])
def test_the_processor_time_is_bounded_and_the_logits_are_the_same(percent, folders):
    sequence = engines.open_sequence(folders("tinyllama"), threads=2)
    ids = engines.draw_ids(sequence, 64)
    expected = sequence.step(ids).copy()
    sequence.engine.take_share(percent)
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < 0.7:
        sequence.rewind(0)
        found = sequence.step(ids)
    sequence.engine.share.wait()
    took = (time.process_time() - used) / (time.monotonic() - began)
    assert found.tobytes() == expected.tobytes()
    # What is saved is a seventh of the time.
    assert took <= 1.2 * percent / 100 * available_cores()


def test_an_engine_of_other_caches_keeps_the_share(folders):
    engine = engines.open_engine(folders("tinyllama"), threads=2)
    engine.take_share(40)
    assert engine.changed("f32", 1).share.percent == 40
