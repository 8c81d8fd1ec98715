"""Sharing work: every item to one thread, and no thread past a barrier before all have come."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kernels.kernel_inputs import compiled

from tinychat.kernels.threads import barrier, new_mailbox, share


@compiled
def shares(threads, items, owner, count):
    """Note for each item which thread has it, and how many do."""
    for thread in range(threads):
        first, last = share(thread, threads, items)
        for item in range(first, last):
            owner[item] = thread
            count[item] += 1


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("items", [0, 1, 2, 5, 63, 64, 1000])
def test_shares_are_contiguous_even_and_complete(threads, items):
    owner, count = np.zeros(items, np.int64), np.zeros(items, np.int64)
    shares(threads, items, owner, count)
    assert (count == 1).all()
    assert (np.diff(owner) >= 0).all()
    sizes = np.bincount(owner, minlength=threads)
    assert sizes.max() - sizes.min() <= 1


@compiled
def meet(thread, mailbox, written, seen):
    """In each round write one's own place, meet, read everyone's, and meet again before the next round writes."""
    for i in range(seen.shape[1]):
        written[thread] = i + 1
        barrier(mailbox, thread)
        seen[thread, i] = written.min() * 1000 + written.max()
        barrier(mailbox, thread)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_was_written_before_a_barrier_is_seen_after(threads):
    rounds = 300
    mailbox = new_mailbox(threads, threads)
    written, seen = np.zeros(threads, np.int64), np.zeros((threads, rounds), np.int64)
    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(meet, thread, mailbox, written, seen) for thread in range(threads)]
        for call in calls:
            call.result()
    np.testing.assert_array_equal(seen, np.tile(np.arange(1, rounds + 1) * 1001, (threads, 1)))
