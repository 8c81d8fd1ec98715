"""The flags of tools that a reply may call, and the choice that they give."""

from __future__ import annotations

from pathlib import Path

import click

from tinychat.commands.options import PATH, together
from tinychat.errors import FieldError, SettingError
from tinychat.json_file import read_named_json
from tinychat.tools.definitions import ToolChoice

_MAX_BYTES = 4 << 20
_WORDS = ("auto", "none", "required")

tool_flags = together(
    click.option(
        "--tools",
        "tool_file",
        type=PATH,
        metavar="FILE",
        help="With --json: write the calls of these tools, a list in OpenAI's form; nothing is run",
    ),
    click.option(
        "--tool-choice",
        metavar="auto|none|required|NAME",
        help="Whether the reply may or must call a tool of --tools, or the one that it must call",
    ),
    click.option("--no-parallel-tool-calls", "is_single", is_flag=True, help="End the reply after its first call"),
)


def read_tools(path: Path | None, wanted: str | None, is_single: bool) -> ToolChoice:
    """Return the choice of the tools of a file; none without a file.

    `SettingError` if the file is no list of tools, `click.UsageError` if the choice names none of them.
    """
    from tinychat.conversation.openai import take_tools

    if path is None:
        if wanted is not None or is_single:
            flag = "--no-parallel-tool-calls" if wanted is None else "--tool-choice"
            raise click.UsageError(f"{flag} needs tools: add --tools FILE")
        return ToolChoice()
    tools = read_named_json(path, _MAX_BYTES)
    if isinstance(tools, dict):
        tools = tools.get("tools")
    if tools is None or tools == []:
        raise SettingError(f'{path} has no tools: write a list of them, or an object with such a list as "tools"')
    choice: object = wanted
    if wanted is not None and wanted not in _WORDS:
        choice = {"type": "function", "function": {"name": wanted}}
    try:
        return take_tools({"tools": tools, "tool_choice": choice, "parallel_tool_calls": not is_single}, None)
    except FieldError as error:
        if error.field == "tool_choice":
            raise click.UsageError("--tool-choice must be auto, none, required, or the name of a tool") from None
        raise SettingError(f"{path}: {error}") from None
