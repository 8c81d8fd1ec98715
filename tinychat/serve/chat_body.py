"""The body of ``POST /v1/chat/completions``, to which those of the other protocols are translated."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

from tinychat.conversation.openai import read_messages, schema_of
from tinychat.errors import FieldError
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.serve import body_fields
from tinychat.serve.chat_choice import ChatChoice, ChoiceCalls
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.wire import Payload
from tinychat.tools.definitions import ToolChoice, tool_choice

_EFFORTS = {"none": False, "minimal": False, "low": True, "medium": True, "high": True, "xhigh": True, "max": True}


class ChatBody(NamedTuple):
    """The request of a body; there is a request for each choice."""

    prompt: Prompt
    requests: list[Request]
    tools: ToolChoice
    options: body_fields.StreamOptions


def read_chat(body: Payload, served: ServedModel) -> ChatBody:
    """Return the request of a body to a model.

    Raises
    ------
    FieldError
        Naming the field that is wrong.
    """
    fields, model = dict(body), served.model
    messages = read_messages(fields.pop("messages", None))
    options = body_fields.take_stream_options(fields)
    choices = body_fields.take_choices(fields)
    tools = tool_choice(*(fields.pop(name, None) for name in ("tools", "tool_choice", "parallel_tool_calls")))
    logprobs = body_fields.take_logprobs(fields)
    grammar = body_fields.take_grammar(fields, schema_of(fields.pop("response_format", None)), model, tools)
    variables = body_fields.take_template_variables(fields)
    thinking = _take_effort(fields, variables)
    request = replace(body_fields.take_request(fields, served.defaults), logprobs=logprobs)
    if thinking is False:
        request = replace(request, think_budget=0)
    if tools.tools:
        variables["tools"] = [tool.as_dict() for tool in tools.tools]
        end = model.tool_template.form.end
        if end and not tools.is_parallel:
            request = replace(request, stop=(*request.stop, end))
    request = body_fields.constrained(request, grammar, model)
    variables = {**model.template.thinking_variables(thinking), **variables}
    prompt = Prompt(
        model.render_ids(messages, **variables),
        joins_reply=False,
        stop=model.template.stop_strings,
        opens_thinking=model.template.opens_thinking_with(**variables),
        shown=model.call_markers if tools.tools else frozenset(),
    )
    return ChatBody(prompt, body_fields.choice_requests(request, choices), tools, options)


def _take_effort(fields: Payload, variables: Payload) -> bool | None:
    """Take out ``reasoning_effort``, for the template too; return whether the model is to think."""
    effort = fields.pop("reasoning_effort", None)
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise FieldError("reasoning_effort", f"must be one of {', '.join(_EFFORTS)}")
    variables.setdefault("reasoning_effort", effort)
    return _EFFORTS[effort]


def choice_of(asked: ChatBody, model: Model, request: Request) -> ChatChoice:
    """Return the reader of a choice; the ids of its calls follow from the request: the same one has the same ids."""
    return ChatChoice(model.tokenizer, asked.prompt.opens_thinking, _calls(asked, model, request))


def _calls(asked: ChatBody, model: Model, request: Request) -> ChoiceCalls | None:
    if not asked.tools.tools:
        return None
    values = json.dumps([list(asked.prompt.ids), request.values()], sort_keys=True, default=str)
    digest = hashlib.sha256(values.encode()).hexdigest()[:20]
    return ChoiceCalls(model.tool_template.form, asked.tools, digest)
