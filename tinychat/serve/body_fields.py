"""Fields of bodies: those of settings become a `Request`, the rest are checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from tinychat.conversation.openai import NAMES
from tinychat.errors import FieldError
from tinychat.generate.grammar import Grammar
from tinychat.generate.model import Model
from tinychat.generate.request import Request
from tinychat.settings import SEEDS
from tinychat.tools.definitions import ToolChoice

_Value = TypeVar("_Value")

MOST_CHOICES = 32
MOST_STOPS = 64
_MOST_TOP_LOGPROBS = 20
_MOST_THOUGHT = 1 << 40
_NO_TOOLS = ToolChoice()
IGNORED = frozenset(
    "model user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention modalities "
    "verbosity cache_prompt id_slot timings_per_token prediction provider usage reasoning_format transforms route "
    "plugins".split()
)
"""Fields that change nothing here: for accounts, for other models and servers, or what is always so."""


class StreamOptions(NamedTuple):
    """How a reply is sent."""

    is_streamed: bool
    includes_usage: bool
    returns_progress: bool


def take_stream_options(fields: dict[str, Any]) -> StreamOptions:
    """Take out ``stream``, ``stream_options`` and ``return_progress``."""
    is_streamed = take_bool(fields, "stream")
    includes_usage = take_object(fields, "stream_options").get("include_usage", False)
    if not isinstance(includes_usage, bool | None):
        raise FieldError("stream_options.include_usage", "must be true or false")
    return StreamOptions(is_streamed, bool(includes_usage), take_bool(fields, "return_progress"))


def take_bool(fields: dict[str, Any], name: str, default: bool = False) -> bool:
    """Take out a field that is true or false."""
    return _take(fields, name, default, "true or false")


def take_text(fields: dict[str, Any], name: str) -> str:
    """Take out a text, empty where it is not given."""
    return _take(fields, name, "", "a text")


def take_object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Take out an object, empty where it is not given."""
    return _take(fields, name, {}, "an object")


def take_list(fields: dict[str, Any], name: str) -> list[Any]:
    """Take out a list, empty where it is not given."""
    return _take(fields, name, [], "a list")


def _take(fields: dict[str, Any], name: str, default: _Value, form: str) -> _Value:
    """Take out a field that has the type of its default."""
    value = fields.pop(name, default)
    if not isinstance(value, type(default)):
        raise FieldError(name, f"must be {form}")
    return value


def take_integer(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    """Take out a whole number of a range; None where it is not given."""
    value: object = fields.pop(name, None)
    if value is None or (type(value) is int and least <= value <= most):
        return value
    raise FieldError(name, f"must be a whole number, {least} to {most}")


def text_of(fields: Mapping[str, object], name: str, path: str) -> str:
    """Return the text of a field of the object at `path`."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise FieldError(f"{path}.{name}", "must be a text")
    return value


def take_dimensions(fields: dict[str, Any], model: Model) -> int | None:
    """Take out ``dimensions``, how many numbers of each vector are wanted; None for all."""
    return take_integer(fields, "dimensions", 1, model.embedding.size)


def refuse_others(fields: dict[str, Any]) -> None:
    """Refuse all fields that are left but those that change nothing."""
    for name in fields:
        if name not in IGNORED:
            raise FieldError(name[:100], "is not supported")


def take_choices(fields: dict[str, Any]) -> int:
    """Take out ``n``, the number of choices."""
    return take_integer(fields, "n", 1, MOST_CHOICES) or 1


def choice_requests(request: Request, choices: int) -> list[Request]:
    """Return the request of each choice: with a seed, each has one of its own."""
    if request.seed is None:
        return [request] * choices
    return [replace(request, seed=(request.seed + index) % SEEDS) for index in range(choices)]


def take_logprobs(fields: dict[str, Any]) -> int | None:
    """Take out ``logprobs`` and ``top_logprobs`` of a chat; return how many tokens to report, None for none."""
    wanted = take_bool(fields, "logprobs")
    count = take_integer(fields, "top_logprobs", 0, _MOST_TOP_LOGPROBS)
    if count and not wanted:
        raise FieldError("top_logprobs", "needs logprobs: true")
    return (count or 0) if wanted else None


def take_request(fields: dict[str, Any], defaults: Request) -> Request:
    """Return the request of all fields that are left, over its defaults.

    `FieldError` if one of them is not known, or out of range.
    """
    values: dict[str, Any] = {}
    for key, value in fields.items():
        if key in IGNORED:
            continue
        if key not in NAMES:
            raise FieldError(key[:100], "is not supported")
        values[NAMES[key]] = value
    if isinstance(stop := values.get("stop"), list) and len(stop) > MOST_STOPS:
        raise FieldError("stop", f"must be at most {MOST_STOPS} texts")
    return replace(defaults, **values)


def take_think_budget(fields: dict[str, Any]) -> int | None:
    """Take out ``think_budget``, the most tokens of thoughts; None for any number."""
    return take_integer(fields, "think_budget", 0, _MOST_THOUGHT)


def take_grammar(
    fields: dict[str, Any], schema: str | None, model: Model, choice: ToolChoice = _NO_TOOLS
) -> Grammar | None:
    """Return the grammar that a reply must follow: of calls, a schema, or the field ``grammar``.

    Where a reply may call tools and there is a schema, it is calls or JSON. `SettingError` if it does not compile, or
    there is more than one.
    """
    text = fields.pop("grammar", None) or None
    form, markers = model.tool_template.form, model.constraints.markers
    marks = model.tokenizer.thought_marks
    # Messages with headers: calls have one of their own.
    has_headers = marks is not None and bool(marks.before_answer)
    if schema is not None and text is None and choice.tools and not choice.required and not has_headers:
        calls = form.grammar(replace(choice, required=True), markers)
        assert calls is not None
        return Grammar.of_calls_or_schema(calls, schema, "response_format")
    calls = form.grammar(choice, markers)
    given = [name for name, one in (("grammar", text), ("response_format", schema)) if one is not None]
    # Required calls leave no answer that a schema could hold for.
    is_idle = choice.required and text is None
    if len(given) > 1 or (given and calls is not None and not is_idle):
        raise FieldError(given[0], "cannot be given beside another constraint: leave one out")
    if calls is not None:
        return Grammar.of_calls(calls, leaves_text=not choice.required)
    if text is not None:
        return grammar_of_text(text)
    return None if schema is None else Grammar.from_schema(schema, "response_format", is_lenient=True)


def grammar_of_text(text: object) -> Grammar:
    """Return the grammar of the field ``grammar``; errors are those of `take_grammar`."""
    if not isinstance(text, str):
        raise FieldError("grammar", "must be a text in GBNF or Lark")
    return Grammar.from_text(text, "grammar")


def constrained(request: Request, grammar: Grammar | None, model: Model) -> Request:
    """Return a request whose replies follow a grammar, behind the think section if they begin in one."""
    if grammar is None:
        return request
    return replace(request, constraint=model.constraints.of(grammar, after_thinking=True))


def take_ids(fields: dict[str, Any], name: str, model: Model) -> list[int]:
    """Take out a field of token ids."""
    ids = fields.pop(name, None)
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < model.vocab_size for one in ids):
        raise FieldError(name, f"must be a list of token ids below {model.vocab_size}")
    return ids


def spelled_ids(ids: Sequence[int], model: Model) -> Sequence[int]:
    """Return the ids of a prompt as they are spelled: the image token stands for those of images."""
    images = model.engine.images
    return ids if images is None else images.tokens(ids)


def take_template_variables(fields: dict[str, Any]) -> dict[str, Any]:
    """Take out ``chat_template_kwargs``."""
    value = fields.pop("chat_template_kwargs", {})
    if not isinstance(value, dict) or not all(isinstance(key, str) and key.isidentifier() for key in value):
        raise FieldError("chat_template_kwargs", "must be an object of names and values")
    return dict(value)
