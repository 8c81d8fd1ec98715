"""tinychat chat: the interactive conversation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import (
    Bytes,
    draft_flag,
    load_flags,
    model_argument,
    model_option,
    request_flags,
    verbosity,
)
from tinychat.commands.preferences import FLAGS, Preferences, take_preferences
from tinychat.conversation.overflow import POLICIES
from tinychat.store.usual import advice

if TYPE_CHECKING:
    from tinychat.chat.saved_caches import NoCaches, SavedCaches
    from tinychat.chat.workspace import Workspace
    from tinychat.conversation.conversation import Chat
    from tinychat.terminal.rendering import Renderer


@click.command()
@model_argument()
@model_option
@click.option("--system", metavar="TEXT", help="Standing instruction to the model")
@click.option(
    "--plain", is_flag=True, default=None, help="Show replies as the text that they are, not drawn as markdown"
)
@click.option("--private", is_flag=True, help="Write nothing: no saved conversation, no history of what is typed")
@click.option("--continue", "continues", is_flag=True, help="Go on with the last conversation")
@click.option("--resume", metavar="NAME", help="Go on with this saved conversation")
@click.option(
    "--overflow",
    type=click.Choice(POLICIES),
    help="When the context is full: end the reply, drop the oldest turns (usual), or shift the cache past them",
)
@verbosity
@request_flags
@load_flags
@draft_flag
@click.option(
    "--cache-disk",
    type=Bytes(),
    default="1G",
    show_default=True,
    metavar="SIZE",
    help="Most disk space for what the model has read of saved conversations; with 0 all is read again",
)
@click.pass_context
def chat(
    context: click.Context,
    /,
    model: str | None,
    named_model: str | None,
    private: bool,
    continues: bool,
    resume: str | None,
    cache_disk: int,
    **flags: Any,
) -> None:
    """Chat with MODEL in the terminal.

    MODEL is a model folder, a GGUF file, a Hugging Face checkpoint folder or repo id (converted
    once), or the name of a stored model; without one, $TINYCHAT_MODEL, SmolLM2-135M-Instruct if
    it is there, or the small demo model answers. When stdin or stdout is not a
    terminal, every line of stdin is a message, or a command of the chat.
    """
    if continues and resume is not None:
        raise click.UsageError("--continue takes the last conversation, --resume a named one: give one of them")
    if model is not None and named_model is not None:
        raise click.UsageError(f"MODEL is given twice, as {model!r} and by -m: leave one out")
    named = model or named_model
    preferences = take_preferences(flags)
    # Imported here: `tinychat --help` must not wait for the terminal libraries.
    from tinychat.terminal.line_input import open_input

    load: Loader = context.obj
    # Before anything that takes time, the other imports too: what is typed meanwhile waits for the prompt.
    with open_input(sys.stdin, sys.stdout, sys.stderr, os.environ, keeps_history=not private) as lines:
        from tinychat.chat.repl import Repl
        from tinychat.chat.saved_caches import NoCaches, SavedCaches
        from tinychat.chat.workspace import session_store
        from tinychat.conversation.conversation import Chat
        from tinychat.terminal.rendering import Renderer

        renderer = Renderer(sys.stdout, sys.stderr, os.environ, bool(preferences.get("plain")))
        renderer.show_stats = preferences.get("stats")
        name = _session_to_resume(continues, resume, renderer)
        named = _model_of(name) if named is None else named
        model = preferences.model(named)
        loaded = load(model, preferences.loading(named, model))
        names = (named, model, loaded.name)
        overflow = preferences.get("overflow", *names) or "drop"
        conversation = Chat(loaded, preferences.get("system", *names), overflow=overflow)
        conversation.adopt(preferences.request(loaded, *names))
        conversation.thinking = preferences.thinking(*names)
        caches = NoCaches() if private else SavedCaches(session_store().folder, cache_disk)
        workspace = _workspace(conversation, model, load, preferences, caches, private)
        repl = Repl(conversation, lines, renderer, workspace)
        conversation.on_notice = repl.notice
        if name is not None:
            standing = _resume(workspace, name, preferences.flags)
            repl.recall()
            for line in standing:
                repl.notice(line)
            repl.prefill(workspace.take_pending())
        if lines.interactive and model is None and (hint := advice()):
            repl.notice(hint)
        if lines.interactive or name is not None:
            workspace.autosave()
        try:
            repl.run()
        finally:
            workspace.keep_cache()


def _session_to_resume(continues: bool, resume: str | None, renderer: Renderer) -> str | None:
    """Return the name of the conversation to go on with, None for a new one."""
    from tinychat.chat.workspace import session_store

    return session_store().latest(renderer.notice) if continues else resume


def _model_of(name: str | None) -> str | None:
    """Return the MODEL that a saved conversation was begun with."""
    from tinychat.chat.workspace import session_store

    return None if name is None else session_store().read(name).model


def _workspace(
    conversation: Chat,
    model: str | None,
    load: Loader,
    preferences: Preferences,
    caches: SavedCaches | NoCaches,
    private: bool,
) -> Workspace:
    from tinychat.chat.workspace import Models, Workspace
    from tinychat.store.names import known_names

    models = Models(
        open=lambda name: load(preferences.model(name), preferences.loading(name, preferences.model(name))),
        names=known_names,
        advised=lambda name, loaded: preferences.request(loaded, name, preferences.model(name)),
    )
    return Workspace(conversation, model=model, models=models, private=private, caches=caches)


def _resume(workspace: Workspace, name: str, given: Mapping[str, Any]) -> list[str]:
    """Load a conversation; flags of the command line override what was saved."""
    from tinychat.chat.settings import NAMES, change_setting

    standing = workspace.load(name)
    for setting in NAMES:
        if setting in given:
            change_setting(workspace.chat, setting, str(given[setting]), FLAGS)
    if "system" in given:
        workspace.chat.system = given["system"]
    if "stop" in given:
        workspace.chat.request = replace(workspace.chat.request, stop=given["stop"])
    return standing
