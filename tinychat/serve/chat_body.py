"""The body of ``POST /v1/chat/completions``, to which those of the other protocols are translated."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

from tinychat.conversation.openai import TOOL_FIELDS, read_messages, schema_of
from tinychat.errors import FieldError
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.serve import body_fields, llama_fields
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
    """Return the request of a body to a model; `FieldError` names a field that is wrong."""
    fields, model = dict(body), served.model
    messages = read_messages(fields.pop("messages", None), model.sees_images)
    continues = body_fields.take_bool(fields, "continue_final_message", True)
    options = body_fields.take_stream_options(fields)
    choices = body_fields.take_choices(fields)
    variables = body_fields.take_template_variables(fields)
    thinking = _take_effort(fields, variables)
    tools = tool_choice(*(fields.pop(name, None) for name in TOOL_FIELDS))
    budget = body_fields.take_think_budget(fields)
    budget = 0 if thinking is False else budget
    tools = replace(tools, thinks=budget != 0)
    grammar = body_fields.take_grammar(fields, _take_schema(fields), model, tools)
    request = body_fields.constrained(_take_request(fields, served, budget, tools), grammar, model)
    if tools.tools:
        variables["tools"] = [tool.as_dict() for tool in tools.tools]
    # A grammar holds from the beginning of a reply.
    prompt = _prompt_of(messages, thinking, variables, model, continues and grammar is None)
    if tools.tools:
        prompt = replace(prompt, shown=model.call_markers)
    return ChatBody(prompt, body_fields.choice_requests(request, choices), tools, options)


def _take_request(fields: Payload, served: ServedModel, budget: int | None, tools: ToolChoice) -> Request:
    """Return the request of all fields that are left, without a constraint."""
    logprobs = body_fields.take_logprobs(fields)
    most, ignores_eos = llama_fields.take_most_tokens(fields), body_fields.take_bool(fields, "ignore_eos")
    request = llama_fields.take_llama_request(fields, served.defaults, served.model)
    request = replace(request, logprobs=logprobs, ignore_eos=ignores_eos)
    if most is not None:
        request = replace(request, max_tokens=None if most < 0 else most)
    if budget is not None:
        request = replace(request, think_budget=budget)
    end = served.model.tool_template.form.end
    if tools.tools and end and not tools.is_parallel:
        request = replace(request, stop=(*request.stop, end))
    return request


def _prompt_of(
    messages: list[Payload], thinking: bool | None, variables: Payload, model: Model, continues: bool
) -> Prompt:
    """Return the prompt of messages; a last one of the assistant's is the beginning of the reply, if it `continues`."""
    *before, last = messages
    said = ""
    if continues and before and last["role"] == "assistant" and not last.keys() & {"tool_calls", "reasoning"}:
        said = str(last["content"])
    # Thoughts would come before what is said; an effort is told before all messages, and stays as it was.
    if said and thinking is None and model.template.thinking_switch != "reasoning_effort":
        thinking = False
    whole = {**model.template.thinking_variables(thinking), **variables}
    opens_thinking = model.template.opens_thinking_with(**whole)
    if not said or opens_thinking:
        ids, begun = model.render_ids(messages, **whole), list[int]()
    else:
        begun = model.tokenizer.encode_reply(said)
        ids = [*model.render_ids(before, **whole), *begun]
    return Prompt(ids, bool(begun), model.template.stop_strings, opens_thinking, begun=begun)


def _take_schema(fields: Payload) -> str | None:
    """Take out ``response_format``, or llama-server's ``json_schema``; return the schema of the reply."""
    schema = fields.pop("json_schema", None)
    found = schema_of(fields.pop("response_format", None))
    return json.dumps(schema) if found is None and schema is not None else found


def _take_effort(fields: Payload, variables: Payload) -> bool | None:
    """Take out ``reasoning_effort`` and its like, for the template too; return whether the model is to think."""
    reasoning = body_fields.take_object(fields, "reasoning")
    effort = fields.pop("reasoning_effort", reasoning.get("effort"))
    enabled = body_fields.take_bool(fields, "enable_thinking") if "enable_thinking" in fields else None
    if effort is None:
        return enabled
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
