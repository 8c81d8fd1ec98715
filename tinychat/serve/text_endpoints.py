"""Endpoints of llama-server that run no model: ``/tokenize``, ``/detokenize`` and ``/apply-template``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.conversation.openai import TOOL_FIELDS, read_messages
from tinychat.errors import FieldError, SettingError
from tinychat.generate.model import Model
from tinychat.serve import body_fields
from tinychat.serve.bodies import read_object
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.server import Server
from tinychat.serve.wire import Payload
from tinychat.text.guard import unguard
from tinychat.text.parts import has_images
from tinychat.tools.definitions import ToolChoice, tool_choice
from tinychat.tools.formats.form_fields import fields_of_form

Work = Callable[[Payload, ServedModel], Payload]


async def answer_text(work: Work, server: Server, http: HttpRequest) -> Response:
    """Answer a request by what `work` returns for its body; `TinychatError` if it cannot be answered."""
    body = await read_object(http)
    async with server.use(body.pop("model", None)) as served:
        return JSONResponse(await asyncio.to_thread(work, body, served))


def tokenize(body: Payload, served: ServedModel) -> Payload:
    """Return the ids of ``content``; by default the names of control tokens in it are those tokens."""
    model = served.model
    content = body.pop("content", None)
    if not isinstance(content, str):
        raise FieldError("content", "must be a text")
    switches = {"add_special": False, "parse_special": True, "with_pieces": False}
    add_special, parse_special, with_pieces = [
        body_fields.take_bool(body, name, usual) for name, usual in switches.items()
    ]
    body_fields.refuse_others(body)
    begin = model.encode("") if add_special else []
    ids = begin + (model.tokenizer.encode_rendered(content) if parse_special else model.encode(content, add_bos=False))
    return {"tokens": [{"id": one, "piece": _piece(model, one)} for one in ids] if with_pieces else ids}


def _piece(model: Model, token_id: int) -> str | list[int]:
    """Return the text of a token, or its bytes where they are part of a character."""
    spelled = model.tokenizer.token_bytes(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return [*spelled]


def detokenize(body: Payload, served: ServedModel) -> Payload:
    """Return the text of ``tokens``, the names of control tokens included."""
    model = served.model
    ids = body_fields.take_ids(body, "tokens", model)
    body_fields.refuse_others(body)
    return {"content": model.tokenizer.decode(ids, skip_special=False)}


def apply_template(body: Payload, served: ServedModel) -> Payload:
    """Return the text of ``messages`` as the model's template writes it.

    With ``return_tokens`` come the ids, in which no message spells a control token, and what `Prompt` tells of them;
    with ``return_calls``, how the model writes calls of ``tools``, and why they cannot be held to their schemas.
    """
    model = served.model
    messages = read_messages(body.pop("messages", None), model.sees_images)
    begins_reply = body_fields.take_bool(body, "add_generation_prompt", default=True)
    variables = body_fields.take_template_variables(body)
    tools = tool_choice(*(body.pop(name, None) for name in TOOL_FIELDS))
    returns_tokens, returns_calls = [body_fields.take_bool(body, name) for name in ("return_tokens", "return_calls")]
    thinking = body_fields.take_bool(body, "thinking") if "thinking" in body else None
    body_fields.refuse_others(body)
    variables |= model.template.thinking_variables(thinking)
    if tools.tools:
        variables["tools"] = [tool.as_dict() for tool in tools.tools]
    rendered = model.tool_template.render(messages, begins_reply, **variables)
    fields: Payload = {"prompt": unguard(rendered)}
    if returns_tokens:
        fields |= {
            "tokens": (
                model.render_ids(messages, begins_reply, **variables)
                if any(map(has_images, messages))
                else model.tokenizer.encode_rendered(rendered)
            ),
            "stop": [*model.template.stop_strings],
            "opens_thinking": model.opens_thinking(thinking),
        }
    if returns_calls:
        fields["calls"] = _told_of_calls(model, tools)
    return fields


def _told_of_calls(model: Model, tools: ToolChoice) -> Payload:
    """Return the form of a model's calls, the control tokens that are its marks, and a problem of the schemas."""
    problem = None
    try:
        model.call_constraint(replace(tools, constrains=True))
    except SettingError as error:
        problem = str(error)
    form = fields_of_form(model.tool_template.form)
    return {"form": form, "markers": sorted(model.call_markers), "problem": problem}
