"""The command line: parses, runs a command, and turns every failure into one line and an exit code."""

from __future__ import annotations

import io
import os
import platform
import signal
import sys
import traceback
from collections.abc import Sequence

import click

import tinychat
from tinychat.chat.safe_text import safe_text
from tinychat.commands.batch import batch
from tinychat.commands.bench import bench
from tinychat.commands.chat import chat
from tinychat.commands.complete import complete
from tinychat.commands.convert import convert
from tinychat.commands.doctor import doctor
from tinychat.commands.loading import Loader, load_model
from tinychat.commands.perplexity import perplexity
from tinychat.commands.store import list_models, pull, rm
from tinychat.errors import TinychatError

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT


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
        0 done, 1 an error that was written to stderr in one line, 2 wrong usage, 130 interrupted.
    """
    _prepare_streams()
    try:
        _run(sys.argv[1:] if arguments is None else arguments, load)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except click.exceptions.Exit as done:
        return done.exit_code
    except BaseException as error:
        if os.environ.get("TINYCHAT_TRACEBACK") == "1":
            traceback.print_exc()
        return _report(error)
    return EXIT_DONE


def _run(arguments: Sequence[str], load: Loader) -> None:
    # Not `tinychat.main(...)`: click would print errors in its own form.
    with command_line.make_context("tinychat", list(arguments), obj=load) as context:
        command_line.invoke(context)


def _report(error: BaseException) -> int:
    """Write what went wrong in one line and return the exit code."""
    match error:
        case KeyboardInterrupt() | click.Abort():
            return EXIT_INTERRUPTED
        case click.UsageError():
            _write_error(f"{error.format_message()}{_help_hint(error)}")
            return EXIT_USAGE
        case TinychatError():
            _write_error(str(error))
        case OSError():
            where = f": {error.filename}" if error.filename else ""
            _write_error(f"{error.strerror or error}{where}")
        case MemoryError():
            _write_error("there is not enough memory: close other programs, or use a smaller --context")
        case Exception():
            kind = type(error).__name__
            _write_error(f"internal error, {kind}: {error}; TINYCHAT_TRACEBACK=1 shows where")
        case _:
            raise error
    return EXIT_ERROR


def _write_error(text: str) -> None:
    print(f"error: {safe_text(' '.join(text.split()))}", file=sys.stderr)


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
    # Whoever read stdout has seen enough; without this Python complains when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    # Imported here: every start would pay for it, and few ask.
    from importlib.metadata import version

    parts = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    click.echo(f"tinychat {tinychat.__version__} (Python {platform.python_version()}, {parts})")
    context.exit()


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
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
    """Chat with a language model on your CPU; without a command, with the demo model."""
    if context.invoked_subcommand is None:
        context.invoke(chat)


for _command in (chat, complete, batch, convert, pull, list_models, rm, bench, perplexity, doctor):
    command_line.add_command(_command)
