"""The script that converts, as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "convert_weights.py"


def run(*arguments):
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_its_help_is_that_of_the_command():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "SRC DST" in done.stdout
    assert "--group-size" in done.stdout
    assert os.access(SCRIPT, os.X_OK)


def test_a_failure_is_its_exit_code(tmp_path):
    done = run(tmp_path, tmp_path / "model")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
