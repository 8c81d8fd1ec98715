"""A choice of a chat completion: what its deltas are for clients, streamed or joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tinychat.generate.reply import Delta, FinishReason
from tinychat.serve.logprob_fields import chat_logprobs
from tinychat.text.think_sections import ThinkSections
from tinychat.text.tokenizer import Tokenizer
from tinychat.tools.events import CallArguments, CallBegin, CallEvent
from tinychat.tools.formats.json_calls import HERMES

_FINISH_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length", "context": "length", "loop": "length"}


class ChatChoice:
    """Turns the deltas of a reply into those of ``chat.completion.chunk``; all of them joined are the message.

    Parameters
    ----------
    tokenizer : Tokenizer
        Spells the tokens whose log-probabilities were asked for.
    opens_thinking : bool
        Whether the reply begins inside a think section.
    call_id : callable, optional
        Gives the id of a call by its index; without it calls in the reply are text.
    """

    def __init__(self, tokenizer: Tokenizer, opens_thinking: bool, call_id: Callable[[int], str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._sections = ThinkSections(opens_thinking)
        self._call_id = call_id
        self._calls = None if call_id is None else HERMES.parser(())

    @property
    def call_is_whole(self) -> bool:
        """Whether the reply has at least one whole call."""
        return self._calls is not None and self._calls.ended > 0

    def add(self, delta: Delta) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Yield the fields of the message that a delta of the reply adds, each with log-probabilities or None."""
        fields = [
            one for section in self._sections.feed(delta.text) for one in self._of(section.text, section.thinking)
        ]
        yield from _with_logprobs(fields, chat_logprobs(delta.logprobs, self._tokenizer) if delta.logprobs else None)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield what was held back."""
        for section in self._sections.finish():
            yield from self._of(section.text, section.thinking)
        if self._calls is not None:
            yield from map(self._call_fields, self._calls.finish())

    def finish_reason(self, reason: FinishReason | None) -> str:
        """Return why the choice ended, in OpenAI's words."""
        if self.call_is_whole and reason in ("stop", "stop_string"):
            return "tool_calls"
        return _FINISH_REASONS.get(reason or "", "stop")

    def _of(self, text: str, is_thinking: bool) -> Iterator[dict[str, Any]]:
        if is_thinking:
            yield {"reasoning_content": text}
        elif self._calls is None:
            yield {"content": text}
        else:
            yield from map(self._call_fields, self._calls.feed(text))

    def _call_fields(self, event: CallEvent) -> dict[str, Any]:
        match event:
            case CallBegin(index, name):
                function = {"name": name, "arguments": ""}
                call_id = f"call_{index}" if self._call_id is None else self._call_id(index)
                return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        return {"content": event.text}


def _with_logprobs(
    fields: list[dict[str, Any]], logprobs: dict[str, Any] | None
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Give the log-probabilities of a delta to the first of its fields; a chunk of its own where it has none."""
    if logprobs is not None and not fields:
        fields = [{"content": ""}]
    for number, one in enumerate(fields):
        yield one, None if number else logprobs


def joined_message(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the deltas of a stream add up to."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    for fields in deltas:
        for key in ("content", "reasoning_content"):
            if key in fields:
                message[key] = (message.get(key) or "") + fields[key]
        for call in fields.get("tool_calls", ()):
            if "id" in call:
                calls.append({key: call[key] for key in ("id", "type", "function")})
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message
