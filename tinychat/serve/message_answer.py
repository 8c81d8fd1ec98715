"""The answer that is one message, for protocols whose bodies are translated to that of a chat completion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from tinychat.generate.reply import Delta, Summary
from tinychat.generate.run import Prefill
from tinychat.serve.answering import Answer
from tinychat.serve.chat_body import ChatBody, choice_of
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.wire import Payload


class MessageAnswer(Answer):
    """One message, the reply to the first request of `asked`, whose pieces a protocol sends in its form."""

    def __init__(self, asked: ChatBody, served: ServedModel) -> None:
        request = asked.requests[0]
        super().__init__([served.model.reply(asked.prompt, request)], asked.options.is_streamed)
        self.asked = asked
        self._choice = choice_of(asked, served.model, request)

    def take(self, index: int, event: Delta | Prefill | None) -> list[Payload]:
        """Take an event of the reply; return what is sent of it."""
        if isinstance(event, Prefill):
            return []
        pieces = self._choice.finish() if event is None else (piece for piece, _ in self._choice.add(event))
        sent = [payload for piece in pieces for payload in self._add(piece)]
        if event is None:
            sent += self.finish(self._choice.finish_reason(self.streams[0].reply.finish_reason))
        return sent

    @property
    def summary(self) -> Summary:
        """The counts and times of the reply."""
        return self.streams[0].summary

    def _add(self, piece: Payload) -> Iterator[Payload]:
        """Take a delta of the message, as ``chat.completion.chunk`` has it; yield what is sent of it."""
        if thoughts := piece.get("reasoning_content"):
            yield from self.add_text(thoughts, is_thought=True)
        if text := piece.get("content"):
            yield from self.add_text(text)
        for call in piece.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                yield from self.begin_call(call["id"], function["name"])
            if function["arguments"]:
                yield from self.add_arguments(function["arguments"])

    @abstractmethod
    def add_text(self, text: str, *, is_thought: bool = False) -> Iterable[Payload]:
        """Take text of the message, or of the thoughts before it; return what is sent of it."""

    @abstractmethod
    def begin_call(self, call_id: str, name: str) -> Iterable[Payload]:
        """Take the beginning of a call; return what is sent of it."""

    @abstractmethod
    def add_arguments(self, text: str) -> Iterable[Payload]:
        """Take a part of the arguments of the last call; return what is sent of it."""

    @abstractmethod
    def finish(self, reason: str) -> Iterable[Payload]:
        """Take the finish reason of a chat completion, after the last piece; return what is sent of it."""
