"""The first start on a terminal: offer to download a better model, once, with a time limit for the answer."""

from __future__ import annotations

import os
import select
import sys

from tinychat.commands.progress import progress_bar
from tinychat.errors import TinychatError
from tinychat.held_signals import held_signals

SECONDS = 10.0
_LONGEST_LINE = 1 << 16
_YES, _NO = ("y", "yes"), ("", "n", "no")


def offer_better_model() -> str | None:
    """Offer the best model of the catalog for this machine, once, and pull it if the answer is yes.

    Stdin and stdout must be terminals that nobody else reads. Without an answer in `SECONDS`, nothing changes. Returns
    the typed text if it is no answer, perhaps a first message; None if nothing was offered.
    """
    # select works on sockets only there.
    if sys.platform == "win32":
        return None
    with held_signals():
        from tinychat.store.better_model import model_to_offer
        from tinychat.store.default_model import default_model
        from tinychat.terminal.rendering import Renderer

    better = model_to_offer()
    if better is None:
        return None
    current, name = default_model(), better.entry.name
    notice = Renderer(sys.stdout, sys.stderr, os.environ).notice
    for line in better.lines(current):
        notice(line)
    sys.stderr.write(f"Download it now? [y/N] Without an answer in {SECONDS:.0f} seconds, the chat uses {current}: ")
    sys.stderr.flush()
    typed = _typed_line(SECONDS)
    if typed is None:
        sys.stderr.write("\n")
        typed = ""
    answer = typed.strip().lower()
    notice(_pull(name, current) if answer in _YES else f"`tinychat pull {name}` downloads it at any time")
    return "" if answer in (*_YES, *_NO) else typed.rstrip("\r\n")


def _typed_line(seconds: float) -> str | None:
    """Return the line that is typed in `seconds`, None without one."""
    descriptor = sys.stdin.fileno()
    ready, _, _ = select.select([descriptor], [], [], seconds)
    return os.read(descriptor, _LONGEST_LINE).decode("utf-8", "replace") if ready else None


def _pull(name: str, current: str) -> str:
    """Pull a model, and return a line with the result."""
    from tinychat.api import pull

    try:
        with progress_bar(f"converting {name}") as progress:
            pull(name, progress)
    except (TinychatError, OSError) as error:
        return f"{name} cannot be downloaded: {error}; using {current}; `tinychat pull {name}` tries again"
    except KeyboardInterrupt:
        return f"the download of {name} was stopped; using {current}; `tinychat pull {name}` continues it"
    return f"{name} is the default model from now on"
