"""The clipboard, through programs of the desktop or through the terminal."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import TextIO

from tinychat.errors import SettingError

# Without it, PowerShell writes in the encoding of old consoles.
_IN_UTF8 = "[Console]::OutputEncoding = [Text.Encoding]::UTF8"
_READERS = (
    ("wl-paste", "--no-newline"),
    ("xclip", "-selection", "clipboard", "-out"),
    ("xsel", "--clipboard", "--output"),
    ("pbpaste",),
    ("powershell.exe", "-NoProfile", "-Command", f"{_IN_UTF8}; Get-Clipboard -Raw"),
)
_WRITERS = (
    ("wl-copy",),
    ("xclip", "-selection", "clipboard", "-in"),
    ("xsel", "--clipboard", "--input"),
    ("pbcopy",),
    ("clip.exe",),
)
_TIMEOUT_SECONDS = 5
# Common terminals silently drop longer ones.
_OSC52_BYTES = 74_000


def read_clipboard() -> str:
    """Return the clipboard's text."""
    done = _run_first(_READERS, None, "paste into the prompt instead")
    return done.stdout.decode("utf-8", errors="replace")


def write_clipboard(text: str) -> None:
    """Copy `text` to the clipboard."""
    _run_first(_WRITERS, text, "use /export FILE.md instead")


def offer_to_terminal(text: str, terminal: TextIO) -> bool:
    """Ask the terminal to copy `text` (OSC 52 of xterm), which works over ssh; return False if it cannot.

    Terminals do not report whether they did.
    """
    data = text.encode("utf-8")
    if not terminal.isatty() or len(data) > _OSC52_BYTES:
        return False
    terminal.write(f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\x07")
    terminal.flush()
    return True


def _run_first(commands: Sequence[Sequence[str]], text: str | None, advice: str) -> subprocess.CompletedProcess[bytes]:
    """Run the first of the programs that is installed and succeeds."""
    installed = [command for command in commands if shutil.which(command[0])]
    for command in installed:
        try:
            done = _run(command, text)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done
    names = ", ".join(command[0] for command in installed or commands)
    problem = f"{names} failed" if installed else f"none of {names} is installed"
    raise SettingError(f"the clipboard cannot be used: {problem}; {advice}")


def _run(command: Sequence[str], text: str | None) -> subprocess.CompletedProcess[bytes]:
    """Run a program; a writer may stay in the background, and must not hold our pipes."""
    reads = text is None
    return subprocess.run(
        command,
        # clip.exe takes the mark of UTF-16 for a sign that the text is Unicode.
        input=(text or "").encode("utf-16" if command[0] == "clip.exe" else "utf-8"),
        # Where no locale is set, macOS reads and writes an encoding of its past.
        env=os.environ | {"LC_CTYPE": "UTF-8"} if command[0] in ("pbcopy", "pbpaste") else None,
        stdout=subprocess.PIPE if reads else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
