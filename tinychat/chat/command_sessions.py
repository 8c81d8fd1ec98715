"""Commands for saved conversations and for changing the model."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from textwrap import shorten

from tinychat.chat.desk import Desk
from tinychat.errors import SessionError
from tinychat.generate.prompt import NO_TEMPLATE


def save(desk: Desk, argument: str) -> None:
    """Save the conversation, from now on under the name given."""
    desk.notice(f"saved as {desk.workspace.save(argument or None)}")


def load(desk: Desk, argument: str) -> None:
    """Go on with a saved conversation."""
    for line in desk.workspace.load(argument):
        desk.notice(line)
    desk.prefill(desk.workspace.take_pending())


def sessions(desk: Desk, _argument: str) -> None:
    """List the saved conversations, the newest first."""
    names = desk.workspace.store.names()
    if not names:
        desk.notice("no conversation is saved yet")
        return
    width = max(map(len, names))
    desk.notice("\n".join(f"{name:<{width}}  {_description(desk, name)}" for name in names))


def _description(desk: Desk, name: str) -> str:
    store = desk.workspace.store
    try:
        session = store.read(name)
    except SessionError:
        return "damaged"
    when = datetime.fromtimestamp(store.saved_at(name)).strftime("%Y-%m-%d %H:%M")
    first = session.messages[0].content if session.messages else ""
    mark = "  (this one)" if name == desk.workspace.name else ""
    return f"{when}  {len(session.messages)} messages  {shorten(first, 40, placeholder='...')}{mark}"


def complete_session(desk: Desk, _argument: str) -> Iterable[str]:
    """Complete the name of a saved conversation."""
    return desk.workspace.store.names()


def fork(desk: Desk, _argument: str) -> None:
    """Go on in a copy; the conversation so far stays under its name."""
    before, now = desk.workspace.fork()
    desk.notice(f"{before} stays as it is; you are now in {now}")


def model(desk: Desk, argument: str) -> None:
    """Let another model go on with the conversation."""
    desk.workspace.change_model(argument)
    desk.notice(f"{desk.chat.model.name} goes on from here; it reads the conversation with your next message")
    if desk.chat.model.template.is_fallback:
        desk.notice(NO_TEMPLATE)


def complete_model(desk: Desk, _argument: str) -> Iterable[str]:
    """Complete the name of a stored model."""
    return desk.workspace.model_names()
