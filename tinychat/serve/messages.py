"""Anthropic's ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar
from uuid import uuid4

from tinychat.json_file import object_of
from tinychat.serve.chat_body import read_chat
from tinychat.serve.message_answer import MessageAnswer
from tinychat.serve.messages_body import as_chat_body
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.wire import ANTHROPIC, Payload, Wire

_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}
# Clients send it back with the thoughts and refuse one that is empty; nothing here depends on it.
_SIGNATURE = "tinychat"


class MessagesAnswer(MessageAnswer):
    """A message of content blocks, as events and as a whole.

    `name` is the model's, in the answer. `TinychatError` if the body cannot be answered.
    """

    wire: ClassVar[Wire] = ANTHROPIC

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        super().__init__(read_chat(as_chat_body(body), served), served)
        self._stops = body.get("stop_sequences", ())
        self._head: Payload = {"id": f"msg_{uuid4().hex[:24]}", "type": "message", "role": "assistant", "model": name}
        self._blocks: list[Payload] = []
        self._is_open = False
        self._arguments = ""
        self._end: Payload = {"stop_reason": None, "stop_sequence": None}

    def first(self) -> Iterator[Payload]:
        """Yield the event that begins the message; which part of the prompt is cached is not known yet."""
        usage = _usage(len(self.asked.prompt.ids), 0, 0)
        yield {"type": "message_start", "message": self._head | {"content": [], **self._end, "usage": usage}}

    def add_text(self, text: str, *, is_thought: bool = False) -> Iterator[Payload]:
        """Yield the events of text or thoughts."""
        kind = "thinking" if is_thought else "text"
        if not self._is_open or self._blocks[-1]["type"] != kind:
            yield from self._begin({"type": kind, kind: ""} | ({"signature": ""} if is_thought else {}))
        self._blocks[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def begin_call(self, call_id: str, name: str) -> Iterator[Payload]:
        """Yield the events of a call's beginning."""
        yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def add_arguments(self, text: str) -> Iterator[Payload]:
        """Yield the event of a part of a call's arguments."""
        self._arguments += text
        yield self._delta({"type": "input_json_delta", "partial_json": text})

    def finish(self, reason: str) -> Iterator[Payload]:
        """Yield the events that end the message."""
        yield from self._close()
        self._end = self._ended(reason)
        yield {"type": "message_delta", "delta": self._end, "usage": self._usage()}
        yield {"type": "message_stop"}

    def whole(self) -> Payload:
        """Return the message."""
        return self._head | {"content": self._blocks, **self._end, "usage": self._usage()}

    def _begin(self, block: Payload) -> Iterator[Payload]:
        yield from self._close()
        self._blocks.append(block)
        self._is_open, self._arguments = True, ""
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[Payload]:
        """Yield the events that end the block that is open."""
        if not self._is_open:
            return
        self._is_open, block = False, self._blocks[-1]
        if block["type"] == "thinking":
            block["signature"] = _SIGNATURE
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        if block["type"] == "tool_use":
            # Those of a call that was cut are no JSON.
            block["input"] = object_of(self._arguments) or {}
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, delta: Payload) -> Payload:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _ended(self, reason: str) -> Payload:
        reply = self.streams[0].reply
        if reason == "stop" and reply.finish_reason == "stop_string" and reply.stop_string in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_string}
        if reply.finish_reason == "context":
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        return {"stop_reason": _STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}

    def _usage(self) -> Payload:
        return _usage(self.summary.prompt_tokens, self.summary.reused_tokens, self.summary.new_tokens)


def _usage(prompt: int, cached: int, new: int) -> Payload:
    """Return counts of tokens; those of the input that were cached are counted apart."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": new,
    }


def count_tokens(body: Payload, served: ServedModel) -> Payload:
    """Return the number of tokens of the prompt that a body makes."""
    return {"input_tokens": len(read_chat(as_chat_body({"max_tokens": 1, **body}), served).prompt.ids)}
