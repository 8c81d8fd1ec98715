"""Precedence of settings from several sources.

A flag comes before the model's section of the configuration file, then the prompt template, the role, the file's
general settings, the advice of the model's makers, the settings against loops where these say nothing of them, and the
defaults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tinychat.configuration import Configuration
from tinychat.generate.generation_config import Advice
from tinychat.generate.request import Request
from tinychat.generate.thinking import Thinking, as_thinking
from tinychat.settings import ChatSettings, LoadSettings, ScreenSettings, ToolSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLAGS, MODEL_SECTION, GENERAL = "the command line", "config.toml, of this model", "config.toml"
AGAINST_LOOPS = "against loops"

LOOP_DEFAULTS: Mapping[str, Any] = {"repeat_penalty": 1.1, "repeat_in_code": False}
"""Settings against loops, chosen by `scripts/measure_loops.py`."""

_ROLE, _TEMPLATE = "role", "template"
_Group = TypeVar("_Group", bound="DataclassInstance")


class SettingsSource(NamedTuple):
    """Settings by name, and their origin in words."""

    origin: str
    values: Mapping[str, Any]


def is_asked_for(origin: str) -> bool:
    """Return whether a setting came with the question: by a flag, a role or a prompt template."""
    return origin == FLAGS or origin.startswith((_ROLE, _TEMPLATE))


@dataclass(frozen=True)
class Resolved:
    """Settings of several sources by name, and the origin of each in words; defaults are left out."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    @property
    def request(self) -> Request:
        """The settings of replies, without the budget of thinking."""
        return self._group(Request)

    @property
    def loading(self) -> LoadSettings:
        """The settings of loading a model."""
        return self._group(LoadSettings)

    @property
    def chat(self) -> ChatSettings:
        """The settings of a conversation."""
        return self._group(ChatSettings)

    @property
    def tools(self) -> ToolSettings:
        """The settings of tools."""
        return self._group(ToolSettings)

    @property
    def screen(self) -> ScreenSettings:
        """The settings of the screen."""
        return self._group(ScreenSettings)

    @property
    def thinking(self) -> Thinking:
        """Whether and how long the model thinks."""
        return as_thinking(self.chat.think)

    def _group(self, kind: type[_Group]) -> _Group:
        return kind(**{one.name: self.values[one.name] for one in fields(kind) if one.name in self.values})


def resolve(*sources: SettingsSource) -> Resolved:
    """Merge sources of settings, the last on top."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in sources:
        values |= source.values
        origins |= dict.fromkeys(source.values, source.origin)
    return Resolved(values, origins)


@dataclass(frozen=True)
class Preferences:
    """Flags of one run over the configuration file with a role and a prompt template of it.

    `ConfigurationError` if there is no such role or template.
    """

    configuration: Configuration = field(default_factory=Configuration)
    role: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None

    def __post_init__(self) -> None:
        self.configuration.role(self.role)
        self.configuration.template(self.template)

    def model(self, named: str | None) -> str | None:
        """Return the MODEL to load: as named, of template, role, $TINYCHAT_MODEL or file; None for the default one."""
        for section in (self.configuration.template(self.template), self.configuration.role(self.role)):
            named = section.get("model") if named is None else named
        if named is None and not os.environ.get("TINYCHAT_MODEL"):
            named = self.configuration.model
        return None if named is None else self.configuration.aliases.get(named, named)

    def resolve(self, *names: str | None, advice: Mapping[str, Any] | None = None, is_text: bool = True) -> Resolved:
        """Return the settings for a model by the names that it goes by and, once it is known, its makers' advice.

        `is_text` is false for code and structured replies, which may well repeat themselves.
        """
        file, own = self.configuration, Advice() if advice is None else advice
        given = (
            SettingsSource(own.origin if isinstance(own, Advice) else Advice.origin, own),
            SettingsSource(GENERAL, file.general),
            SettingsSource(f"{_ROLE} {self.role}", file.role(self.role)),
            SettingsSource(f"{_TEMPLATE} {self.template}", file.template(self.template)),
            SettingsSource(MODEL_SECTION, file.of_model(*names)),
            SettingsSource(FLAGS, self.flags),
        )
        is_open = is_text and not any("repeat_penalty" in source.values for source in given)
        return resolve(SettingsSource(AGAINST_LOOPS, LOOP_DEFAULTS if is_open else {}), *given)
