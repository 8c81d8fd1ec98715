"""The command line: parses, runs a command, and turns every failure into one line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import FrameType

import click

import tinychat
from tinychat.commands.completion import VARIABLE, answer_shell
from tinychat.commands.default_command import implied_command
from tinychat.commands.exit_codes import EXIT_DONE, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE
from tinychat.commands.lazy import LazyCommands
from tinychat.commands.loading import Loader, load_model
from tinychat.errors import ContextError, FieldError, PromptTooLongError, TinychatError
from tinychat.held_signals import lost_signals_sent_again
from tinychat.terminal.safe_text import one_safe_line

# Windows has no SIGHUP.
_ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
# timeout(1) sends its signal twice, and so does a shell whose terminal closes.
_ECHO_SECONDS = 1.0
_LONGEST_SENTENCE = 1000


def main(arguments: Sequence[str] | None = None, load: Loader = load_model) -> int:
    """Run one command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process when omitted.
    load : callable, optional
        Makes the model that a command names.

    Returns
    -------
    int
        See `tinychat.commands.exit_codes`; 128 and its number for a signal that ended the program.
    """
    _prepare_streams()
    with _ending_signals() as received:
        try:
            _run(sys.argv[1:] if arguments is None else arguments, load)
            sys.stdout.flush()
            code = EXIT_DONE
        except BaseException as error:
            # Where the terminal is gone, cleaning up fails too, and there is nowhere to report it.
            code = EXIT_ERROR if received else _report(error)
    if not received:
        return code
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    return 128 + received[0]


@contextmanager
def _ending_signals() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP unwind the command, which leaves nothing half-written; yields those that came.

    One that comes while the first still unwinds ends the program at once. What is ignored, as by nohup, stays so.
    """
    received: list[int] = []
    first, is_lost = 0.0, False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal first, is_lost
        if not received or is_lost:
            received.append(number)
            first, is_lost = monotonic(), False
            # Asyncio, on which the prompt runs, passes on no other exception that a chat does not take for Ctrl-C.
            raise SystemExit(128 + number)
        if monotonic() - first > _ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def lose() -> int:
        nonlocal is_lost
        is_lost = True
        return received[0] if received else signal.SIGTERM

    # Only the main thread may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in _ENDING_SIGNALS if is_main and signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, end)
        with lost_signals_sent_again(lose):
            yield received
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _run(arguments: Sequence[str], load: Loader) -> None:
    if instruction := os.environ.get(VARIABLE):
        answer_shell(command_line, instruction)
        return
    # Not `tinychat.main(...)`: click would print errors in its own form.
    meant = implied_command(arguments, command_line.commands)
    with command_line.make_context("tinychat", meant, obj=load) as context:
        command_line.invoke(context)


def _report(error: BaseException) -> int:
    """Write what went wrong in one line, unless nothing did, and return the exit code."""
    match error:
        case BrokenPipeError():
            _discard_stdout()
            return EXIT_DONE
        case click.exceptions.Exit():
            return error.exit_code
    if os.environ.get("TINYCHAT_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
    match error:
        case KeyboardInterrupt() | click.Abort():
            return EXIT_INTERRUPTED
        case click.NoSuchOption():
            from tinychat.commands.options import unknown_flag

            _write_error(f"{unknown_flag(error, command_line)}{_help_hint(error)}")
            return EXIT_USAGE
        case click.UsageError():
            _write_error(f"{error.format_message()}{_help_hint(error)}")
            return EXIT_USAGE
        case FieldError():
            # Imported here: no other error needs the flags of all commands.
            from tinychat.commands.options import flag_problem

            _write_error(flag_problem(error, command_line.commands.values()))
        case PromptTooLongError() if not error.can_grow:
            _write_error(str(error))
        case ContextError():
            _write_error(f"{error} (--context)")
        case TinychatError():
            _write_error(str(error))
        case OSError():
            _write_error(_explain(error))
        case MemoryError():
            _write_error("there is not enough memory: close other programs, or use a smaller --context")
        case Exception():
            kind = type(error).__name__
            _write_error(f"internal error, {kind}: {error}; TINYCHAT_TRACEBACK=1 shows where")
        case _:
            raise error
    return EXIT_ERROR


def _explain(error: OSError) -> str:
    """Say what the system refused, for which file, and what to do in general terms."""
    where = "" if error.filename is None else f": {error.filename}"
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        advice = "free some space on the disk"
    elif isinstance(error, PermissionError):
        advice = "check the path and its permissions" if where else "check the permissions of the files in use"
    else:
        advice = "check the path" if where else "check where the input comes from and the output goes"
    return f"{error.strerror or error}{where}; {advice}"


def _write_error(text: str) -> None:
    print(f"error: {one_safe_line(text)}", file=sys.stderr)


def _help_hint(error: click.UsageError) -> str:
    return f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""


def _prepare_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # The shell closed it (`<&-`), or there is no console at all.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            # A model may write characters that the terminal's encoding lacks; that must not end the reply.
            stream.reconfigure(errors="replace")


def _discard_stdout() -> None:
    # The reader of stdout has closed it; without this Python complains when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    # Imported here: it is rarely needed, and slows down every start.
    import platform
    from importlib.metadata import version

    parts = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    click.echo(f"tinychat {tinychat.__version__} (Python {platform.python_version()}, {parts})")
    context.exit()


class CommandLine(click.Group):
    """The commands, each with a whole sentence in the list of them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a row for each command."""
        rows = [(name, self.commands[name].get_short_help_str(_LONGEST_SENTENCE)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=CommandLine,
    commands=LazyCommands(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions and exit",
)
@click.pass_context
def command_line(context: click.Context) -> None:
    """Chat with a language model on your CPU.

    \b
    tinychat                             chat with smollm2-135m, or with demo
    tinychat MODEL                       chat with this one
    tinychat "Why is the sky blue?"      one question, one answer
    tinychat MODEL "Why is ...?"         ask this model
    tinychat -c "And why ...?"           go on with the last question; `tinychat log` lists them
    git diff | tinychat "Explain this."  what is piped in comes before the question
    tinychat -t NAME KEY=VALUE < FILE    ask by a prompt template of the configuration file
    tinychat models --available          models to get with `tinychat pull`

    MODEL is a name that `tinychat models` lists, a GGUF file, a folder, or a repository of the
    Hugging Face hub. Each command has a --help of its own.
    """  # noqa: D301
    if context.invoked_subcommand is None:
        context.invoke(command_line.commands["chat"])
