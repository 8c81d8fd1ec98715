"""The keyboard of a POSIX terminal: what is typed or pasted while no prompt is shown waits for the next one, unseen."""

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
from contextlib import AbstractContextManager
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
"""What `termios.tcgetattr` returns."""


class PasteMarkingOutput(Vt100_Output):
    """An output that leaves bracketed paste on between two prompts: a paste must never look like typed lines."""

    def disable_bracketed_paste(self) -> None:
        """Leave it on: see `Keyboard.cooked_mode` and `Keyboard.__exit__`, which switch it off."""

    def stop_marking_pastes(self) -> None:
        """Switch it off after all."""
        super().disable_bracketed_paste()
        self.flush()

    def mark_pastes(self) -> None:
        """Switch it on."""
        self.enable_bracketed_paste()
        self.flush()


def open_output(terminal: TextIO) -> PasteMarkingOutput:
    """Return the output for `terminal`, as prompt_toolkit's own settings in the environment want it."""
    output = PasteMarkingOutput.from_pty(
        terminal,
        term=get_term_environment_variable(),
        default_color_depth=ColorDepth.from_env(),
        enable_bell=get_bell_environment_variable(),
    )
    return cast(PasteMarkingOutput, output)


class Keyboard(Vt100Input):
    """Keys for prompts, and keys typed between them are kept.

    While entered, the terminal neither echoes keys nor turns Enter into a line feed. Between two prompts a thread takes
    the keys, so that any number finds room; Ctrl-C still sends SIGINT, and throws none of them away.

    Parameters
    ----------
    stdin : text stream
        The terminal's input.
    output : PasteMarkingOutput
        The terminal's output.
    """

    def __init__(self, stdin: TextIO, output: PasteMarkingOutput) -> None:
        super().__init__(stdin)
        self._output = output
        self._waiting: list[KeyPress] = []
        self._thread: Thread | None = None
        # What the terminal is to have now; None while it is lent.
        self._attributes: Attributes | None = None
        self._draw_again: Callable[[bool], object] | None = None

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self.fileno())
        self._attributes = _silent(self._before)
        # A signal may end the program in the middle of this, or of `__exit__`.
        atexit.register(self._give_back)
        self._bell = os.pipe()
        self._before_continue = signal.signal(signal.SIGCONT, self._continue)
        _set_attributes(self.fileno(), self._attributes)
        self._output.mark_pastes()
        # Typed before this: Enter has become a line feed already.
        while text := self.stdin_reader.read():
            self.vt100_parser.feed(text.replace("\n", "\r"))
        self._waiting += super().read_keys()
        self._collect()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop_collecting()
        signal.signal(signal.SIGCONT, self._before_continue)
        for descriptor in self._bell:
            os.close(descriptor)
        self._give_back()
        atexit.unregister(self._give_back)

    def _give_back(self) -> None:
        """Leave the terminal as it was; it may be gone."""
        with contextlib.suppress(OSError):
            self._output.stop_marking_pastes()
        with contextlib.suppress(termios.error):
            _set_attributes(self.fileno(), self._before)

    @contextlib.contextmanager
    def at_prompt(self, unsent: bool) -> Iterator[None]:
        """Give the keys to a prompt that is shown meanwhile.

        Parameters
        ----------
        unsent : bool
            Whether the prompt begins with a text. Then the keys that waited go below it and send nothing: whoever
            pressed Enter did not know of that text.
        """
        self._stop_collecting()
        keys = [*get_typeahead(self), *self._waiting]
        self._waiting = _below(keys) if unsent else keys
        try:
            yield
        finally:
            self._collect()

    @contextlib.contextmanager
    def _attached(self, input_ready_callback: Callable[[], None]) -> Iterator[None]:
        loop, app = get_running_loop(), get_app()
        loop.call_soon(loop.call_soon, input_ready_callback)
        with super().attach(input_ready_callback):
            self._draw_again = lambda below: loop.call_soon_threadsafe(_draw_again, app, below)
            try:
                yield
            finally:
                self._draw_again = None

    def attach(self, input_ready_callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Tell the prompt of keys, first of those that waited: once it is drawn and knows the lines typed before."""
        return self._attached(input_ready_callback)

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        with super().raw_mode():
            silent, self._attributes = self._attributes, termios.tcgetattr(self.fileno())
            try:
                yield
            finally:
                self._attributes = silent

    def raw_mode(self) -> AbstractContextManager[None]:
        """Give the terminal what the line editor asks of it."""
        return self._raw()

    def read_keys(self) -> list[KeyPress]:
        """Return the keys that waited, and new ones."""
        waiting, self._waiting = self._waiting, []
        return [*waiting, *super().read_keys()]

    @contextlib.contextmanager
    def _lent(self) -> Iterator[None]:
        self._output.stop_marking_pastes()
        own, self._attributes = self._attributes, None
        try:
            with super().cooked_mode():
                yield
        finally:
            self._attributes = own
            self._output.mark_pastes()

    def cooked_mode(self) -> AbstractContextManager[None]:
        """Lend the terminal to the editor or the shell."""
        return self._lent()

    def _continue(self, _signal_number: int, _frame: FrameType | None) -> None:
        """Take the terminal again after a stop: the shell has used it meanwhile. It may be gone."""
        if self._attributes is None:
            return
        with contextlib.suppress(termios.error, OSError):
            is_changed = termios.tcgetattr(self.fileno()) != self._attributes
            _set_attributes(self.fileno(), self._attributes)
            # Not by the output's own buffer, which may be half written.
            os.write(self._output.fileno(), b"\x1b[?2004h")
            if self._draw_again is not None:
                self._draw_again(is_changed)

    def _collect(self) -> None:
        thread = Thread(target=self._take_keys, daemon=True)
        thread.start()
        self._thread = thread

    def _stop_collecting(self) -> None:
        if self._thread is not None:
            os.write(self._bell[1], b"!")
            self._thread.join()
            os.read(self._bell[0], 64)
            self._thread = None

    def _take_keys(self) -> None:
        # Signals are for the main thread, which they wake from waiting.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        keyboard, bell = self.fileno(), self._bell[0]
        while not self.closed:
            ready = select.select([keyboard, bell], [], [], _ESCAPE_SECONDS)[0]
            if bell in ready:
                return
            if keyboard in ready:
                keys = super().read_keys()
                # The terminal's answer to the last prompt's question where the cursor is: the next prompt asks again.
                self._waiting += [key for key in keys if key.key != Keys.CPRResponse]
                if not keys:
                    sleep(_PAUSE_SECONDS)  # a part of a character, or a terminal that is gone
            else:
                # Escape means nothing without a prompt; kept, it would make another key of the next one.
                self.flush_keys()


def _draw_again(app: Application[Any], below: bool) -> None:
    """Draw a prompt anew: in its place, or below what a shell has written."""
    if below:
        app.output.write_raw("\r")
        app.renderer.reset()
    else:
        app.renderer.erase()
    app.renderer.request_absolute_cursor_position()
    app.invalidate()


def _set_attributes(terminal: int, attributes: Attributes) -> None:
    """Set a terminal's attributes. A program in the background is stopped by that, until it is in the foreground."""
    while True:
        try:
            return termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        except termios.error as error:
            if error.args[0] != errno.EINTR:
                raise


def _silent(attributes: Attributes) -> Attributes:
    """Return the terminal's attributes with keys passed on one by one, not shown, Enter as it is, and signals."""
    silent = [value.copy() if isinstance(value, list) else value for value in attributes]
    silent[_IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)  # type: ignore[operator]
    silent[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)  # type: ignore[operator]
    silent[_LFLAG] |= termios.NOFLSH  # type: ignore[operator]
    silent[_CC][termios.VMIN], silent[_CC][termios.VTIME] = 1, 0  # type: ignore[index]
    return silent


def _below(keys: list[KeyPress]) -> list[KeyPress]:
    """Return keys that write the same on a new line, Enter beginning another; Enter at their end is left out."""
    line_feed = KeyPress(Keys.BracketedPaste, "\n")
    while keys and keys[-1].key in _ENTER:
        keys = keys[:-1]
    return [line_feed, *(line_feed if key.key in _ENTER else key for key in keys)] if keys else []
