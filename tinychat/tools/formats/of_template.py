"""The format of calls that a chat template teaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinychat.errors import TextError
from tinychat.text.template import ChatTemplate
from tinychat.tools.definitions import Tool
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.derive import derived_format, written_calls
from tinychat.tools.formats.known import HERMES, MARKS, MESSAGES

_SCHEMA = {"type": "object", "properties": {"key": {"type": "string", "description": "Text."}}, "required": ["key"]}
_TOOLS = [Tool("tool_probe", "Probe.", _SCHEMA).as_dict()]
_QUESTION = [{"role": "user", "content": "?"}]
# By which templates know the tools; SmolLM3 has two kinds of them.
_VARIABLES = ("tools", "xml_tools")


@dataclass(frozen=True)
class TaughtFormat:
    """The knowledge of tools in a chat template."""

    form: CallFormat
    # The variable of the template that takes the tools; None if it knows none: the model must be told in words.
    variable: str | None
    # Whether the template writes the calls of earlier replies; if not, they must be part of the content.
    writes_calls: bool


def taught_format(template: ChatTemplate) -> TaughtFormat:
    """Return a template's knowledge of tools; where there is none that we know, the format is that of Hermes."""
    variable = _variable_of_tools(template)
    for marks, messages in MESSAGES:
        if variable and all(mark in template.source for mark in marks):
            return TaughtFormat(messages, variable, True)
    form = derived_format(template)
    if form is not None:
        return TaughtFormat(form, variable, True)
    known = _known_format(template) if variable and written_calls(template, 1) is None else None
    return TaughtFormat(HERMES, None, False) if known is None else TaughtFormat(known, variable, False)


def _variable_of_tools(template: ChatTemplate) -> str | None:
    # Some templates fail without tools.
    without = _rendered(template, {})
    for name in _VARIABLES:
        if name in template.source and _rendered(template, {name: _TOOLS}) not in (None, without):
            return name
    return None


def _rendered(template: ChatTemplate, variables: dict[str, Any]) -> str | None:
    try:
        return template.render(_QUESTION, **variables)
    except TextError:
        return None


def _known_format(template: ChatTemplate) -> CallFormat | None:
    """Return the format of a family by its marks."""
    return next((form for mark, form in MARKS if mark in template.source or mark in template.added_tokens), None)
