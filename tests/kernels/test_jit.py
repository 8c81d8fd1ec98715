"""Kernels run whatever becomes of their cache folder; `by_type` chooses code by types."""

import os
import subprocess
import sys

import numpy as np
import pytest
from kernels.kernel_inputs import compiled
from numba import njit, types
from numba.core.errors import NumbaError

from tinychat.kernels.jit import FLAGS, always_inline, always_inline_by_type, by_type, noinline

KERNEL = """
import os

exec(os.environ.get("BEFORE", ""))
from tinychat.kernels.jit import by_type, kernel, noinline
from numba import njit, types
from numba.core.errors import NumbaError

@by_type
def two(x):
    return (lambda x: 2.0) if isinstance(x, types.Float) else (lambda x: 2)

@noinline
def double(x):
    return two(x) * x

@kernel
def double_twice(x):
    return double(double(x))

print(double_twice(3), double_twice(0.5))
"""


def run(tmp_path, before=""):
    """Run a process of its own that compiles a kernel and a noinline; return what it printed and what it said."""
    module = tmp_path / "kernels_of_a_test.py"
    module.write_text(KERNEL)
    environment = os.environ | {"TINYCHAT_CACHE": str(tmp_path / "cache"), "BEFORE": before}
    # Where files cannot grow, Python would keep a part of its own bytecode, for others to stumble over.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, str(module)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr.splitlines()


def cache_files(tmp_path):
    return [path.name for path in tmp_path.rglob("*") if path.suffix in (".nbc", ".nbi") or ".tmp" in path.name]


def test_kernels_are_cached(tmp_path):
    assert run(tmp_path) == ("12 2.0\n", [])
    assert len(cache_files(tmp_path)) == 2 + 4


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize("limit", [0, 1000])
def test_kernels_run_on_a_full_disk(tmp_path, limit):
    """The size of files is limited: all or only the small ones can be written."""
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    printed, said = run(tmp_path, full)
    assert printed == "12 2.0\n"
    assert len(said) == 1
    assert "cannot cache compiled kernels in" in said[0]
    assert "File too large" in said[0]
    assert not [name for name in cache_files(tmp_path) if ".tmp" in name]
    assert run(tmp_path) == ("12 2.0\n", []), "all is well with room on the disk"
    assert run(tmp_path, full) == ("12 2.0\n", []), "reading needs no room"


def cut(tmp_path, suffix):
    for path in tmp_path.rglob(f"*{suffix}"):
        path.write_bytes(path.read_bytes()[:9])


def test_damaged_files_count_as_missing(tmp_path):
    run(tmp_path)
    cut(tmp_path, ".nbc")
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    printed, said = run(tmp_path, full if sys.platform != "win32" else "")
    assert printed == "12 2.0\n"
    assert len(said) == (sys.platform != "win32")
    assert run(tmp_path) == ("12 2.0\n", [])
    cut(tmp_path, ".nbi")
    assert run(tmp_path) == ("12 2.0\n", [])


def test_swapped_files_count_as_missing(tmp_path):
    """As of two processes that wrote at the same moment: code is never run for types that it was not compiled for."""
    run(tmp_path)
    for first in tmp_path.rglob("*.1.nbc"):
        second = first.with_name(first.name.replace(".1.nbc", ".2.nbc"))
        first.rename(tmp_path / "first")
        second.rename(first)
        (tmp_path / "first").rename(second)
    assert run(tmp_path) == ("12 2.0\n", [])


def test_kernels_run_without_a_cache_folder(tmp_path):
    (tmp_path / "cache").write_text("a file")
    no_room = "import tempfile; tempfile.mkdtemp = lambda **names: open('/no/such/folder')"
    printed, said = run(tmp_path, no_room)
    assert printed == "12 2.0\n"
    assert len(said) == 1
    assert said[0].endswith("nor in a temporary folder")
    assert cache_files(tmp_path) == []


@by_type
def bits_of(array):
    """Return the width of an array's elements."""
    width = array.dtype.bitwidth
    return lambda array: width


@always_inline_by_type
def last_of(array, more):
    """Return the last element and `more`, or for floats its root."""

    def whole(array, more):
        return array[-1] + more

    def root(array, more):
        return np.sqrt(array[-1]) + more

    return whole if isinstance(array.dtype, types.Integer) else root


@compiled
def measure(array):
    """Return both of an array."""
    return bits_of(array), last_of(array, 1)


def test_by_type_compiles_for_the_types():
    assert measure(np.array([4, 9], np.int16)) == (16, 10)
    assert measure(np.array([4, 9], np.float32)) == (32, 4)


def test_by_type_preserves_name_and_docstring():
    assert (bits_of.__name__, bits_of.__doc__) == ("bits_of", "Return the width of an array's elements.")


@always_inline
def increase(x):
    """Return one more."""
    return x + 1


@noinline
def increase_twice(x):
    """Return two more."""
    return increase(increase(x))


@compiled
def increase_thrice(x):
    """Return three more."""
    return increase(increase_twice(x))


@pytest.mark.parametrize("function", [increase, increase_twice, bits_of, last_of], ids=lambda f: f.__name__)
def test_device_functions_refuse_python(function):
    assert increase_thrice(1) == 4
    with pytest.raises(TypeError, match=rf"^{function.__name__}: only compiled code calls it$"):
        function(1)


def allocate(x):
    return np.full(3, x).sum()


def test_a_kernel_cannot_allocate():
    with pytest.raises(NumbaError, match="No implementation of function"):
        njit(**FLAGS)(allocate)(1.0)
    assert compiled(allocate)(1.0) == 3
