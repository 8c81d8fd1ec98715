"""OpenAI's ``POST /v1/responses``: a reply as items, and the events of each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from time import time
from typing import ClassVar
from uuid import uuid4

from tinychat.errors import FieldError
from tinychat.generate.reply import Delta
from tinychat.generate.run import Prefill
from tinychat.serve.api_error import ApiError
from tinychat.serve.chat_body import ChatBody, read_chat
from tinychat.serve.message_answer import MessageAnswer
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.response_store import ResponseStore, StoredResponse, as_listed
from tinychat.serve.responses_body import as_chat_body, input_items, own_error
from tinychat.serve.wire import RESPONSES, Payload, Wire

# Tokens that the reply may have at least where the conversation is cut to make room.
_ROOM = 512
# Fields of the body that the response repeats, and those that stand for what is not given.
_REPEATED: Payload = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}


def read_response(body: Payload, served: ServedModel, store: ResponseStore) -> tuple[ChatBody, StoredResponse]:
    """Return the request of a body, and the items that it answers, without a response yet.

    `ApiError` if ``previous_response_id`` names no stored response; `TinychatError` if the body cannot be answered.
    """
    given, earlier = store.resolved(input_items(body)), store.before(body.get("previous_response_id"))
    truncation = body.get("truncation", "disabled")
    if truncation not in ("auto", "disabled"):
        raise FieldError("truncation", 'must be "auto" or "disabled"')
    chat = as_chat_body(body, [*earlier, *given], len(earlier))
    try:
        asked = read_chat(chat, served)
    except FieldError as error:
        raise own_error(error) from None
    if truncation == "auto":
        asked = _fitted(asked, chat, served)
    return asked, StoredResponse(earlier, as_listed(given), {})


def _fitted(asked: ChatBody, chat: Payload, served: ServedModel) -> ChatBody:
    """Leave out as many of the oldest exchanges as it takes for the prompt to fit, with room for a reply."""
    context, messages = served.model.context_size, chat["messages"]
    most = context - min(_ROOM, context // 4)
    begins = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if len(asked.prompt.ids) <= most or len(begins) < 2:
        return asked

    def without(exchanges: int) -> ChatBody:
        left = [*messages[: begins[0]], *messages[begins[exchanges] :]]
        return read_chat(chat | {"messages": left}, served)

    # By halves: each trial renders all that is left.
    found = bisect_left(range(len(begins) - 1), True, lo=1, key=lambda count: len(without(count).prompt.ids) <= most)
    return without(found)


class ResponsesAnswer(MessageAnswer):
    """A response, as events and as a whole.

    `name` is the model's, in the answer. Errors are those of `read_response`.
    """

    wire: ClassVar[Wire] = RESPONSES

    def __init__(self, store: ResponseStore, body: Payload, served: ServedModel, name: str) -> None:
        asked, self._conversation = read_response(body, served, store)
        super().__init__(asked, served)
        self._store = store if body.get("store", True) else None
        request = asked.requests[0]
        self._response: Payload = {
            "id": _id("resp"),
            "object": "response",
            "created_at": int(time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": name,
            "output": [],
            **{field: body.get(field, usual) for field, usual in _REPEATED.items()},
            "temperature": request.temperature,
            "top_p": request.top_p,
            "usage": None,
        }
        self._events = 0
        self._is_open = False
        self._thought_tokens = 0

    def first(self) -> Iterator[Payload]:
        """Yield the events that begin the response."""
        yield self._event("response.created", response=dict(self._response))
        yield self._event("response.in_progress", response=dict(self._response))

    def take(self, index: int, event: Delta | Prefill | None) -> list[Payload]:
        """Take an event of the reply; return what is sent of it."""
        sent = super().take(index, event)
        if isinstance(event, Delta) and self._is_open and self._item["type"] == "reasoning":
            self._thought_tokens += len(event.ids)
        return sent

    def add_text(self, text: str, *, is_thought: bool = False) -> Iterator[Payload]:
        """Yield the events of text or thoughts."""
        kind = "reasoning" if is_thought else "message"
        if not self._is_open or self._item["type"] != kind:
            yield from self._begin_text(kind)
        part = self._item["content"][0]
        part["text"] += text
        yield self._of_part(f"response.{part['type']}.delta", delta=text, **_logprobs(kind))

    def begin_call(self, call_id: str, name: str) -> Iterator[Payload]:
        """Yield the event of a call's beginning."""
        names = {"call_id": call_id, "name": name, "arguments": ""}
        yield from self._begin({"id": _id("fc"), "type": "function_call", **names})

    def add_arguments(self, text: str) -> Iterator[Payload]:
        """Yield the event of a part of a call's arguments."""
        self._item["arguments"] += text
        yield self._of_item("response.function_call_arguments.delta", delta=text)

    def finish(self, reason: str) -> Iterator[Payload]:
        """Yield the events that end the response."""
        status = "incomplete" if reason == "length" else "completed"
        yield from self._close(status)
        counted = self.summary
        self._response |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if reason == "length" else None,
            "usage": {
                "input_tokens": counted.prompt_tokens,
                "input_tokens_details": {"cached_tokens": counted.reused_tokens, "cache_write_tokens": 0},
                "output_tokens": counted.new_tokens,
                "output_tokens_details": {"reasoning_tokens": self._thought_tokens},
                "total_tokens": counted.prompt_tokens + counted.new_tokens,
            },
        }
        if self._store is not None:
            self._conversation.response = self._response
            self._store.add(self._conversation)
        yield self._event(f"response.{status}", response=self._response)

    def failed(self, error: ApiError) -> Iterator[Payload]:
        """Yield the event of a response that could not be ended."""
        code = {"code": "server_error", "message": str(error)}
        yield self._event("response.failed", response=self._response | {"status": "failed", "error": code})

    def whole(self) -> Payload:
        """Return the response."""
        return self._response

    @property
    def _item(self) -> Payload:
        item: Payload = self._response["output"][-1]
        return item

    def _event(self, kind: str, **fields: object) -> Payload:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **fields}

    def _of_item(self, kind: str, **fields: object) -> Payload:
        position = {"item_id": self._item["id"], "output_index": len(self._response["output"]) - 1}
        return self._event(kind, **position, **fields)

    def _of_part(self, kind: str, **fields: object) -> Payload:
        """Return an event of the one part that a text has."""
        return self._of_item(kind, content_index=0, **fields)

    def _begin_text(self, kind: str) -> Iterator[Payload]:
        """Yield the events of the beginning of a message, or of thoughts."""
        if kind == "message":
            yield from self._begin({"id": _id("msg"), "type": kind, "role": "assistant", "content": []})
        else:
            yield from self._begin({"id": _id("rs"), "type": kind, "summary": [], "content": []})
        part = _part(kind)
        self._item["content"].append(part)
        yield self._of_part("response.content_part.added", part=dict(part))

    def _begin(self, item: Payload) -> Iterator[Payload]:
        yield from self._close("completed")
        item["status"] = "in_progress"
        self._response["output"].append(item)
        self._is_open = True
        shown = {name: [*value] if isinstance(value, list) else value for name, value in item.items()}
        yield self._event("response.output_item.added", output_index=len(self._response["output"]) - 1, item=shown)

    def _close(self, status: str) -> Iterator[Payload]:
        """Yield the events that end the item that is open."""
        if not self._is_open:
            return
        self._is_open, item = False, self._item
        item["status"] = status
        if item["type"] == "function_call":
            names = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **names)
        else:
            part = item["content"][0]
            yield self._of_part(f"response.{part['type']}.done", text=part["text"], **_logprobs(item["type"]))
            yield self._of_part("response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=len(self._response["output"]) - 1, item=item)


def _part(kind: str) -> Payload:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _logprobs(kind: str) -> Payload:
    """Return the field that events of a message have, and those of thoughts have not."""
    return {"logprobs": []} if kind == "message" else {}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"
