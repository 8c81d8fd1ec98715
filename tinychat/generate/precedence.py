"""Settings of several sources, one over the other.

A flag comes before the model's section of the configuration file, then the prompt template, the role, the file's
general settings, the advice of the model's makers, what keeps replies out of loops where they say nothing of that, and
our defaults.
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
from tinychat.settings import ChatSettings, LoadSettings, ScreenSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLAGS, MODEL_SECTION, GENERAL = "the command line", "config.toml, of this model", "config.toml"
AGAINST_LOOPS = "against loops"

LOOP_DEFAULTS: Mapping[str, Any] = {"repeat_penalty": 1.1, "repeat_in_code": False}
"""Settings against loops, chosen by `scripts/measure_loops.py`."""

_ROLE, _TEMPLATE = "role", "template"
_Group = TypeVar("_Group", bound="DataclassInstance")


class SettingsSource(NamedTuple):
    """Settings by name, and where they are from, in words."""

    origin: str
    values: Mapping[str, Any]


def is_asked_for(origin: str) -> bool:
    """Return whether a setting came with the question: by a flag, a role or a prompt template."""
    return origin == FLAGS or origin.startswith((_ROLE, _TEMPLATE))


@dataclass(frozen=True)
class Resolved:
    """The settings of several sources, the last over the others; our defaults are left out.

    Attributes
    ----------
    values : mapping
        By name.
    origins : mapping
        Where each of them is from, in words.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    @property
    def request(self) -> Request:
        """How replies are written, the budget of thinking left out."""
        return self._group(Request)

    @property
    def loading(self) -> LoadSettings:
        """How the model is loaded."""
        return self._group(LoadSettings)

    @property
    def chat(self) -> ChatSettings:
        """How a conversation is held."""
        return self._group(ChatSettings)

    @property
    def screen(self) -> ScreenSettings:
        """Lines shown of a reply."""
        return self._group(ScreenSettings)

    @property
    def thinking(self) -> Thinking:
        """Whether and how long the model is to think."""
        return as_thinking(self.chat.think)

    def _group(self, kind: type[_Group]) -> _Group:
        return kind(**{one.name: self.values[one.name] for one in fields(kind) if one.name in self.values})


def resolve(*sources: SettingsSource) -> Resolved:
    """Put sources of settings over each other, the last on top."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in sources:
        values |= source.values
        origins |= dict.fromkeys(source.values, source.origin)
    return Resolved(values, origins)


@dataclass(frozen=True)
class Preferences:
    """Preferences of the user: flags of one run, and the configuration file.

    Parameters
    ----------
    configuration : Configuration
        The user's.
    role : str, optional
        One of its roles.
    flags : mapping
        Checked settings by name.
    template : str, optional
        One of its prompt templates.

    Raises
    ------
    ConfigurationError
        If there is no such role or template.
    """

    configuration: Configuration = field(default_factory=Configuration)
    role: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None

    def __post_init__(self) -> None:
        if self.role is not None:
            self.configuration.role(self.role)
        if self.template is not None:
            self.configuration.template(self.template)

    def model(self, named: str | None) -> str | None:
        """Return the MODEL to load: as named, of template, role, $TINYCHAT_MODEL or file; None for the usual one."""
        for section in (self._template_section, self._role_section):
            named = section.get("model") if named is None else named
        if named is None and not os.environ.get("TINYCHAT_MODEL"):
            named = self.configuration.model
        return None if named is None else self.configuration.aliases.get(named, named)

    def resolve(self, *names: str | None, advice: Mapping[str, Any] | None = None, is_text: bool = True) -> Resolved:
        """Return the settings for a model by the names that it goes by and, once it is known, its makers' advice.

        `is_text` says whether replies are text: code, and what a grammar describes, may well repeat itself.
        """
        file, own = self.configuration, Advice() if advice is None else advice
        given = (
            SettingsSource(own.origin if isinstance(own, Advice) else Advice.origin, own),
            SettingsSource(GENERAL, file.general),
            SettingsSource(f"{_ROLE} {self.role}", self._role_section),
            SettingsSource(f"{_TEMPLATE} {self.template}", self._template_section),
            SettingsSource(MODEL_SECTION, file.of_model(*names)),
            SettingsSource(FLAGS, self.flags),
        )
        is_open = is_text and not any("repeat_penalty" in source.values for source in given)
        return resolve(SettingsSource(AGAINST_LOOPS, LOOP_DEFAULTS if is_open else {}), *given)

    @property
    def _role_section(self) -> Mapping[str, Any]:
        return {} if self.role is None else self.configuration.role(self.role)

    @property
    def _template_section(self) -> Mapping[str, Any]:
        return {} if self.template is None else self.configuration.template(self.template)
