"""Signals that come while C code calls Python: they act afterwards, where a handler's exception finds its way."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tinychat.held_signals import held_signals, lost_signals_sent_again

CALLBACK = ctypes.CFUNCTYPE(None)
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals are another thing there")


def call_from_c(function):
    """Let C code call a function, as LLVM does while it links."""
    CALLBACK(function)()


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):  # a handler runs between two instructions
        pass


@posix
def test_a_signal_in_a_callback_acts_at_the_end():
    reached = False
    with pytest.raises(KeyboardInterrupt), held_signals():
        call_from_c(ctrl_c)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@posix
def test_a_long_block_may_let_them_act():
    with pytest.raises(KeyboardInterrupt), held_signals() as let_signals_act:
        let_signals_act()
        call_from_c(ctrl_c)
        let_signals_act()
        pytest.fail("it acts at once")


@posix
def test_the_third_is_not_held():
    with pytest.raises(KeyboardInterrupt), held_signals():
        ctrl_c()
        ctrl_c()
        ctrl_c()
        pytest.fail("it acts at once")


@posix
def test_a_step_holds_the_third_too():
    reached = False
    with pytest.raises(KeyboardInterrupt), held_signals(always=True):
        for _ in range(5):
            ctrl_c()
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@posix
def test_a_time_limit_waits_too():
    def end(number, frame):
        raise TimeoutError

    before, reached = signal.signal(signal.SIGALRM, end), False
    try:
        with pytest.raises(TimeoutError), held_signals():
            signal.raise_signal(signal.SIGALRM)
            reached = True
    finally:
        signal.signal(signal.SIGALRM, before)
    assert reached


@posix
def test_each_signal_keeps_its_own_handler(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
            assert seen == []
        assert seen == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, ignored)


def test_other_threads_have_no_signals_to_hold():
    results = []

    def hold():
        with held_signals():
            results.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert results == [signal.getsignal(signal.SIGINT)]


@posix
def test_what_a_callback_lost_comes_again():
    with pytest.raises(KeyboardInterrupt), lost_signals_sent_again(lambda: signal.SIGTERM):
        call_from_c(ctrl_c)
        time.sleep(5)


LOSE_SIGTERM = """
import ctypes, os, signal, sys, time
import click
from tinychat import cli

@click.command()
def lose():
    ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))()
    time.sleep(20)

cli.command_line.commands = {"lose": lose}
sys.exit(cli.main(["lose"]))
"""


@posix
def test_the_command_line_ends_by_a_signal_that_a_callback_lost():
    result = subprocess.run([sys.executable, "-c", LOSE_SIGTERM], capture_output=True, timeout=15, check=False)
    assert (result.returncode, result.stderr) == (128 + signal.SIGTERM, b"")


@posix
def test_ctrl_c_while_the_command_line_is_imported_ends_it():
    """A signal in the middle of the import of a C extension, whose error then has another name."""
    code = """
import builtins, os, signal, sys
usual = builtins.__import__
def importing(name, *arguments):
    if name == "click":
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):
                pass
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None
    return usual(name, *arguments)
builtins.__import__ = importing
from tinychat.__main__ import main
sys.exit(main())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


INTERRUPTED_IMPORT = """
import os, signal, sys

class Presser:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tinychat.held_signals":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presser)
from tinychat.__main__ import main
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT between processes")
def test_ctrl_c_before_signals_are_held_shows_no_traceback():
    result = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, b"", b"")
