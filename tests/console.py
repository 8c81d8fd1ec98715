"""Runs command lines in this process, with a model that a test prepares."""

import io
import sys

from tinychat import cli


class Console:
    """Keeps what the commands wrote, and what they asked the loader for."""

    def __init__(self, model, monkeypatch, capsys):
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.loaded = []
        self.model = model

    def load(self, name, options):
        self.loaded.append((name, options))
        return self.model

    def run(self, *arguments, stdin=b""):
        """Return (exit code, stdout, stderr)."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = cli.main([str(argument) for argument in arguments], self.load)
        return code, *self._capsys.readouterr()
