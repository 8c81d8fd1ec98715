"""Memory that is given back to the system."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from tinychat.engine.unused_memory import give_back


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")
def test_pages_of_an_array_are_given_back():
    array = np.zeros((64, 1 << 20), np.uint8)
    array[:] = 7
    before = resident_bytes()
    give_back(array[8:40])
    assert before - resident_bytes() > 30 << 20
    # Only pages that lie wholly in it.
    assert (array[:8] == 7).all()
    assert (array[40:] == 7).all()
    array[8:40] = 9
    assert (array[8:40] == 9).all()


def test_less_than_a_page_stays():
    array = np.full(100, 5, np.uint8)
    give_back(array)
    assert (array == 5).all()
