"""tinychat chat: the interactive conversation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import (
    draft_flag,
    load_flags,
    model_argument,
    model_option,
    request_flags,
    setting_flags,
    take_preferences,
)
from tinychat.generate.precedence import FLAGS, Preferences
from tinychat.store.usual import advice
from tinychat.user_folders import state_folder

if TYPE_CHECKING:
    from tinychat.chat.saved_caches import NoCaches, SavedCaches
    from tinychat.chat.workspace import Workspace
    from tinychat.conversation.conversation import Chat
    from tinychat.terminal.rendering import Renderer


def _complete_saved(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    # Imported here: only a shell's completion needs it so early.
    from tinychat.conversation.store import SessionStore

    with suppress(OSError):
        names = SessionStore(state_folder(os.environ) / "sessions").names()
        return [name for name in names if name.startswith(incomplete)]
    return []


@click.command()
@model_argument()
@model_option
@setting_flags("system", "plain")
@click.option("--private", is_flag=True, help="Write nothing: no saved conversation, no history of what is typed")
@click.option("--continue", "continues", is_flag=True, help="Go on with the last conversation")
@click.option("--resume", metavar="NAME", shell_complete=_complete_saved, help="Go on with this saved conversation")
@setting_flags("overflow", "stats")
@request_flags
@load_flags
@draft_flag
@setting_flags("cache_disk")
@click.pass_context
def chat(
    context: click.Context,
    /,
    model: str | None,
    named_model: str | None,
    private: bool,
    continues: bool,
    resume: str | None,
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

        renderer = Renderer(sys.stdout, sys.stderr, os.environ, preferences.resolve().screen.plain)
        name = _session_to_resume(continues, resume, renderer)
        named = _model_of(name) if named is None else named
        model = preferences.model(named)
        loaded = load(model, preferences.resolve(named, model).loading)
        found = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults)
        renderer.show_stats = found.screen.stats
        conversation = Chat(loaded)
        conversation.adopt(found)
        caches = NoCaches() if private else SavedCaches(session_store().folder, found.chat.cache_disk)
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
    from tinychat.store.usual import usual_model

    models = Models(
        open=lambda name: load(preferences.model(name), preferences.resolve(name, preferences.model(name)).loading),
        names=known_names,
        advised=lambda name, loaded: preferences.resolve(
            name, preferences.model(name), loaded.name, advice=loaded.own_defaults
        ),
        default=lambda: preferences.model(None) or usual_model(),
    )
    return Workspace(conversation, model=model, models=models, private=private, caches=caches)


def _resume(workspace: Workspace, name: str, given: Mapping[str, Any]) -> list[str]:
    """Load a conversation; flags of the command line override what was saved."""
    from tinychat.chat.settings import NAMES, change_setting

    standing = workspace.load(name)
    for setting in (*NAMES, "stop"):
        if setting in given:
            change_setting(workspace.chat, setting, given[setting], FLAGS)
    if "system" in given:
        workspace.chat.system = given["system"]
        workspace.chat.origins["system"] = FLAGS
    return standing
