"""The chat as slash commands see it: the conversation, its workspace, the input and the renderer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tinychat.chat.call_screen import CallScreen
from tinychat.chat.draft import Draft
from tinychat.chat.interrupt_flag import InterruptFlag
from tinychat.chat.tool_shelf import ToolShelf
from tinychat.chat.workspace import Workspace
from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import exchanges
from tinychat.conversation.overflow import way_out
from tinychat.errors import SettingError
from tinychat.generate.reply import Delta, FinishReason
from tinychat.settings import ToolSettings
from tinychat.terminal.line_input import QUESTION, InputPrompt, PlainInput, as_message
from tinychat.terminal.rendering import Renderer

if TYPE_CHECKING:
    from tinychat.mcp.server import McpServer
    from tinychat.terminal.line_editor import TerminalInput

_CUTS: Mapping[FinishReason, str] = {
    "length": "the reply is cut at the token limit: /continue continues it, /set max_tokens N raises the limit",
    "context": "the reply is cut, the context is full: /set context N makes it larger",
    "loop": "the reply is cut, it repeats itself: /set loop_stop off allows that",
}


class ChatLoop:
    """The actions of a chat that commands and messages share."""

    def __init__(
        self, chat: Chat, lines: PlainInput | TerminalInput, renderer: Renderer, workspace: Workspace | None = None
    ) -> None:
        self.chat = chat
        self.workspace = workspace or Workspace(chat)
        self.renderer = renderer
        self.draft = Draft()  # the beginning of the next prompt
        self.is_leaving = False  # whether the loop ends after this command
        self.multiline = False  # whether Enter begins a new line instead of sending
        self._lines = lines
        self.shelf = ToolShelf(chat)  # the tools that the model may be given
        renderer.cuts = _CUTS
        self.servers: dict[str, McpServer] = {}  # those that run for this chat, by name
        self.server_errors: dict[str, str] = {}  # of servers that fail, by name, as they were shown
        self.tool_settings = ToolSettings()  # those that chose the tools
        self.screen = CallScreen(renderer, self.read, self.prefill)
        chat.tools.on_call, chat.tools.on_result = self.screen.begin, self.screen.end
        chat.on_summarising = renderer.summary_progress

    def notice(self, text: str) -> None:
        """Show a notice to the user."""
        self.renderer.notice(text)

    def prefill(self, draft: Draft) -> None:
        """Begin the next prompt with a text that the user may edit, send or discard."""
        self.draft = draft if draft.is_command else replace(draft, text=as_message(draft.text))

    @property
    def interactive(self) -> bool:
        """Whether a person can be asked."""
        return self._lines.interactive

    def read(self, prompt: InputPrompt) -> str:
        """Return the line that a person types at a prompt; EOFError and KeyboardInterrupt as the input raises them."""
        return self._lines.read(prompt)

    def confirm(self, question: str) -> bool:
        """Ask a yes/no question; a SettingError without a terminal."""
        if not self.interactive:
            raise SettingError("this needs a confirmation at a terminal: run it in the shell, and pipe its output in")
        self.notice(question)
        try:
            answer = self._lines.read(InputPrompt(question=QUESTION))
        except (KeyboardInterrupt, EOFError):
            return False
        word = answer.strip().lower()
        if word not in ("y", "yes", "n", "no", ""):
            # A message that was typed ahead.
            self.draft = Draft(answer)
        return word in ("y", "yes")

    def show_loaded(self, lines: Iterable[str], pending: Draft) -> None:
        """Show the last exchange of a conversation just loaded and `lines` about it; prefill its pending message."""
        messages = self.chat.messages
        if self.interactive and messages and messages[-1].role == "assistant":
            self.renderer.exchange(messages[exchanges(messages)[-1]].shown, messages[-1].text)
        for line in lines:
            self.notice(line)
        self.prefill(pending)

    def compact(self, turns: int) -> str:
        """Summarise all but the last turns, and return the summary; empty after Ctrl-C."""
        with InterruptFlag() as interrupted:
            try:
                summary = self.chat.compact(turns, on_prefill=self.renderer.prefill_progress, cancelled=interrupted)
            finally:
                self.renderer.clear_status()
        if interrupted() and not self.interactive:
            raise KeyboardInterrupt
        if not summary:
            self.notice("stopped: the conversation is unchanged")
        return summary

    def write_reply(self, start: Callable[..., Iterator[Delta]], in_thought: bool | None = None) -> None:
        """Stream the reply of `start`, which may begin inside its think section; Ctrl-C ends it."""
        messages_before = self.chat.messages
        self.renderer.starts_thinking = self.chat.opens_thinking if in_thought is None else in_thought
        with InterruptFlag() as interrupted:
            try:
                for delta in start(on_prefill=self.renderer.prefill_progress, cancelled=interrupted):
                    self.renderer.text(delta.text)
            finally:
                self.renderer.end_reply()
        if interrupted() and not self.interactive:
            raise KeyboardInterrupt
        if self.chat.messages is messages_before:
            self.notice("stopped before the reply began: the conversation is unchanged")
        else:
            self._show_end_of_reply()

    def _show_end_of_reply(self) -> None:
        """Show counts and rates of the turn, and advice if its last reply was cut."""
        summary = self.chat.turn_summary
        if summary is None:
            return
        self.renderer.summary(summary)
        if self.chat.miss is not None and self.renderer.show_stats:
            self.notice(str(self.chat.miss))
        if not self.interactive:
            return
        self.renderer.gap()
        if self.chat.messages[-1].role == "tool":
            self.notice("the model has not answered these results: /regen lets it go on")
        if summary.finish_reason == "context":
            model = self.chat.model
            advice = way_out(model.context_size + 1, model.trained_length, "drop turns with /undo or /clear")
            can_grow = model.context_size < model.trained_length
            self.notice(f"the context is full: {advice}{', then /continue' if can_grow else ''}")
        elif summary.finish_reason == "loop":
            self.notice("the reply repeats itself: /retry writes another, /continue continues it")
