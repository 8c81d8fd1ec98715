"""The loop of the interactive chat: read a line, answer it, until the person leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tinychat.chat.commands import is_command, run_command
from tinychat.chat.interrupt import InterruptFlag
from tinychat.chat.line_input import LineInput
from tinychat.chat.rendering import Renderer
from tinychat.chat.session import Chat
from tinychat.chat.workspace import Workspace
from tinychat.errors import TinychatError
from tinychat.generate.loop import Piece


class Repl:
    """Ties a conversation to an input and a renderer.

    On a terminal an error is shown and the loop goes on; when lines come from a pipe, it is raised.
    """

    def __init__(self, chat: Chat, lines: LineInput, renderer: Renderer, workspace: Workspace | None = None) -> None:
        self.chat = chat
        self.workspace = workspace or Workspace(chat)
        self._lines = lines
        self._renderer = renderer
        self._leaving = False
        self._prefill = ""
        self._multiline = False

    def run(self) -> None:
        """Read and answer until the input ends or a command leaves."""
        if self._lines.interactive:
            self._greet()
        while not self._leaving:
            try:
                self._handle(self._lines.read())
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    raise
                self.notice("Ctrl-D leaves, /help lists the commands")

    def notice(self, text: str) -> None:
        """Say something to the person."""
        self._renderer.notice(text)

    def regenerate(self) -> None:
        """Write the last reply again."""
        self._write(self.chat.regenerate)

    def leave(self) -> None:
        """End the loop after this line."""
        self._leaving = True

    def prefill(self, text: str) -> None:
        """Begin the next prompt with `text`, which the person may edit."""
        self._prefill = text

    def toggle_multiline(self) -> bool:
        """Let Enter begin a new line instead of sending, or the other way round; return whether it does."""
        self._multiline = not self._multiline
        return self._multiline

    def _greet(self) -> None:
        self._renderer.banner(self.chat.model.name, "Ctrl-C stops a reply, Ctrl-D leaves, /help lists more")
        if self.chat.model.template.is_fallback:
            self.notice("this model has no chat template: it continues a plain dialogue instead")

    def _handle(self, line: str) -> None:
        try:
            if is_command(line):
                run_command(self, line)
            elif line.strip():
                self._write(partial(self.chat.stream, line))
        except TinychatError as error:
            if not self._lines.interactive:
                raise
            self._renderer.error(str(error))

    def _write(self, start: Callable[..., Iterator[Piece]]) -> None:
        """Stream the reply that `start` begins; Ctrl-C ends it early."""
        messages_before = self.chat.messages
        with InterruptFlag() as interrupted:
            try:
                for piece in start(on_prefill=self._renderer.prefill_progress, cancelled=interrupted):
                    self._renderer.text(piece.text)
            finally:
                self._renderer.end_reply()
        if self.chat.messages is messages_before:
            self.notice("stopped before the reply began: the conversation is as it was")
        elif self.chat.model.summary is not None:
            self._renderer.summary(self.chat.model.summary)
