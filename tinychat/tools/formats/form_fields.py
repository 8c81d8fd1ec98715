"""A format of calls as plain fields: a server tells it to clients, which read the calls of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_args

from tinychat.tools.definitions import Tool, ToolCall
from tinychat.tools.events import CallBegin
from tinychat.tools.formats.braced import BracedFormat
from tinychat.tools.formats.call_format import CallFormat, IdRule
from tinychat.tools.formats.contents import ContentFormat
from tinychat.tools.formats.harmony import HarmonyFormat
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.named import NamedFormat
from tinychat.tools.formats.pythonic import PythonicFormat
from tinychat.tools.formats.recipients import RecipientFormat
from tinychat.tools.formats.tagged import TaggedFormat

_KINDS: Mapping[str, type[CallFormat]] = {
    kind.name: kind
    for kind in (
        BracedFormat,
        ContentFormat,
        HarmonyFormat,
        JsonFormat,
        NamedFormat,
        PythonicFormat,
        RecipientFormat,
        TaggedFormat,
    )
}
_LONGEST = 200
_PROBE = ToolCall("probe0000", "probe", '{"key": "text"}')
_TOOLS = [Tool(_PROBE.name, "", {"type": "object", "properties": {"key": {"type": "string"}}})]


def fields_of_form(form: CallFormat) -> dict[str, str | bool]:
    """Return the kind of a format, and its marks by name."""
    return {"kind": form.name} | {one.name: getattr(form, one.name) for one in fields(form)}


def form_of_fields(found: object) -> CallFormat:
    """Return the format of fields that `fields_of_form` has returned, there or elsewhere.

    `ValueError` if they are none, or calls that the format writes are not read back.
    """
    kind = _KINDS.get(str(found.get("kind"))) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or kind is None:
        raise ValueError("the form of calls is not known")
    wanted = {one.name: bool if one.name == "is_bare" else str for one in fields(kind)}
    given = {name: value for name, value in found.items() if name != "kind"}
    if given.keys() != wanted.keys() or any(type(value) is not wanted[name] for name, value in given.items()):
        raise ValueError("the form of calls has other fields")
    if given["id_rule"] not in get_args(IdRule) or any(len(str(value)) > _LONGEST for value in given.values()):
        raise ValueError("the form of calls has other fields")
    form = kind(**given)
    if not _reads_its_calls(form):
        raise ValueError("calls in the form cannot be read")
    return form


def _reads_its_calls(form: CallFormat) -> bool:
    # Without a mark each letter could begin a call.
    if not form.opening and not (isinstance(form, JsonFormat) and form.is_bare):
        return False
    try:
        parser = form.parser(_TOOLS)
        events = [*parser.feed(form.spell(_PROBE)), *parser.finish()]
    except (ValueError, IndexError):
        return False
    return parser.ended == 1 and CallBegin(0, _PROBE.name) in events
