"""Helper processes: what they answer, and what ends them."""

import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tinychat import limited_process
from tinychat.limited_process import MEMORY, LimitedProcess, LimitError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")


@pytest.fixture
def helper(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return LimitedProcess("limited_answers")


def refused(helper, *request):
    with pytest.raises(LimitError) as error:
        helper.call(request)
    return str(error.value)


def is_running(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_are_data(helper):
    helper.start()
    for value in (None, 1, "é\ud800\n", [{"a": [1.5]}], "x" * 3_000_000):
        assert helper.call(["echo", value]) == value


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (("compute", 0), "it runs longer than 1 s"),
        (("allocate", MEMORY), "it needs more than 512 MB of memory"),
        (("open", __file__), "[Errno 24] Too many open files"),
        (("pipe", None), "[Errno 24] Too many open files"),
        (("end", 3), "it nests too deep or needs too much memory"),
        (("raise", "a\nb " * 999), "a b a b"),
        (("raise", ""), "ValueError"),
        (("echo",), "not enough values to unpack"),
    ],
)
def test_what_exceeds_a_limit_fails_and_the_next_is_answered(helper, request_, reason):
    problem = refused(helper, *request_)
    assert problem.startswith(reason) and len(problem) <= 200 and "\n" not in problem
    assert helper.call(["echo", "again"]) == "again"


def test_a_process_that_waits_is_ended_by_the_clock(helper, monkeypatch):
    assert helper.call(["echo", 1]) == 1
    monkeypatch.setattr(limited_process, "_WALL_SECONDS", 0.2)
    assert refused(helper, "sleep", 60) == "it runs longer than 1 s"


def test_an_answer_is_bounded(helper, monkeypatch):
    monkeypatch.setattr(limited_process, "_LONGEST_ANSWER", 1000)
    assert refused(helper, "echo", "x" * 2000) == "it nests too deep or needs too much memory"
    assert helper.call(["echo", 1]) == 1


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"value"\n'])
def test_nonsense_is_no_answer(helper, text):
    assert "no answer" in refused(helper, "write", text)
    assert helper.call(["echo", 1]) == 1


def test_ctrl_c_leaves_no_answer_for_the_next_request(helper):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    helper.call(["echo", 1])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        helper.call(["sleep", 60])
    timer.join()
    assert helper.call(["echo", 2]) == 2


def test_many_threads(helper):
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: helper.call(["echo", number]), range(200))) == list(range(200))


def test_it_ends_with_its_owner(helper):
    owner = LimitedProcess("limited_answers")
    number = owner.call(["process", None])
    assert is_running(number)
    del owner
    gc.collect()
    assert not is_running(number)


def test_a_forked_process_has_its_own(helper):
    number = helper.call(["process", None])
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, str(helper.call(["process", None])).encode())
        helper._end()
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        assert int(file.read()) != number
    os.waitpid(child, 0)
    assert helper.call(["process", None]) == number


def test_no_interpreter(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(LimitError, match="no helper process can be started"):
        LimitedProcess("limited_answers").call(1)


def test_ignored_signals_of_the_caller_do_not_matter(helper):
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        started = time.monotonic()
        assert refused(helper, "compute", 0) == "it runs longer than 1 s"
        assert time.monotonic() - started < limited_process._WALL_SECONDS / 2
    finally:
        signal.signal(signal.SIGPROF, before)
