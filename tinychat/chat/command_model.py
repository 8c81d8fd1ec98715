"""Commands that switch the model or the role of the conversation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tinychat.chat.command_files import complete_path
from tinychat.chat.draft import Draft
from tinychat.chat.loop import ChatLoop
from tinychat.chat.tool_setup import change_tools
from tinychat.errors import SettingError
from tinychat.generate.prompt import NO_TEMPLATE
from tinychat.json_file import one_line
from tinychat.setting_kinds import whole_number
from tinychat.terminal.line_input import Candidate

_NO_ROLE = "none"


def model(loop: ChatLoop, argument: str) -> None:
    """Switch to another model; without a name, list those on this machine."""
    if not argument:
        _offer_models(loop)
        return
    loop.workspace.change_model(_chosen(loop, argument))
    _meet_model(loop)
    change_tools(loop, loop.chat.standing.tools)


def _meet_model(loop: ChatLoop) -> None:
    """Tell of another model."""
    loop.notice(f"switched to {loop.chat.model.name}; it reads the conversation with your next message")
    if loop.chat.model.template.is_fallback:
        loop.notice(NO_TEMPLATE)


def _offer_models(loop: ChatLoop) -> None:
    names = loop.workspace.models.ready()
    now = loop.chat.model.name
    lines = [f"{number:>2}  {name}{'  (this one)' if name == now else ''}" for number, name in enumerate(names, 1)]
    loop.notice("\n".join([*lines, "type a number or name; `tinychat models --available` lists more"]))
    loop.prefill(Draft("/model ", is_command=True))


def _chosen(loop: ChatLoop, argument: str) -> str:
    """Return the model with this number in the list; anything else is a name."""
    names = loop.workspace.models.ready() if argument.isdecimal() else []
    if not names or argument in names:
        return argument
    number = whole_number(argument)
    if number is None or not 1 <= number <= len(names):
        shown = one_line(argument, 80)
        raise SettingError(f"no model has the number {shown}: type a number from 1 to {len(names)}, or a name")
    return names[number - 1]


def complete_model(loop: ChatLoop, argument: str) -> Iterable[str | Candidate]:
    """Complete the name of a model, stored or of the catalog, or the path of one."""
    paths = [path for path in complete_path(loop, argument) if path.endswith(("/", ".gguf"))]
    if "/" not in argument:
        # Beside names of models, only folders of models.
        paths = [path for path in paths if path.endswith(".gguf") or Path(path, "config.json").is_file()]
    return [*loop.workspace.models.names(), *(Candidate(path, _kind_of(path)) for path in paths)]


def _kind_of(path: str) -> str:
    if path.endswith(".gguf"):
        return "GGUF file"
    return "model" if Path(os.path.expanduser(path), "config.json").is_file() else "folder"


def role(loop: ChatLoop, argument: str) -> None:
    """Switch to the settings, the system prompt and the tools of a role; without a name, list the roles."""
    if argument:
        before = loop.chat.model
        loop.workspace.change_role(None if argument == _NO_ROLE else argument)
        loop.notice("left the role" if argument == _NO_ROLE else f"switched to the role {argument}; /show shows it")
        if loop.chat.model is not before:
            _meet_model(loop)
        change_tools(loop, loop.chat.standing.tools)
        return
    now = loop.workspace.role
    names = [f"{name}{'  (this one)' if name == now else ''}" for name in loop.workspace.models.roles()]
    loop.notice("\n".join(names) or "no roles: add them to the configuration file; `tinychat config` shows its path")


def complete_role(loop: ChatLoop, _argument: str) -> Iterable[str]:
    """Complete the name of a role."""
    return [*loop.workspace.models.roles(), _NO_ROLE]
