"""A conversion's work on every core."""

import os

import numpy as np
import pytest

from tinychat.conversion.cores import THREADS, on_each, run_shares


def test_each_thread_gets_its_share_and_each_part_its_result():
    calls = []
    run_shares(lambda *arguments: calls.append(arguments), "weights", 3)
    assert sorted(calls) == [(thread, THREADS, "weights", 3) for thread in range(THREADS)]
    assert on_each(np.square, range(9)) == [n * n for n in range(9)]


def test_what_a_share_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        run_shares(lambda thread, threads: 1 // 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    on_each(np.square, range(9))
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(sum(on_each(np.square, range(9)))))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 204
