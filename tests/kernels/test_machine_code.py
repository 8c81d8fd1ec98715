"""Machine code of entry points is cached whole or not at all, and runs without Numba."""

import os
import subprocess
import sys
from typing import NamedTuple

import numba
import numpy as np
import pytest

from tinychat.kernels import machine_code, setup
from tinychat.kernels.jit import entry_point, object_code
from tinychat.kernels.machine_code import code_name, find_entry_point, load_entry_point, read_code, write_code
from tinychat.kernels.memory import KindType, from_pointers, numbers_at
from tinychat.kernels.pointers import pointers_of, sample_of, type_name


class Mixed(NamedTuple):
    """A tuple of every kind of argument."""

    factor: np.float32
    is_on: bool
    values: np.ndarray


MIXED = Mixed(np.float32(0.5), True, np.arange(4.0))


@entry_point
def scale(thread, threads, queue_address, pointers_address, kind):
    """Scale values in place, and add up the sum."""
    a, queue = from_pointers(kind, numbers_at(pointers_address)), numbers_at(queue_address)
    for i in range(a.values.shape[0]):
        a.values[i] *= a.factor
        queue[0] += int(a.values[i]) * thread + threads
    return a.is_on


@entry_point
def shout(thread, threads, queue_address, pointers_address, kind):
    """Print, which takes Python."""
    print(thread)
    return True


def types_of(arguments):
    return (*[numba.int64] * 4, KindType(numba.typeof(sample_of(arguments))))


@pytest.fixture(scope="module")
def compiled():
    """Return the symbol and the object code of `scale`."""
    return object_code(scale, types_of(MIXED))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Keep machine code in a folder of the test's own, and find none that is loaded."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(machine_code, "_loaded", {})
    monkeypatch.setattr(setup, "_has_warned", False)
    return tmp_path


@pytest.fixture
def path(folder, compiled):
    """Return a file with the code of `scale`."""
    path = folder / code_name("scale", type_name(MIXED))
    write_code(path, *compiled)
    return path


def run(function, is_on):
    """Call an entry point for MIXED; return what it returned, wrote and noted."""
    values, queue = np.arange(4.0), np.zeros(1, np.int64)
    found = function(2, 10, queue, pointers_of(MIXED._replace(is_on=is_on, values=values)))
    return found, values.tolist(), queue.tolist()


def test_loaded_code_works_on_the_given_arrays(folder, compiled):
    function = load_entry_point("scale", *compiled)
    assert run(function, True) == (True, [0, 0.5, 1, 1.5], [44])
    assert run(function, False) == (False, [0, 0.5, 1, 1.5], [44])
    assert run(find_entry_point("scale"), True) == (True, [0, 0.5, 1, 1.5], [44])


WITHOUT_NUMBA = """
import os, sys
folder, name = os.path.split(sys.argv[1])
import tinychat.kernels
os.environ["NUMBA_CACHE_DIR"] = folder
import numpy as np
from tinychat.kernels.machine_code import find_entry_point
from tinychat.kernels.pointers import pointers_of
values, queue = np.arange(4.0), np.zeros(1, np.int64)
print(find_entry_point(name)(2, 10, queue, pointers_of((np.float32(0.5), True, values))), values.tolist(), *queue)
print({"numba"} & set(sys.modules))
"""


def test_a_process_without_numba_runs_cached_code(path):
    command = [sys.executable, "-c", WITHOUT_NUMBA, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True [0.0, 0.5, 1.0, 1.5] 44\nset()\n", "")


def test_code_that_is_cut_or_altered_counts_as_missing(path):
    whole = path.read_bytes()
    assert find_entry_point(path.name) is not None
    damaged = [whole[:length] for length in (0, 5, 32, 40, len(whole) // 2, len(whole) - 1)]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), len(whole) // 50)]
    for content in (*damaged, whole + b"\0", b"\x7fELF" + bytes(64)):
        path.write_bytes(content)
        assert read_code(path) is None
    path.unlink()
    path.mkdir()
    assert read_code(path) is None


def test_code_of_another_name_counts_as_missing(path):
    other = path.with_name(code_name("scale", type_name(MIXED._replace(is_on=1))))
    assert other != path
    path.rename(other)
    assert read_code(other) is None


def test_unfinished_files_of_killed_processes_are_removed(path, compiled):
    left = path.with_name(f".{path.name}.1.tmp")
    left.write_bytes(b"half")
    write_code(path, *compiled)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_a_full_disk_warns_once_and_leaves_no_file(folder, compiled, capsys):
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))\n"
        "from pathlib import Path; from tinychat.kernels.machine_code import write_code\n"
        "for _ in range(2): write_code(Path(sys.argv[1]), 'f', bytes(1000))"
    )
    command = [sys.executable, "-c", program, str(folder / "f.code")]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0
    assert done.stderr.count("cannot cache compiled kernels in") == 1
    assert "File too large" in done.stderr
    assert list(folder.iterdir()) == []


def test_code_that_would_call_python_or_numba_is_refused(folder):
    with pytest.raises(RuntimeError, match="of Numba's runtime"):
        object_code(shout, types_of(MIXED))


@pytest.mark.parametrize("changed", ["process_cache_key", "llvm.get_host_cpu_name"])
def test_other_sources_and_processors_have_other_code(changed, monkeypatch):
    """In whatever folder: NUMBA_CACHE_DIR may name one that outlives an update."""
    before = code_name("scale", "types")
    assert before == code_name("scale", "types")
    monkeypatch.setattr(f"tinychat.kernels.machine_code.{changed}", lambda: "another")
    assert code_name("scale", "types") != before


def test_type_names_are_unique():
    constant = np.zeros(2)
    constant.flags.writeable = False
    parts = [1, True, 1.0, np.float32(1), (), (1,), (1, 1), ((1, 1),), np.zeros(2), constant, np.zeros(2, np.float32)]
    parts += [np.zeros((2, 2)), MIXED, MIXED._replace(is_on=1), tuple(MIXED), np.zeros(2, np.uint8), np.zeros(2, bool)]
    names = [type_name(part) for part in parts]
    kinds = [str(numba.typeof(part)) for part in parts]
    assert len(set(names)) == len(set(kinds)) == len(parts)


def test_a_sample_has_the_type_without_the_memory():
    values = np.zeros((3, 4))
    values.flags.writeable = False
    arguments = (1, np.float32(2), Mixed(np.float32(1), False, values))
    sample = sample_of(arguments)
    assert numba.typeof(sample) == numba.typeof(arguments)
    assert type_name(sample) == type_name(arguments)
    assert sample[2].values.nbytes == 0


def test_arrays_that_are_not_contiguous_are_refused():
    with pytest.raises(TypeError, match="not C-contiguous"):
        sample_of(MIXED._replace(values=np.arange(4.0)[::2]))
