"""Commands that change what was said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from textwrap import shorten

from tinychat.chat.command import as_assignments, as_count
from tinychat.chat.desk import Desk
from tinychat.chat.message import Draft
from tinychat.chat.settings import changed_sampling
from tinychat.generate.request import SAMPLING_FIELDS, Request


def clear(desk: Desk, _argument: str) -> None:
    """Forget the conversation."""
    kept = desk.workspace.leave_file()
    desk.chat.clear()
    desk.notice("the conversation is forgotten" + (f"; it stays saved as {kept}" if kept else ""))


def regenerate(desk: Desk, _argument: str) -> None:
    """Write the last reply again."""
    desk.regenerate()


def undo(desk: Desk, argument: str) -> None:
    """Take back the last changes."""
    before = len(desk.chat.messages)
    message = desk.chat.undo(as_count(argument, "/undo [N]", "steps"))
    shorter = len(desk.chat.messages) < before
    desk.notice(f"taken back: {_short(message)}" if shorter else f"back again: {_last_words(desk)}")


def redo(desk: Desk, argument: str) -> None:
    """Bring back what /undo took back."""
    desk.chat.redo(as_count(argument, "/redo [N]", "steps"))
    desk.notice(f"back again: {_last_words(desk)}")


def edit(desk: Desk, argument: str) -> None:
    """Put an earlier message into the prompt; once it is sent, it takes the place of all that follows."""
    turns = as_count(argument, "/edit [N]")
    desk.prefill(Draft(desk.chat.message_of(turns), turns))
    sent = "change the message and send it again" if turns == 1 else f"sent, it replaces the last {turns} turns"
    desk.notice(f"{sent}; Ctrl-C leaves all as it is")


def _last_words(desk: Desk) -> str:
    return _short(desk.chat.messages[-1].content)


def _short(text: str) -> str:
    return shorten(text, 60)


def retry(desk: Desk, argument: str) -> None:
    """Write the last reply again with other sampling, for this once; without an argument, with more randomness."""
    usual = desk.chat.request
    request = changed_sampling(usual, as_assignments(argument)) if argument else _freer(usual)
    if desk.chat.messages and not argument:
        desk.notice(f"writing it again with temperature={request.temperature:g}, this once")
    with desk.chat.using(request):
        desk.regenerate()


def _freer(request: Request) -> Request:
    usual = request.temperature
    return replace(request, temperature=1.0 if usual < 1.0 else min(round(usual + 0.3, 2), 100.0))


def complete_retry(_desk: Desk, argument: str) -> Iterable[str]:
    """Complete the name of a sampling setting in the last word."""
    before, space, _ = argument.rpartition(" ")
    return [f"{before}{space}{name}=" for name in SAMPLING_FIELDS]


def system(desk: Desk, argument: str) -> None:
    """Set or show the system prompt."""
    if argument:
        desk.chat.system = None if argument == "none" else argument
        desk.chat.on_change()
    desk.notice(f"system prompt: {desk.chat.system or 'none'}")
