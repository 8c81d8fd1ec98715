"""tinychat log: the saved one-shots."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tinychat.commands.one_shot import open_log
from tinychat.commands.options import complete_from
from tinychat.errors import SessionError
from tinychat.terminal.safe_text import one_safe_line, safe_text

if TYPE_CHECKING:
    from tinychat.conversation.messages import Message
    from tinychat.conversation.one_shots import OneShots


@click.command()
@click.argument("name", required=False, shell_complete=complete_from(lambda: open_log().names()))
@click.option("-s", "--search", metavar="TEXT", help="List only those that contain this text")
@click.option("--clear", is_flag=True, help="Remove all of them")
def log(name: str | None, search: str | None, clear: bool) -> None:
    """List the saved one-shots, the latest first, or show the one called NAME.

    `tinychat -c PROMPT` continues the latest, `tinychat chat --resume NAME` any of them. The last 200 are saved, where
    only you can read them; `tinychat --no-log PROMPT`, or log = false in the configuration file, saves none.
    """
    if sum((name is not None, search is not None, clear)) > 1:
        raise click.UsageError("NAME, --search and --clear exclude each other: leave out all but one")
    store = open_log()
    if clear:
        names = store.names()
        for each in names:
            store.delete(each)
        print(f"removed {len(names)}", file=sys.stderr)
    elif name is not None:
        _show(store.messages(name))
    else:
        _list(store, search)


def _list(store: OneShots, search: str | None) -> None:
    names = store.names()
    lines = [line for each in names for line in _lines_of(store, each, search)]
    for line in lines:
        print(line)
    if not names:
        print('no one-shots yet: ask one with tinychat "Why is the sky blue?"', file=sys.stderr)
    elif not lines:
        print(f"no one-shot contains {search!r}", file=sys.stderr)


def _lines_of(store: OneShots, name: str, search: str | None) -> Iterator[str]:
    from tinychat.conversation.session_file import About, passage_with

    passage: str | None = ""
    try:
        if search is None:
            about = store.about(name)
        else:
            messages = store.messages(name)
            about, passage = About.of(messages), passage_with(messages, search)
    except SessionError:
        yield f"{name}  damaged"
        return
    if passage is None:
        return
    yield f"{name}  {one_safe_line(about.title) if about else ''}"
    if passage:
        yield f"{'':<{len(name)}}  {one_safe_line(passage)}"


def _show(messages: Sequence[Message]) -> None:
    """Print a conversation: prompts behind "> ", replies as rendered Markdown on a terminal."""
    from tinychat.terminal.rendering import Renderer

    renderer = Renderer(sys.stdout, sys.stderr, os.environ)
    for number, message in enumerate(messages):
        if number:
            print()
        if message.role == "user":
            lines = (safe_text(message.shown) if sys.stdout.isatty() else message.shown).split("\n")
            print("\n".join(f"> {line}" for line in lines), flush=True)
        else:
            renderer.text(message.text)
            renderer.end_reply()
