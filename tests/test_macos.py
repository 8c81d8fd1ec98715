"""What macOS would tell, by a fake sysctl: processor, memory, performance cores, battery."""

import ctypes
import sys

import pytest

from tinychat import machine, macos

M3 = {
    "machdep.cpu.brand_string": b"Apple M3 Pro\0",
    "hw.memsize": (18 << 30).to_bytes(8, "little"),
    "kern.memorystatus_level": (40).to_bytes(4, "little"),
    "hw.perflevel0.physicalcpu": (6).to_bytes(4, "little"),
}


class Library:
    """Stands for the C library; `values` are those of sysctl, `classes` the classes of service asked for."""

    def __init__(self, values):
        self.values, self.classes = values, []

    def sysctlbyname(self, name, value, size, new, new_size):
        found = self.values.get(name.decode())
        if found is None or len(found) > size._obj.value or new is not None or new_size.value:
            return -1
        ctypes.memmove(value, found, len(found))
        size._obj.value = len(found)
        return 0

    def pthread_set_qos_class_self_np(self, service, relative):
        self.classes.append((service.value, relative.value))
        return 0


@pytest.fixture
def library(monkeypatch):
    found = Library(dict(M3))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    return found


def test_what_sysctl_tells(library):
    assert machine.available_memory_bytes() == machine.memory_bytes() * 40 // 100
    assert macos.system_number("hw.memsize") == 18 << 30
    assert macos.system_number("hw.nothing") is None
    assert macos.system_text("hw.nothing") == ""
    library.values.pop("kern.memorystatus_level")
    assert machine.available_memory_bytes() is None


def test_the_processor_is_named(library, monkeypatch):
    monkeypatch.setattr(machine, "CPU_INFO", machine.PROC / "no such file")
    assert machine.processor_name() == "Apple M3 Pro"


def test_threads_are_as_many_as_performance_cores(library, monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 12)
    assert machine.default_threads() == 6
    # Intel's have no such levels.
    library.values.pop("hw.perflevel0.physicalcpu")
    assert machine.default_threads() == 12


def test_threads_ask_for_performance_cores(library):
    assert macos.prefer_fast_cores()
    assert library.classes == [(0x19, 0)]


def test_a_library_without_these_functions_tells_nothing(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert macos.system_text("machdep.cpu.brand_string") == ""
    assert macos.system_number("hw.memsize") is None
    assert not macos.prefer_fast_cores()


@pytest.mark.parametrize(("source", "is_on_battery"), [("Battery Power", True), ("AC Power", False)])
def test_the_battery_is_what_pmset_says(source, is_on_battery, library, tmp_path, monkeypatch):
    program = tmp_path / "pmset"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '-g batt' ] && echo \"Now drawing from '{source}'\"\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.is_on_battery() == is_on_battery
    program.unlink()
    assert not machine.is_on_battery()
