"""A choice of a chat completion: what its deltas are for clients, streamed or joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tinychat.generate.reply import Delta, FinishReason
from tinychat.serve.logprob_fields import chat_logprobs
from tinychat.text.think_sections import ThinkSections
from tinychat.text.tokenizer import Tokenizer
from tinychat.tools.definitions import ToolChoice
from tinychat.tools.events import CallArguments, CallBegin, CallEvent, CallThought
from tinychat.tools.formats.call_format import CallFormat


def openai_reason(reason: FinishReason | None) -> str:
    """Return why a reply without calls ended, in OpenAI's words."""
    return "length" if reason in ("length", "context", "loop") else "stop"


class ChoiceCalls:
    """Turns the calls of a reply into fields of its message; without parallel calls only the first counts.

    `salt` tells the ids of its calls from those of other replies.
    """

    def __init__(self, form: CallFormat, choice: ToolChoice, salt: str) -> None:
        self._form, self._salt = form, salt
        self._takes_one = not choice.is_parallel
        self._parser = form.parser(choice.tools)

    @property
    def ended(self) -> int:
        """Calls whose arguments are whole."""
        return self._parser.ended

    def feed(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield the fields that are certain after the next text."""
        yield from self._fields_of(self._parser.feed(text))

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield what was held back."""
        yield from self._fields_of(self._parser.finish())

    def _fields_of(self, events: Iterable[CallEvent]) -> Iterator[dict[str, Any]]:
        for event in events:
            match event:
                case CallBegin(number) | CallArguments(number) if self._takes_one and number > 0:
                    continue
                case CallBegin(number, name):
                    call_id = self._form.call_id(number, name, self._salt)
                    function = {"name": name, "arguments": ""}
                    call = {"index": number, "id": call_id, "type": "function", "function": function}
                    yield {"tool_calls": [call]}
                case CallArguments(number, text):
                    yield {"tool_calls": [{"index": number, "function": {"arguments": text}}]}
                case CallThought(text):
                    yield {"reasoning_content": text}
                case _:
                    yield {"content": event.text}


class ChatChoice:
    """Turns the deltas of a reply into those of ``chat.completion.chunk``; all of them joined are the message.

    The tokenizer spells the tokens whose log-probabilities were asked for. With `opens_thinking` the reply begins
    inside a think section; without `calls`, calls in it are text.
    """

    def __init__(self, tokenizer: Tokenizer, opens_thinking: bool, calls: ChoiceCalls | None = None) -> None:
        self._tokenizer = tokenizer
        self._sections = ThinkSections(opens_thinking)
        self._calls = calls

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
            yield from self._calls.finish()

    def finish_reason(self, reason: FinishReason | None) -> str:
        """Return why the choice ended, in OpenAI's words."""
        if self.call_is_whole and reason in ("stop", "stop_string"):
            return "tool_calls"
        return openai_reason(reason)

    def _of(self, text: str, is_thinking: bool) -> Iterator[dict[str, Any]]:
        if is_thinking:
            yield {"reasoning_content": text}
        elif self._calls is None:
            yield {"content": text}
        else:
            yield from self._calls.feed(text)


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
