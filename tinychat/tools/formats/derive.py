"""Derive the format of calls from a chat template: from what it writes for two calls whose words are known.

What stands between name, keys and values are the markers of the format. (llama.cpp reads templates in the same manner:
https://github.com/ggml-org/llama.cpp/blob/master/docs/autoparser.md.)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinychat.errors import TextError
from tinychat.text.guard import unguard
from tinychat.text.template import ChatTemplate
from tinychat.tools.definitions import Tool
from tinychat.tools.events import CallArguments, CallBegin
from tinychat.tools.formats.braced import BracedFormat
from tinychat.tools.formats.call_format import CallFormat, IdRule
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.named import NamedFormat
from tinychat.tools.formats.pythonic import PythonicFormat
from tinychat.tools.formats.tagged import TYPE, TaggedFormat
from tinychat.tools.grammars.replies import ID, NUMBER

_QUESTION, _ANSWER = "probe question", "probe answer"
_NAMES = ("probe_alpha", "probe_beta")
_ARGUMENTS = ({"first_key": "first value", "second_key": 17}, {"first_key": "other value", "second_key": 18})
_IDS = ("probe0000", "probe0001")
_PROPERTIES = {"first_key": {"type": "string"}, "second_key": {"type": "integer"}}
_TOOLS = [Tool(name, "", {"type": "object", "properties": _PROPERTIES}) for name in _NAMES]
# A section of thoughts, whole or ended, that a template writes before the calls.
_THOUGHTS = re.compile(r"\s*(?:<think>\s*)?</think>\s*")
# A template is not trusted: what it writes for the probes is bounded, and the ids that a head may have.
_LONGEST_REPLY = 4000
_MOST_IDS = 2
_ONE_MARKER = re.compile(r"\s*\]?\s*(?:<[^<>]*>|\[[^\[\]]*\])?")
_BEGINS_OBJECT = re.compile(r"\{\s*(?:\"\w+\":\s*\"[^\"]*\",\s*)*(?:\"\w+\":\s*)?\"$")


@dataclass
class _Layout:
    """How a call lies in a text: from `begin` to `end`, without its markers; `parts` are fields of its format."""

    kind: type[CallFormat]
    begin: int
    end: int
    parts: dict[str, Any] = field(default_factory=dict)


def derived_format(template: ChatTemplate) -> CallFormat | None:
    """Return the format of the calls that a template writes; None if it writes none, or in a form that is not known."""
    # Some templates write a single call only.
    for count in (2, 1):
        reply = written_calls(template, count)
        if reply is None:
            continue
        probes = list(zip(_NAMES, _ARGUMENTS))[:count]
        layouts = [layout for probe in probes if (layout := _layout(reply, *probe))]
        if len(layouts) < count or len({layout.kind for layout in layouts}) > 1:
            continue
        form = _format(reply, layouts, _end_of_turn(template), _id_rule(template))
        if form is not None and _reads(form, reply, count):
            return form
    return None


def written_calls(template: ChatTemplate, count: int, ids: tuple[str, ...] = _IDS) -> str | None:
    """Return the text that a template writes for the calls of a reply, and all behind it; None if it writes none.

    All ids are the first one.
    """
    calls = [
        {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, name, arguments in list(zip(ids, _NAMES, _ARGUMENTS))[:count]
    ]
    results = [{"role": "tool", "content": "", "tool_call_id": number, "name": "f"} for number in ids[:count]]
    question: dict[str, Any] = {"role": "user", "content": _QUESTION}
    reply: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    for messages in ([question, reply], [question, reply, *results]):
        text = _behind_question(template, messages, False)
        if text is None or _NAMES[0] not in text:
            continue
        for number in ids:
            text = text.replace(number, ids[0])
        header = _common_beginning(text, _behind_question(template, [question], True) or "")
        written = text[len(header) :][:_LONGEST_REPLY]
        thoughts = _THOUGHTS.match(written)
        return written[thoughts.end() if thoughts else 0 :].lstrip()
    return None


def _behind_question(template: ChatTemplate, messages: list[dict[str, Any]], begins_reply: bool) -> str | None:
    tools = [Tool("other_tool", "", {"type": "object", "properties": _PROPERTIES}).as_dict()]
    try:
        text = unguard(template.render(messages, begins_reply, tools=tools))
    except TextError:
        return None
    return text.rpartition(_QUESTION)[2]


def _end_of_turn(template: ChatTemplate) -> str:
    turns = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    return (_behind_question(template, turns, False) or "").rpartition(_ANSWER)[2]


def _id_rule(template: ChatTemplate) -> IdRule:
    return "any" if written_calls(template, 1, ("probe_identity",)) is not None else "nine"


def _layout(reply: str, name: str, arguments: Mapping[str, Any]) -> _Layout | None:
    """Return how the call of a tool lies in a text; None if its form is not known."""
    begin = reply.find(name)
    if begin < 0:
        return None
    end = begin + len(name)
    if (found := _BEGINS_OBJECT.search(reply[:begin])) and (whole := _object(reply, found.start(), name, arguments)):
        return whole
    first, second = re.escape(arguments["first_key"]), arguments["second_key"]
    if python := re.compile(rf"\(first_key=.*?, second_key={second}\)").match(reply, end):
        return _Layout(PythonicFormat, begin, python.end())
    if braced := re.compile(rf"\{{first_key:(\S{{1,40}}?){first}\S{{1,40}}?,second_key:{second}\}}").match(reply, end):
        return _Layout(BracedFormat, begin, braced.end(), {"quote": braced[1]})
    brace = reply.find("{", end)
    if brace >= 0 and (decoded := _decoded(reply, brace)) and decoded[0] == arguments:
        return _Layout(NamedFormat, begin, decoded[1], {"name_end": reply[end:brace]})
    return _tagged(reply, begin, end, arguments)


def _object(reply: str, begin: int, name: str, arguments: Mapping[str, Any]) -> _Layout | None:
    decoded = _decoded(reply, begin)
    if decoded is None or not isinstance(decoded[0], dict):
        return None
    call, end = decoded
    if name in call:
        return _Layout(JsonFormat, begin, end, {"name_key": ""})
    keys = {"name_key": name, "arguments_key": arguments}
    parts = {part: next((key for key in call if call[key] == value), "") for part, value in keys.items()}
    return _Layout(JsonFormat, begin, end, parts) if all(parts.values()) else None


def _decoded(text: str, begin: int) -> tuple[Any, int] | None:
    try:
        return json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None


def _tagged(reply: str, begin: int, name_end: int, arguments: Mapping[str, Any]) -> _Layout | None:
    """Return the layout of a call whose keys and values stand between tags."""
    words = ["first_key", arguments["first_key"], "second_key", str(arguments["second_key"])]
    gaps, start = [], name_end
    for word in words:
        found = reply.find(word, start)
        if found < 0:
            return None
        gaps.append(reply[start:found])
        start = found + len(word)
    to_key, to_value, to_second_key, to_second_value = gaps
    key_begin = _common_end(to_key, to_second_key)
    value_end = _common_beginning(to_second_key.removesuffix(key_begin), reply[start:])
    key_end = _key_end(to_value, to_second_value)
    if key_end is None or not (key_begin.strip() and to_value.strip() and value_end.strip()):
        return None
    parts = {"name_end": to_key.removesuffix(key_begin), "key_begin": key_begin, "value_end": value_end}
    return _Layout(TaggedFormat, begin, start + len(value_end), parts | key_end)


def _key_end(before_text: str, before_number: str) -> dict[str, str] | None:
    """Return the mark between key and value, with a word for the type if it has one; None if it differs otherwise."""
    if before_text == before_number:
        return {"key_end": before_text}
    words = [re.findall(r"\w+", text) for text in (before_text, before_number)]
    differing = [pair for pair in zip(*words) if pair[0] != pair[1]]
    # Names of JSON's types are more than the two that the probes have.
    if len(differing) != 1 or differing[0][0] == "string":
        return None
    text_type, other_type = differing[0]
    key_end = re.sub(rf"\b{text_type}\b", TYPE, before_text)
    if key_end.replace(TYPE, other_type) != before_number:
        return None
    return {"key_end": key_end, "text_type": text_type, "other_type": other_type}


def _format(reply: str, calls: list[_Layout], end_of_turn: str, id_rule: IdRule) -> CallFormat | None:
    """Return the format by the calls in a text, and by what stands before, between and behind them."""
    first, last = calls[0], calls[-1]
    lead, trail = reply[: first.begin], reply[last.end :]
    rest = trail.removesuffix(end_of_turn)
    if rest == trail:
        rest = trail.removesuffix(_common_end(trail, end_of_turn))
    frame = {"call_begin": lead, "call_end": rest}
    if first is not last:
        between = reply[first.end : last.begin]
        call_end = _common_beginning(between, trail)
        between = between.removeprefix(call_end)
        call_begin = _common_end(lead, between)
        frame = {"call_begin": call_begin, "call_end": call_end, "separator": between.removesuffix(call_begin)}
        if section_begin := lead.removesuffix(call_begin):
            frame |= {"section_begin": section_begin, "section_end": rest.removeprefix(call_end)}
    parts = dict(first.parts)
    if first.parts.get("name_end") != last.parts.get("name_end"):
        parts["name_end"] = re.sub(r"\d+", NUMBER, parts["name_end"])
    if first.kind is JsonFormat and not lead:
        parts["is_bare"] = True
    fields = {key: text.replace(_IDS[0], ID) if isinstance(text, str) else text for key, text in parts.items()}
    fields |= {key: text.replace(_IDS[0], ID) for key, text in _tidy(frame).items()}
    if NUMBER in fields.get("name_end", "") and fields["call_begin"].endswith("functions."):
        id_rule = "named"
    ids = sum(text.count(ID) + text.count(NUMBER) for text in fields.values() if isinstance(text, str))
    if ids > _MOST_IDS or (first.kind is TaggedFormat and not fields["call_end"].strip()):
        return None
    form = first.kind(**fields, id_rule=id_rule)
    # Not words that any text may have.
    return form if re.search(r"[<\[{|]", form.opening) else None


def _tidy(frame: dict[str, str]) -> dict[str, str]:
    """Let space before calls be part of the separator, and what ends the turn be no part of calls."""
    section_begin, call_begin = frame.get("section_begin", ""), frame["call_begin"]
    if section_begin and call_begin and not call_begin.strip():
        frame |= {"section_begin": section_begin + call_begin, "call_begin": "", "separator": call_begin}
    if end := _ONE_MARKER.match(frame.get("section_end", "")):
        frame["section_end"] = end[0]
    if not section_begin:
        frame["call_end"] = frame["call_end"].rstrip()
    return frame


def _reads(form: CallFormat, reply: str, count: int) -> bool:
    """Return whether a format reads the calls out of the text that it was derived from."""
    parser = form.parser(_TOOLS)
    events = [*parser.feed(reply), *parser.finish()]
    arguments = [
        "".join(e.text for e in events if isinstance(e, CallArguments) and e.number == n) for n in range(count)
    ]
    try:
        found = [json.loads(text) for text in arguments]
    except ValueError:
        return False
    names = [event.name for event in events if isinstance(event, CallBegin)]
    return names == [*_NAMES[:count]] and found == [*_ARGUMENTS[:count]]


def _common_beginning(first: str, second: str) -> str:
    """Return how two texts begin alike, up to the end of a marker where one of them goes on."""
    common = os.path.commonprefix([first, second])  # noqa: RUF071
    if common in (first, second):
        return common
    return common[: max((common.rfind(end) + 1 for end in ">]}\n:"), default=0)]


def _common_end(first: str, second: str) -> str:
    """Return how two texts end alike, from the beginning of a marker where one of them has more before."""
    common = os.path.commonprefix([first[::-1], second[::-1]])[::-1]  # noqa: RUF071
    if common in (first, second) and common.lstrip()[:1] in ("<", "[", ""):
        return common
    begins = [common.find(begin) for begin in "<["]
    return common[min((begin for begin in begins if begin >= 0), default=len(common)) :]
