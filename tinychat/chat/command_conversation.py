"""Commands that change what was said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from textwrap import shorten

from tinychat.chat.command import as_assignments, as_count
from tinychat.chat.desk import Desk
from tinychat.chat.settings import SAMPLING_NAMES, changed_sampling
from tinychat.generate.settings import SamplingSettings


def clear(desk: Desk, _argument: str) -> None:
    """Forget the conversation."""
    kept = desk.workspace.leave_file()
    desk.chat.clear()
    desk.notice("the conversation is forgotten" + (f"; it stays saved as {kept}" if kept else ""))


def regenerate(desk: Desk, _argument: str) -> None:
    """Write the last reply again."""
    desk.regenerate()


def undo(desk: Desk, argument: str) -> None:
    """Take back the last turns."""
    message = desk.chat.undo(as_count(argument, "/undo [N]"))
    desk.notice(f"taken back: {shorten(message, 60)}")


def edit(desk: Desk, argument: str) -> None:
    """Take back the last turns and put the oldest message into the prompt."""
    turns = as_count(argument, "/edit [N]")
    desk.prefill(desk.chat.undo(turns))
    desk.notice("change the message and send it again; the reply to it is taken back")


def retry(desk: Desk, argument: str) -> None:
    """Write the last reply again with other sampling, for this once; without an argument, with more randomness."""
    sampling = desk.chat.sampling
    sampling = changed_sampling(sampling, as_assignments(argument)) if argument else _freer(sampling)
    if desk.chat.messages and not argument:
        desk.notice(f"writing it again with temperature={sampling.temperature:g}, this once")
    with desk.chat.sampling_otherwise(sampling):
        desk.regenerate()


def _freer(sampling: SamplingSettings) -> SamplingSettings:
    usual = sampling.temperature
    return replace(sampling, temperature=1.0 if usual < 1.0 else min(round(usual + 0.3, 2), 100.0))


def complete_retry(_desk: Desk, argument: str) -> Iterable[str]:
    """Complete the name of a sampling setting in the last word."""
    before, space, _ = argument.rpartition(" ")
    return [f"{before}{space}{name}=" for name in SAMPLING_NAMES]


def system(desk: Desk, argument: str) -> None:
    """Set or show the system prompt."""
    if argument:
        desk.chat.system = None if argument == "none" else argument
        desk.chat.on_change()
    desk.notice(f"system prompt: {desk.chat.system or 'none'}")
