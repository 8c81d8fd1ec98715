"""The same rows on Ray, with an actor killed, and on Spark; each where it is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from import_graph import REPO


@pytest.mark.slow
@pytest.mark.parametrize(("way", "package"), [("ray", "ray"), ("spark", "pyspark"), ("dask", "dask")])
def test_the_bytes_are_those_of_one_process(way, package):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, "scripts/compare_spread.py", "--rows", "400", "--tokens", "16", "--only", way]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    result = subprocess.run(
        command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"| {way} |" in result.stdout
