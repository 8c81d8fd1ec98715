"""How busy the machine is, read from files of Linux; None elsewhere."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tinychat.machine import available_cores, core_wait, free_cores

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs the scheduler's figures of Linux")


def test_files_of_the_system(tmp_path):
    for thread, waited in (3, 1_500_000_000), (5, 250_000_000):
        (tmp_path / f"self/task/{thread}").mkdir(parents=True)
        (tmp_path / f"self/task/{thread}/schedstat").write_text(f"90000 {waited} 7\n")
    assert core_wait([3, 5], tmp_path) == 1.75
    (tmp_path / "loadavg").write_text("0.20 0.18 0.12 1/80 11206\n")
    assert free_cores(tmp_path) == os.cpu_count() - 1
    (tmp_path / "loadavg").write_text("0.20 0.18 0.12 9999/10000 11206\n")
    assert free_cores(tmp_path) == 0


def test_a_system_that_does_not_say(tmp_path):
    assert core_wait([3], tmp_path) is None
    assert free_cores(tmp_path) is None
    (tmp_path / "loadavg").write_text("busy\n")
    assert free_cores(tmp_path) is None


@linux
def test_a_thread_beside_a_busy_process_waits_for_its_core():
    def spin(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    usable = os.sched_getaffinity(0)
    own = [threading.get_native_id()]
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(process.pid, {min(usable)})
        os.sched_setaffinity(0, {min(usable)})
        spin(0.1)
        before = core_wait(own)
        spin(0.5)
        assert core_wait(own) - before > 0.05
    finally:
        os.sched_setaffinity(0, usable)
        process.kill()
        process.wait()


def test_cores_are_those_this_process_may_use():
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
