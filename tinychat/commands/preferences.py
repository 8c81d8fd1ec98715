"""What a command uses where several have a say: flags, the configuration file, the model's own advice, ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.configuration import LOAD_KEYS, REQUEST_KEYS, Configuration, read_configuration
from tinychat.commands.options import LoadOptions, flag_problem
from tinychat.errors import FieldError
from tinychat.generate.layers import Layer, Layered, layered
from tinychat.generate.request import Request
from tinychat.generate.thinking import Thinking, as_thinking

if TYPE_CHECKING:
    from tinychat.generate.model import Model

FLAGS = "the command line"


@dataclass(frozen=True)
class Preferences:
    """Settings of one run: flags over those of the model, of the role, and the general ones of the configuration file.

    Parameters
    ----------
    configuration : Configuration
        The user's.
    role : str, optional
        One of its roles.
    flags : mapping
        What the command line gives, by the names that the configuration file has for it.

    Raises
    ------
    ConfigurationError
        If there is no such role.
    FieldError
        If a flag's value is out of range.
    """

    configuration: Configuration = field(default_factory=Configuration)
    role: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.role is not None:
            self.configuration.role(self.role)
        Request(**self._fields(self.flags))

    def model(self, named: str | None) -> str | None:
        """Return the MODEL to load: the named one, the role's, $TINYCHAT_MODEL, the file's; None for the usual one."""
        if named is None and self.role is not None:
            named = self.configuration.role(self.role).get("model")
        if named is None and not os.environ.get("TINYCHAT_MODEL"):
            named = self.configuration.model
        return None if named is None else self.configuration.aliases.get(named, named)

    def loading(self, named: str | None, model: str | None) -> LoadOptions:
        """Return how to load MODEL, by the name that the user gave and by the one that it stands for."""
        values = self._values(named, model)
        return LoadOptions(**{key: values[key] for key in (*LOAD_KEYS, "draft") if key in values})

    def request(self, loaded: Model, *names: str | None) -> Layered:
        """Return how the replies of a loaded model are written, and where each setting is from."""
        return self.request_over(loaded.own_defaults, loaded.name, *names)

    def request_over(self, own: Mapping[str, Any], *names: str | None) -> Layered:
        """Return the same of a model by its own advice, and by the names that it goes by."""
        layers = [Layer(layer.origin, self._fields(layer.values)) for layer in self._layers(*names)]
        return layered(own, *layers)

    def get(self, key: str, *names: str | None) -> Any:
        """Return a setting that is not of the sampler, None where nothing is said."""
        return self._values(*names).get(key)

    def thinking(self, *names: str | None) -> Thinking:
        """Return whether the model is to think."""
        think = self.get("think", *names)
        return Thinking() if think is None else as_thinking(str(think))

    def _layers(self, *names: str | None) -> list[Layer]:
        file = self.configuration
        layers = [Layer("config.toml", file.general)]
        if self.role is not None:
            layers.append(Layer(f"role {self.role}", file.role(self.role)))
        layers.append(Layer("config.toml, of this model", file.of_model(*names)))
        return [*layers, Layer(FLAGS, self.flags)]

    def _values(self, *names: str | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for layer in self._layers(*names):
            values |= layer.values
        return values

    @staticmethod
    def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key in REQUEST_KEYS}


def take_preferences(flags: dict[str, Any]) -> Preferences:
    """Take what a configuration file may say too out of `flags`, and read that file.

    Raises
    ------
    click.UsageError
        If a flag's value is out of range.
    ConfigurationError
        If the file is not as it should be, or has no such role.
    """
    role = flags.pop("role", None)
    given = {key: flags.pop(key) for key in (*REQUEST_KEYS, *LOAD_KEYS, *_OTHER_FLAGS) if key in flags}
    # A flag that may be repeated is an empty tuple where it is not given.
    given = {key: value for key, value in given.items() if value is not None and value != ()}
    configuration = read_configuration()
    try:
        preferences = Preferences(configuration, role, given)
        preferences.thinking()
    except FieldError as error:
        raise click.UsageError(flag_problem(error, [click.get_current_context().command])) from error
    return preferences


_OTHER_FLAGS = ("draft", "system", "think", "overflow", "plain", "stats")
