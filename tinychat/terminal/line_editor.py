"""The prompt of a terminal: line editing, key bindings, history, completion, a status bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer, CompletionState
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected, has_completions, has_selection, is_searching
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.search import SearchState
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from tinychat.terminal.line_input import CONTINUATION, Candidate, InputPrompt, LineDiscarded, as_message, is_open
from tinychat.terminal.pasted_text import PastedTexts, UnfoldedHistory
from tinychat.terminal.resizing import follow_size
from tinychat.terminal.safe_text import safe_text
from tinychat.user_folders import make_folder, trusted_state_folder

if TYPE_CHECKING:
    from tinychat.terminal.keyboard import Keyboard

# Gray is readable on dark and light backgrounds, and less prominent than the conversation.
_STYLE = Style.from_dict(
    {
        "bottom-toolbar": "noreverse #808080",
        "completion-menu": "bg:default",
        "completion-menu.completion": "bg:default",
        "completion-menu.completion.current": "noreverse reverse",
        "completion-menu.meta.completion": "bg:default #808080",
        "completion-menu.meta.completion.current": "bg:default #808080",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:#808080",
    }
)
_MENU_LINES = 8


class TerminalInput:
    """Prompts with line editing and `key_bindings`, drawn on `terminal`.

    While it is entered, keys typed between prompts are not echoed but saved for the next one. `environment` tells the
    folder of the history.
    """

    interactive = True

    def __init__(
        self, stdin: TextIO, terminal: TextIO, environment: Mapping[str, str], keeps_history: bool = True
    ) -> None:
        self._prompt = InputPrompt()
        self._pasted = PastedTexts()
        history = open_history(trusted_state_folder(environment) / "history") if keeps_history else InMemoryHistory()
        self._keyboard, keys, self._output = _open_terminal(stdin, terminal)
        self._opened = ExitStack()
        self._session: PromptSession[str] = PromptSession(
            input=keys,
            output=self._output,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=UnfoldedHistory(history, self._pasted.unfold, lambda: not self._prompt.question),
            enable_history_search=True,
            search_ignore_case=True,
            completer=_CommandCompleter(lambda line: self._prompt.complete(line)),
            complete_while_typing=False,
            # Lines below the prompt while the list of candidates is shown.
            complete_style=CompleteStyle.COLUMN,
            reserve_space_for_menu=_MENU_LINES,
            key_bindings=key_bindings(lambda: self._prompt.multiline, self._pasted),
            bottom_toolbar=self._bar,
            style=_STYLE,
            enable_suspend=True,
            tempfile_suffix=".md",
        )
        self._pasted.keep_whole(self._session)
        follow_size(self._session.app, environment)

    def __enter__(self) -> TerminalInput:
        if self._keyboard is not None:
            self._opened.enter_context(self._keyboard)
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()

    def read(self, prompt: InputPrompt) -> str:
        """Return the edited message; EOFError at Ctrl-D on an empty line, KeyboardInterrupt at Ctrl-C."""
        self._prompt = prompt
        self._pasted.clear()
        keyboard = self._keyboard
        with nullcontext() if keyboard is None else keyboard.at_prompt(bool(prompt.text), prompt.is_fresh):
            text = self._session.prompt(prompt.mark, default=prompt.text)
        # Bytes that are not UTF-8 arrive as lone surrogates, which tokenizers refuse.
        return self._pasted.unfold(text).encode("utf-8", "replace").decode("utf-8")

    def _bar(self) -> str:
        columns = self._output.get_size().columns
        return safe_text(self._search_problem()[: columns - 1] or self._prompt.bar(columns))

    def _search_problem(self) -> str:
        """Return a message about a search without a match, else an empty text."""
        target = self._session.app.layout.search_target_buffer_control
        sought = self._session.search_buffer.text
        if target is None or not sought:
            return ""
        state = SearchState(sought, target.search_state.direction, ignore_case=True)
        found = target.buffer.document_for_search(state).text
        return "" if sought.casefold() in found.casefold() else f"no earlier input contains {sought!r}"


def _open_terminal(stdin: TextIO, terminal: TextIO) -> tuple[Keyboard | None, Input, Output]:
    """Return the keyboard (not on Windows), and the input and output of the line editor."""
    if sys.platform == "win32":
        return None, create_input(stdin), create_output(terminal)
    from tinychat.terminal.keyboard import Keyboard, open_output

    output = open_output(terminal)
    keyboard = Keyboard(stdin, output)
    return keyboard, keyboard, output


class _CommandCompleter(Completer):
    def __init__(self, candidates: Callable[[str], list[Candidate]]) -> None:
        self._candidates = candidates

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
        """Yield completions for the last word of a command."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        last_word = line.rpartition(" ")[2]
        for candidate in self._candidates(line):
            description = safe_text(candidate.description)
            yield Completion(candidate.text, start_position=-len(last_word), display_meta=description)


def key_bindings(multiline: Callable[[], bool], pasted: PastedTexts) -> KeyBindings:
    """Return the key bindings.

    Enter sends and Alt-Enter or Ctrl-J begins a new line; with `multiline` the other way round, but Enter always sends
    a command. In an open fence all of them begin a new line. Ctrl-G opens the message in $VISUAL or $EDITOR. Ctrl-C
    clears the line, which Up restores. A paste of several lines is a message, even if it begins as a command; a long
    one is shown as a placeholder. Tab completes the common prefix of the candidates, then lists them; Tab and the
    arrows select one, Enter accepts it, Escape closes the list.
    """
    bindings = KeyBindings()
    typing = ~is_searching

    @bindings.add("tab", filter=typing)
    def _complete(event: KeyPressEvent) -> None:
        _complete_word(event.current_buffer)

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
        event.current_buffer.text = pasted.unfold(event.current_buffer.text)
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
        buffer.insert_text(pasted.fold(text))

    # Last: it overrides the other bindings of these keys.
    @bindings.add("escape", filter=typing & has_completions)
    @bindings.add("enter", filter=typing & completion_is_selected)
    def _take_candidate(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings


def _complete_word(buffer: Buffer) -> None:
    """Complete synchronously: keys saved for the prompt arrive all at once."""
    if buffer.complete_state:
        buffer.complete_next()
        return
    candidates = [*buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True))]
    common = get_common_complete_suffix(buffer.document, candidates)
    if len(candidates) == 1:
        buffer.apply_completion(candidates[0])
    elif common:
        buffer.insert_text(common)
    if len(candidates) > 1:
        rest = [candidate.new_completion_from_position(len(common)) for candidate in candidates]
        buffer.complete_state = CompletionState(buffer.document, rest)


class _DiskHistory(FileHistory):
    def store_string(self, string: str) -> None:
        """Append to the file; a full disk loses the history, not the message."""
        with contextlib.suppress(OSError):
            super().store_string(string)


def open_history(file: Path) -> History:
    """Return the history in `file`, which only this user can read; in memory if that fails."""
    try:
        make_folder(file.parent)
        file.touch(mode=0o600)
        file.read_bytes()
    except OSError:
        return InMemoryHistory()
    return _DiskHistory(str(file))
