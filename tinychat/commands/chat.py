"""tinychat chat: the interactive conversation."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import load_flags, reply_flags, split_flags


@click.command()
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="Standing instruction to the model")
@reply_flags
@load_flags
@click.pass_obj
def chat(load: Loader, /, model: str | None, system: str | None, **flags: Any) -> None:
    """Chat with MODEL in the terminal.

    MODEL is a model folder, a Hugging Face checkpoint folder or repo id (converted once), or the
    name of a stored model; without one, the demo model answers. When stdin or stdout is no
    terminal, every line of stdin is a message.
    """
    loading, reply = split_flags(flags)
    # Imported here: `tinychat --help` shall not wait for the terminal libraries.
    from tinychat.chat.line_input import open_input
    from tinychat.chat.rendering import Renderer
    from tinychat.chat.repl import Repl
    from tinychat.chat.session import Chat

    conversation = Chat(load(model, loading), system, max_tokens=reply.max_tokens, stop=reply.stop, **reply.sampling)
    lines = open_input(sys.stdin, sys.stdout, sys.stderr, os.environ)
    Repl(conversation, lines, Renderer(sys.stdout, sys.stderr, os.environ)).run()
