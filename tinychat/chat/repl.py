"""The loop of the interactive chat: read a line, answer it, until the person leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tinychat.chat.commands import complete_command, is_command, run_command
from tinychat.chat.context_use import context_use
from tinychat.chat.fences import unfence
from tinychat.chat.interrupt import InterruptFlag
from tinychat.chat.line_input import LineDiscarded, LineInput, Prompt
from tinychat.chat.rendering import Renderer
from tinychat.chat.session import Chat
from tinychat.chat.status_bar import status_bar
from tinychat.chat.template_notice import NO_TEMPLATE
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
        self._discarded_one = False

    def run(self) -> None:
        """Read and answer until the input ends or a command leaves."""
        if self._lines.interactive:
            self._greet()
        if self.chat.model.template.is_fallback:
            self.notice(NO_TEMPLATE)
        while not self._leaving:
            try:
                line = self._read()
            except EOFError:
                return
            if line:
                self._handle(line)

    @property
    def show_thinking(self) -> bool:
        """Whether the think section of a reply is drawn, or folded into a line."""
        return self._renderer.show_thinking

    @show_thinking.setter
    def show_thinking(self, shown: bool) -> None:
        self._renderer.show_thinking = shown

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
        """Begin the next prompt with `text`, a message that the person may edit."""
        self._prefill = f" {text}" if is_command(text) else text

    def offer_to_terminal(self, text: str) -> bool:
        """Ask the terminal to take `text` into its clipboard; return whether it could be asked."""
        return self._renderer.offer_to_terminal(text)

    def toggle_multiline(self) -> bool:
        """Let Enter begin a new line instead of sending, or the other way round; return whether it does."""
        self._multiline = not self._multiline
        return self._multiline

    def _greet(self) -> None:
        self._renderer.banner(self.chat.model.name, "Ctrl-C stops a reply, Ctrl-D leaves, /help lists more")

    def _read(self) -> str:
        """Return the next message, empty if Ctrl-C threw it away; a second Ctrl-C in a row means the end."""
        prompt = self._prompt()
        self._prefill = ""
        try:
            line = self._lines.read(prompt)
        except KeyboardInterrupt as press:
            if not self._lines.interactive:
                raise
            if self._discarded_one and not isinstance(press, LineDiscarded):
                raise EOFError from None
            self._discarded_one = True
            self.notice("Ctrl-C again or Ctrl-D leaves, /help lists the commands")
            return ""
        self._discarded_one = False
        return line

    def _prompt(self) -> Prompt:
        if not self._lines.interactive:
            return Prompt()
        # Counted once for each prompt: the bar is drawn with every key.
        bar = partial(status_bar, self.chat.model, context_use(self.chat))
        return Prompt(self._prefill, self._multiline, self._complete, bar)

    def _complete(self, line: str) -> list[str]:
        return complete_command(self, line)

    def _handle(self, line: str) -> None:
        try:
            if is_command(line):
                run_command(self, line)
            elif (message := unfence(line)).strip():
                self._write(partial(self.chat.stream, message))
        except TinychatError as error:
            if not self._lines.interactive:
                raise
            self._renderer.error(str(error))
            if self.chat.attachments:
                self.notice("what was to go with the message still is: send another one, or /file none")
        except KeyboardInterrupt:
            # Somebody who pressed it often while the reply was written: back to the prompt.
            if not self._lines.interactive:
                raise

    def _write(self, start: Callable[..., Iterator[Piece]]) -> None:
        """Stream the reply that `start` begins; Ctrl-C ends it early."""
        messages_before = self.chat.messages
        self._renderer.starts_thinking = self.chat.model.template.opens_thinking
        with self._lines.while_drawing(), InterruptFlag() as interrupted:
            try:
                for piece in start(on_prefill=self._renderer.prefill_progress, cancelled=interrupted):
                    self._renderer.text(piece.text)
            finally:
                self._renderer.end_reply()
        if interrupted() and not self._lines.interactive:
            raise KeyboardInterrupt
        if self.chat.messages is messages_before:
            self.notice("stopped before the reply began: the conversation is as it was")
        elif self.chat.model.summary is not None:
            self._renderer.summary(self.chat.model.summary)
