"""Locks between processes: one holds, the others are told or wait, and nobody keeps one beyond its end."""

import signal
import subprocess
import sys
import time

import pytest

from tinychat.file_lock import is_file_at, locked, try_lock

HOLD = """
import sys
from pathlib import Path
from tinychat.file_lock import locked
with locked(Path(sys.argv[1]), waiting=lambda: print("waits", flush=True)):
    print("has it", flush=True)
    sys.stdin.readline()
print("gave it back", flush=True)
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the lock until it is written to."""
    started = []

    def start():
        command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_second_waits_until_the_first_is_done(holder, tmp_path):
    first = holder()
    assert first.stdout.readline() == "has it\n"
    second = holder()
    assert second.stdout.readline() == "waits\n"
    first.communicate("\n")
    assert second.stdout.readline() == "has it\n"
    assert second.communicate("\n")[0] == "gave it back\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_killed_process_holds_nothing(holder, tmp_path):
    first = holder()
    first.stdout.readline()
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (tmp_path / "lock").exists()
    waits = []
    with locked(tmp_path / "lock", waiting=lambda: waits.append(True)):
        assert waits == []
    assert list(tmp_path.iterdir()) == []


def test_many_take_turns(tmp_path):
    count = """
import sys, time
from pathlib import Path
from tinychat.file_lock import locked
folder = Path(sys.argv[1])
for _ in range(20):
    with locked(folder / "lock", waiting=lambda: None):
        before = int((folder / "count").read_text())
        time.sleep(0.001)
        (folder / "count").write_text(str(before + 1))
"""
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", count, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "60"


def test_a_wait_can_be_interrupted(holder, tmp_path, monkeypatch):
    holder().stdout.readline()

    def press_ctrl_c(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", press_ctrl_c)
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "lock", waiting=lambda: None):
        pytest.fail("it is not ours")


def test_an_open_file_is_locked_once(tmp_path):
    with open(tmp_path / "file", "a+b") as first, open(tmp_path / "file", "a+b") as second:
        assert try_lock(first.fileno())
        assert not try_lock(second.fileno())
        first.close()
        assert try_lock(second.fileno())
        assert is_file_at(tmp_path / "file", second.fileno())
        assert not is_file_at(tmp_path / "other", second.fileno())
