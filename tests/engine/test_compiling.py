"""Kernels are compiled once, loaded after that, and compiled again where what was kept is damaged."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import engines
import pytest

from tinychat.engine import compiling
from tinychat.engine.compiling import CompilationProgress
from tinychat.kernels.compile_queue import CompileTask

LOAD = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tinychat.engine.loading import load_engine
from tinychat.engine.sequence import new_sequence

seen = []
sequence = new_sequence(
    load_engine(Path(sys.argv[1]), threads=2, progress=lambda done, total: seen.append((done, total)))
)
assert all(0 <= done <= total for done, total in seen)
assert not seen or seen[-1][0] == seen[-1][1]
sequence.step([1, 2, 3])
sequence.drop(1, 2)
print(len(seen) > 0, sequence.step([4])[-1, :4].tobytes().hex())
"""


def environment_of(cache):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return kept | {"TINYCHAT_CACHE": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])}


def load(folder, cache):
    """Load the model in a process of its own; return whether it had to compile, and some logits."""
    command = [sys.executable, "-c", LOAD, str(folder)]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment_of(cache), timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    compiled, logits = result.stdout.split()
    return compiled == "True", logits


def shares_shown(folder, cache):
    """Let `complete` answer in a terminal; return the percentages of its bar for kernels."""
    pexpect = pytest.importorskip("pexpect", reason="no terminal without pexpect")
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "tinychat", "complete", str(folder), "--raw", "-p", "a", "--max-tokens", "1"],
        env=environment_of(cache) | {"TERM": "xterm-256color"},
        encoding="utf-8",
        timeout=300,
        dimensions=(24, 160),
    )
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0, terminal.before
    assert "compiling kernels for this CPU (once for models of this kind)" in terminal.before
    shown = re.findall(r"of this kind\).*?(\d+)%", re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", terminal.before))
    return sorted(set(map(int, shown)), key=list(map(int, shown)).index)


def kept_files(cache, suffix, *functions):
    """Return the kept files of these functions."""
    files = [path for name in functions for path in cache.rglob(f"*.{name}-*{suffix}")]
    assert len(files) >= len(functions)
    return files


@pytest.mark.slow
def test_damaged_kernels_are_compiled_once_more(tmp_path):
    folder, cache = engines.convert_variant("qwen3-tied", "int4", tmp_path / "model"), tmp_path / "cache"
    engines.open_sequence(folder, kv="f16").step([1, 2, 3])
    # What other tests compiled is as good a beginning as half a minute spent here. Functions that they have in memory
    # only are compiled with the entry point.
    kernels = Path(os.environ["NUMBA_CACHE_DIR"])
    shutil.copytree(kernels, cache / kernels.name, ignore=shutil.ignore_patterns("*.tmp*", "*.lock", "*.code"))
    compiled, logits = load(folder, cache)
    assert compiled
    assert load(folder, cache) == (False, logits)
    # What Python calls, and what only compiled code does, which two processes compile; `kernels/test_jit.py` damages
    # either file of the latter, and of kernels.
    for path in [*cache.rglob("worker_loop-*.code"), *kept_files(cache, ".nbc", "pick_rows")]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for path in kept_files(cache, ".nbi", "rope_append"):
        path.write_bytes(b"an index that is none")
    shares = shares_shown(folder, cache)
    assert len(shares) > 5
    assert shares == sorted(shares)
    # What is loaded counts at once; the last function, which puts the others together, counts for what it takes.
    assert shares[-1] - shares[-2] < 40, shares
    assert sum(50 < share < 100 for share in shares) > 3, shares
    assert load(folder, cache) == (False, logits)


@pytest.fixture
def bar(monkeypatch):
    """Return a progress bar for three deferred functions, one of which takes as long as the others together."""
    monkeypatch.setattr("tinychat.kernels.compile_queue.SECONDS", {"large": 2.0, "small": 1.0})
    monkeypatch.setattr(compiling, "REST_SECONDS", 1.0)
    names, claimed = ["module.large", "module.small", "module.small"], set()
    jobs = [CompileTask(name, (number,)) for number, name in enumerate(names)]
    monkeypatch.setattr(compiling, "DEFERRED", {name: SimpleNamespace(overloads={}) for name in names})
    monkeypatch.setattr(compiling, "is_claimed", lambda function, types: types in claimed)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    bar = CompilationProgress(lambda done, total: None)
    bar._tasks += jobs
    bar.claimed = claimed
    return bar


def test_what_is_compiled_counts_by_what_it_takes(bar):
    assert bar.share(0) == 0
    compiling.DEFERRED["module.large"].overloads[(0,)] = True
    assert bar.share(4) == pytest.approx(2 / 5)
    compiling.DEFERRED["module.small"].overloads.update({(1,): True, (2,): True})
    assert bar.share(8) == pytest.approx(4 / 5)


def test_what_another_process_has_compiled_counts(bar):
    bar.claimed.add((0,))
    assert bar.share(0) == 0
    bar.claimed.clear()
    assert bar.share(0) == pytest.approx(2 / 5)


def test_the_last_stretch_moves_at_the_pace_so_far(bar):
    compiling.DEFERRED["module.large"].overloads[(0,)] = True
    compiling.DEFERRED["module.small"].overloads.update({(1,): True, (2,): True})
    shares = [bar.share(now) for now in (8, 9, 9.5, 100, 8)]
    assert shares == pytest.approx([0.8, 0.9, 0.95, 0.99, 0.99])


def test_time_moves_the_bar_where_another_process_compiles(bar):
    bar._tasks.clear()
    shares = [bar.share(now) for now in (1, 5, 10, 1000)]
    assert shares == sorted(set(shares))
    assert shares[-1] == 0.9
