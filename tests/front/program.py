"""Runs command lines in this process, in a folder of their own, and gives their output without paths."""

import contextlib
import functools
import io
import os
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import tinychat
from tinychat.cli import main

_REPLACED = ("TINYCHAT_HOME", "TINYCHAT_MODEL", "TINYCHAT_TRACEBACK", "COLUMNS", "FORCE_COLOR", "OLLAMA_MODELS")


class Ended(NamedTuple):
    """The result of a command line: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def refusal(self):
        """The error that it ended with, or "accepted"."""
        return f"{self.err.strip()} (exit code {self.code})" if self.code else "accepted"


class Program:
    """Command lines of one user, whose home and working folder are new, on a terminal of 80 columns.

    Parameters
    ----------
    folder : Path
        An empty folder.
    """

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if name not in _REPLACED}
        _compile()
        own = {"TINYCHAT_HOME": str(self.home), "TINYCHAT_MODEL": "demo", "COLUMNS": "80"}
        self._environment = kept | own | {"OLLAMA_MODELS": str(self.home / "none")}

    @property
    def configuration(self):
        """The path of the configuration file."""
        return self.home / "config.toml"

    @property
    def sessions(self):
        """The folder of saved conversations."""
        return self.home / "sessions"

    def run(self, *arguments, stdin=""):
        """Run ``tinychat ARGUMENTS`` to its end, with `stdin` as a pipe."""
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for name in ("stdout", "stderr")}
        streams["stdin"] = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        environment = mock.patch.dict(os.environ, self._environment, clear=True)
        with environment, mock.patch.multiple(sys, **streams), contextlib.chdir(self.folder):
            code = main([str(argument) for argument in arguments])
        return Ended(code, *(self._text(streams[name]) for name in ("stdout", "stderr")))

    def succeed(self, *arguments, stdin=""):
        """Run a command line that must end well."""
        ended = self.run(*arguments, stdin=stdin)
        if ended.code:
            raise AssertionError(f"tinychat {' '.join(map(str, arguments))}: {ended.refusal}")
        return ended

    def _text(self, stream):
        stream.flush()
        return stream.buffer.getvalue().decode().replace(str(self.folder), "FOLDER")


@functools.cache
def _compile():
    """Compile the kernels of the demo model, where no cache has them: a command line would say that it does."""
    model = tinychat.load("demo")
    model.generate(model.encode("Hello"), max_tokens=2)


def indented(text, by=4):
    """Return the lines of a text farther to the right, so that what begins without a space stands out."""
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.splitlines())
