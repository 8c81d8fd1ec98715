"""Commands for saved conversations: list, search, save, load, fork, rename, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from tinychat.chat.loop import ChatLoop
from tinychat.conversation.session_file import About, passage_with
from tinychat.errors import SessionError, SettingError
from tinychat.terminal.line_input import Candidate


def save(loop: ChatLoop, argument: str) -> None:
    """Save the conversation, now and later, under the given name."""
    loop.notice(f"saved as {loop.workspace.save(argument or None)}")


def load(loop: ChatLoop, argument: str) -> None:
    """Continue a saved conversation."""
    loop.show_loaded(*loop.workspace.load(argument))


def sessions(loop: ChatLoop, argument: str) -> None:
    """List the saved conversations, the newest first; with a word, those that contain it."""
    names = loop.workspace.store.names()
    if not names:
        loop.notice("no saved conversations yet")
        return
    width = max(map(len, names))
    lines = list(_found(loop, names, width, argument) if argument else _all(loop, names, width))
    loop.notice("\n".join(lines) or f"no saved conversation contains {argument!r}")


def _all(loop: ChatLoop, names: list[str], width: int) -> Iterator[str]:
    for name in names:
        try:
            yield _line(loop, width, name, loop.workspace.store.about(name))
        except SessionError:
            yield f"{name:<{width}}  damaged"


def _found(loop: ChatLoop, names: list[str], width: int, word: str) -> Iterator[str]:
    for name in names:
        try:
            messages = loop.workspace.store.messages(name)
        except SessionError:
            continue
        found = passage_with(messages, word)
        if found is None and word.casefold() not in name.casefold():
            continue
        yield _line(loop, width, name, About.of(messages))
        if found:
            yield f"{'':<{width}}  {found}"


def _line(loop: ChatLoop, width: int, name: str, about: About | None) -> str:
    what = "saved by an older version" if about is None else f"{about.messages} messages  {about.title}"
    mark = "  (this one)" if name == loop.workspace.name else ""
    return f"{name:<{width}}  {_saved_at(loop, name)}  {what}{mark}"


def _saved_at(loop: ChatLoop, name: str) -> str:
    return datetime.fromtimestamp(loop.workspace.store.saved_at(name)).strftime("%Y-%m-%d %H:%M")


def complete_session(loop: ChatLoop, _argument: str) -> Iterable[Candidate]:
    """Complete the name of a saved conversation."""
    # Without titles: every file would have to be read.
    return [Candidate(name, f"saved {_saved_at(loop, name)}") for name in loop.workspace.store.names()]


def fork(loop: ChatLoop, _argument: str) -> None:
    """Continue in a copy; the conversation so far stays as it is."""
    before, now = loop.workspace.fork()
    loop.notice(f"{before} is unchanged; this is now {now}")


def rename(loop: ChatLoop, argument: str) -> None:
    """Give this conversation, or another one, a new name."""
    *others, name = argument.split()
    if len(others) > 1:
        raise SettingError("too many names: type /rename NEW, or /rename OLD NEW; names have no spaces")
    before = loop.workspace.rename(name, others[0] if others else None)
    loop.notice(f"renamed {before} to {name}" if before else f"saved as {name}")


def delete(loop: ChatLoop, argument: str) -> None:
    """Delete a saved conversation; if it is this one, begin a new one."""
    if loop.workspace.delete(argument):
        loop.notice(f"deleted {argument}; a new conversation begins")
    else:
        loop.notice(f"deleted {argument}")
