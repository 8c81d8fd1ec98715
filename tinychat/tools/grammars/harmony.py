"""Grammar of replies with calls in the format of gpt-oss: harmony's messages on channels."""

from __future__ import annotations

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import json_object
from tinychat.tools.grammars.markers import Markers, quoted
from tinychat.tools.grammars.replies import any_tool
from tinychat.tools.grammars.rules import Rules

CHANNEL, CONSTRAIN, MESSAGE = "<|channel|>", "<|constrain|>", "<|message|>"
START, END, CALL = "<|start|>", "<|end|>", "<|call|>"


def add_messages(rules: Rules, choice: ToolChoice) -> None:
    """Add the rules of a reply behind ``<|start|>assistant``.

    Messages on the channels analysis and commentary come before the last one, which is the answer or a call. A call
    names its tool before or behind its channel, and ends the reply.
    """
    markers = rules.markers
    for number, tool in enumerate(choice.callable_tools):
        rules.add(f"arguments_{number}", json_object(choice, tool))
        name = quoted(f" to=functions.{tool.name}")
        rules.add("kind", f'" "? {markers.lark(f"{CONSTRAIN}json")} | " json"')
        early = f"{name} {markers.lark(f'{CHANNEL}commentary')} kind"
        late = f"{markers.lark(f'{CHANNEL}commentary')} {name} kind"
        rules.add(f"tool_{number}", f"({early} | {late}) {markers.lark(MESSAGE)} arguments_{number}")
    ending = "" if markers.is_stop(CALL) else f"({markers.lark(CALL)})?"
    rules.add("call", f"{any_tool(rules, choice)} {ending}")
    rules.add("before", f"{_opened(markers, 'analysis', 'commentary')} {rules.until('said', END)} {_next(markers)}")
    rules.add("answer", f"{_opened(markers, 'final', 'commentary')} TEXT?")
    rules.add("start", "before* call" if choice.required else "before* (call | answer)")


def _opened(markers: Markers, *channels: str) -> str:
    """Return the beginning of a message on one of the channels."""
    forms = [markers.lark(f"{CHANNEL}{channel}{MESSAGE}") for channel in channels]
    return f"({' | '.join(forms)})"


def _next(markers: Markers) -> str:
    return markers.lark(f"{START}assistant")
