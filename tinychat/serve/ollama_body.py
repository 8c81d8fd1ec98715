"""Bodies of Ollama's ``/api/chat`` and ``/api/generate``, translated to those of chat completions.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from tinychat.conversation.openai import NAMES
from tinychat.errors import FieldError
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.serve import body_fields
from tinychat.serve.api_error import ApiError
from tinychat.serve.chat_body import ChatBody, read_chat
from tinychat.serve.infill import infill_tokens, take_hole
from tinychat.serve.llama_fields import OFF, our_values
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.ollama_messages import read_ollama_messages
from tinychat.serve.wire import Payload
from tinychat.setting_kinds import seconds_of

EFFORTS = ("low", "medium", "high")
LOAD_OPTIONS = frozenset(
    "numa num_ctx num_batch num_gpu main_gpu low_vram f16_kv logits_all vocab_only use_mmap use_mlock embedding_only "
    "num_thread num_keep penalize_newline mirostat_tau mirostat_eta draft_num_predict".split()
)
"""Options that change nothing here: how Ollama loads a model, and what goes with samplers that are off."""
OFF_OPTIONS: Mapping[str, tuple[float, ...]] = {"tfs_z": (1,)}
# Stands for the reply that ends a context, where the template writes what comes after it.
_REPLY = "the-reply-before-this-prompt"
_MOST_TOKENS = 1 << 40


class OllamaBody(NamedTuple):
    """The request of a body.

    `chat` is None where the model is only to be loaded; `keep_seconds` is how long it stays then unused, None as
    before. `is_raw` replies are sent as they are written; `returns_context` asks for the ids of prompt and reply.
    """

    chat: ChatBody | None
    is_streamed: bool
    keep_seconds: float | None
    is_raw: bool = False
    returns_context: bool = False


def read_ollama_chat(body: Payload, served: ServedModel) -> OllamaBody:
    """Return the request of a body of ``/api/chat``; `TinychatError` if it cannot be answered."""
    fields = dict(body)
    is_streamed, keep = body_fields.take_bool(fields, "stream", True), take_keep_alive(fields)
    messages = fields.pop("messages", [])
    tools = fields.pop("tools", None)
    translated = _take_shared(fields, served.model)
    body_fields.refuse_others(fields)
    if messages == []:
        return OllamaBody(None, is_streamed, keep)
    translated |= {"messages": read_ollama_messages(messages), "tools": tools, "stream": is_streamed}
    return OllamaBody(read_chat(translated, served), is_streamed, keep)


def read_generate(body: Payload, served: ServedModel) -> OllamaBody:
    """Return the request of a body of ``/api/generate``; errors are those of `read_ollama_chat`."""
    fields, model = dict(body), served.model
    is_streamed, keep = body_fields.take_bool(fields, "stream", True), take_keep_alive(fields)
    prompt, suffix, system, template = [
        body_fields.take_text(fields, name) for name in ("prompt", "suffix", "system", "template")
    ]
    is_raw, context = body_fields.take_bool(fields, "raw"), _take_context(fields)
    images = body_fields.take_list(fields, "images")
    if template:
        raise FieldError("template", "is not supported: the model's own is used, or none with raw: true")
    if is_raw and (system or context):
        raise FieldError("raw", "cannot be given beside system or context: leave one out")
    if images and (is_raw or suffix or context):
        raise FieldError("images", "cannot be given beside raw, suffix or context: use /api/chat")
    translated = _take_shared(fields, model)
    body_fields.refuse_others(fields)
    if not prompt and not suffix and not images:
        return OllamaBody(None, is_streamed, keep)
    if is_raw or suffix:
        translated.pop("reasoning_effort", None)
        asked = read_chat(translated | {"messages": [{"role": "user", "content": ""}]}, served)
        ids = _infill_ids(prompt, suffix, model) if suffix else _raw_ids(prompt, model)
        return OllamaBody(asked._replace(prompt=Prompt(ids)), is_streamed, keep, is_raw=True)
    question = {"role": "user", "content": prompt, "images": images}
    asked = read_chat(
        translated | {"messages": [{"role": "system", "content": system}] * bool(system) + [question]}, served
    )
    if context:
        ids = [*context, *_ids_behind_reply(question, translated.get("reasoning_effort"), model)]
        asked = asked._replace(prompt=replace(asked.prompt, ids=ids))
    # Ids of images mean nothing without these.
    return OllamaBody(asked, is_streamed, keep, returns_context=not images)


def _take_shared(fields: Payload, model: Model) -> Payload:
    """Take out what both have: options, ``format``, ``think`` and log-probabilities, as a chat completion has them."""
    translated = _take_options(fields, model)
    for name in ("truncate", "shift"):
        # Nothing is cut, whatever they are.
        body_fields.take_bool(fields, name)
    translated |= {name: fields.pop(name) for name in ("logprobs", "top_logprobs") if name in fields}
    schema = fields.pop("format", "")
    if schema == "json":
        translated["response_format"] = {"type": "json_object"}
    elif isinstance(schema, dict):
        translated["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    elif schema != "":
        raise FieldError("format", 'must be "json" or a JSON schema')
    think = fields.pop("think", None)
    if isinstance(think, bool):
        translated["reasoning_effort"] = "medium" if think else "none"
    elif think in EFFORTS:
        translated["reasoning_effort"] = think
    elif think is not None:
        raise FieldError("think", f"must be true, false or one of {', '.join(EFFORTS)}")
    return translated


def _take_options(fields: Payload, model: Model) -> Payload:
    """Take out ``options``; return them as settings of ours."""
    options = body_fields.take_object(fields, "options")
    given = {name: value for name, value in options.items() if value is not None and name not in LOAD_OPTIONS}
    most = body_fields.take_integer(given, "num_predict", -2, _MOST_TOKENS)
    for name in given:
        if name in OFF_OPTIONS and given[name] not in OFF_OPTIONS[name]:
            raise FieldError(f"options.{name[:100]}", "is not supported: leave it out")
        if name not in NAMES and name not in OFF and name not in OFF_OPTIONS:
            raise FieldError(f"options.{name[:100]}", "is not supported")
    found = our_values({name: value for name, value in given.items() if name not in OFF_OPTIONS}, model)
    # Zero and less are no limit.
    return found if most is None else found | {"max_tokens": most if most > 0 else -1}


def take_keep_alive(fields: Payload) -> float | None:
    """Take out ``keep_alive``, seconds or a duration such as "5m"; negative ones are infinite, None is not given.

    `FieldError` if it is neither.
    """
    given: object = fields.pop("keep_alive", None)
    if given is None:
        return None
    value = seconds_of(given) if isinstance(given, str) else given
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError("keep_alive", 'must be a number of seconds, or a duration such as "5m"')
    # Beyond what a clock can add it is for ever, too.
    return float(value) if 0 <= value < 1e9 else inf


def _take_context(fields: Payload) -> list[int]:
    value = fields.pop("context", [])
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise FieldError("context", "must be the token ids that an answer of /api/generate has")
    return value


def _raw_ids(prompt: str, model: Model) -> list[int]:
    """Return the ids of a text that may spell control tokens, as one that a template has written does."""
    return [*model.encode(""), *model.tokenizer.encode_rendered(prompt)]


def _infill_ids(prompt: str, suffix: str, model: Model) -> list[int]:
    try:
        tokens = infill_tokens(model.tokenizer)
    except ApiError as error:
        raise FieldError("suffix", f"cannot be used: {error}") from None
    return take_hole({"input_prefix": prompt, "input_suffix": suffix}, model, tokens)


def _ids_behind_reply(question: Mapping[str, Any], effort: str | None, model: Model) -> list[int]:
    """Return the ids that the template writes behind a reply and before the next question."""
    variables: dict[str, Any] = {}
    if effort is not None:
        variables = {**model.template.thinking_variables(effort != "none"), "reasoning_effort": effort}
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _REPLY}]
    _, mark, behind = model.tool_template.render([*before, question], **variables).partition(_REPLY)
    if not mark:
        raise FieldError("context", "cannot be continued: this model's template leaves replies out; use /api/chat")
    return model.tokenizer.encode_rendered(behind)
