"""The prompt of a real terminal: line editing, its keys, history, completion, a status bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_selection, is_searching
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from tinychat.terminal.line_input import CONTINUATION, PROMPT, InputPrompt, LineDiscarded, as_message, is_open
from tinychat.terminal.safe_text import safe_text
from tinychat.user_folders import make_folder, trusted_state_folder

if TYPE_CHECKING:
    from tinychat.terminal.keyboard import Keyboard

# Gray is readable on a dark and on a light background, and the bar should not stand out from the conversation.
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse #808080"})


class TerminalInput:
    """A prompt with line editing; the keys are those of `key_bindings`.

    From entering it on, also while no prompt is shown, keys are not echoed but wait for the next one.

    Parameters
    ----------
    stdin : text stream
        The terminal's input.
    terminal : text stream
        Where the prompt is drawn.
    environment : mapping
        Says where the history is kept, if it is; $VISUAL or $EDITOR is the editor of Ctrl-G.
    """

    interactive = True

    def __init__(
        self, stdin: TextIO, terminal: TextIO, environment: Mapping[str, str], keeps_history: bool = True
    ) -> None:
        self._prompt = InputPrompt()
        self._keyboard, keys, self._output = _open_terminal(stdin, terminal)
        self._opened = ExitStack()
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            input=keys,
            output=self._output,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=open_history(trusted_state_folder(environment) / "history") if keeps_history else InMemoryHistory(),
            enable_history_search=True,
            search_ignore_case=True,
            completer=_CommandCompleter(self),
            complete_while_typing=False,
            # A list above the prompt: a menu below it would keep eight lines free on every screen.
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            key_bindings=key_bindings(lambda: self._prompt.multiline),
            bottom_toolbar=self._bar,
            style=_STYLE,
            enable_suspend=True,
            tempfile_suffix=".md",
        )

    def __enter__(self) -> TerminalInput:
        if self._keyboard is not None:
            self._opened.enter_context(self._keyboard)
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()

    def read(self, prompt: InputPrompt) -> str:
        """Return the edited message; see `LineInput`."""
        self._prompt = prompt
        with self._at_prompt(prompt):
            text = self._session.prompt(default=prompt.text)
        # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer takes.
        return text.encode("utf-8", "replace").decode("utf-8")

    def _at_prompt(self, prompt: InputPrompt) -> AbstractContextManager[None]:
        return nullcontext() if self._keyboard is None else self._keyboard.at_prompt(unsent=bool(prompt.text))

    def candidates(self, line: str) -> list[str]:
        """Return what may stand for the last word of `line`."""
        return self._prompt.complete(line)

    def _bar(self) -> str:
        return safe_text(self._prompt.bar(self._output.get_size().columns))


def _open_terminal(stdin: TextIO, terminal: TextIO) -> tuple[Keyboard | None, Input, Output]:
    """Return the keyboard where keys can wait for a prompt, and what the line editor reads from and draws on."""
    if sys.platform == "win32":
        return None, create_input(stdin), create_output(terminal)
    from tinychat.terminal.keyboard import Keyboard, open_output

    output = open_output(terminal)
    keyboard = Keyboard(stdin, output)
    return keyboard, keyboard, output


class _CommandCompleter(Completer):
    def __init__(self, source: TerminalInput) -> None:
        self._source = source

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
        """Yield what may stand for the last word of a command."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        last_word = line.rpartition(" ")[2]
        for candidate in self._source.candidates(line):
            yield Completion(candidate, start_position=-len(last_word))


def key_bindings(multiline: Callable[[], bool]) -> KeyBindings:
    """Return the bindings.

    Enter sends and Alt-Enter or Ctrl-J begins a new line; while `multiline` says so, the other way
    round, except that a command is always sent by Enter. Inside an open fence all begin a new line.
    Ctrl-G opens the message in the editor. Ctrl-C clears the line, which Up brings back. A paste of
    several lines is a message, even if it begins like a command.
    """
    bindings = KeyBindings()
    typing = ~is_searching

    @bindings.add("enter", filter=typing)
    def _enter(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if is_open(text) or (multiline() and not text.startswith("/")):
            event.current_buffer.newline(copy_margin=False)
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=typing)
    @bindings.add("c-j", filter=typing)
    def _other_enter(event: KeyPressEvent) -> None:
        if multiline() and not is_open(event.current_buffer.text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-g", filter=typing & ~has_selection)
    def _editor(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @bindings.add("c-c", filter=typing)
    @bindings.add("<sigint>")
    def _discard(event: KeyPressEvent) -> None:
        held_text = bool(event.current_buffer.text)
        event.current_buffer.append_to_history()
        event.app.exit(exception=LineDiscarded() if held_text else KeyboardInterrupt(), style="class:aborting")

    @bindings.add(Keys.BracketedPaste, filter=typing)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        buffer = event.current_buffer
        if not buffer.document.text_before_cursor and "\n" in text.strip():
            text = as_message(text)
        buffer.insert_text(text)

    return bindings


class _DiskHistory(FileHistory):
    def store_string(self, string: str) -> None:
        """Append to the file; a disk that fills up costs the history, never the message."""
        with contextlib.suppress(OSError):
            super().store_string(string)


def open_history(file: Path) -> History:
    """Return the history kept in `file`, made for this user alone; in memory where that cannot be."""
    try:
        make_folder(file.parent)
        file.touch(mode=0o600)
        file.read_bytes()
    except OSError:
        return InMemoryHistory()
    return _DiskHistory(str(file))
