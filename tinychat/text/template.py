"""Chat templates: a conversation to the text, and the ids, that a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from tinychat.errors import TextError
from tinychat.json_file import object_of, read_settings
from tinychat.limited_process import LimitedProcess, LimitError, LimitExceeded
from tinychat.text.guard import Guarded, guard, spelling_pattern
from tinychat.text.parts import as_written
from tinychat.text.think_sections import OPEN, split_thoughts
from tinychat.text.tokenizer import Tokenizer
from tinychat.text.tokenizer_settings import read_tokenizer_file, tokenizer_code

Message = Mapping[str, object]
"""One turn: "role" and "content", and "tool_calls", "tool_call_id", "reasoning" and others where it has them."""

_LONGEST_SOURCE = 256 * 1024
# Characters of a conversation, with all other variables.
_SHORT = 20_000
# In a message: below its calls, one of them, and its function.
_DEPTH_OF_ARGUMENTS = 3
_THINKING_SWITCHES = ("enable_thinking", "thinking")
# How hard a model is to think, and Muse Glimmer's name for it, with fewer words.
_EFFORT, _STRENGTH = "reasoning_effort", "reasoning_strength"
_STRENGTHS = {"none": "low", "minimal": "low", "max": "xhigh"}
# In Inkling's template, which takes a number; it knows words, too, but not all of these.
_LEVEL = "Thinking effort level"
_LEVELS = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.7, "high": 0.9, "xhigh": 0.99, "max": 0.99}
# Code of tokenizers that gives templates its tools with their keys in order.
_SORTING_TOOLS = ("tokenization_kimi",)
_QUESTION: list[Message] = [{"role": "user", "content": "?"}]

# Of all models of this process: it needs no state but the programs, which are part of each request.
_RENDERER = LimitedProcess("tinychat.text.sandbox")

_PLAIN_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content | trim }}

{% else %}
{{- 'User' if message.role == 'user' else 'Assistant' }}: {{ message.content | trim }}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}Assistant:{% endif %}
"""


class ChatTemplate:
    """A chat template, the Jinja program `source`, and the tokenizer that encodes the result.

    A helper process runs the program: see `tinychat.text.sandbox`. `origin` is its file, for error messages.

    `is_fallback` is True of the plain template for models that have none; a front end should say so. `stop_strings` are
    texts that end a reply, where no token does. A program that is too long, or does not compile in its time and memory,
    is a TextError. With `sorts_tools`, it gets tools with their keys in order.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, origin: str, is_fallback: bool = False, sorts_tools: bool = False
    ) -> None:
        self.is_fallback = is_fallback
        self._sorts_tools = sorts_tools
        self.stop_strings: tuple[str, ...] = ("\nUser:",) if is_fallback else ()
        self._tokenizer = tokenizer
        self._origin = origin
        if len(source) > _LONGEST_SOURCE:
            raise TextError(f"{origin}: chat template is longer than {_LONGEST_SOURCE // 1024} KiB")
        self.source, self._is_endless = source, False
        self._run(None, "does not compile")
        special = [text for text, number in tokenizer.added_tokens.items() if number in tokenizer.special_ids]
        written = [text for text in tokenizer.added_tokens if text in source and not text.isspace()]
        self._special_spellings = spelling_pattern(special)
        self._control_spellings = spelling_pattern({*special, *written})

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: object) -> str:
        """Write a conversation as the model expects it.

        Spellings of control tokens inside the messages come back between the marks of `tinychat.text.guard`, for
        `Tokenizer.encode_rendered`; `guard.unguard` removes them for display.

        `messages` are turns with "role" and "content", in OpenAI's form. The arguments of a tool call may be text: the
        template gets the object that the text is, if it is one and the template takes objects. It gets "developer" as
        "system" unless it knows that role, and "reasoning" as "reasoning_content". With `add_generation_prompt` the
        text ends with the beginning of the assistant's turn. `variables` are others of the template, such as
        ``enable_thinking=False`` or ``tools=[...]``. A template that fails, refuses the conversation, or exceeds its
        time or size is a TextError.
        """
        guarded = self._guarded_variables(variables)
        return self._write([self._guarded_turn(message) for message in messages], add_generation_prompt, **guarded)

    def render_ids(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: object
    ) -> list[int]:
        """Write a conversation as `render` does and encode it: the prompt for the model."""
        return self._tokenizer.encode_rendered(self.render(messages, add_generation_prompt, **variables))

    def render_ids_of_many(
        self, conversations: Sequence[Sequence[Message]], **variables: object
    ) -> list[list[int] | None]:
        """Write and encode many conversations as `render_ids` does, in less time; None for one that has an error."""
        guarded = self._guarded_variables(variables)
        given: list[dict[str, object] | None] = []
        for messages in conversations:
            try:
                turns = [self._guarded_turn(message) for message in messages]
                given.append(self._variables(turns, True, **guarded))
            except TextError:
                given.append(None)
        many = [variables for variables in given if variables is not None]
        found = iter(self._tokenizer.encode_many(self._texts_of(many)))
        return [None if variables is None else next(found) for variables in given]

    def _texts_of(self, many: list[dict[str, object]]) -> list[str | None]:
        """Run the program with each of these variables; None where it fails."""
        texts: object = None
        if many and not self._is_endless:
            with suppress(LimitError, ValueError):
                texts = _RENDERER.call({"source": self.source, "many": many})
        # The helper is trusted no more than the program.
        if isinstance(texts, list) and len(texts) == len(many):
            return [text if isinstance(text, str) else None for text in texts]
        return [None] * len(many)

    def guarded(self, text: str) -> Guarded:
        """Return a text of others as part of a message that spells control tokens of its own."""
        return Guarded(guard(text, self._control_spellings))

    def guarded_reply(self, text: str) -> Guarded:
        """Return the model's own words as part of such a message."""
        return Guarded(guard(text, self._special_spellings))

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of the tokenizer's added tokens by their texts."""
        return self._tokenizer.added_tokens

    @cached_property
    def thinking_switch(self) -> str | None:
        """The variable by which the template switches thinking on and off, None if it has none.

        Qwen3, SmolLM3, EXAONE 4 and GLM ask for ``enable_thinking``, Granite and DeepSeek for ``thinking``, Inkling for
        the effort.
        """
        for name in _THINKING_SWITCHES:
            try:
                if self.render(_QUESTION, **{name: True}) != self.render(_QUESTION, **{name: False}):
                    return name
            except TextError:
                continue
        return _EFFORT if _LEVEL in self.source else None

    @property
    def names_thoughts(self) -> bool:
        """Whether the template spells a token, or the tag, that begins thoughts."""
        marks = self._tokenizer.thought_marks
        return OPEN in self.source or (marks is not None and any(token in self.source for token in marks.tokens))

    def thinking_variables(self, thinking: bool | None) -> dict[str, object]:
        """Return the variables for a reply with or without thinking; none for None, the template's own way."""
        switch = None if thinking is None else self.thinking_switch
        if switch is None or thinking is None:
            return {}
        return {switch: ("high" if thinking else "none") if switch == _EFFORT else thinking}

    @cached_property
    def opens_thinking(self) -> bool:
        """Whether a reply begins inside a think section: the template ends with its first tag."""
        return self.opens_thinking_with()

    def opens_thinking_with(self, **variables: object) -> bool:
        """Whether a reply to a prompt that is rendered with `variables` begins inside a think section."""
        marks = self._tokenizer.thought_marks
        try:
            text = self.render(_QUESTION, True, **variables).rstrip()
        except TextError:
            return False
        return text.endswith((OPEN,) if marks is None else (OPEN, *marks.openings))

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template writes contents in parts alone, as that of SmolVLM, which loses other texts."""
        if "type" not in self.source:
            return False
        probe = "content probe"
        try:
            if probe in self._write([{"role": "user", "content": probe}], False):
                return False
            return probe in self._write([{"role": "user", "content": [{"type": "text", "text": probe}]}], False)
        except TextError:
            return False

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the arguments of a tool call may be an object; some templates join them to text, or print them."""
        text, found = self._written_call('{"a": "b"}'), self._written_call({"a": "b"})
        return text is None or (found is not None and "{'a'" not in found)

    def _written_call(self, arguments: object) -> str | None:
        # Mistral's templates ask for an id of nine letters.
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": "", "tool_call_id": "call00000", "name": "f"}
        try:
            return self._write([*_QUESTION, reply, result], False)
        except TextError:
            return None

    def _turn(self, message: Message) -> dict[str, Any]:
        """Return a message as templates want it."""
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TextError("a chat message must be a mapping with a role and a content")
        turn: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
        if turn["role"] == "developer" and "developer" not in self.source:
            turn["role"] = "system"
        if "reasoning" in turn:
            turn.setdefault("reasoning_content", turn.pop("reasoning"))
        if turn["role"] == "assistant":
            turn |= self._own_thoughts(turn)
        if isinstance(turn.get("tool_calls"), list | tuple) and self._takes_objects:
            turn["tool_calls"] = [self._with_object(call) for call in turn["tool_calls"]]
        return turn

    def _with_object(self, call: Any) -> Any:
        """Return a call whose arguments are an object, if their text is one."""
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
            return call
        try:
            arguments = guard(object_of(function["arguments"]), self._control_spellings, _DEPTH_OF_ARGUMENTS)
        except TextError:
            return call
        return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}

    def _own_thoughts(self, turn: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a reply whose thoughts the template takes apart from its text."""
        content, fields = turn.get("content"), {}
        if self._tokenizer.thought_marks is not None and isinstance(content, str):
            own, answer = split_thoughts(content)
            fields = {"content": answer} | ({"reasoning_content": own} if own else {})
        thoughts = fields.get("reasoning_content", turn.get("reasoning_content"))
        # gpt-oss's template refuses them beside a text before calls.
        if thoughts and ".thinking" in self.source and not (turn.get("tool_calls") and fields.get("content", content)):
            fields["thinking"] = thoughts
        return fields

    def _guarded_turn(self, message: Message) -> dict[str, object]:
        turn = self._turn(message)
        content = turn.get("content")
        if isinstance(content, list):
            turn["content"] = as_written(content)
        elif isinstance(content, str) and self._takes_parts:
            turn["content"] = [{"type": "text", "text": content}]
        # The model's own words may hold tokens like <think>, which it did write as such; its calls are others' words.
        own = ("content", "reasoning_content", "thinking") if turn["role"] == "assistant" else ()
        return {
            key: guard(value, self._special_spellings if key in own else self._control_spellings)
            for key, value in turn.items()
        }

    def _guarded_variables(self, variables: Mapping[str, object]) -> dict[str, object]:
        effort = variables.get(_EFFORT)
        if isinstance(effort, str) and _STRENGTH in self.source:
            variables = {_STRENGTH: _STRENGTHS.get(effort, effort), **variables}
        if isinstance(effort, str) and _LEVEL in self.source:
            variables = {**variables, _EFFORT: _LEVELS.get(effort, effort)}
        guarded = {name: guard(value, self._control_spellings) for name, value in variables.items()}
        if self._sorts_tools and "tools" in guarded:
            guarded["tools"] = json.loads(json.dumps(guarded["tools"], sort_keys=True))
        return guarded

    def _write(self, turns: Sequence[Message], add_generation_prompt: bool, **variables: object) -> str:
        return self._run(self._variables(turns, add_generation_prompt, **variables), "cannot write this conversation")

    def _variables(
        self, turns: Sequence[Message], add_generation_prompt: bool, **variables: object
    ) -> dict[str, object]:
        return {
            **self._tokenizer.special_tokens,
            "tools": None,
            "documents": None,
            **variables,
            "messages": turns,
            "add_generation_prompt": add_generation_prompt,
        }

    def _run(self, variables: dict[str, object] | None, failure: str) -> str:
        if self._is_endless:
            raise TextError(f"{self._origin}: chat template {failure}: it takes too long even for a short one")
        try:
            text = _RENDERER.call({"source": self.source, "variables": variables})
        except (LimitError, ValueError) as error:
            # No other conversation is tried with it: each would take as long.
            self._is_endless = isinstance(error, LimitExceeded) and len(str(variables)) < _SHORT
            raise TextError(f"{self._origin}: chat template {failure}: {error}") from None
        # The helper is trusted no more than the program.
        if not isinstance(text, str):
            raise TextError(f"{self._origin}: chat template {failure}: it gives no text")
        return text


def start_renderer() -> None:
    """Begin to start the helper process that runs templates, so that it is ready when the weights are."""
    _RENDERER.start()


def load_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """Load the chat template of a folder, or the plain one if it has none.

    That is ``chat_template.jinja``, or "chat_template" in ``tokenizer_config.json`` or ``chat_template.json``.
    """
    settings = folder / "tokenizer_config.json"
    sorts_tools = tokenizer_code(read_settings(settings)).partition(".")[0] in _SORTING_TOOLS
    path = folder / "chat_template.jinja"
    if path.is_file():
        return ChatTemplate(_read_source(path), tokenizer, str(path), sorts_tools=sorts_tools)
    for path in (settings, folder / "chat_template.json"):
        source = _default_template(read_settings(path).get("chat_template"), path)
        if source is not None:
            return ChatTemplate(source, tokenizer, str(path), sorts_tools=sorts_tools)
    return plain_template(tokenizer)


def plain_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template for models that have none."""
    begin = "{{ bos_token }}" if tokenizer.adds_bos else ""
    return ChatTemplate(begin + _PLAIN_TEMPLATE, tokenizer, "plain template", is_fallback=True)


def _read_source(path: Path) -> str:
    try:
        return read_tokenizer_file(path, 4 * _LONGEST_SOURCE).decode("utf-8")
    except ValueError:
        raise TextError(f"{path}: cannot be read as text; fetch the file again") from None


def _default_template(entry: object, path: Path) -> str | None:
    """Pick the template named "default" where there are several, each with a name."""
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        named = [item for item in entry if isinstance(item, dict) and isinstance(item.get("name"), str)]
        entry = {item["name"]: item.get("template") for item in named}
    source = entry.get("default") if isinstance(entry, dict) else None
    if not isinstance(source, str):
        raise TextError(f'{path}: "chat_template" is not text and has none named "default"')
    return source
