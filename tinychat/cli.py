"""The command line: parse it, run a command, turn every failure into one line and an exit code."""

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
from tinychat import windows
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
    """Run one command line, by default the process's own, and return its exit code: see `EXIT_CODES`."""
    _prepare_streams()
    with _ending_signals() as received:
        try:
            _run(sys.argv[1:] if arguments is None else arguments, load)
            sys.stdout.flush()
            code = EXIT_DONE
        except BaseException as error:
            # After SIGHUP the terminal is gone: cleaning up fails too, and there is nowhere to report it.
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
    """Turn SIGTERM and SIGHUP into an exception that unwinds the command; yields the signals received.

    A later one, while the first still unwinds, ends the process at once. Ignored signals, as under nohup, stay ignored.
    """
    received: list[int] = []
    first, is_lost = 0.0, False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal first, is_lost
        if not received or is_lost:
            received.append(number)
            first, is_lost = monotonic(), False
            # Asyncio, on which the prompt runs, lets only this and KeyboardInterrupt through.
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
    """Write one line about an error, if it is one, and return the exit code."""
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
            from tinychat.commands.options import unknown_flag_problem

            _write_error(f"{unknown_flag_problem(error, command_line)}{_help_hint(error)}")
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
            _write_error(_os_error_line(error))
        case MemoryError():
            _write_error("out of memory: close other programs, or use a smaller --context")
        case Exception():
            kind = type(error).__name__
            _write_error(f"internal error, {kind}: {error}; set TINYCHAT_TRACEBACK=1 to see the traceback")
        case _:
            raise error
    return EXIT_ERROR


def _os_error_line(error: OSError) -> str:
    """Return the reason of an OSError, its file, and general advice."""
    where = "" if error.filename is None else f": {error.filename}"
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        advice = "free some disk space"
    elif isinstance(error, PermissionError):
        advice = "check the path and its permissions" if where else "check the permissions of the files in use"
    else:
        advice = "check the path" if where else "check the source of the input and the target of the output"
    return f"{error.strerror or error}{where}; {advice}"


def _write_error(text: str) -> None:
    print(f"error: {one_safe_line(text)}", file=sys.stderr)


def _help_hint(error: click.UsageError) -> str:
    return f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""


def _prepare_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # The shell closed it (`<&-`), or there is no console.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding lacks must not end a reply.
            stream.reconfigure(errors="replace")
        if sys.platform == "win32" and isinstance(stream, io.TextIOWrapper):
            # A pipe there has an old encoding by default, and an old console shows escape codes as text.
            stream.reconfigure(encoding="utf-8")
            if mode == "w" and stream.isatty():
                windows.draw_escape_codes(1 if name == "stdout" else 2)


def _discard_stdout() -> None:
    # The reader of stdout has closed it; Python would complain when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    # Imported here: rarely needed, and slow to import.
    import platform
    from importlib.metadata import version

    parts = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    click.echo(f"tinychat {tinychat.__version__} (Python {platform.python_version()}, {parts})")
    context.exit()


class CommandLine(click.Group):
    """A group of commands whose help lists each with a whole sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
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
    tinychat                             chat with the default model
    tinychat MODEL                       chat with this model
    tinychat "Why is the sky blue?"      ask one question
    tinychat MODEL "Why is ...?"         ask this model
    tinychat -c "And why ...?"           continue the last question; `tinychat log` lists them
    git diff | tinychat "Explain this."  piped text comes before the question
    tinychat -t NAME KEY=VALUE < FILE    use a prompt template of the configuration file
    tinychat models --available          list models for `tinychat pull`

    MODEL is a name that `tinychat models` lists, a GGUF file, a folder, or a repository of the
    Hugging Face hub. See also `tinychat COMMAND --help`.
    """  # noqa: D301
    if context.invoked_subcommand is None:
        context.invoke(command_line.commands["chat"])
