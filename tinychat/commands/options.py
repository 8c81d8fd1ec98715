"""Flags that several commands share, and the settings that they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tinychat.configuration import read_configuration
from tinychat.errors import FieldError
from tinychat.generate.precedence import Preferences
from tinychat.models.passthrough import NATIVE, dtype_named
from tinychat.rows.locations import Location
from tinychat.setting_kinds import Texts
from tinychat.settings import FLAG, SETTINGS, Setting
from tinychat.settings import names as setting_names

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_MAX_SUGGESTIONS = 3
PATH = click.Path(path_type=Path)


class LocationType(click.ParamType):  # type: ignore[type-arg]
    """The type of a path, an address such as ``s3://bucket/rows.jsonl``, or -."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the location."""
        return value if isinstance(value, Location) else Location(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete a path."""
        return PATH.shell_complete(ctx, param, incomplete)


LOCATION = LocationType()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def complete_model(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem] | list[str]:
    """Return the model names with this beginning, or let the shell complete a path."""
    from click.shell_completion import CompletionItem

    from tinychat.store.names import known_names

    if incomplete.startswith(("/", ".", "~")):
        return [CompletionItem(incomplete, type="file")]
    return [name for name in (*read_configuration().aliases, *known_names()) if name.startswith(incomplete)]


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion of `names`, which are read when a shell asks for them."""
    return lambda _context, _parameter, incomplete: [name for name in names() if name.startswith(incomplete)]


def model_argument(required: bool = False) -> Callable[[_Function], _Function]:
    """Add the argument MODEL to a command."""
    return click.argument("model", required=required, shell_complete=complete_model)


model_option = click.option(
    "-m", "--model", "named_model", metavar="MODEL", shell_complete=complete_model, help="The model, as MODEL"
)
"""For a MODEL that could be taken for a prompt."""


class SettingType(click.ParamType):  # type: ignore[type-arg]
    """The type of a setting's flag: the table of settings parses its values."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.metavar
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value."""
        # The flag of a list of texts is repeated; each value is one text, taken literally.
        several = isinstance(self._setting.kind, Texts)
        try:
            checked = self._setting.check(value) if several else self._setting.read(value)
        except FieldError as error:
            raise click.UsageError(f"--{error.field.replace('_', '-')} {error.problem}", ctx) from None
        return value if several else checked

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the values with this beginning."""
        # Imported here: only shell completion needs it.
        from click.shell_completion import CompletionItem

        words = self._setting.kind.words
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class QuantType(click.Choice):  # type: ignore[type-arg]
    """A number format of weights, under its name or an earlier one."""

    def __init__(self) -> None:
        super().__init__(["int4", "int8", "f32", NATIVE])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number format of a name."""
        return super().convert(dtype_named(value), param, ctx)


def together(*flags: Callable[[Any], Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that adds flags to a command, which its help lists in this order."""
    # A decorator applied last is listed first in the help.
    return lambda command: reduce(lambda decorated, flag: flag(decorated), reversed(flags), command)


def add_spellings(spellings: Mapping[str, Sequence[str]]) -> Callable[[_Function], _Function]:
    """Add other spellings to flags that the decorators below have added, by the names of their settings."""

    def added(command: _Function) -> _Function:
        # Where click keeps the flags of a function that becomes a command.
        for flag in getattr(command, "__click_params__", ()):
            flag.opts = [*flag.opts, *spellings.get(flag.name, ())]
        return command

    return added


def setting_flags(*names: str, **helps: str) -> Callable[[_Function], _Function]:
    """Add the flags of these settings to a command, without defaults; `helps` replaces the help of some."""
    return together(*(_flag(SETTINGS[name], helps.get(name, "")) for name in names))


def _flag(setting: Setting, help_text: str) -> Callable[[Callable[..., Any]], Any]:
    text = f"{help_text or setting.help}{_help_note(setting)}"
    if setting.flag:
        # None, if the flag is not given: the configuration file decides.
        return click.option(setting.flag, setting.name, is_flag=True, default=None, help=text)
    return click.option(
        f"--{setting.name.replace('_', '-')}",
        type=SettingType(setting),
        metavar=setting.metavar,
        multiple=isinstance(setting.kind, Texts),
        help=text,
    )


def _help_note(setting: Setting) -> str:
    """Return the default and range of a flag, for its help."""
    is_plain = setting.default is None or setting.default is False or setting.default == ()
    default = "" if is_plain else setting.write(setting.default)
    if setting.huggingface:
        return f" [default: the model's own, else {default}]"
    notes = [f"default: {default}"] * bool(default) + [setting.kind.note] * bool(setting.kind.note)
    return f"  [{'; '.join(notes)}]" if notes else ""


as_chat = click.option(
    "--chat/--raw", "as_chat", default=None, help="Use the chat template (default, if any), or continue the raw text"
)
fail_on_cut = click.option(
    "--fail-on-cut", is_flag=True, help="Exit with code 3 if a reply is cut by --max-tokens, a full context or a loop"
)


template_flag = click.option(
    "-t",
    "--template",
    metavar="NAME",
    shell_complete=complete_from(lambda: read_configuration().templates),
    help="Use this prompt template of the configuration file; arguments NAME=VALUE set its variables",
)


def continue_flag(what: str) -> Callable[[_Function], _Function]:
    """Add the flag -c to a command: continue the last conversation, or the last one-shot."""
    return click.option("-c", "--continue", "continues", is_flag=True, help=f"Continue the last {what}")


_role_flag = click.option(
    "-r",
    "--role",
    metavar="NAME",
    shell_complete=complete_from(lambda: read_configuration().roles),
    help="Use the settings and system prompt of this role of the configuration file",
)
_reply_flags = setting_flags("think", "max_tokens", *setting_names("sampling", FLAG), "stop", "loop_stop")
load_flags = setting_flags(*(name for name in setting_names("load", FLAG) if name != "draft"))
draft_flag = setting_flags("draft")
"""For commands that write replies."""
tool_flags = setting_flags(*setting_names("tools", FLAG))
request_flags = together(_role_flag, _reply_flags)
"""Flags of sampling and of replies."""


def long_spelling(flag: click.Parameter) -> str:
    """Return the first spelling of a flag that is a word."""
    return next((one for one in flag.opts if one.startswith("--")), flag.opts[0])


def flag_problem(error: FieldError, commands: Iterable[click.Command]) -> str:
    """Return the message of an error with the flag of one of `commands` instead of the field's name."""
    flags = (parameter for command in commands for parameter in command.params if isinstance(parameter, click.Option))
    names = (long_spelling(flag) for flag in flags if flag.name == error.field)
    return f"{next(names, error.field)} {error.problem}"


def unknown_flag_problem(error: click.NoSuchOption, program: click.Command) -> str:
    """Return the message of an error about an unknown flag, with similar flags."""
    command = error.ctx.command if error.ctx is not None else program
    known = [flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
    longer = [flag for flag in known if flag.startswith(error.option_name) and len(error.option_name) > len("--")]
    # Those that no command is about must be close.
    general = get_close_matches(error.option_name, ["--help", "--version"], cutoff=0.8)
    near = longer or get_close_matches(error.option_name, [*known, *general], n=1, cutoff=0.65)
    near = [f"tinychat {flag}" if flag == "--version" else flag for flag in near]
    advice = f": did you mean {' or '.join(near[:_MAX_SUGGESTIONS])}?" if near else ""
    return f"unknown flag '{error.option_name}'{advice}"


def check_raw(preferences: Preferences, as_chat: bool | None) -> None:
    """Refuse a system prompt beside --raw, which leaves out the chat template."""
    if as_chat is False and preferences.flags.get("system") is not None:
        raise click.UsageError("--system needs the chat template: leave out --raw")


def take_preferences(flags: dict[str, Any]) -> Preferences:
    """Read the configuration file, and move the settings from `flags` into preferences."""
    source = click.get_current_context().get_parameter_source
    found = {name: flags.pop(name) for name in SETTINGS if name in flags}
    given = {name: value for name, value in found.items() if source(name) is ParameterSource.COMMANDLINE}
    return Preferences(read_configuration(), flags.pop("role", None), given, flags.pop("template", None))
