"""The number contract: the same bits for any threads, any chunks, a cached or fresh prefix, any instruction set.

No test here has a tolerance.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import engines
import instruction_sets
import numpy as np
import pytest
from covering import covering
from engines import CONTEXT_SIZE, LENGTH

from tinychat.engine.sequence import new_sequence
from tinychat.engine.thread_count import ThreadTuner
from tinychat.generate.sequence import logits_of_all
from tinychat.kernels.setup import AMX, AMX_MODEL, INSTRUCTION_SET, host_instruction_sets

TESTS = Path(__file__).parent
# Windows and normed heads of 40; biases everywhere; eight heads of 24 on one; inputs wide enough to share scales; a
# trained model with heads of 8.
METHODS = (*engines.METHODS, "mixed")  # each of which has another type of cache
NAMES = ("qwen3-window", "llama-all-biases", "tinyllama", "llama-wide", "stories260K")


def models(test):
    """Run a test for each model in each quantization."""
    return pytest.mark.parametrize("name", NAMES)(pytest.mark.parametrize("method", METHODS)(test))


@pytest.fixture(scope="module")
def expected(folders):
    """Return a function from name and method to (ids, logits [T, vocab_size]) of one thread from an empty cache."""
    made = {}

    def logits(name, method):
        if (name, method) not in made:
            sequence = engines.open_sequence(folders(name, method))
            ids = engines.draw_ids(sequence)
            made[name, method] = ids, logits_of_all(sequence, ids)
        return made[name, method]

    return logits


def run_in_chunks(sequence, ids, size):
    """Run ids in chunks after what is cached; return the position of each logits row, and the rows."""
    ends, rows = [], []
    for start in range(0, len(ids), size):
        chunk = ids[start : start + size]
        rows.append(sequence.step(chunk)[-1])
        ends.append(sequence.cache.length - 1)
    return ends, np.array(rows)


def assert_same(got, wanted, what):
    if got.tobytes() != wanted.tobytes():
        differing = np.flatnonzero((np.atleast_2d(got) != np.atleast_2d(wanted)).any(axis=1))
        spread = np.abs(got - wanted).max()
        raise AssertionError(f"{what}: rows {differing[:8]} of {len(np.atleast_2d(got))} differ by up to {spread:.2e}")


# How work is shared hangs on the number of threads and, in a chunk, of tokens together; which operations share it, on
# quantization and model. So each model runs in each quantization, and both in each way of sharing.
@pytest.mark.parametrize(("name", "method", "threads"), covering(NAMES, METHODS, (2, 3)))
def test_threads(name, method, threads, folders, expected):
    ids, logits = expected(name, method)
    sequence = engines.open_sequence(folders(name, method), threads=threads)
    assert_same(logits_of_all(sequence, ids), logits, f"{threads} threads")


# Row blocks of two kinds in one linear, and of either in others.
@pytest.mark.parametrize(("size", "threads"), [(1, 2), (7, 1), (7, 3), (256, 2)])
def test_native_codes(size, threads, folders, expected):
    ids, logits = expected("tinyllama", "native")
    sequence = engines.open_sequence(folders("tinyllama", "native"), threads=threads)
    ends, rows = run_in_chunks(sequence, ids, size)
    assert_same(rows, logits[ends], f"chunks of {size}, {threads} threads")


# Layers that run three times, each time with keys and values of their own; in the second model, with messages, too.
@pytest.mark.parametrize("name", ["dory-three", "inkling2-loop"])
@pytest.mark.parametrize(("size", "threads"), [(1, 2), (7, 3), (256, 2)])
def test_loops(size, threads, name, folders, expected):
    ids, logits = expected(name, "int4")
    sequence = engines.open_sequence(folders(name, "int4"), threads=threads)
    ends, rows = run_in_chunks(sequence, ids, size)
    assert_same(rows, logits[ends], f"chunks of {size}, {threads} threads")
    sequence.rewind(33)
    _, rows = run_in_chunks(sequence, ids[33:], size)
    assert_same(rows[-1:], logits[-1:], "behind a rewind")


# Linears of each head, one key and value for all heads, values narrower than keys.
@pytest.mark.parametrize("method", ["int4", "f32"])
@pytest.mark.parametrize(("size", "threads"), [(1, 2), (7, 3), (256, 2)])
def test_latents(size, threads, method, folders, expected):
    ids, logits = expected("youtu", method)
    sequence = engines.open_sequence(folders("youtu", method), threads=threads)
    ends, rows = run_in_chunks(sequence, ids, size)
    assert_same(rows, logits[ends], f"chunks of {size}, {threads} threads")


# Which thread leaves where hangs on stages and their number, not on what they compute: each model, each quantization.
@pytest.mark.parametrize(("name", "method"), covering(NAMES, METHODS, strength=1))
def test_threads_that_leave_a_job(name, method, folders, expected, monkeypatch):
    ids, logits = expected(name, method)
    patience = itertools.cycle([-1e-9, 20e-6, 1.0, 100e-6, -1e-9, 300e-6, 1.0])
    monkeypatch.setattr(ThreadTuner, "patience", lambda pace, tokens: next(patience))
    sequence = engines.open_sequence(folders(name, method), threads=3)
    for size in (1, 17, 256):
        sequence.rewind(0)
        ends, rows = run_in_chunks(sequence, ids, size)
        assert_same(rows, logits[ends], f"chunks of {size}, threads that leave")


@pytest.mark.parametrize(
    ("name", "method", "sharing"), covering(NAMES, METHODS, list(itertools.product((1, 7, 64, 256), (1, 2)))), ids=str
)
def test_chunks(name, method, sharing, folders, expected):
    size, threads = sharing
    ids, logits = expected(name, method)
    sequence = engines.open_sequence(folders(name, method), threads=threads)
    ends, rows = run_in_chunks(sequence, ids, size)
    assert ends[-1] == LENGTH - 1
    assert_same(rows, logits[ends], f"chunks of {size}")


# How many positions stay, and in what chunks the others are computed again. Each model in each quantization; each of
# these with each model and with each quantization.
REWINDS = [((520, 9), (63, 256)), ((200, 64), (1, 256)), ((199, 1), (0, 33))]


@pytest.mark.parametrize(("name", "method", "rewinds"), covering(NAMES, METHODS, REWINDS), ids=str)
def test_cached_prefix_and_rewind(name, method, rewinds, folders, expected):
    ids, logits = expected(name, method)
    sequence = engines.open_sequence(folders(name, method), threads=2)
    detour = ids[:200] + ids[300:] + ids[:30]
    run_in_chunks(sequence, detour, 100)
    for kept, size in rewinds:
        reused = sequence.reusable_prefix(ids)
        sequence.rewind(min(kept, reused))
        ends, rows = run_in_chunks(sequence, ids[sequence.cache.length :], size)
        assert ends[-1] == LENGTH - 1
        assert_same(rows, logits[ends], f"after keeping {min(kept, reused)}")


@models
def test_what_the_cache_held_before_leaves_no_trace(name, method, folders, expected):
    ids, logits = expected(name, method)
    sequence = new_sequence(engines.open_engine(folders(name, method), positions=CONTEXT_SIZE), CONTEXT_SIZE)
    for buffer in sequence.engine.pool.buffers:
        buffer.view(np.uint8)[:] = 0xFF  # not a number, or a code whose scale is none
    assert_same(logits_of_all(sequence, ids), logits, "a cache full of rubbish")


@models
def test_the_size_of_the_context(name, method, folders, expected):
    ids, logits = expected(name, method)
    sequence = engines.open_sequence(folders(name, method), context_size=2000)
    assert_same(logits_of_all(sequence, ids), logits, "a larger context")


def run_under(isa, target, folders):
    """Save what a process of its own computes that is told which instructions to use."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = kept | {"TINYCHAT_ISA": isa, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    command = [sys.executable, str(TESTS / "instruction_sets.py"), str(target), *map(str, folders)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.fixture(scope="session")
def compared(folders):
    """Return some model folders, and what this process computes of them and beside them."""
    # A tied model would compile "mixed" once more: its output matrix has the two kinds of rows that others have.
    chosen = [folders(name, instruction_sets.METHOD) for name in NAMES if name != "stories260K"]
    return chosen, instruction_sets.results(chosen)


def other_instruction_sets():
    """Return what this processor can compute with beside what it does: with a model of AMX, where that is missing."""
    available = host_instruction_sets()
    modelled = [AMX_MODEL] if "avx512vnni" in available and AMX not in available else []
    return [isa for isa in (*modelled, *available) if isa != INSTRUCTION_SET]


@pytest.mark.slow
@pytest.mark.parametrize("isa", other_instruction_sets())
def test_instruction_sets(isa, compared, tmp_path):
    chosen, expected = compared
    run_under(isa, tmp_path / "results.npz", chosen)
    with np.load(tmp_path / "results.npz") as got:
        assert got.keys() == (instruction_sets.of_generic() if isa == "generic" else expected).keys()
        differing = [name for name, array in got.items() if array.tobytes() != expected[name].tobytes()]
    assert not differing, f"{isa} beside {INSTRUCTION_SET}"


def test_what_is_generic_is_compared():
    sources = (TESTS.parent / "tinychat" / "kernels").glob("*.py")
    found = {path.name for path in sources if '"generic"' in path.read_text()}
    assert found == instruction_sets.GENERIC_SOURCES
