import subprocess
import sys

import pytest
from import_graph import REPO

sys.path.insert(0, str(REPO / "scripts"))

from emulated_tests import Journal, Result

TESTS = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", range(3))
def test_some(n):
    assert n != 1 or pathlib.Path(__file__).with_name("mended").exists()
@pytest.mark.skip
def test_skipped(): pass
"""


def run(folder):
    environment = {"PYTHONPATH": str(REPO / "scripts"), "TINYCHAT_ISA": "generic", "TINYCHAT_TEST_JOURNAL": "journal"}
    words = ["-P", "-m", "pytest", "-p", "no:cacheprovider", "-p", "emulated_tests", "test_one.py"]
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True).stdout


def test_a_run_leaves_out_what_has_passed_and_tells_of_all(tmp_path):
    (tmp_path / "test_one.py").write_text(TESTS)
    assert "\ngeneric: test_one.py: 2 passed, 1 failed, 1 skipped, 0 s" in run(tmp_path)
    (tmp_path / "mended").touch()
    again = run(tmp_path)
    assert "1 passed, 1 skipped, 2 deselected" in again
    assert again.count("test_one.py: 3 passed, 0 failed, 1 skipped, 0 s") == 2


def test_a_later_result_replaces_an_earlier(tmp_path):
    path = tmp_path / "journal"
    Journal(path).add("test_a.py::test_b", Result("failed", 3))
    Journal(path).add("test_a.py::test_b", Result("passed", 2.04))
    assert Journal(path).passed("test_a.py::test_b")
    assert Journal(path).line("test_a.py") == "test_a.py: 1 passed, 0 failed, 0 skipped, 2 s"


@pytest.mark.parametrize("test", ["test_a.py", "test_a.py::test_other"])
def test_nothing_is_known_of_a_test_that_did_not_run(tmp_path, test):
    assert not Journal(tmp_path / "journal").passed(test)
