"""Flags that several commands share, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tinychat.configuration import read_configuration
from tinychat.errors import FieldError
from tinychat.generate.precedence import Preferences
from tinychat.setting_kinds import Texts
from tinychat.settings import FLAG, SETTINGS, Setting
from tinychat.settings import names as setting_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Options = TypeVar("_Options", bound="DataclassInstance")


def complete_model(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of models that begin with what is typed; a shell asks for them."""
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.store.names import known_names

    return [name for name in (*read_configuration().aliases, *known_names()) if name.startswith(incomplete)]


def model_argument(required: bool = False) -> Callable[[_Function], _Function]:
    """Give a command the argument MODEL, which a shell completes."""
    return click.argument("model", required=required, shell_complete=complete_model)


def model_option(command: _Function) -> _Function:
    """Give a command the flag -m, which names MODEL where words might be taken for something else."""
    flag = click.option("-m", "--model", "named_model", metavar="MODEL", shell_complete=complete_model, help="MODEL")
    return flag(command)


@dataclass(frozen=True)
class TemplateFlags:
    """How a text is put to the model: see `tinychat.generate.prompt.text_prompt`.

    Raises
    ------
    click.UsageError
        If there is a system prompt although the text is to be continued as it is.
    """

    system: str | None
    as_chat: bool | None

    def __post_init__(self) -> None:
        if self.system is not None and self.as_chat is False:
            raise click.UsageError("--system needs the chat template: leave out --raw")


class SettingType(click.ParamType):  # type: ignore[type-arg]
    """A value of a setting, which the table of settings reads."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.metavar
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text stands for."""
        # The flag of a setting of texts is repeated; each time it has one text, as it stands.
        several = isinstance(self._setting.kind, Texts)
        try:
            checked = self._setting.check(value) if several else self._setting.read(value)
        except FieldError as error:
            raise click.UsageError(f"--{error.field.replace('_', '-')} {error.problem}", ctx) from None
        return value if several else checked

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin with what is typed."""
        words = self._setting.kind.words
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def setting_flags(*names: str, **helps: str) -> Callable[[_Function], _Function]:
    """Give a command the flags of these settings; `helps` are words of its own for some. None has a default."""
    flags = tuple(_flag(SETTINGS[name], helps.get(name, "")) for name in names)
    return lambda command: with_options(command, flags)


def _flag(setting: Setting, words: str) -> Callable[[Callable[..., Any]], Any]:
    text = f"{words or setting.help}{_help_note(setting)}"
    if setting.flag:
        # With a default of None, what is not given is left to the configuration file.
        return click.option(setting.flag, setting.name, is_flag=True, default=None, help=text)
    return click.option(
        f"--{setting.name.replace('_', '-')}",
        type=SettingType(setting),
        metavar=setting.metavar,
        multiple=isinstance(setting.kind, Texts),
        help=text,
    )


def _help_note(setting: Setting) -> str:
    """Return the default and range of a flag for its help."""
    is_plain = setting.default is None or setting.default is False or setting.default == ()
    default = "" if is_plain else setting.write(setting.default)
    if setting.huggingface:
        return f" [default: the model's own, else {default}]"
    notes = [f"default: {default}"] * bool(default) + [setting.kind.note] * bool(setting.kind.note)
    return f"  [{'; '.join(notes)}]" if notes else ""


fail_on_cut = click.option(
    "--fail-on-cut", is_flag=True, help="Exit with 3 where --max-tokens or a full context has cut a reply"
)


def _complete_role(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in read_configuration().roles if name.startswith(incomplete)]


_role_flag = click.option(
    "-r",
    "--role",
    metavar="NAME",
    shell_complete=_complete_role,
    help="Settings and system prompt of this role of the configuration file: see `tinychat config`",
)
_reply_flags = setting_flags("think", "max_tokens", *setting_names("sampling", FLAG), "stop", "loop_stop")
load_flags = setting_flags(*(name for name in setting_names("load", FLAG) if name != "draft"))
draft_flag = setting_flags("draft")
"""For commands that write one reply at a time."""


def request_flags(command: _Function) -> _Function:
    """Give `command` the flags that say how replies are written; none has a value where it is not given."""
    return _role_flag(_reply_flags(command))


def with_options(command: _Function, options: tuple[Callable[[Callable[..., Any]], Any], ...]) -> _Function:
    """Give `command` click's options; its help lists them in this order."""
    decorated: Callable[..., Any] = command
    # A decorator applied last is listed first in the help.
    for option in reversed(options):
        decorated = option(decorated)
    return cast(_Function, decorated)


def take(options: type[_Options], flags: dict[str, Any]) -> _Options:
    """Return a dataclass of those values of flags that it has fields for, and take them out of `flags`."""
    return options(**{field.name: flags.pop(field.name) for field in fields(options) if field.name in flags})


def flag_problem(error: FieldError, commands: Iterable[click.Command]) -> str:
    """Return the message of an error with the flag of one of `commands` in the place of the field's name."""
    flags = (parameter for command in commands for parameter in command.params if isinstance(parameter, click.Option))
    names = (max(flag.opts, key=len) for flag in flags if flag.name == error.field)
    return f"{next(names, error.field)} {error.problem}"


def take_preferences(flags: dict[str, Any]) -> Preferences:
    """Take the settings out of `flags`, and read the configuration file.

    Raises
    ------
    ConfigurationError
        If the file is not as it should be, or has no such role.
    """
    source = click.get_current_context().get_parameter_source
    found = {name: flags.pop(name) for name in SETTINGS if name in flags}
    given = {name: value for name, value in found.items() if source(name) is ParameterSource.COMMANDLINE}
    return Preferences(read_configuration(), flags.pop("role", None), given)
