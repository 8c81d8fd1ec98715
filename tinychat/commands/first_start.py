"""The first start on a terminal: a better model is offered, and nobody waits for an answer for long."""

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
    """Offer the best model of the catalog for this machine, once, and get it if that is wanted.

    Call it where a terminal is on both sides, before its keys are read in another way. Without an answer in `SECONDS`
    the model answers that did before.

    Returns
    -------
    str or None
        What was typed instead of an answer: a first message, perhaps. None where nothing was offered.
    """
    # Windows tells of keys in another way.
    if sys.platform == "win32":
        return None
    # Imported here: it keeps `tinychat --help` fast.
    with held_signals():
        from tinychat.store.better_model import model_to_offer
        from tinychat.store.default_model import default_model
        from tinychat.terminal.rendering import Renderer

    better = model_to_offer()
    if better is None:
        return None
    usual, name = default_model(), better.entry.name
    say = Renderer(sys.stdout, sys.stderr, os.environ).notice
    for line in better.lines(usual):
        say(line)
    sys.stderr.write(f"Get it now? [y/N] Without an answer in {SECONDS:.0f} seconds, {usual} answers: ")
    sys.stderr.flush()
    typed = _typed_line(SECONDS)
    if typed is None:
        sys.stderr.write("\n")
        typed = ""
    answer = typed.strip().lower()
    say(_outcome(name, usual) if answer in _YES else f"`tinychat pull {name}` gets it at any time")
    return "" if answer in (*_YES, *_NO) else typed.rstrip("\r\n")


def _typed_line(seconds: float) -> str | None:
    """Return the line that is typed within a time; None if none is."""
    descriptor = sys.stdin.fileno()
    ready, _, _ = select.select([descriptor], [], [], seconds)
    return os.read(descriptor, _LONGEST_LINE).decode("utf-8", "replace") if ready else None


def _outcome(name: str, usual: str) -> str:
    """Get the model; return a line of how that went."""
    from tinychat.api import pull

    try:
        with progress_bar(f"converting {name}") as progress:
            pull(name, progress)
    except (TinychatError, OSError) as error:
        return f"{name} did not come: {error}; {usual} answers, and `tinychat pull {name}` tries again"
    except KeyboardInterrupt:
        return f"{name} was stopped; {usual} answers, and `tinychat pull {name}` goes on"
    return f"{name} answers from now on where no MODEL is named"
