"""Grammar of replies with calls in the format of Hermes."""

from __future__ import annotations

import json

from tinychat.tools.definitions import ToolChoice

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def call_grammar(choice: ToolChoice) -> str | None:
    """Return the grammar, in llguidance's Lark, of a reply with calls; None where it may be any text.

    A required call is all of the reply. Otherwise the tag of a call begins the grammar: the call then names a tool, and
    has the arguments of its schema if the tool is strict.
    """
    more = ' ("\\n" call)*' if choice.is_parallel else ""
    if choice.required:
        rules = [f'start: call{more}\ncall: "{OPEN}" body']
    elif choice.has_strict:
        # Lazy: ends with the first tag. Without one the reply is text to its end.
        free = f"FREE: /(.|\\n)*/ & ~/(.|\\n)*{OPEN}(.|\\n)*/"
        rules = ["start: call* FREE\ncall: until_call body", f"until_call[lazy]: /(.|\\n)*{OPEN}/\n{free}"]
    else:
        return None
    tools = choice.callable_tools
    names = " | ".join(f"tool_{number}" for number in range(len(tools)))
    rules.append(f'body: "\\n" ({names}) "\\n{CLOSE}"')
    for number, tool in enumerate(tools):
        begin = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        schema = dict(tool.parameters) if choice.required or tool.strict else {}
        # A schema of its own: references in it are from its root.
        schema |= {"type": "object", "x-guidance": {"whitespace_pattern": " ?"}}
        rules.append(f'tool_{number}: {begin} arguments_{number} "}}"\narguments_{number}: %json {json.dumps(schema)}')
    return "\n".join(rules)
