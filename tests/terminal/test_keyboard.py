"""The terminal's attributes while the keyboard is ours."""

import contextlib
import errno
import os
import signal

import pytest

termios = pytest.importorskip("termios", reason="no POSIX terminal")

from tinychat.terminal.keyboard import Keyboard, open_output  # noqa: E402


def test_a_terminal_that_is_not_ours_yet_is_asked_for_again(monkeypatch):
    """In the background the call stops the program; once that is in the foreground, the call returns interrupted."""
    interrupted = []

    def set_attributes(*arguments):
        if len(interrupted) % 2 == 0:
            interrupted.append(True)
            raise termios.error(errno.EINTR, "Interrupted system call")
        interrupted.append(False)
        real(*arguments)

    def echoes():
        return bool(termios.tcgetattr(device)[3] & termios.ECHO)

    real = termios.tcsetattr
    controller, device = os.openpty()
    before = termios.tcgetattr(device)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, controller)
        stdin, stdout = stack.enter_context(open(device)), stack.enter_context(open(device, "w", closefd=False))
        monkeypatch.setattr(termios, "tcsetattr", set_attributes)
        with Keyboard(stdin, open_output(stdout)):
            assert not echoes()
            # As the shell has it.
            real(device, termios.TCSANOW, before)
            assert echoes()
            signal.raise_signal(signal.SIGCONT)
            assert not echoes()
        assert echoes()
    assert interrupted == [True, False] * 3


def test_a_terminal_that_is_gone_when_the_program_goes_on_ends_nothing():
    controller, device = os.openpty()
    stdout = open(device, "w", closefd=False)
    with open(device) as stdin, Keyboard(stdin, open_output(stdout)):
        os.close(controller)
        signal.raise_signal(signal.SIGCONT)
        went_on = True
    # What was still to be written has nowhere to go.
    with contextlib.suppress(OSError):
        stdout.close()
    assert went_on
