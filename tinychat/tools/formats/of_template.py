"""The format of calls that a chat template teaches."""

from __future__ import annotations

from tinychat.text.template import ChatTemplate
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.json_calls import HERMES


def call_format_of(template: ChatTemplate) -> CallFormat:
    """Return the format of calls that a template's model writes; that of Hermes where it knows no tools."""
    return HERMES
