"""A first `scripts/chat`: what is installed and compiled, and in which order."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Stands for the environment's Python: notes what it is asked for. The rest is not installed before Numba is used.
PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
*--editable*|*requirement.txt) for _ in 1 2 3 4 5 6 7 8 9 10; do grep -q compile_default.py "$LOG" || sleep 1; done ;;
esac
case "$*" in
*requirement.txt) exit "$MODEL_FAILS" ;;
esac
"""
CHAT = """#!/bin/sh
echo "chat with $*"
"""


@pytest.fixture
def clone(tmp_path):
    """Return a folder with the scripts, and an environment in which nothing is installed yet."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, content in {"python": PYTHON, "pip": PYTHON, "tinychat": CHAT}.items():
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)
    return tmp_path


def run(clone, fails=0):
    """Return what the script says and how the environment's Python was called."""
    log = clone / "log"
    environment = {"PATH": "/usr/bin:/bin", "LOG": str(log), "MODEL_FAILS": str(fails)}
    command = [clone / "scripts" / "chat", "a", "--b"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr, log.read_text().splitlines() if log.exists() else []


@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
def test_kernels_are_compiled_beside_the_installation(clone):
    said, _, calls = run(clone)
    assert said == "chat with chat a --b\n"
    installed, rest, compiled, model = calls
    assert "pip install" in installed and installed.rpartition(" ")[2].startswith("numba>=")
    assert compiled == f"-P {clone}/scripts/compile_default.py"
    assert rest.endswith("--editable .")
    assert "--require-hashes" in model and model.endswith("default_requirement.txt")
    # All is there: nothing is installed or compiled again.
    (clone / "log").unlink()
    assert run(clone) == ("chat with chat a --b\n", "", [])


@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
def test_kernels_are_compiled_beside_the_download_where_all_else_is_installed(clone):
    run(clone)
    for name in ("installed-model", "installed-compiler"):
        (clone / ".venv" / name).unlink()
    (clone / "log").unlink()
    said, noted, calls = run(clone)
    assert said == "chat with chat a --b\n"
    assert "installing tinychat" not in noted
    assert len(calls) == 2 and f"-P {clone}/scripts/compile_default.py" in calls, calls


@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
def test_without_an_index_the_demo_answers(clone):
    said, noted, _ = run(clone, fails=1)
    assert said == "chat with chat a --b\n"
    assert "the small demo model answers" in noted
