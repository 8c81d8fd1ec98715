"""Deferred functions are compiled after their callers are typed, by whichever process comes first."""

import importlib
from contextlib import ExitStack

import numpy as np
import pytest
from kernels.kernel_inputs import compiled
from numba import float64, int64
from numba.core.errors import NumbaError

from tinychat.file_lock import locked_within
from tinychat.kernels.compile_queue import (
    COMPILE_QUEUE,
    DEFERRED,
    SECONDS,
    CompileTask,
    deferred,
    deferred_by_type,
    lock_path,
)
from tinychat.kernels.jit import cached


@deferred
def fill(out, value):
    """Fill an array."""
    for i in range(out.shape[0]):
        out[i] = value


@deferred
def scale(out, factor):
    """Multiply an array by a factor."""
    for i in range(out.shape[0]):
        out[i] *= factor


FILL, SCALE = (CompileTask(function.full_name, (float64[::1], float64)) for function in (fill, scale))


def new_caller():
    """Return a function that calls both, not compiled yet."""

    def caller(out):
        fill(out, 3.0)
        scale(out, 2.0)

    return compiled(caller)


@pytest.fixture(autouse=True)
def not_compiled(monkeypatch, tmp_path):
    """Begin with nothing in memory, and with an empty cache, whose locks no other process of tests holds."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    # Tests of other files leave tasks, which would be compiled first.
    monkeypatch.setattr(COMPILE_QUEUE, "waiting", [])
    for function in (fill, scale):
        function.overloads.clear()
        function._reset_overloads()
        cached(function)
    yield
    assert FILL not in COMPILE_QUEUE.waiting
    assert SCALE not in COMPILE_QUEUE.waiting


def test_all_are_queued_before_one_is_compiled(monkeypatch):
    announced = []
    monkeypatch.setattr(COMPILE_QUEUE, "listeners", [lambda job: announced.append((job, len(fill.overloads)))])
    out = np.zeros(3)
    new_caller()(out)
    assert list(out) == [6, 6, 6]
    assert announced == [(FILL, 0), (SCALE, 0)]


def test_another_one_is_compiled_while_a_process_has_the_first(monkeypatch):
    stack, order = ExitStack(), []

    def pause():
        order.append(len(scale.overloads))
        if len(order) == 3:
            stack.close()

    monkeypatch.setattr(COMPILE_QUEUE, "pause", pause)
    with stack:
        assert stack.enter_context(locked_within(lock_path(fill, FILL.types), 1, lambda: None))
        out = np.zeros(3)
        new_caller()(out)
    assert list(out) == [6, 6, 6]
    assert order == [0, 1, 1]


def test_what_another_process_has_stays_in_the_queue():
    for task in (FILL, SCALE):
        COMPILE_QUEUE.add(task)
    with locked_within(lock_path(fill, FILL.types), 1, lambda: None):
        assert COMPILE_QUEUE.compile_next() and not COMPILE_QUEUE.compile_next()
        assert COMPILE_QUEUE.waiting == [FILL] and scale.overloads
    assert COMPILE_QUEUE.compile_next() and not COMPILE_QUEUE.waiting and fill.overloads


def test_the_lock_file_of_a_killed_process_counts_for_nothing():
    path = lock_path(fill, FILL.types)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    COMPILE_QUEUE.add(FILL)
    assert COMPILE_QUEUE.compile_next() and fill.overloads


def test_the_longest_task_is_compiled_first(monkeypatch):
    begun, claimed = [], COMPILE_QUEUE.claimed
    monkeypatch.setattr("tinychat.kernels.compile_queue.SECONDS", {"scale": 2.0})
    monkeypatch.setattr(
        COMPILE_QUEUE, "claimed", lambda function, types: begun.append(function) or claimed(function, types)
    )
    new_caller()(np.zeros(3))
    assert begun == [scale, fill]


def test_deferred_by_type_is_queued_behind_what_it_calls_before_one_is_compiled(monkeypatch):
    announced = []
    monkeypatch.setattr(COMPILE_QUEUE, "listeners", [lambda job: announced.append((job, len(fill.overloads)))])

    @deferred_by_type
    def set_first(out):
        return (lambda out: fill(out, 1.0)) if out.dtype == float64 else (lambda out: None)

    try:
        out, other = np.zeros(3), np.zeros(3, np.int64)
        compiled(lambda out, other: set_first(out) or set_first(other))(out, other)
    finally:
        del DEFERRED[set_first.full_name]
    assert list(out) == [1, 1, 1]
    assert list(other) == [0, 0, 0]
    first, second = (CompileTask(set_first.full_name, (types,)) for types in (float64[::1], int64[::1]))
    assert announced == [(FILL, 0), (first, 0), (second, 0)]


def test_the_wait_for_a_lock_times_out(monkeypatch):
    monkeypatch.setattr("tinychat.kernels.compile_queue.LOCK_TIMEOUT", 0.05)
    with locked_within(lock_path(fill, FILL.types), 1, lambda: None) as held:
        assert held
        new_caller()(np.zeros(3))


def test_locks_of_killed_processes_are_ignored(monkeypatch):
    monkeypatch.setattr(COMPILE_QUEUE, "pause", lambda: pytest.fail("it waits"))
    lock_path(fill, FILL.types).touch()
    new_caller()(np.zeros(3))
    assert not lock_path(fill, FILL.types).exists()


def test_ctrl_c_ends_the_wait(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(COMPILE_QUEUE, "pause", interrupt)
    with locked_within(lock_path(fill, FILL.types), 1, lambda: None), pytest.raises(KeyboardInterrupt):
        new_caller()(np.zeros(3))
    monkeypatch.undo()
    new_caller()(np.zeros(3))


def test_a_deferred_function_returns_nothing():
    @deferred
    def first(values):
        return values[0]

    try:
        with pytest.raises((NumbaError, TypeError), match="a deferred function returns nothing"):
            compiled(lambda values: first(values))(np.zeros(2, np.int64))
    finally:
        del DEFERRED[first.full_name]
    assert (int64[::1],) not in COMPILE_QUEUE.waiting


def test_a_function_that_fails_fails_for_its_caller_only():
    @deferred
    def broken(values):
        values.nothing()

    try:
        with pytest.raises(NumbaError, match="nothing"):
            compiled(lambda values: broken(values))(np.zeros(2))
        out = np.zeros(3)
        new_caller()(out)
    finally:
        del DEFERRED[broken.full_name]
    assert list(out) == [6, 6, 6]


def test_expected_times_are_of_functions_that_exist():
    importlib.import_module("tinychat.engine.compiled")
    assert set(SECONDS) <= {name.rpartition(".")[2] for name in DEFERRED}
