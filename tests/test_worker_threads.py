"""Work within a time: its thread is used again, unless the work did not end."""

import os
import signal
import threading
import time

import pytest

from tinychat.worker_threads import TookTooLongError, made_ahead, run_within


def test_one_thread_does_one_work_after_the_other():
    assert len({run_within(9, threading.get_ident) for _ in range(9)} - {threading.get_ident()}) == 1


def test_errors_are_raised_where_the_work_was_given():
    with pytest.raises(KeyError, match="x"):
        run_within(9, lambda: {}["x"])


def test_work_that_does_not_end_is_abandoned_with_its_thread():
    end, threads = threading.Event(), []
    with pytest.raises(TookTooLongError):
        run_within(0.1, lambda: threads.append(threading.current_thread()) or end.wait())
    assert run_within(9, threading.get_ident) != threads[0].ident
    end.set()
    threads[0].join(9)
    assert not threads[0].is_alive()


def test_an_interruption_leaves_no_result_for_the_next():
    end = threading.Event()
    timer = threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_within(9, lambda: end.wait() and "old")
    end.set()
    assert run_within(9, lambda: "new") == "new"
    timer.join()


def test_threads_work_beside_each_other():
    meeting = threading.Barrier(2, timeout=9)
    other = threading.Thread(target=run_within, args=(9, meeting.wait))
    other.start()
    run_within(9, meeting.wait)
    other.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    run_within(9, int)
    if (child := os.fork()) == 0:
        os._exit(run_within(2, lambda: 7))
    deadline = time.monotonic() + 9
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 7


def test_items_are_made_ahead_and_no_more_than_wanted():
    made = []
    items = made_ahead((made.append(i) or i for i in range(100)), 5)
    assert next(items) == 0
    deadline = time.monotonic() + 9
    while len(made) < 7 and time.monotonic() < deadline:
        time.sleep(0.001)
    # Five wait, one was taken, and one is made but has no room.
    assert made == [*range(7)]
    assert [*items] == [*range(1, 100)]


def test_an_error_of_an_item_comes_after_those_before_it():
    found = []
    with pytest.raises(ZeroDivisionError):
        for item in made_ahead((1 // i for i in (1, 1, 0, 1)), 9):
            found.append(item)
    assert found == [1, 1]


@pytest.mark.parametrize("count", [1, 50])
def test_a_reader_that_stops_ends_the_thread(count):
    before, items = threading.active_count(), made_ahead(iter(range(100)), count)
    next(items)
    items.close()
    assert threading.active_count() == before
