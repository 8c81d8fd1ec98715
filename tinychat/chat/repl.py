"""The loop of the interactive chat: read a line, answer it, until the user leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from tinychat.chat.commands import as_text, complete_command, is_command, run_command
from tinychat.chat.draft import Draft
from tinychat.chat.interrupt_flag import InterruptFlag
from tinychat.chat.workspace import Workspace
from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import exchanges
from tinychat.conversation.overflow import way_out
from tinychat.conversation.state import ReplyHooks
from tinychat.errors import PromptTooLongError, SettingError, TinychatError
from tinychat.generate.prompt import NO_TEMPLATE
from tinychat.generate.reply import Delta
from tinychat.terminal.line_input import Candidate, InputPrompt, LineDiscarded, PlainInput, as_message, unfence
from tinychat.terminal.rendering import Renderer, status_bar

if TYPE_CHECKING:
    from tinychat.terminal.line_editor import TerminalInput

# Two presses of Ctrl-C that are further apart have nothing to do with each other.
_LEAVING_SECONDS = 2.0


class Repl:
    """Ties a conversation to an input and a renderer.

    On a terminal an error is shown and the loop goes on; when lines come from a pipe, it is raised.
    """

    def __init__(
        self, chat: Chat, lines: PlainInput | TerminalInput, renderer: Renderer, workspace: Workspace | None = None
    ) -> None:
        self.chat = chat
        self.workspace = workspace or Workspace(chat)
        self._lines = lines
        self._renderer = renderer
        chat.on_summarising = renderer.summary_progress
        self._leaving = False
        self._draft = Draft()
        self._multiline = False
        self._pressed_at: float | None = None

    def run(self) -> None:
        """Read and answer until the input ends or a command leaves."""
        if self._lines.interactive:
            self._greet()
        if self.chat.model.template.is_fallback:
            self.notice(NO_TEMPLATE)
        while not self._leaving:
            try:
                line, replaced = self._read()
            except EOFError:
                return
            if line:
                self._handle(line, replaced)

    @property
    def show_thinking(self) -> bool:
        """Whether the think section of a reply is drawn, or folded into a line."""
        return self._renderer.show_thinking

    @show_thinking.setter
    def show_thinking(self, shown: bool) -> None:
        self._renderer.show_thinking = shown

    @property
    def show_stats(self) -> bool | None:
        """Whether what each reply took is shown; None where somebody watches."""
        return self._renderer.show_stats

    @show_stats.setter
    def show_stats(self, shown: bool | None) -> None:
        self._renderer.show_stats = shown

    def notice(self, text: str) -> None:
        """Show a notice to the user."""
        self._renderer.notice(text)

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Return a callback of (done, total) that shows how far some work is, until the next notice."""
        return self._renderer.progress(title)

    def regenerate(self) -> None:
        """Write the last reply again."""
        self._write(self.chat.regenerate)

    def go_on(self) -> None:
        """Go on with a reply that was stopped or cut."""
        self._write(self.chat.go_on, self.chat.stopped_in_thought)

    def compact(self, turns: int) -> str:
        """Summarise all but the last turns, and return the summary; empty if Ctrl-C has stopped it."""
        with InterruptFlag() as interrupted:
            try:
                hooks: ReplyHooks = {"on_prefill": self._renderer.prefill_progress, "cancelled": interrupted}
                summary = self.chat.compact(turns, **hooks)
            finally:
                self._renderer.clear_status()
        if interrupted() and not self._lines.interactive:
            raise KeyboardInterrupt
        if not summary:
            self.notice("stopped: the conversation is as it was")
        return summary

    def confirm(self, question: str) -> bool:
        """Ask a question, and return whether the answer is yes.

        Raises
        ------
        SettingError
            If nobody is there to answer.
        """
        if not self._lines.interactive:
            raise SettingError("nobody is at a terminal who could be asked: run it in the shell, and pipe its output")
        self.notice(question)
        try:
            answer = self._lines.read(InputPrompt(is_question=True))
        except (KeyboardInterrupt, EOFError):
            return False
        if answer.strip().lower() not in ("y", "yes", "n", "no", ""):
            # A message that was typed ahead.
            self._draft = Draft(answer)
        return answer.strip().lower() in ("y", "yes")

    def recall(self) -> None:
        """Show the last message and its reply, as what was before."""
        messages = self.chat.messages
        if self._lines.interactive and messages and messages[-1].role == "assistant":
            self._renderer.exchange(messages[exchanges(messages)[-1]].content, messages[-1].text)

    def leave(self) -> None:
        """End the loop after this line."""
        self._leaving = True

    def prefill(self, draft: Draft) -> None:
        """Begin the next prompt with a message that the user may edit, send or discard."""
        self._draft = draft if draft.is_command else Draft(as_message(draft.text), draft.replaced)

    def offer_to_terminal(self, text: str) -> bool:
        """Ask the terminal to take `text` into its clipboard; return whether it could be asked."""
        return self._renderer.offer_to_terminal(text)

    def toggle_multiline(self) -> bool:
        """Let Enter begin a new line instead of sending, or the other way round; return whether it does."""
        self._multiline = not self._multiline
        return self._multiline

    def _greet(self) -> None:
        self._renderer.banner(self.chat.model.name, "Ctrl-C stops a reply, Ctrl-D leaves, /help lists more")

    def _read(self) -> tuple[str, int]:
        """Return the next message, empty if Ctrl-C threw it away, and how many exchanges it takes the place of."""
        draft = self._draft
        try:
            prompt = self._prompt()
            self._draft = Draft()
            line = self._lines.read(prompt)
            self._pressed_at = None
        except KeyboardInterrupt as press:
            if not self._lines.interactive:
                raise
            line = ""
            self._leave_at_second(press)
        if draft.replaced and (is_command(line) or not unfence(line).strip()):
            self.notice("nothing is changed: the conversation is as it was")
            return line, 0
        return line, draft.replaced

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
        if not self._lines.interactive:
            return InputPrompt()
        chat = self.chat
        attached = [attachment.name for attachment in chat.attachments]
        # Counted once for each prompt: the bar is drawn with every key.
        bar = partial(
            status_bar, chat.model.name, chat.tokens_in_use(), chat.model.context_size, attached, chat.summary
        )
        return InputPrompt(self._draft.text, self._multiline, self._complete, bar)

    def _complete(self, line: str) -> list[Candidate]:
        return complete_command(self, line)

    def _handle(self, line: str, replaced: int) -> None:
        try:
            if is_command(line):
                run_command(self, line)
            elif unfence(line).strip():
                self._send(line, replaced)
        except TinychatError as error:
            if not self._lines.interactive:
                raise
            self._renderer.error(self._explained(error))
            if not is_command(line):
                self._say_what_waits()
        except KeyboardInterrupt:
            # It was pressed often while the reply was written: back to the prompt.
            if not self._lines.interactive:
                raise

    def _send(self, line: str, replaced: int) -> None:
        """Send a message; one that gets no reply returns to the prompt."""
        before = self.chat.messages
        try:
            self._write(partial(self.chat.stream, unfence(as_text(line)), replaced=replaced))
        finally:
            if self.chat.messages is before:
                self.prefill(Draft(line, replaced))
        if self.chat.messages is before:
            self._say_what_waits()

    def _say_what_waits(self) -> None:
        """Say that a message without a reply is back in the prompt, and what is still attached."""
        if self._draft.text:
            self.notice("your message is back in the prompt")
        if names := ", ".join(attachment.name for attachment in self.chat.attachments):
            self.notice(f"still attached to your next message: {names}; /detach takes back")

    def _write(self, start: Callable[..., Iterator[Delta]], in_thought: bool | None = None) -> None:
        """Stream the reply that `start` begins, or goes on with, then perhaps in its think section; Ctrl-C ends it."""
        messages_before = self.chat.messages
        self._renderer.starts_thinking = self.chat.opens_thinking if in_thought is None else in_thought
        with InterruptFlag() as interrupted:
            try:
                for delta in start(on_prefill=self._renderer.prefill_progress, cancelled=interrupted):
                    self._renderer.text(delta.text)
            finally:
                self._renderer.end_reply()
        if interrupted() and not self._lines.interactive:
            raise KeyboardInterrupt
        if self.chat.messages is messages_before:
            self.notice("stopped before the reply began: the conversation is as it was")
        elif self.chat.summary is not None:
            self._renderer.summary(self.chat.summary)
            if self.chat.miss is not None and self._renderer.show_stats:
                self.notice(str(self.chat.miss))
            if self._lines.interactive:
                self._renderer.gap()
            if self._lines.interactive and self.chat.summary.finish_reason == "context":
                self._say_that_it_is_full()
            if self._lines.interactive and self.chat.summary.finish_reason == "loop":
                self.notice("the reply repeats itself: /retry writes another, /continue goes on with it")

    def _say_that_it_is_full(self) -> None:
        """Say what can be done where the context has ended a reply."""
        model = self.chat.model
        remedy = "/undo takes turns back, /clear begins anew"
        advice = way_out(model.context_size + 1, model.trained_length, remedy)
        can_grow = model.context_size < model.trained_length
        self.notice(f"the context is full: {advice}{', then go on with /continue' if can_grow else ''}")

    def _explained(self, error: TinychatError) -> str:
        """Return an error with the advice that helps within the chat."""
        if not isinstance(error, PromptTooLongError):
            return str(error)
        remedy = "shorten your message"
        if self.chat.overflow == "stop" and self.chat.messages:
            remedy += ", take turns back with /undo"
        advice = way_out(error.tokens, self.chat.model.trained_length, remedy)
        return f"the prompt has {error.tokens} tokens but the context holds {error.context_size}: {advice}"
