"""The keyboard of a POSIX terminal: keys typed between prompts are saved for the next one, and not echoed."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import signal
import termios
from asyncio import get_running_loop
from collections.abc import Callable, Iterator
from threading import Thread
from time import sleep
from types import FrameType
from typing import Any, TextIO, cast

from prompt_toolkit.application import Application, get_app
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.utils import get_bell_environment_variable, get_term_environment_variable

_IFLAG, _LFLAG, _CC = 0, 3, 6
# A lone Escape looks like the beginning of a longer key until nothing follows.
_ESCAPE_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
_ENTER = (Keys.ControlM, Keys.ControlJ)
Attributes = list[int | list[bytes | int]]
"""The result of `termios.tcgetattr`."""


class PasteMarkingOutput(Vt100_Output):
    """An output that leaves bracketed paste on between prompts, so that a paste never looks like typed lines."""

    def disable_bracketed_paste(self) -> None:
        """Leave it on until `stop_marking_pastes`."""

    def stop_marking_pastes(self) -> None:
        """Switch bracketed paste off."""
        super().disable_bracketed_paste()
        self.flush()

    def mark_pastes(self) -> None:
        """Switch bracketed paste on."""
        self.enable_bracketed_paste()
        self.flush()


def open_output(terminal: TextIO) -> PasteMarkingOutput:
    """Return the output for `terminal`, with prompt_toolkit's own settings of the environment."""
    output = PasteMarkingOutput.from_pty(
        terminal,
        term=get_term_environment_variable(),
        default_color_depth=ColorDepth.from_env(),
        enable_bell=get_bell_environment_variable(),
    )
    return cast(PasteMarkingOutput, output)


class Keyboard(Vt100Input):
    """Input of prompts, which also saves the keys typed between them.

    While it is entered, the terminal neither echoes keys nor turns Enter into a line feed. Between prompts a thread
    reads the keys, so that the terminal's buffer never fills up; Ctrl-C still sends SIGINT, and discards none of them.
    """

    def __init__(self, stdin: TextIO, output: PasteMarkingOutput) -> None:
        super().__init__(stdin)
        self._output = output
        self._saved: list[KeyPress] = []
        self._thread: Thread | None = None
        # The attributes that the terminal should have; None while another program uses it.
        self._attributes: Attributes | None = None
        self._redraw: Callable[[bool], object] | None = None

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self.fileno())
        self._attributes = _silent(self._before)
        # A signal may end the program within this method, or `__exit__`.
        atexit.register(self._restore)
        self._wake = os.pipe()
        self._before_continue = signal.signal(signal.SIGCONT, self._continue)
        _set_attributes(self.fileno(), self._attributes)
        self._output.mark_pastes()
        # Keys typed before this: Enter has become a line feed already.
        while text := self.stdin_reader.read():
            self.vt100_parser.feed(text.replace("\n", "\r"))
        self._saved += super().read_keys()
        self._collect()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop_collecting()
        signal.signal(signal.SIGCONT, self._before_continue)
        for descriptor in self._wake:
            os.close(descriptor)
        self._restore()
        atexit.unregister(self._restore)

    def _restore(self) -> None:
        """Restore the terminal, which may be gone."""
        with contextlib.suppress(OSError):
            self._output.stop_marking_pastes()
        with contextlib.suppress(termios.error):
            _set_attributes(self.fileno(), self._before)

    @contextlib.contextmanager
    def at_prompt(self, unsent: bool, is_fresh: bool = False) -> Iterator[None]:
        """Pass the keys to a prompt.

        If it begins with a text (`unsent`), the saved keys go below that text and send nothing: whoever pressed Enter
        did not see it. A prompt that is fresh leaves them to the next one.
        """
        self._stop_collecting()
        keys = [*get_typeahead(self), *self._saved]
        held = [*keys, *super().read_keys()] if is_fresh else []
        self._saved = [] if is_fresh else _below(keys) if unsent else keys
        try:
            yield
        finally:
            self._saved = [*held, *self._saved]
            self._collect()

    @contextlib.contextmanager
    def attach(self, input_ready_callback: Callable[[], None]) -> Iterator[None]:
        """Notify the prompt of keys, first of the saved ones, after it is drawn and has loaded the history."""
        loop, app = get_running_loop(), get_app()
        loop.call_soon(loop.call_soon, input_ready_callback)
        with super().attach(input_ready_callback):
            self._redraw = lambda below: loop.call_soon_threadsafe(_redraw, app, below)
            try:
                yield
            finally:
                self._redraw = None

    @contextlib.contextmanager
    def raw_mode(self) -> Iterator[None]:
        """Set the terminal to raw mode for the line editor."""
        with super().raw_mode():
            silent, self._attributes = self._attributes, termios.tcgetattr(self.fileno())
            try:
                yield
            finally:
                self._attributes = silent

    def read_keys(self) -> list[KeyPress]:
        """Return the saved keys, and new ones."""
        saved, self._saved = self._saved, []
        return [*saved, *super().read_keys()]

    @contextlib.contextmanager
    def cooked_mode(self) -> Iterator[None]:
        """Restore the terminal for an editor or a shell."""
        self._output.stop_marking_pastes()
        own, self._attributes = self._attributes, None
        try:
            with super().cooked_mode():
                yield
        finally:
            self._attributes = own
            self._output.mark_pastes()

    def _continue(self, _signal_number: int, _frame: FrameType | None) -> None:
        """Set the terminal again after a stop, in which the shell has used it; it may be gone."""
        if self._attributes is None:
            return
        with contextlib.suppress(termios.error, OSError):
            is_changed = termios.tcgetattr(self.fileno()) != self._attributes
            _set_attributes(self.fileno(), self._attributes)
            # Not through the output's buffer, which may be half written.
            os.write(self._output.fileno(), b"\x1b[?2004h")
            if self._redraw is not None:
                self._redraw(is_changed)

    def _collect(self) -> None:
        thread = Thread(target=self._save_keys, daemon=True)
        thread.start()
        self._thread = thread

    def _stop_collecting(self) -> None:
        if self._thread is not None:
            os.write(self._wake[1], b"!")
            self._thread.join()
            os.read(self._wake[0], 64)
            self._thread = None

    def _save_keys(self) -> None:
        # Signals must wake the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        keyboard, wake = self.fileno(), self._wake[0]
        while not self.closed:
            ready = select.select([keyboard, wake], [], [], _ESCAPE_SECONDS)[0]
            if wake in ready:
                return
            if keyboard in ready:
                keys = super().read_keys()
                # Without the terminal's report of the cursor position, for which the next prompt asks again.
                self._saved += [key for key in keys if key.key != Keys.CPRResponse]
                if not keys:
                    sleep(_PAUSE_SECONDS)  # a part of a character, or a terminal that is gone
            else:
                # Escape alone means nothing between prompts; saved, it would change the next key.
                self.flush_keys()


def _redraw(app: Application[Any], below: bool) -> None:
    """Redraw a prompt in place, or `below` the output of a shell."""
    if below:
        app.output.write_raw("\r")
        app.renderer.reset()
    else:
        app.renderer.erase()
    app.renderer.request_absolute_cursor_position()
    app.invalidate()


def _set_attributes(terminal: int, attributes: Attributes) -> None:
    """Set a terminal's attributes; a program in the background stops here until it is in the foreground."""
    while True:
        try:
            return termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise


def _silent(attributes: Attributes) -> Attributes:
    """Return attributes with which keys arrive one by one, without echo, Enter unchanged, and Ctrl-C sends SIGINT."""
    silent = [value.copy() if isinstance(value, list) else value for value in attributes]
    silent[_IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)  # type: ignore[operator]
    silent[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)  # type: ignore[operator]
    silent[_LFLAG] |= termios.NOFLSH  # type: ignore[operator]
    silent[_CC][termios.VMIN], silent[_CC][termios.VTIME] = 1, 0  # type: ignore[index]
    return silent


def _below(keys: list[KeyPress]) -> list[KeyPress]:
    """Return keys that write the same on a new line; Enter begins another line, and is left out at the end."""
    line_feed = KeyPress(Keys.BracketedPaste, "\n")
    while keys and keys[-1].key in _ENTER:
        keys = keys[:-1]
    return [line_feed, *(line_feed if key.key in _ENTER else key for key in keys)] if keys else []
