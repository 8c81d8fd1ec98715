"""``POST /v1/chat/completions``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import time
from typing import Any, NamedTuple
from uuid import uuid4

from tinychat.conversation.openai import read_messages, schema_of
from tinychat.errors import FieldError
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta
from tinychat.generate.request import Request
from tinychat.generate.run import Prefill
from tinychat.generate.stream import Stream
from tinychat.serve import body_fields
from tinychat.serve.answering import Answer, Payload
from tinychat.serve.chat_choice import ChatChoice, ChoiceCalls, joined_message
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.timings import timings
from tinychat.tools.definitions import ToolChoice, tool_choice
from tinychat.tools.formats.call_format import CallFormat

_EFFORTS = {"none": False, "minimal": False, "low": True, "medium": True, "high": True, "xhigh": True}


class ChatBody(NamedTuple):
    """The request of a body; there is a request for each choice."""

    prompt: Prompt
    requests: list[Request]
    tools: ToolChoice
    options: body_fields.StreamOptions


def read_chat(body: Payload, served: ServedModel) -> ChatBody:
    """Return the request of a body to a model.

    Raises
    ------
    FieldError
        Naming the field that is wrong.
    """
    fields, model = dict(body), served.model
    messages = read_messages(fields.pop("messages", None))
    options = body_fields.take_stream_options(fields)
    choices = body_fields.take_choices(fields)
    tools = tool_choice(*(fields.pop(name, None) for name in ("tools", "tool_choice", "parallel_tool_calls")))
    logprobs = body_fields.take_logprobs(fields)
    form = model.tool_template.form if tools.tools else None
    grammar = body_fields.take_grammar(fields, schema_of(fields.pop("response_format", None)), model, tools)
    variables = body_fields.take_template_variables(fields)
    thinking = _take_effort(fields, variables)
    request = replace(body_fields.take_request(fields, served.defaults), logprobs=logprobs)
    if thinking is False:
        request = replace(request, think_budget=0)
    if tools.tools:
        variables["tools"] = [tool.as_dict() for tool in tools.tools]
        if form is not None and form.end and not tools.is_parallel:
            request = replace(request, stop=(*request.stop, form.end))
    request = body_fields.constrained(request, grammar, model)
    variables = {**model.template.thinking_variables(thinking), **variables}
    prompt = Prompt(
        model.render_ids(messages, **variables),
        joins_reply=False,
        stop=model.template.stop_strings,
        opens_thinking=model.template.opens_thinking_with(**variables),
        shown=model.call_markers if tools.tools else frozenset(),
    )
    return ChatBody(prompt, body_fields.choice_requests(request, choices), tools, options)


def _take_effort(fields: Payload, variables: Payload) -> bool | None:
    """Take out ``reasoning_effort``, for the template too; return whether the model is to think."""
    effort = fields.pop("reasoning_effort", None)
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise FieldError("reasoning_effort", f"must be one of {', '.join(_EFFORTS)}")
    variables.setdefault("reasoning_effort", effort)
    return _EFFORTS[effort]


class ChatAnswer(Answer):
    """The choices of a chat completion, as chunks and as a whole.

    Parameters
    ----------
    body : dict
    served : ServedModel
    name : str
        The model's, in the answer.

    Raises
    ------
    TinychatError
        If the body cannot be answered.
    """

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        asked, model = read_chat(body, served), served.model
        super().__init__([model.reply(asked.prompt, one) for one in asked.requests], asked.options.is_streamed)
        self._asked, self._name = asked, name
        self._id, self._created = f"chatcmpl-{uuid4().hex[:24]}", int(time())
        calls = [_calls(model.tool_template.form, asked, one) for one in asked.requests]
        self._choices = [ChatChoice(model.tokenizer, asked.prompt.opens_thinking, one) for one in calls]
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
        return body_fields.usage([stream.summary for stream in self.streams], len(self.streams))

    def _timings(self) -> Payload:
        return timings([stream.summary for stream in self.streams])

    def _head(self, kind: str) -> Payload:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _chunk(self, index: int, delta: Payload, reason: str | None = None, logprobs: Payload | None = None) -> Payload:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._head("chat.completion.chunk") | {"choices": [choice]}


def _calls(form: CallFormat, asked: ChatBody, request: Request) -> ChoiceCalls | None:
    """Return how the calls of a choice are found; their ids follow from the request: the same one has the same ids."""
    if not asked.tools.tools:
        return None
    values = json.dumps([list(asked.prompt.ids), request.values()], sort_keys=True, default=str)
    digest = hashlib.sha256(values.encode()).hexdigest()[:20]
    return ChoiceCalls(form, asked.tools, digest)


def progress_fields(prefill: Prefill, stream: Stream) -> dict[str, Any]:
    """Return how far a prompt is read, in llama-server's form, and an estimate of the seconds that are left."""
    seconds, left = stream.prefill_seconds, prefill.total - prefill.done
    return {
        "total": prefill.cached + prefill.total,
        "cache": prefill.cached,
        "processed": prefill.cached + prefill.done,
        "time_ms": round(1000 * seconds, 3),
        "seconds_left": seconds / prefill.done * left if prefill.done else None,
    }
