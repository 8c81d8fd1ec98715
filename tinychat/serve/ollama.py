"""``POST /api/chat`` and ``POST /api/generate``: answers in Ollama's form, with times in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from time import perf_counter
from typing import ClassVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tinychat.generate.reply import Delta
from tinychat.generate.run import Prefill
from tinychat.json_file import object_of
from tinychat.serve.answering import Answer, answer
from tinychat.serve.logprob_fields import token_list
from tinychat.serve.message_answer import MessageAnswer
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.ollama_body import OllamaBody
from tinychat.serve.server import Server
from tinychat.serve.wire import OLLAMA, Payload, Wire

Fields = Callable[[Payload], Payload]
"""Returns the fields of a line that have `content`, `thinking` and `tool_calls` of a message."""


def chat_fields(message: Payload) -> Payload:
    """Return the fields of a line of ``/api/chat``."""
    return {"message": {"role": "assistant", "content": "", **message}}


def text_fields(message: Payload) -> Payload:
    """Return the fields of a line of ``/api/generate``."""
    others = {key: value for key, value in message.items() if key != "content"}
    return {"response": message.get("content", ""), **others}


async def answer_ollama(
    read_body: Callable[[Payload, ServedModel], OllamaBody], fields: Fields, server: Server, http: HttpRequest
) -> Response:
    """Answer a request by lines with these fields, or as a whole if it asks for no stream.

    `TinychatError` if it cannot be answered.
    """
    server.metrics.requests_total += 1
    started = perf_counter()

    def read(body: Payload, served: ServedModel) -> Answer:
        loaded = perf_counter()
        asked, name = read_body(body, served), server.shown_name(served)
        keep(served, asked.keep_seconds)
        if asked.chat is None:
            return _Loaded({"model": name, **fields({}), **_ended(asked)})
        return OllamaAnswer(asked, served, name, fields, (started, loaded))

    return await answer(server, http, read)


def keep(served: ServedModel, seconds: float | None) -> None:
    """Keep a model for so long after its last request; None changes nothing."""
    if seconds is not None:
        served.idle_seconds = seconds


def _ended(asked: OllamaBody) -> Payload:
    return {"created_at": now(), "done": True, "done_reason": "unload" if asked.keep_seconds == 0 else "load"}


class OllamaAnswer(MessageAnswer):
    """One reply as lines of JSON, and as a whole.

    `asked` has a prompt, and `name` is the model's, in the answer. `times` are the seconds of `perf_counter` when the
    request came, and when the model was loaded.
    """

    wire: ClassVar[Wire] = OLLAMA

    def __init__(
        self, asked: OllamaBody, served: ServedModel, name: str, fields: Fields, times: tuple[float, float]
    ) -> None:
        assert asked.chat is not None
        super().__init__(asked.chat, served)
        self.is_streamed = asked.is_streamed
        self._body, self._name, self._fields, self._tokenizer = asked, name, fields, served.model.tokenizer
        self._started, self._loaded = times
        self._message: Payload = {}
        self._last: Payload = {}
        self._call: Payload | None = None
        self._logprobs: list[Payload] = []
        self._unsent = 0

    def take(self, index: int, event: Delta | Prefill | None) -> list[Payload]:
        """Take an event of the reply; return its lines."""
        if not isinstance(event, Delta):
            return super().take(index, event)
        self._logprobs += token_list(event.logprobs, self._tokenizer)
        if not self._body.is_raw:
            return super().take(index, event)
        return [*self.add_text(event.text)] if event.text else []

    def add_text(self, text: str, *, is_thought: bool = False) -> Iterator[Payload]:
        """Yield the lines of text or thoughts, and of the call before them."""
        name = "thinking" if is_thought else "content"
        yield from self._end_call()
        self._message[name] = self._message.get(name, "") + text
        yield self._line({name: text})

    def begin_call(self, call_id: str, name: str) -> Iterator[Payload]:
        """Yield the line of the call before this one: a call is sent when it is whole."""
        yield from self._end_call()
        self._call = {"id": call_id, "name": name, "text": ""}

    def add_arguments(self, text: str) -> tuple[Payload, ...]:
        """Take a part of a call's arguments; return no lines."""
        if self._call is not None:
            self._call["text"] += text
        return ()

    def finish(self, reason: str) -> Iterator[Payload]:
        """Take the finish reason; yield the last lines."""
        yield from self._end_call()
        self._last = {"done": True, "done_reason": "length" if reason == "length" else "stop", **self._counts()}
        if self._body.returns_context:
            reply = self.streams[0].reply
            self._last["context"] = [*reply.prompt.ids, *reply.token_ids]
        yield self._line({}) | self._last

    def whole(self) -> Payload:
        """Return the answer as one object."""
        self._unsent = 0
        return self._line(self._message) | self._last

    def _end_call(self) -> Iterator[Payload]:
        """Yield the line of the call that is open; one that was cut is none."""
        call, self._call = self._call, None
        arguments = None if call is None else object_of(call["text"] or "{}")
        if call is None or arguments is None:
            return
        function = {"index": len(self._message.get("tool_calls", ())), "name": call["name"], "arguments": arguments}
        calls = [{"id": call["id"], "function": function}]
        self._message["tool_calls"] = [*self._message.get("tool_calls", ()), *calls]
        yield self._line({"tool_calls": calls})

    def _line(self, message: Payload) -> Payload:
        line = {"model": self._name, "created_at": now(), **self._fields(message), "done": False}
        logprobs, self._unsent = self._logprobs[self._unsent :], len(self._logprobs)
        return line | {"logprobs": logprobs} if logprobs else line

    def _counts(self) -> Payload:
        summary = self.summary
        return {
            "total_duration": nanoseconds(perf_counter() - self._started),
            "load_duration": nanoseconds(self._loaded - self._started),
            "prompt_eval_count": summary.prompt_tokens,
            "prompt_eval_duration": nanoseconds(summary.prefill_seconds),
            "eval_count": summary.new_tokens,
            "eval_duration": nanoseconds(summary.decode_seconds),
        }


class _Loaded(Answer):
    """The answer to a request that only loads or unloads a model."""

    wire: ClassVar[Wire] = OLLAMA

    def __init__(self, payload: Payload) -> None:
        super().__init__((), is_streamed=False)
        self._payload = payload

    def take(self, index: int, event: Delta | Prefill | None) -> Iterable[Payload]:
        """Return nothing: there are no replies."""
        return ()

    def whole(self) -> Payload:
        """Return the answer as one object."""
        return self._payload


def now() -> str:
    """Return this moment in RFC 3339's form."""
    return rfc3339(datetime.now(UTC))


def rfc3339(moment: datetime) -> str:
    """Return a moment in RFC 3339's form, in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Return whole nanoseconds, at least one: clients divide by them."""
    return max(1, round(1e9 * seconds))
