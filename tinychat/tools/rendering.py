"""Conversations with tools, as chat templates take them: also those that know no tools, or write no calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tinychat.errors import TextError
from tinychat.json_file import object_of
from tinychat.text.guard import Guarded, spelling_pattern
from tinychat.text.parts import refuse_images
from tinychat.text.template import ChatTemplate, Message
from tinychat.text.tokenizer import Tokenizer
from tinychat.tools.definitions import ToolCall
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.of_template import TaughtFormat, taught_format

_PROMPT = """\
You may call functions to answer. These are the functions, each with the JSON schema of its arguments:

<tools>
{tools}
</tools>

To call a function, write its name and its arguments exactly in this form:

{call}

Its result comes in the next message. Answer without a call where no function is needed."""
_RESULT = "<tool_response>\n{}\n</tool_response>"
_EXAMPLE = ToolCall("call00000", "NAME", '{"ARGUMENT": "VALUE"}')


class ToolTemplate:
    """A chat template that renders tools, calls and results, whatever it knows of them itself.

    A template that knows no tools gets a system prompt of ours, and results in the manner of Hermes. One that writes no
    calls gets them in the content, as its model has written them. Unless the model `sees_images`, messages with images
    are a FieldError.
    """

    def __init__(self, template: ChatTemplate, sees_images: bool = False) -> None:
        self._template = template
        self._sees_images = sees_images

    @cached_property
    def taught(self) -> TaughtFormat:
        """The template's knowledge of tools."""
        return taught_format(self._template)

    @property
    def form(self) -> CallFormat:
        """The format in which the model writes calls."""
        return self.taught.form

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: object) -> str:
        """Write a conversation as `ChatTemplate.render` does; `variables` may have ``tools``, in OpenAI's form."""
        messages, given = self._prepared(messages, variables)
        return self._template.render(messages, add_generation_prompt, **given)

    def render_ids(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: object
    ) -> list[int]:
        """Write a conversation as `render` does and encode it: the prompt for the model."""
        messages, given = self._prepared(messages, variables)
        return self._template.render_ids(messages, add_generation_prompt, **given)

    def render_ids_of_many(
        self, conversations: Sequence[Sequence[Message]], **variables: object
    ) -> list[list[int] | None]:
        """Write and encode many conversations without tools: see `ChatTemplate.render_ids_of_many`.

        None, too, for one with calls, results or images.
        """
        plain = [not any(map(_is_special, messages)) for messages in conversations]
        together = [messages for messages, is_plain in zip(conversations, plain) if is_plain]
        found = iter(self._template.render_ids_of_many(together, **variables))
        return [next(found) if is_plain else None for is_plain in plain]

    def marker_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the control tokens by which the model writes calls: text for whoever reads these."""
        control = [text for text, number in tokenizer.added_tokens.items() if number in tokenizer.special_ids]
        found = spelling_pattern(control).findall(self.form.markers)
        return frozenset(tokenizer.added_tokens[text] for text in found)

    def _prepared(
        self, messages: Sequence[Message], variables: Mapping[str, object]
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Return messages and variables for the template itself."""
        if not self._sees_images:
            refuse_images(messages)
        given = {name: value for name, value in variables.items() if value or name != "tools"}
        if "tools" not in given and not any(_is_of_tools(message) for message in messages):
            return messages, given
        messages = _with_ids(messages, self.form)
        tools = given.pop("tools", None)
        if self.taught.variable is not None:
            given |= _given_tools(self.taught.variable, tools)
        elif isinstance(tools, Iterable):
            messages = self._told_of([*tools], messages)
        if not self.taught.writes_calls:
            messages = [self._with_spelled_calls(message) for message in messages]
        return messages if self.taught.variable or self.taught.writes_calls else _results_as_questions(messages), given

    def _told_of(self, tools: Sequence[object], messages: Sequence[Message]) -> list[Message]:
        """Return messages that begin with a description of the tools."""
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        before, _, behind = _PROMPT.replace("{call}", self.form.spell(_EXAMPLE)).partition("{tools}")
        prompt = Guarded(before + self._template.guarded(listed) + behind)
        first: Mapping[str, Any] = messages[0] if messages else {}
        role = "system" if self._takes_system else "user"
        if first.get("role") not in (role, "developer" if role == "system" else role):
            return [{"role": role, "content": prompt}, *messages]
        if isinstance(first["content"], list):
            return [{**first, "content": _joined(Guarded(f"{prompt}\n\n"), first["content"])}, *messages[1:]]
        both = [self._template.guarded(str(first["content"])), prompt]
        content = Guarded("\n\n".join(both if role == "system" else both[::-1]))
        return [{**first, "content": content}, *messages[1:]]

    @cached_property
    def _takes_system(self) -> bool:
        try:
            text = self._template.render(
                [{"role": "system", "content": "system probe"}, {"role": "user", "content": "?"}]
            )
        except TextError:
            return False
        return "system probe" in text

    def _with_spelled_calls(self, message: Message) -> Message:
        """Return a message whose calls are part of its content."""
        calls = message.get("tool_calls")
        if not isinstance(calls, Sequence) or not calls:
            return message
        guarded = self._template.guarded
        spelled = self.form.spell(*[_guarded_call(call, guarded) for call in calls])
        content = message.get("content") or ""
        text = f"{self._template.guarded_reply(str(content))}\n" if content else ""
        others = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**others, "content": Guarded(text + spelled)}


def _given_tools(variable: str, tools: object) -> dict[str, object]:
    """Return the tools as a template takes them; by a name of its own it takes the functions alone."""
    if variable == "tools" or not isinstance(tools, Sequence):
        return {variable: tools} if tools else {}
    return {variable: [tool.get("function", tool) if isinstance(tool, Mapping) else tool for tool in tools]}


def _with_ids(messages: Sequence[Message], form: CallFormat) -> list[Message]:
    """Return messages whose calls have ids that the template accepts: they may be those of another model."""
    ids: dict[object, str] = {}
    found: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and not isinstance(calls, str):
            calls = [_with_id(call, form, ids) for call in calls]
            found.append({**message, "tool_calls": calls})
        elif message.get("role") == "tool":
            number = message.get("tool_call_id")
            found.append({**message, "tool_call_id": ids.get(number, number)})
        else:
            found.append(message)
    return found


def _with_id(call: Any, form: CallFormat, ids: dict[object, str]) -> Any:
    """Return a call with an id that fits, and add what becomes of its own."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    number, name = call.get("id"), str(call["function"].get("name", ""))
    ids[number] = str(number) if form.takes_id(str(number)) else form.call_id(len(ids), name, str(number))
    return {**call, "id": ids[number]}


def _is_of_tools(message: Message) -> bool:
    return bool(message.get("tool_calls")) or message.get("role") == "tool"


def _is_special(message: Message) -> bool:
    return _is_of_tools(message) or isinstance(message.get("content"), list)


def _joined(text: str, content: object) -> object:
    """Return a content, which may be in parts, behind a text."""
    return [{"type": "text", "text": text}, *content] if isinstance(content, list) else f"{text}{content or ''}"


def _guarded_call(call: Any, guarded: Any) -> ToolCall:
    """Return a call without control tokens in its name or arguments; no object stays what it is, in one argument."""
    function = call.get("function", {}) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    spelled = json.dumps({"": text}, ensure_ascii=False) if object_of(text) is None else text
    return ToolCall(str(call.get("id", "")), guarded(str(function.get("name", ""))), guarded(spelled))


def _results_as_questions(messages: Sequence[Message]) -> list[Message]:
    """Return messages without the role of tools: results are a message of the user, with what that asks next."""
    found: list[Message] = []
    is_result = False
    for message in messages:
        was_result, is_result = is_result, message.get("role") == "tool"
        turn = {"role": "user", "content": _RESULT.format(message.get("content") or "")} if is_result else message
        if was_result and turn.get("role") == "user":
            turn = {**turn, "content": _joined(f"{found.pop()['content']}\n", turn.get("content"))}
        found.append(turn)
    return found
