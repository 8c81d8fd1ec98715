"""Kernels run whatever becomes of the folder that they are kept in."""

import os
import subprocess
import sys

import pytest

KERNEL = """
import os

exec(os.environ.get("BEFORE", ""))
from tinychat.kernels.policy import kernel

@kernel
def double(x):
    return 2 * x

@kernel
def double_twice(x):
    return double(double(x))

print(double_twice(3), double_twice(0.5))
"""


def run(tmp_path, before=""):
    """Run a process of its own that compiles two kernels; return what it printed and what it said."""
    module = tmp_path / "kernels_of_a_test.py"
    module.write_text(KERNEL)
    environment = os.environ | {"TINYCHAT_CACHE": str(tmp_path / "cache"), "BEFORE": before}
    command = [sys.executable, str(module)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr.splitlines()


def kept(tmp_path):
    return [path.name for path in tmp_path.rglob("*") if path.suffix in (".nbc", ".nbi") or ".tmp" in path.name]


def test_kernels_are_kept(tmp_path):
    assert run(tmp_path) == ("12 2.0\n", [])
    assert len(kept(tmp_path)) == 2 + 4


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize("limit", [0, 1000])
def test_a_full_disk_keeps_no_kernel_from_running(tmp_path, limit):
    """The size of files is limited: all or only the small ones can be written."""
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    printed, said = run(tmp_path, full)
    assert printed == "12 2.0\n"
    assert len(said) == 1
    assert "compiled kernels are not kept in" in said[0]
    assert "File too large" in said[0]
    assert not [name for name in kept(tmp_path) if ".tmp" in name]
    assert run(tmp_path) == ("12 2.0\n", []), "all is well with room on the disk"
    assert run(tmp_path, full) == ("12 2.0\n", []), "reading needs no room"


def test_damaged_files_are_as_none_and_a_full_disk_does_not_matter(tmp_path):
    run(tmp_path)
    for path in tmp_path.rglob("*.nb[ci]"):
        path.write_bytes(path.read_bytes()[:9])
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    printed, said = run(tmp_path, full if sys.platform != "win32" else "")
    assert printed == "12 2.0\n"
    assert len(said) == (sys.platform != "win32")
    assert run(tmp_path) == ("12 2.0\n", [])


def test_no_folder_at_all(tmp_path):
    (tmp_path / "cache").write_text("a file")
    no_room = "import tempfile; tempfile.mkdtemp = lambda **names: open('/no/such/folder')"
    printed, said = run(tmp_path, no_room)
    assert printed == "12 2.0\n"
    assert len(said) == 1
    assert said[0].endswith("nor in a temporary folder: nothing is kept")
    assert kept(tmp_path) == []
