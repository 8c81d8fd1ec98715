"""Kernels are compiled once, loaded after that, and compiled again where what was kept is damaged."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import engines
import pytest

LOAD = """
import sys
from pathlib import Path
from tinychat.engine.loading import load_engine

seen = []
sequence = load_engine(Path(sys.argv[1]), threads=2, progress=lambda done, total: seen.append((done, total))).sequence()
assert all(0 <= done <= total for done, total in seen)
assert not seen or seen[-1][0] == seen[-1][1]
sequence.step([1, 2, 3])
sequence.drop(1, 2)
print(len(seen) > 0, sequence.step([4])[-1, :4].tobytes().hex())
"""


def load(folder, cache):
    """Load the model in a process of its own; return whether it had to compile, and some logits."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = kept | {"TINYCHAT_CACHE": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", LOAD, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    compiled, logits = result.stdout.split()
    return compiled == "True", logits


def kept_files(cache, suffix, *functions):
    """Return the kept files of these functions."""
    files = [path for name in functions for path in cache.rglob(f"*.{name}-*{suffix}")]
    assert len(files) >= len(functions)
    return files


@pytest.mark.slow
def test_damaged_kernels_are_compiled_once_more(tmp_path):
    folder, cache = engines.convert_variant("qwen3-tied", "int4", tmp_path / "model"), tmp_path / "cache"
    engines.open_sequence(folder, kv="f16").step([1, 2, 3])
    # What other tests compiled is as good a beginning as half a minute spent here.
    kernels = Path(os.environ["NUMBA_CACHE_DIR"])
    shutil.copytree(kernels, cache / kernels.name, ignore=shutil.ignore_patterns("*.tmp*"))
    _, logits = load(folder, cache)
    assert load(folder, cache) == (False, logits)
    # One that Python calls, and ones that only compiled code does, which two processes compile; `kernels/test_jit.py`
    # damages either file of either.
    for path in kept_files(cache, ".nbc", "take_part", "pick_rows"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for path in kept_files(cache, ".nbi", "rope_append"):
        path.write_bytes(b"an index that is none")
    assert load(folder, cache) == (True, logits)
    assert load(folder, cache) == (False, logits)
