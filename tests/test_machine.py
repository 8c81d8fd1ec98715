"""How busy the machine is, read from files of Linux; None elsewhere."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tinychat import machine
from tinychat.machine import available_cores, core_wait, fast_cores, free_cores, is_on_battery

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


def write_files(folder, contents):
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


HYBRID = {"cpu_core/cpus": "0-3,8", "cpu_atom/cpus": "4-7"}
CAPACITIES = {f"system/cpu/cpu{core}/cpu_capacity": speed for core, speed in enumerate([400, 400, 900, 900, 1024])}
ALIKE = {f"system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq": 5_000_000 + core * 50_000 for core in range(8)}
COMPACT = ALIKE | {f"system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq": 3_300_000 for core in range(2, 8)}


@pytest.mark.parametrize(
    ("contents", "usable", "fast"),
    [
        (HYBRID, range(9), [0, 1, 2, 3, 8]),
        (HYBRID, [3, 4, 5], [3]),
        (HYBRID, [4, 5], [4, 5]),
        (CAPACITIES, range(5), [2, 3, 4]),
        (ALIKE, range(8), [*range(8)]),
        (COMPACT, range(8), [0, 1]),
        ({"cpu_core/cpus": "nonsense"}, range(3), [0, 1, 2]),
        ({}, [1, 2], [1, 2]),
    ],
)
def test_cores_that_save_energy_are_told_apart(contents, usable, fast, tmp_path, monkeypatch):
    write_files(tmp_path, contents)
    monkeypatch.setattr(machine, "usable_cores", lambda: [*usable])
    assert fast_cores(tmp_path) == fast


def test_few_threads_get_the_fast_cores_and_many_get_all(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(machine, "fast_cores", lambda: [0, 1])
    assert [machine.cores_for(threads) for threads in (1, 2, 3)] == [[0, 1], [0, 1], [0, 1, 2, 3]]
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    assert machine.default_threads() == 2
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    assert machine.default_threads() == 1


BATTERY = {"BAT0/type": "Battery", "BAT0/status": "Discharging"}
MOUSE = {"hid/type": "Battery", "hid/status": "Discharging", "hid/scope": "Device"}


@pytest.mark.skipif(not Path("/proc").exists(), reason="files of Linux")
@pytest.mark.parametrize(
    ("contents", "is_drained"),
    [
        ({}, False),
        (BATTERY, True),
        (BATTERY | {"AC/type": "Mains", "AC/online": "0"}, True),
        (BATTERY | {"AC/type": "Mains", "AC/online": "1"}, False),
        (BATTERY | {"BAT0/status": "Charging"}, False),
        (MOUSE, False),
    ],
)
def test_a_battery_that_is_drained_is_noticed(contents, is_drained, tmp_path):
    write_files(tmp_path, contents)
    assert is_on_battery(tmp_path) == is_drained
