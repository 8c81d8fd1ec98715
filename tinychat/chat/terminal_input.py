"""The prompt of a real terminal: line editing, history, completion, a status bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from tinychat.chat.input_history import open_history
from tinychat.chat.key_bindings import key_bindings
from tinychat.chat.line_input import CONTINUATION, PROMPT, Prompt
from tinychat.chat.safe_text import safe_text
from tinychat.chat.silent_keys import silent_keys
from tinychat.chat.state_folder import state_folder

# Gray is readable on dark and on light ground, and the bar shall not outshine the conversation.
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse #808080"})


class TerminalInput:
    """A prompt with line editing; the keys are those of `key_bindings`.

    Parameters
    ----------
    terminal : text stream
        Where the prompt is drawn.
    environment : mapping
        Says where the history is kept; $VISUAL or $EDITOR is the editor of Ctrl-G.
    """

    interactive = True

    def __init__(self, terminal: TextIO, environment: Mapping[str, str]) -> None:
        self._prompt = Prompt()
        self._output = create_output(stdout=terminal)
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            output=self._output,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=open_history(state_folder(environment) / "history"),
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

    def read(self, prompt: Prompt) -> str:
        """Return the edited message; see `LineInput`."""
        self._prompt = prompt
        text = self._session.prompt(default=prompt.text)
        # Bytes that are no UTF-8 arrive as lone surrogates, which no tokenizer takes.
        return text.encode("utf-8", "replace").decode("utf-8")

    def while_drawing(self) -> AbstractContextManager[None]:
        """Keep keys for the next prompt; see `LineInput`."""
        return silent_keys()

    def candidates(self, line: str) -> list[str]:
        """Return what may stand for the last word of `line`."""
        return self._prompt.complete(line)

    def _bar(self) -> str:
        return safe_text(self._prompt.bar(self._output.get_size().columns))


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
