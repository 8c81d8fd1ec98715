"""The loop of the interactive chat: read a line, answer it, until the user leaves."""

from __future__ import annotations

from functools import partial
from time import monotonic

from tinychat.chat.commands import as_text, complete_command, is_command, run_command
from tinychat.chat.draft import Draft
from tinychat.chat.loop import ChatLoop
from tinychat.chat.tool_setup import refresh_servers
from tinychat.conversation.overflow import way_out
from tinychat.errors import PromptTooLongError, TinychatError
from tinychat.generate.prompt import NO_TEMPLATE
from tinychat.terminal.line_input import InputPrompt, LineDiscarded, unfence
from tinychat.terminal.status_line import status_bar

# The most time between two presses of Ctrl-C that leave the chat.
_LEAVING_SECONDS = 2.0


class Repl(ChatLoop):
    """Reads messages and commands, and answers them.

    At a terminal, an error is shown and the loop continues; with lines of a pipe, it is raised.
    """

    _pressed_at: float | None = None

    def run(self) -> None:
        """Read and answer until the input ends or a command leaves."""
        if self.interactive:
            self.renderer.banner(self.chat.model.name, "Ctrl-C stops a reply, Ctrl-D leaves, /help lists the commands")
        if self.chat.model.template.is_fallback:
            self.notice(NO_TEMPLATE)
        while not self.is_leaving:
            try:
                line, draft = self._read()
            except EOFError:
                return
            self._handle(line, draft)

    def _read(self) -> tuple[str, Draft]:
        """Return the next line, empty after Ctrl-C, and the draft that it began with, if it is sent in its place."""
        draft = self.draft
        try:
            prompt = self._prompt()
            self.draft = Draft()
            line = self._lines.read(prompt)
            self._pressed_at = None
        except KeyboardInterrupt as press:
            if not self.interactive:
                raise
            line = ""
            self._leave_at_second(press)
        if draft.replaced and (is_command(line) or not unfence(line).strip()):
            self.notice("not edited: the conversation is unchanged")
            return line, Draft()
        return line, draft

    def _leave_at_second(self, press: KeyboardInterrupt) -> None:
        """End the input at the second Ctrl-C on an empty line within two seconds."""
        if isinstance(press, LineDiscarded):
            self._pressed_at = None
            return
        now = monotonic()
        if self._pressed_at is not None and now - self._pressed_at <= _LEAVING_SECONDS:
            raise EOFError from None
        self._pressed_at = now
        self.notice("Ctrl-C again or Ctrl-D leaves, /help lists the commands")

    def _prompt(self) -> InputPrompt:
        if not self.interactive:
            return InputPrompt()
        chat = self.chat
        attached = [*(attachment.name for attachment in chat.attachments), *self.draft.image_names]
        # Tokens are counted once for each prompt: the bar is drawn with every key.
        bar = partial(
            status_bar, chat.model.name, chat.tokens_in_use(), chat.model.context_size, attached, chat.summary
        )
        return InputPrompt(self.draft.text, self.multiline, partial(complete_command, self), bar)

    def _handle(self, line: str, draft: Draft) -> None:
        try:
            if is_command(line):
                run_command(self, line)
            elif unfence(line).strip():
                self._send(line, draft)
        except TinychatError as error:
            if not self.interactive:
                raise
            self.renderer.error(self._explained(error))
            if not is_command(line):
                self._show_unsent()
        except KeyboardInterrupt:
            # The third press during a reply: back to the prompt.
            if not self.interactive:
                raise

    def _send(self, line: str, draft: Draft) -> None:
        """Send a message that began as a draft; if it gets no reply, it returns to the prompt."""
        before = self.chat.messages
        refresh_servers(self)
        try:
            text = unfence(as_text(line))
            self.write_reply(partial(self.chat.stream, text, draft.images, replaced=draft.replaced))
        finally:
            if self.chat.messages is before:
                self.prefill(Draft(line, draft.replaced, images=draft.images))
        if self.chat.messages is before:
            self._show_unsent()

    def _show_unsent(self) -> None:
        """Name the message and attachments that were not sent."""
        if self.draft.text:
            self.notice("your message is back in the prompt")
        if names := ", ".join(attachment.name for attachment in self.chat.attachments):
            self.notice(f"still attached to your next message: {names}; /detach removes them")

    def _explained(self, error: TinychatError) -> str:
        """Return the message of an error, with advice for the chat."""
        if not isinstance(error, PromptTooLongError):
            return str(error)
        remedy = "shorten your message"
        if (tools := self.shelf.tokens()) > error.context_size - tools:
            remedy = "switch tools off with /tools off NAME"
        if self.chat.overflow == "stop" and self.chat.messages:
            remedy += ", drop turns with /undo"
        advice = way_out(error.tokens, self.chat.model.trained_length, remedy)
        return f"the prompt has {error.tokens} tokens but the context holds {error.context_size}: {advice}"
