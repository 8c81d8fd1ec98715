"""What the tests of the chat share: a terminal to start it in."""

import pytest


@pytest.fixture
def start():
    """Return a function that starts the chat; what it started ends with the test."""
    from terminal import Terminal

    started = []

    def begin(*arguments, columns=80, **environment):
        terminal = Terminal(arguments, environment, columns)
        started.append(terminal)
        return terminal

    yield begin
    for terminal in started:
        terminal.child.close(force=True)
