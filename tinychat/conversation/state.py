"""The state of a conversation: its model and settings, the prompts built from its messages, the tokens in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from tinychat.conversation.chat_tools import ChatTools
from tinychat.conversation.history import Transcript
from tinychat.conversation.messages import Message
from tinychat.conversation.overflow import as_policy
from tinychat.conversation.request_state import RequestState
from tinychat.errors import SettingError, TextError
from tinychat.generate.grammar import Constraint
from tinychat.generate.model import Model
from tinychat.generate.precedence import Resolved
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.generate.stream import PrefillProgress, Stream
from tinychat.images.detail import HIGH
from tinychat.tools.definitions import ToolChoice


class ReplyHooks(TypedDict, total=False):
    """Callables that watch a reply and may end it: see `tinychat.generate.stream.Stream`."""

    on_prefill: PrefillProgress | None
    cancelled: Callable[[], bool] | None


class ChatState(Transcript, RequestState):
    """A conversation before and between its replies; `tinychat.Chat` writes them and describes the parameters."""

    def __init__(self, model: Model, system: str | None, overflow: str, request: Request) -> None:
        Transcript.__init__(self)
        RequestState.__init__(self, request)
        self.model = model
        self.system = system
        self.overflow = as_policy(overflow)
        self.image_detail: str = HIGH
        self.tools: ChatTools = ChatTools()
        self.on_notice: Callable[[str], None] = lambda text: None
        self.on_summarising: Callable[[int], None] = lambda characters: None
        self._rendered: tuple[object, Prompt] | None = None
        self._counted: tuple[list[Message], object, int] | None = None
        self._run: Stream | None = None
        self._is_closed = False
        self._ruled: tuple[object, Constraint | None] | None = None
        self._complained = ""

    def adopt(self, found: Resolved) -> None:
        """Adopt settings, except those set in this conversation."""
        super().adopt(found)
        if not self.was_set("overflow"):
            self.overflow = as_policy(found.chat.overflow)
        if not self.was_set("image_detail"):
            self.image_detail = found.chat.image_detail
        if not self.was_set("system"):
            self.system = found.chat.system

    def close(self) -> None:
        """End the reply that is being written, also by another thread; no other can be asked for."""
        self._is_closed = True
        if self._run is not None:
            self._run.close()

    def aside(self, prompt: Prompt, request: Request, **hooks: Unpack[ReplyHooks]) -> Stream:
        """Begin a reply that is no part of the conversation; `close` ends it, too."""
        self._refuse_if_closed()
        self._run = self.model.reply(prompt, request, **hooks)
        return self._run

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise SettingError("the conversation is closed: begin another one")

    @property
    def opens_thinking(self) -> bool:
        """Whether replies begin inside their think section."""
        return self.model.opens_thinking(self.thinking.wanted)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Return the prompt for the reply to `messages`, the system prompt before them; `TextError` if it fails.

        The last one is cached: questions about the conversation between two changes render it once.
        """
        thinking, seen = self.thinking.wanted, [message.as_seen(self.model.sees_images) for message in messages]
        tools = self.tool_definitions
        key = self.model, self.system, thinking, seen, tools
        if self._rendered is None or self._rendered[0] != key:
            self._rendered = key, self.model.chat_prompt(seen, self.system, thinking, tools)
        return self._rendered[1]

    @property
    def tool_definitions(self) -> list[dict[str, object]]:
        """The definitions of the tools in OpenAI's form, always in the same order: the prompt begins with them."""
        return [tool.as_dict() for tool in self.tools.toolbox.definitions]

    @property
    def call_constraint(self) -> Constraint | None:
        """The constraint that holds calls to the schemas of the present tools; `SettingError` if there can be none."""
        key = self.model, self.tools.toolbox.definitions
        if self._ruled is None or self._ruled[0] != key:
            self._ruled = key, self.model.call_constraint(ToolChoice(key[1], constrains=True))
        return self._ruled[1]

    def next_request(self) -> Request:
        """Return the request of the next reply, whose calls are held to the schemas of the tools."""
        request = super().next_request()
        if not self.tools.toolbox.definitions:
            return request
        try:
            return replace(request, constraint=self.call_constraint)
        except SettingError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                self.on_notice(f"calls may be malformed: {error}")
            return request

    def tokens_in_use(self) -> int:
        """Return the tokens of the conversation that the model sees.

        After a reply these are its prompt's and its own, which are known; else those of the prompt that would ask
        for more. The next prompt has a few more: what the template puts around messages.
        """
        if self._counted is not None:
            messages, view, count = self._counted
            if messages is self.messages and view == self._view():
                return count
        seen = self.messages[self.dropped :]
        if not seen and not self.system:
            return 0
        try:
            return len(self.prompt(seen).ids)
        except TextError:
            # Some templates refuse a system prompt without a message.
            texts = [self.system or "", *(message.shortened or message.text for message in seen)]
            return sum(len(self.model.encode(text, add_bos=False)) for text in texts)

    def _set_tokens_in_use(self, count: int) -> None:
        """Set the count for the present messages: every change of them makes another list."""
        self._counted = self.messages, self._view(), count

    def _view(self) -> tuple[object, ...]:
        return self.dropped, self.system, self.thinking, self.model, self.tools.toolbox.definitions
