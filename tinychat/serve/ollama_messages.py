"""Messages in Ollama's form as those of chat completions: arguments that are objects, results without ids."""

from __future__ import annotations

from typing import Any

from tinychat.errors import FieldError

Message = dict[str, Any]


def read_ollama_messages(value: object) -> list[object]:
    """Return messages in OpenAI's form; what is wrong in itself is left to `read_chat`.

    A result without the ``tool_call_id`` of a call answers the first open call of its ``tool_name``, else the first
    open one. Clients cut their histories anywhere: a result whose call is gone is left out, and a call without a result
    gets an empty one. Images stay as they are.
    """
    if not isinstance(value, list):
        raise FieldError("messages", "must be a list of messages")
    found: list[object] = []
    open_calls: list[Message] = []
    for index, message in enumerate(value):
        field = f"messages[{index}]"
        if not isinstance(message, dict):
            raise FieldError(field, 'must be an object: {"role": "...", "content": "..."}')
        translated = _translated(message, field)
        if translated.get("role") == "tool":
            if _answer(translated, open_calls):
                found.append(translated)
            continue
        if translated.get("role") in ("user", "assistant"):
            found += [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in open_calls]
            open_calls = []
        if isinstance(calls := translated.get("tool_calls"), list):
            translated["tool_calls"] = [_call(call, f"call_{index}_{number}") for number, call in enumerate(calls)]
            open_calls = [call for call in translated["tool_calls"] if isinstance(call, dict)]
        found.append(translated)
    return found


def _translated(message: Message, field: str) -> Message:
    """Return a message with our names of its fields."""
    fields = {"content": "", **{key: item for key, item in message.items() if item is not None}}
    for theirs, ours in (("thinking", "reasoning_content"), ("tool_name", "name")):
        # Clients send back the empty ones of answers, too.
        value = fields.pop(theirs, "")
        if not isinstance(value, str):
            raise FieldError(f"{field}.{theirs}", "must be a text")
        if value:
            fields[ours] = value
    for name in ("tool_calls", "images"):
        if fields.get(name) == []:
            del fields[name]
    return fields


def _call(call: object, number: str) -> object:
    """Return a call that has an id."""
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    if isinstance(function, dict):
        function = {key: item for key, item in function.items() if key != "index"}
    return {**call, "id": call.get("id") or number, "function": function}


def _answer(message: Message, open_calls: list[Message]) -> bool:
    """Give a result the id of its call, which is open no more; return whether there is such a call."""
    number = message.get("tool_call_id")
    named = [call for call in open_calls if _name(call) == message.get("name")] or open_calls
    found = [call for call in open_calls if call["id"] == number] or named[:1]
    if found:
        message["tool_call_id"] = found[0]["id"]
        open_calls.remove(found[0])
    return bool(found)


def _name(call: Message) -> object:
    function = call.get("function")
    return function.get("name") if isinstance(function, dict) else None
