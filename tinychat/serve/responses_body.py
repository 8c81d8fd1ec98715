"""The body of OpenAI's ``POST /v1/responses``, translated to that of a chat completion.

The form is that of https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinychat.errors import FieldError
from tinychat.serve import body_fields
from tinychat.serve.body_fields import text_of
from tinychat.serve.wire import Payload

# For accounts, for tools of OpenAI's servers, or for other models.
_IGNORED = frozenset(
    "client_metadata context_management max_tool_calls prompt_cache_key prompt_cache_options "
    "prompt_cache_retention safety_identifier service_tier stream_options user".split()
)
# Fields of chat completions that have another form here, or whose answer a response has no field for.
_OF_CHATS = frozenset("logprobs messages n reasoning_effort response_format return_progress".split())
# Fields by those of chat completions to which they are translated.
_OWN_NAMES = {"response_format": "text.format", "reasoning_effort": "reasoning.effort"}
_MOST_TOKENS = 1 << 31
_MOST_ITEMS = 100_000
# Items that tools of OpenAI's servers leave behind, and types of such tools: clients offer them unasked.
_OTHERS = frozenset(
    "apply_patch_call apply_patch_call_output code_interpreter_call compaction computer_call computer_call_output "
    "file_search_call image_generation_call local_shell_call local_shell_call_output mcp_approval_request "
    "mcp_approval_response mcp_call mcp_list_tools shell_call shell_call_output web_search_call".split()
)
_OTHER_TOOLS = frozenset(
    "apply_patch code_interpreter computer computer_use_preview custom file_search image_generation local_shell mcp "
    "namespace shell tool_search web_search web_search_preview".split()
)
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
# Asks for what a client may do without: thoughts are sent as they are.
_INCLUDED = ("reasoning.encrypted_content",)


def input_items(body: Payload) -> list[Payload]:
    """Return the items of ``input``; a text is a message of the user. `FieldError` if they are malformed."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given) or len(given) > _MOST_ITEMS:
        raise FieldError("input", "must be a text or a list of items")
    return given


def as_chat_body(body: Payload, items: Sequence[Payload], earlier: int = 0) -> Payload:
    """Return the body of a chat completion that asks for the reply to items; fields of settings are taken over.

    The first `earlier` items belong to responses before this body. `FieldError` names a field that is wrong.
    """
    taken = {"input", "previous_response_id", "truncation"}
    fields = {name: value for name, value in body.items() if name not in _IGNORED | taken}
    _take_checked(fields)
    most = body_fields.take_integer(fields, "max_output_tokens", 1, _MOST_TOKENS)
    own: Payload = {"messages": [*_instructions(fields.pop("instructions", None)), *_messages(items, -earlier)]}
    own |= _tools(body_fields.take_list(fields, "tools"), fields.pop("tool_choice", "auto"))
    own |= _format(body_fields.take_object(fields, "text"))
    own |= _effort(body_fields.take_object(fields, "reasoning"))
    return fields | own | ({} if most is None else {"max_tokens": most})


def own_error(error: FieldError) -> FieldError:
    """Return the error about a field of a chat completion as one about the field that the client has sent."""
    name = error.field.split("[", 1)[0]
    if name == "messages":
        return FieldError("input", f"makes a conversation that is wrong: {error}")
    if name == "tools":
        return FieldError(error.field.replace(".function", ""), error.problem)
    return FieldError(_OWN_NAMES.get(error.field, error.field), error.problem)


def _take_checked(fields: Payload) -> None:
    """Take out what changes nothing in the prompt, and refuse what is not here."""
    for name in fields:
        if name in _OF_CHATS:
            raise FieldError(name, "is no field of a response")
    if body_fields.take_bool(fields, "background"):
        raise FieldError("background", "must be false: a reply ends with its connection")
    if body_fields.take_integer(fields, "top_logprobs", 0, 20):
        raise FieldError("top_logprobs", "must be 0: a response has no log-probabilities here")
    body_fields.take_bool(fields, "store", default=True)
    metadata = fields.pop("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise FieldError("metadata", "must be an object of texts")
    for name in body_fields.take_list(fields, "include"):
        if name not in _INCLUDED:
            raise FieldError("include", f"has {str(name)[:60]!r}, which is not supported")


def _instructions(text: object) -> list[Payload]:
    if text is None:
        return []
    if not isinstance(text, str):
        raise FieldError("instructions", "must be a text")
    return [{"role": "system", "content": text}]


def _messages(items: Iterable[Payload], first: int) -> list[Payload]:
    """Return the messages of items, of which the first has this number; those of one reply are one message."""
    messages: list[Payload] = []
    called: set[str] = set()
    # That of the reply whose items these are.
    reply: Payload | None = None
    for index, item in enumerate(items, first):
        path = f"input[{index}]"
        match item.get("type", "message"):
            case "message":
                message = _message(item, path)
                if message["role"] == "assistant" and reply is not None and not reply["content"]:
                    reply["content"] = message["content"]
                    continue
            case "reasoning":
                message = {"role": "assistant", "content": "", "reasoning_content": _thoughts(item, path)}
            case "function_call" | "custom_tool_call" as kind:
                own = kind == "function_call"
                arguments = text_of(item, "arguments", path) if own else {"input": text_of(item, "input", path)}
                function = {"name": text_of(item, "name", path), "arguments": arguments}
                call_id = text_of(item, "call_id", path)
                call = {"id": call_id, "type": "function", "function": function}
                called.add(call_id)
                if reply is not None:
                    reply.setdefault("tool_calls", []).append(call)
                    continue
                message = {"role": "assistant", "content": "", "tool_calls": [call]}
            case "function_call_output" | "custom_tool_call_output":
                output = _content(item.get("output"), f"{path}.output")
                message = {"role": "tool", "tool_call_id": text_of(item, "call_id", path), "content": output}
                if message["tool_call_id"] not in called:
                    raise FieldError(f"{path}.call_id", "must be that of a function_call before it")
            case str() as kind if kind in _OTHERS:
                continue
            case kind:
                raise FieldError(f"{path}.type", f"is {str(kind)[:40]!r}, which is not supported")
        messages.append(message)
        reply = message if message["role"] == "assistant" else None
    return messages


def _message(item: Payload, path: str) -> Payload:
    if item.get("role") not in _ROLES:
        raise FieldError(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
    return {"role": item["role"], "content": _content(item.get("content"), f"{path}.content")}


def _content(content: object, path: str) -> str | list[Payload]:
    """Return a content as a text, or in parts where it has images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError(path, "must be a text or a list of parts")
    parts = [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]
    return parts if any("image_url" in part for part in parts) else "".join(part["text"] for part in parts)


def _part(part: object, path: str) -> Payload:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "input_image":
        url = {"url": text_of(part, "image_url", path), "detail": part.get("detail")}
        return {"type": "image_url", "image_url": url}
    if not isinstance(part, dict) or kind not in [*_TEXT_PARTS]:
        raise FieldError(path, "must be a text or an image: a model reads nothing else")
    return {"type": "text", "text": text_of(part, _TEXT_PARTS[kind], path)}


def _thoughts(item: Payload, path: str) -> str:
    """Return the thoughts of an item, or their summary."""
    texts = []
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise FieldError(f"{path}.{name}", "must be a list of texts")
        texts.append("\n".join(text_of(part, "text", f"{path}.{name}[{index}]") for index, part in enumerate(parts)))
    return texts[0] or texts[1]


def _tools(tools: Sequence[object], choice: Any) -> Payload:
    """Return the fields of the tools that the reply may call: functions, not those that OpenAI's servers run."""
    functions = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools) if not _runs_there(tool)]
    match choice:
        case {"type": "function", "name": str() as name}:
            choice = {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as choice, "tools": list() as allowed}:
            functions = _allowed(functions, [one for one in allowed if not _runs_there(one)])
        case {"type": str() as kind} if kind in _OTHER_TOOLS:
            choice = "auto"
    return {"tools": functions, "tool_choice": choice}


def _allowed(functions: Sequence[Payload], allowed: Sequence[object]) -> list[Payload]:
    """Return the functions that are allowed, by their names."""
    names = [one.get("name") for one in allowed if isinstance(one, dict)]
    found = [one for one in functions if one["function"].get("name") in names]
    if not found or len(found) < len(allowed):
        raise FieldError("tool_choice.tools", "must name functions that are in tools, each once")
    return found


def _runs_there(tool: object) -> bool:
    """Return whether OpenAI's servers run a tool, or it is no function."""
    return isinstance(tool, dict) and isinstance(kind := tool.get("type"), str) and kind in _OTHER_TOOLS


def _tool(tool: object, path: str) -> Payload:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise FieldError(
            path, 'must be {"type": "function", "name": "...", "parameters": {...}}: no other tools are here'
        )
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _format(text: Payload) -> Payload:
    """Return the fields of the form of the reply."""
    match text.get("format"):
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"response_format": {"type": "json_object"}}
        case {"type": "json_schema", "schema": dict() as schema}:
            return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    raise FieldError("text.format", 'must be {"type": "text"}, "json_object", or "json_schema" with a schema')


def _effort(reasoning: Payload) -> Payload:
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}
