"""Flags that several commands share, and what they become."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import click

from tinychat.engine.context import KV_TYPES
from tinychat.errors import FieldError
from tinychat.generate.request import Request

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Options = TypeVar("_Options", bound="DataclassInstance")


def complete_model(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of models that begin with what is typed; a shell asks for them."""
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.commands.configuration import read_configuration
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
class LoadOptions:
    """How a model is loaded: see `tinychat.load`."""

    context: int | None = None
    threads: int | None = None
    kv: str | None = None
    cache_memory: int | None = None
    draft: bool = True


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


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, such as 500M or 2G."""

    name = "size"
    _UNITS: ClassVar = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMG]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if found is None:
            raise click.BadParameter(f"{value!r} is not a size: write 500M or 2G", ctx, param)
        return int(float(found[1]) * self._UNITS[found[2].upper()])


class OnOff(click.ParamType):  # type: ignore[type-arg]
    """On or off."""

    name = "on|off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether it is on."""
        if value not in ("on", "off"):
            raise click.BadParameter(f"{value!r} is neither on nor off", ctx, param)
        return bool(value == "on")


verbosity = click.option(
    "--verbose/--quiet",
    "stats",
    default=None,
    help="Say below each reply what it took, or say nothing; default: at a terminal",
)
fail_on_cut = click.option(
    "--fail-on-cut", is_flag=True, help="Exit with 3 where --max-tokens or a full context has cut a reply"
)
_DEFAULTS = Request()

_LOAD_OPTIONS = (
    click.option("--context", type=click.IntRange(min=1), metavar="TOKENS", help="Size of the context"),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most threads to compute with; fewer while other programs hold the cores",
    ),
    click.option(
        "--kv",
        type=click.Choice(KV_TYPES),
        help="Type of the KV cache: bf16 (usual), finer f16 (usual in narrow models), smaller int8, f32",
    ),
    click.option(
        "--cache-memory",
        type=Bytes(),
        metavar="SIZE",
        help="Most memory for the KV cache of all that runs at once, such as 2G; default: a quarter of what is free",
    ),
)

_DRAFT_OPTION = click.option(
    "--draft",
    type=OnOff(),
    default="on",
    show_default=True,
    help="Whether to try tokens that stand in the prompt or the reply several at once; the reply is the same",
)


def _or_else(value: object) -> str:
    return f" [default: the model's own, else {value}]"


def _complete_role(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    # Imported here: only a shell's completion needs it.
    from tinychat.commands.configuration import read_configuration

    return [name for name in read_configuration().roles if name.startswith(incomplete)]


_REQUEST_OPTIONS = (
    click.option(
        "-r",
        "--role",
        metavar="NAME",
        shell_complete=_complete_role,
        help="Settings and system prompt of this role of the configuration file: see `tinychat config`",
    ),
    click.option(
        "--think",
        metavar="on|off|TOKENS",
        help="Whether a model that can do both thinks before it answers, or for how many tokens at most",
    ),
    click.option("--max-tokens", type=int, metavar="TOKENS", help="Most tokens of a reply"),
    click.option(
        "--temperature",
        type=float,
        help=f"Randomness; 0 takes the most likely token{_or_else(_DEFAULTS.temperature)}",
    ),
    click.option(
        "--top-k",
        type=int,
        metavar="TOKENS",
        help=f"Choose among this many most likely tokens; 0 for all{_or_else(_DEFAULTS.top_k)}",
    ),
    click.option(
        "--top-p",
        type=float,
        help=f"Choose among the fewest tokens whose probabilities reach this sum{_or_else(_DEFAULTS.top_p)}",
    ),
    click.option(
        "--min-p",
        type=float,
        help=f"Drop tokens below this share of the most likely one's probability{_or_else(_DEFAULTS.min_p)}",
    ),
    click.option(
        "--repeat-penalty",
        type=float,
        help=f"Make recent tokens less likely; 1 is off{_or_else(_DEFAULTS.repeat_penalty)}",
    ),
    click.option("--seed", type=int, help="Make the choices repeatable"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End a reply at this text; repeatable"),
)


def load_flags(command: _Function) -> _Function:
    """Give `command` the flags of `LoadOptions`."""
    return with_options(command, _LOAD_OPTIONS)


def draft_flag(command: _Function) -> _Function:
    """Give a command that writes one reply at a time the flag of `LoadOptions.draft`."""
    return with_options(command, (_DRAFT_OPTION,))


def request_flags(command: _Function) -> _Function:
    """Give `command` the flags that say how replies are written; none has a value where it is not given."""
    return with_options(command, _REQUEST_OPTIONS)


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
