"""A second process compiles what it is told of, and ends with the first, or when it has failed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from kernels.kernel_inputs import Team, new_queue
from processes import is_running

from tinychat.engine.second_compiler import SecondCompiler, second_compilers
from tinychat.kernels.compile_queue import COMPILE_QUEUE, CompileTask

ARGUMENTS = (Team(0, new_queue(1), np.zeros(1, np.int64)), np.int8(1), np.zeros(1, np.int32), *[np.zeros((1, 1))] * 2)
JOB = CompileTask("tinychat.kernels.embedding.pick_rows", tuple(map(numba.typeof, ARGUMENTS)))


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    """Let them start beside other tests too."""
    monkeypatch.setattr("tinychat.engine.second_compiler.MOST", 1)


class Unknown:
    """A class of this file."""


def announce():
    for listener in COMPILE_QUEUE.listeners:
        listener(JOB)


def until(happens):
    """Wait for something that happens within some seconds."""
    latest = monotonic() + 60
    while not happens():
        assert monotonic() < latest
        sleep(0.02)


def test_it_compiles_what_it_is_told_of(monkeypatch, tmp_path):
    cache = tmp_path / Path(os.environ["NUMBA_CACHE_DIR"]).name
    monkeypatch.setenv("TINYCHAT_CACHE", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    with second_compilers(1):
        announce()
        until(lambda: list(cache.rglob("*.pick_rows-*.nbc")))


def test_it_ends_when_it_is_told_nonsense():
    second = SecondCompiler()
    second.tell(("a class that it does not know", Unknown()))
    until(lambda: second._process.poll() is not None)
    second.tell(JOB)
    second.close()


@pytest.mark.parametrize(
    ("wanted", "kept_in", "count"),
    [(1, "somewhere", 1), (5, "somewhere", 1), (0, "somewhere", 0), (1, "", 0)],
    ids=["one", "no more than pay", "no second core", "nothing is kept"],
)
def test_as_many_are_started_and_told_as_are_of_use(wanted, kept_in, count, monkeypatch):
    told, closed = [], []
    fake = SimpleNamespace(tell=told.append, close=lambda: closed.append(True))
    monkeypatch.setenv("NUMBA_CACHE_DIR", kept_in)
    monkeypatch.setattr("tinychat.engine.second_compiler.SecondCompiler", lambda: fake)
    with second_compilers(wanted):
        announce()
    announce()
    assert (told, closed) == ([JOB] * count, [True] * count)


def test_one_that_cannot_be_started_is_done_without(monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "somewhere")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        SecondCompiler()
    with second_compilers(1):
        assert COMPILE_QUEUE.listeners == []


FIRST = """
import sys
import tinychat.kernels
from tinychat.engine.second_compiler import SecondCompiler
print(SecondCompiler()._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_it_ends_with_the_process_that_started_it():
    first = subprocess.Popen([sys.executable, "-c", FIRST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    number = int(first.stdout.readline())
    # Ctrl-C is for the first process alone.
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    until(lambda: not is_running(number))
