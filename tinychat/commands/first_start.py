"""The first start on a terminal: a better model is offered, and nobody waits for an answer for long."""

from __future__ import annotations

import os
import select
import sys

from tinychat.commands.progress import progress_bar
from tinychat.errors import TinychatError
from tinychat.held_signals import held_signals
from tinychat.terminal.safe_text import safe_text

SECONDS = 10.0
_LONGEST_LINE = 1 << 16
_YES, _NO = ("y", "yes"), ("", "n", "no")


def offer_better_model() -> str:
    """Offer the best model of the catalog for this machine, once, and get it if that is wanted.

    Call it where a terminal is on both sides, before its keys are read in another way. Without an answer in `SECONDS`
    the model answers that did before.

    Returns
    -------
    str
        What was typed instead of an answer: a first message, perhaps.
    """
    # Windows tells of keys in another way.
    if sys.platform == "win32":
        return ""
    # Imported here: it keeps `tinychat --help` fast.
    with held_signals():
        from tinychat.better_model import model_to_offer
        from tinychat.store.usual import usual_model

    better = model_to_offer()
    if better is None:
        return ""
    usual, name = usual_model(), better.entry.name
    _say(*better.lines(usual))
    sys.stderr.write(f"Get it now? [y/N] Without an answer in {SECONDS:.0f} seconds, {safe_text(usual)} answers: ")
    sys.stderr.flush()
    line = _typed_line(SECONDS)
    if line is None:
        sys.stderr.write("\n")
    answer = (line or "").strip().lower()
    if answer in _YES:
        _get(name, usual)
        return ""
    _say(f"`tinychat pull {name}` gets it at any time")
    return "" if answer in _NO or line is None else line.rstrip("\r\n")


def _typed_line(seconds: float) -> str | None:
    """Return the line that is typed within a time; None if none is."""
    descriptor = sys.stdin.fileno()
    ready, _, _ = select.select([descriptor], [], [], seconds)
    return os.read(descriptor, _LONGEST_LINE).decode("utf-8", "replace") if ready else None


def _get(name: str, usual: str) -> None:
    from tinychat.api import pull

    try:
        with progress_bar(f"converting {name}") as progress:
            pull(name, progress)
    except (TinychatError, OSError) as error:
        _say(f"{name} did not come: {error}; {usual} answers, and `tinychat pull {name}` tries again")
    except KeyboardInterrupt:
        _say(f"{name} was stopped; {usual} answers, and `tinychat pull {name}` goes on")


def _say(*lines: str) -> None:
    for line in lines:
        print(safe_text(line), file=sys.stderr, flush=True)
