"""A few signals at random moments; `scripts/signals.py` sends hundreds."""

import random
import signal
import sys

import pytest

pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")
if sys.platform == "win32":
    pytest.skip("signals are another thing there", allow_module_level=True)

import termios

import pexpect
import signals

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled():
    """Compile the demo model's kernels: a signal that comes while one compiles waits for it."""
    signals.compile_kernels([])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", ["batch", "chat"])
@pytest.mark.parametrize("number", signals.SIGNALS, ids=lambda number: number.name)
def test_a_signal_at_a_random_moment(kind, number):
    # Another moment in each run; a failure says which.
    trial = signals.Trial(kind, number, random.uniform(0.0, signals.LATEST[kind]), [])
    assert trial.run()[1] == [], str(trial)


def test_what_is_wrong_is_seen(tmp_path):
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "half.json").write_text('{"messages": [')
    (tmp_path / "sessions" / ".half.1.tmp").write_text("")
    assert len(signals.damaged_conversations(tmp_path)) == 2
    trial = signals.Trial("batch", signal.SIGTERM, 0.0, [])
    trial._batch = lambda home: (0, "internal error", [])
    assert len(trial.run()[1]) == 2


SIGNAL_WHILE_TAKING = """
import os, signal, sys, termios
from tinychat.__main__ import main
usual = termios.tcsetattr
def interrupted(*arguments):
    usual(*arguments)
    termios.tcsetattr = usual
    os.kill(os.getpid(), signal.SIGTERM)
termios.tcsetattr = interrupted
sys.argv = ["tinychat", "chat"]
sys.exit(main())
"""


def test_a_signal_while_the_terminal_is_being_taken_leaves_it_as_it_was():
    child = pexpect.spawn(sys.executable, ["-c", SIGNAL_WHILE_TAKING], timeout=60)
    before = termios.tcgetattr(child.child_fd)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 128 + signal.SIGTERM
    assert termios.tcgetattr(child.child_fd)[:4] == before[:4]
