"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import time
from uuid import uuid4

from tinychat.conversation.openai import usage
from tinychat.generate.reply import Delta
from tinychat.generate.run import Prefill
from tinychat.serve.answering import Answer
from tinychat.serve.chat_body import choice_of, read_chat
from tinychat.serve.chat_choice import joined_message
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.timings import progress_fields, timings
from tinychat.serve.wire import Payload


class ChatAnswer(Answer):
    """The choices of a chat completion, as chunks and as a whole.

    `name` is the model's, in the answer. `TinychatError` if the body cannot be answered.
    """

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        asked, model = read_chat(body, served), served.model
        super().__init__([model.reply(asked.prompt, one) for one in asked.requests], asked.options.is_streamed)
        self._asked, self._name = asked, name
        self._id, self._created = f"chatcmpl-{uuid4().hex[:24]}", int(time())
        self._choices = [choice_of(asked, model, one) for one in asked.requests]
        self._deltas: list[list[Payload]] = [[] for _ in self.streams]
        self._logprobs: list[list[Payload]] = [[] for _ in self.streams]

    def first(self) -> Iterator[Payload]:
        """Yield the chunks that open the messages."""
        for index in range(len(self.streams)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def take(self, index: int, event: Delta | Prefill | None) -> Sequence[Payload]:
        """Take an event of a choice; return its chunks."""
        choice, stream = self._choices[index], self.streams[index]
        if isinstance(event, Prefill):
            if not self._asked.options.returns_progress:
                return ()
            return [self._chunk(index, {}) | {"prompt_progress": progress_fields(event, stream)}]
        if event is not None:
            return [self._note(index, *parts) for parts in choice.add(event)]
        chunks = [self._note(index, delta) for delta in choice.finish()]
        last = self._chunk(index, {}, choice.finish_reason(stream.reply.finish_reason))
        return [*chunks, last | {"timings": timings([stream.summary])}]

    def last(self) -> Iterable[Payload]:
        """Return the chunk with the usage, if it was asked for."""
        if not self._asked.options.includes_usage:
            return ()
        fields = {"choices": [], "usage": self._usage(), "timings": self._timings()}
        return [self._head("chat.completion.chunk") | fields]

    def whole(self) -> Payload:
        """Return the answer as one object."""
        choices = [
            {
                "index": index,
                "message": joined_message(self._deltas[index]),
                "logprobs": None if request.logprobs is None else {"content": self._logprobs[index], "refusal": None},
                "finish_reason": self._choices[index].finish_reason(self.streams[index].reply.finish_reason),
            }
            for index, request in enumerate(self._asked.requests)
        ]
        return self._head("chat.completion") | {"choices": choices, "usage": self._usage(), "timings": self._timings()}

    def _note(self, index: int, delta: Payload, logprobs: Payload | None = None) -> Payload:
        self._deltas[index].append(delta)
        if logprobs is not None:
            self._logprobs[index] += logprobs["content"]
        return self._chunk(index, delta, logprobs=logprobs)

    def _usage(self) -> Payload:
        return usage([stream.summary for stream in self.streams], len(self.streams))

    def _timings(self) -> Payload:
        return timings([stream.summary for stream in self.streams])

    def _head(self, kind: str) -> Payload:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _chunk(self, index: int, delta: Payload, reason: str | None = None, logprobs: Payload | None = None) -> Payload:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._head("chat.completion.chunk") | {"choices": [choice]}
