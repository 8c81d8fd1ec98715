"""The columns of a row that ask: its prompt, and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tinychat.conversation.messages import as_messages
from tinychat.errors import FieldError
from tinychat.setting_kinds import Texts
from tinychat.settings import LINE, SETTINGS, names

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class RowColumns:
    """The columns that ask: `prompt_column`, `template` and `setting_columns` of `tinychat.RowAnswerer`."""

    prompt: str = "prompt"
    template: str | None = None
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.settings:
            if name not in names(entry=LINE):
                raise FieldError("setting_columns", f"has {name!r}; expected some of {', '.join(names(entry=LINE))}")

    @cached_property
    def names(self) -> frozenset[str]:
        """The columns that a table must have."""
        asked = [self.prompt] if self.template is None else _PLACEHOLDER.findall(self.template)
        return frozenset([*asked, *self.settings])

    def prompt_of(self, row: Mapping[str, Any]) -> str | list[dict[str, object]]:
        """Return the prompt of a row, a text or messages; `SettingError` if it has none."""
        if self.template is not None:
            return _PLACEHOLDER.sub(lambda found: _text_of(row, found[1]), self.template)
        found = plain(row.get(self.prompt))
        if isinstance(found, str):
            return found
        if not isinstance(found, list):
            raise FieldError(self.prompt, f"must be a text or a list of messages, not {found!r:.60}")
        return [message.as_dict() for message in as_messages(found)]

    def settings_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a row, unchecked."""
        given = {name: row.get(name) for name in self.settings}
        return {name: _setting(name, value) for name, value in given.items() if not is_missing(value)}


def is_missing(value: object) -> bool:
    """Return whether a table has no value here: pandas writes NaN for that."""
    return value is None or (isinstance(value, float) and value != value)


def plain(value: Any) -> Any:
    """Return a value of Python for one of numpy, and the whole number that pandas has beside NaN as a float."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _setting(name: str, value: Any) -> Any:
    """Return the value of a setting: CSV has numbers as text."""
    setting = SETTINGS[name]
    return setting.read(value) if isinstance(value, str) and not isinstance(setting.kind, Texts) else plain(value)


def _text_of(row: Mapping[str, Any], column: str) -> str:
    if is_missing(value := row.get(column)):
        raise FieldError(column, "has no value")
    return str(value)
