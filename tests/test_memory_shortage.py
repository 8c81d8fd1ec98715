"""When memory counts as short, by what systems tell."""

import sys

import pytest

from tinychat import macos, memory_shortage
from tinychat.control_group import GroupMemory

MIB = 1 << 20


@pytest.fixture
def told(monkeypatch):
    """Return a function that sets what the system tells: bytes that are free, all of them, and a group's."""

    def tell(free, total, group=None):
        monkeypatch.setattr(memory_shortage, "available_memory_bytes", lambda: free)
        monkeypatch.setattr(memory_shortage, "memory_bytes", lambda: total)
        monkeypatch.setattr(memory_shortage, "group_memory", lambda: group)

    monkeypatch.setattr(sys, "platform", "linux")
    return tell


@pytest.mark.parametrize(
    ("free", "total", "group", "expected"),
    [
        (500 * MIB, 8192 * MIB, None, None),
        (400 * MIB, 8192 * MIB, None, "only 400 MiB of memory are free"),
        (600 * MIB, 512 * 1024 * MIB, None, None),
        (500 * MIB, 512 * 1024 * MIB, None, "only 500 MiB of memory are free"),
        (70 * MIB, 8192 * MIB, GroupMemory(1024 * MIB, 70 * MIB), None),
        (40 * MIB, 8192 * MIB, GroupMemory(1024 * MIB, 40 * MIB), "only 40 MiB of memory are free"),
        (None, None, None, None),
    ],
)
def test_what_is_free(told, tmp_path, free, total, group, expected):
    told(free, total, group)
    assert memory_shortage.memory_shortage(tmp_path / "none") == expected


def test_programs_that_wait(told, tmp_path):
    told(None, None)
    pressure = tmp_path / "memory"
    text = "some avg10=60.00 avg60=0.00 avg300=0.00 total=0\nfull avg10={} avg60=0.00 avg300=0.00 total=0\n"
    pressure.write_text(text.format("9.90"))
    assert memory_shortage.memory_shortage(pressure) is None
    pressure.write_text(text.format("12.40"))
    assert memory_shortage.memory_shortage(pressure) == "programs waited for memory in 12 % of the last ten seconds"
    pressure.write_text("full nonsense\n")
    assert memory_shortage.memory_shortage(pressure) is None


@pytest.mark.parametrize(("level", "is_short"), [(1, False), (2, True), (4, True), (None, False)])
def test_macos_warns(told, tmp_path, monkeypatch, level, is_short):
    told(None, None)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(macos, "system_number", {"kern.memorystatus_vm_pressure_level": level}.get)
    found = memory_shortage.memory_shortage(tmp_path / "none")
    assert found == ("macOS warns that memory is short" if is_short else None)
