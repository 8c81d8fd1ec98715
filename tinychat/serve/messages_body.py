"""The body of Anthropic's ``POST /v1/messages``, translated to that of a chat completion.

The form is that of https://docs.claude.com/en/api/messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinychat.errors import FieldError
from tinychat.serve import body_fields
from tinychat.serve.body_fields import text_of
from tinychat.serve.wire import Payload

# For accounts and caches of Anthropic's; prefixes are cached here without being asked.
_IGNORED = frozenset(
    "betas cache_control container context_management diagnostics inference_geo metadata service_tier speed thread "
    "user_profile_id workspace_id".split()
)
_MOST_TOKENS = 1 << 31
# A line that Claude Code puts first, other in each request: no prefix could be used again behind it.
_BILLING = "x-anthropic-billing-header:"
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


def as_chat_body(body: Payload) -> Payload:
    """Return the body of a chat completion that asks for the same; fields of settings are taken over.

    `FieldError` names a field that is wrong.
    """
    fields = {name: value for name, value in body.items() if name not in _IGNORED}
    most = body_fields.take_integer(fields, "max_tokens", 1, _MOST_TOKENS)
    if most is None:
        raise FieldError("max_tokens", "must be given")
    chat: Payload = {"max_tokens": most, "messages": [*_system(fields), *_messages(fields)]}
    if body_fields.take_list(fields, "mcp_servers"):
        raise FieldError("mcp_servers", "is not supported: the server asks none for tools")
    if "tools" in fields:
        chat["tools"] = [
            _tool(tool, f"tools[{index}]") for index, tool in enumerate(body_fields.take_list(fields, "tools"))
        ]
    chat |= _choice(fields.pop("tool_choice", None))
    effort, form = _output(fields)
    chat |= _thinking(fields.pop("thinking", None), effort)
    if form is not None:
        chat["response_format"] = form
    if "stop_sequences" in fields:
        chat["stop"] = fields.pop("stop_sequences")
    return chat | fields


def _system(fields: Payload) -> Iterator[Payload]:
    """Yield the message of the system prompt."""
    texts = [text for text in _texts(fields.pop("system", ""), "system") if not text.startswith(_BILLING)]
    if any(texts):
        yield {"role": "system", "content": "\n".join(texts)}


def _messages(fields: Payload) -> Iterator[Payload]:
    if "messages" not in fields:
        raise FieldError("messages", "must be given")
    for index, message in enumerate(body_fields.take_list(fields, "messages")):
        path = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise FieldError(path, 'must be {"role": "user" or "assistant", "content": ...}')
        blocks = _blocks(message.get("content"), f"{path}.content")
        if message["role"] == "assistant":
            yield _assistant(blocks)
        else:
            yield from _user(message["role"], blocks)


def _blocks(content: object, path: str) -> list[tuple[str, Payload]]:
    """Return the blocks of a content, each with its path."""
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise FieldError(path, "must be a text or a list of blocks")
    return [(f"{path}[{index}]", block) for index, block in enumerate(content)]


def _texts(content: object, path: str) -> list[str]:
    """Return the texts of a content that has nothing else."""
    return [_text_of(block, path) for path, block in _blocks(content, path)]


def _text_of(block: Payload, path: str) -> str:
    if block.get("type") != "text":
        kind = str(block.get("type"))[:40]
        raise FieldError(path, f"is of the type {kind!r}, which this model cannot read: leave it out")
    return text_of(block, "text", path)


def _assistant(blocks: list[tuple[str, Payload]]) -> Payload:
    """Return the message of a reply: thoughts, text and calls."""
    texts, thoughts, calls = [], [], []
    for path, block in blocks:
        match block.get("type"):
            case "thinking":
                thoughts.append(text_of(block, "thinking", path))
            case "redacted_thinking":
                continue
            case "tool_use":
                function = {"name": text_of(block, "name", path), "arguments": block.get("input", {})}
                calls.append({"id": text_of(block, "id", path), "type": "function", "function": function})
            case _:
                texts.append(_text_of(block, path))
    message: Payload = {"role": "assistant", "content": "".join(texts)}
    message |= {"reasoning_content": "\n".join(thoughts)} if any(thoughts) else {}
    return message | ({"tool_calls": calls} if calls else {})


def _user(role: str, blocks: list[tuple[str, Payload]]) -> Iterator[Payload]:
    """Yield the results of calls, each as a message, and then the text, in parts where it has images."""
    texts: list[str] = []
    parts: list[Payload] = []
    has_results = False
    for path, block in blocks:
        if block.get("type") == "tool_result":
            has_results = True
            result = "\n".join(_texts(block.get("content", ""), f"{path}.content"))
            yield {"role": "tool", "tool_call_id": text_of(block, "tool_use_id", path), "content": result}
        elif block.get("type") == "image":
            parts += [*_text_parts(texts), {"type": "image_url", "image_url": _url_of(block, path)}]
            texts = []
        else:
            texts.append(_text_of(block, path))
    if texts or parts or not has_results:
        yield {"role": role, "content": [*parts, *_text_parts(texts)] if parts else "\n".join(texts)}


def _text_parts(texts: list[str]) -> list[Payload]:
    return [{"type": "text", "text": "\n".join(texts)}] if texts else []


def _url_of(block: Payload, path: str) -> str:
    """Return the data: URL of an image."""
    match block.get("source"):
        case {"type": "base64", "data": str() as data, **others}:
            return f"data:{others.get('media_type')};base64,{data}"
    raise FieldError(f"{path}.source", 'must be {"type": "base64", "media_type": "image/png", "data": "..."}')


def _tool(tool: object, path: str) -> Payload:
    if not isinstance(tool, dict):
        raise FieldError(path, "must be an object with name and input_schema")
    if (kind := tool.get("type", "custom")) != "custom":
        raise FieldError(f"{path}.type", f"is {str(kind)[:40]!r}, a tool of Anthropic's servers: leave it out")
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function | {"parameters": tool.get("input_schema")}}


def _choice(choice: object) -> Payload:
    """Return the fields of a choice of tools."""
    if choice is None:
        return {}
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise FieldError("tool_choice", 'must be {"type": "auto"}, "any", "tool" with a name, or "none"')
    named = {"type": "function", "function": {"name": choice.get("name")}}
    fields = {"tool_choice": {"any": "required", "tool": named}.get(choice["type"], choice["type"])}
    is_single = choice.get("disable_parallel_tool_use", False)
    if not isinstance(is_single, bool):
        raise FieldError("tool_choice.disable_parallel_tool_use", "must be true or false")
    return fields | ({"parallel_tool_calls": False} if is_single else {})


def _output(fields: Payload) -> tuple[str | None, Payload | None]:
    """Take out ``output_config`` and ``output_format``; return effort and response format."""
    config = body_fields.take_object(fields, "output_config")
    effort, form = config.get("effort"), config.get("format") or fields.pop("output_format", None)
    if effort is not None and effort not in [*_EFFORTS]:
        raise FieldError("output_config.effort", f"must be one of {', '.join(_EFFORTS)}")
    match form:
        case None:
            return effort, None
        case {"type": "json_schema", "schema": dict() as schema}:
            return effort, {"type": "json_schema", "json_schema": {"schema": schema}}
    raise FieldError("output_config.format", 'must be {"type": "json_schema", "schema": {...}}')


def _thinking(thinking: object, effort: str | None) -> Payload:
    """Return the fields that ask for thoughts; without ``thinking`` the model's template decides."""
    match thinking:
        case None | {"type": "adaptive"}:
            return {} if thinking is None or effort is None else {"reasoning_effort": _EFFORTS[effort]}
        case {"type": "disabled"}:
            return {"reasoning_effort": "none"}
        case {"type": "enabled", "budget_tokens": int() as budget}:
            return {"reasoning_effort": _EFFORTS[effort or "medium"], "think_budget": budget}
    raise FieldError("thinking", 'must be {"type": "enabled", "budget_tokens": ...}, "adaptive" or "disabled"')
