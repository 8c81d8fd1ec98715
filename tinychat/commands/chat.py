"""tinychat chat: the interactive conversation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.first_start import offer_better_model
from tinychat.commands.loading import MODEL_PROBLEMS, Loader
from tinychat.commands.options import (
    continue_flag,
    draft_flag,
    load_flags,
    model_argument,
    model_option,
    request_flags,
    setting_flags,
    take_preferences,
)
from tinychat.generate.precedence import FLAGS, Preferences
from tinychat.store.default_model import DEMO, advice, default_model
from tinychat.user_folders import state_folder

if TYPE_CHECKING:
    from tinychat.chat.workspace import Models, Workspace
    from tinychat.generate.model import Model
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
@continue_flag("conversation")
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
    from tinychat.terminal.open_input import open_input

    load: Loader = context.obj
    is_new = not (continues or resume or private) and preferences.model(named) is None
    typed = offer_better_model() if is_new and sys.stdin.isatty() and sys.stdout.isatty() else None
    # Before anything that takes time, the other imports too: what is typed meanwhile waits for the prompt.
    with open_input(sys.stdin, sys.stdout, sys.stderr, os.environ, keeps_history=not private) as lines:
        from tinychat.chat.draft import Draft
        from tinychat.chat.repl import Repl
        from tinychat.chat.saved_caches import SavedCaches
        from tinychat.chat.workspace import Workspace, session_store
        from tinychat.conversation.conversation import Chat
        from tinychat.terminal.rendering import Renderer

        renderer = Renderer(sys.stdout, sys.stderr, os.environ, preferences.resolve().screen.plain)
        store = session_store()
        name = store.latest(renderer.notice) if continues else resume
        if named is None and name is not None:
            named = store.read(name).model
        spare = DEMO if named is None and lines.interactive else None
        model, loaded = _load_or_spare(load, preferences, named, spare, renderer)
        found = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults)
        renderer.show_stats = found.screen.stats
        conversation = Chat(loaded)
        conversation.adopt(found)
        caches = None if private else SavedCaches(store.folder, found.chat.cache_disk)
        models, role = _models(load, preferences), preferences.role
        workspace = Workspace(
            conversation, store, model=model, models=models, private=private, caches=caches, role=role
        )
        repl = Repl(conversation, lines, renderer, workspace)
        conversation.on_notice = repl.notice
        if name is not None:
            standing = _resume(workspace, name, preferences.flags)
            repl.recall()
            for line in standing:
                repl.notice(line)
            repl.prefill(workspace.take_pending())
        if typed:
            repl.prefill(Draft(typed, is_command=typed.startswith("/")))
        elif typed is None and lines.interactive and model is None and (hint := advice()):
            repl.notice(hint)
        if lines.interactive or name is not None:
            workspace.autosave()
        try:
            repl.run()
        finally:
            workspace.keep_cache()


def _load_or_spare(
    load: Loader, preferences: Preferences, named: str | None, spare: str | None, renderer: Renderer
) -> tuple[str | None, Model]:
    """Load MODEL, or the spare one, if there is one, where that cannot be used; return the one that it is, too."""
    model = preferences.model(named)
    try:
        return model, load(model, preferences.resolve(named, model).loading)
    except MODEL_PROBLEMS as error:
        if spare is None:
            raise
        renderer.notice(f"{model or default_model()} cannot be used: {error}; the bundled demo model answers")
    return spare, load(spare, preferences.resolve(spare).loading)


def _models(load: Loader, preferences: Preferences) -> Models:
    """Return the models, and the roles, that a conversation may go on with; a role that is entered counts from then."""
    from tinychat.chat.workspace import Models
    from tinychat.store.names import known_names, ready_models

    now, file = preferences, preferences.configuration

    def enter_role(name: str | None) -> None:
        nonlocal now
        section = {} if name is None else file.role(name)
        flags = {setting: value for setting, value in preferences.flags.items() if setting not in section}
        now = replace(preferences, role=name, flags=flags)

    def roles() -> dict[str, dict[str, Any]]:
        return {
            name: {**section, **({"model": preferences.model(section["model"])} if "model" in section else {})}
            for name, section in file.roles.items()
        }

    return Models(
        open=lambda name: load(now.model(name), now.resolve(name, now.model(name)).loading),
        names=known_names,
        advised=lambda name, loaded: now.resolve(name, now.model(name), loaded.name, advice=loaded.own_defaults),
        default=lambda: now.model(None) or default_model(),
        ready=lambda: [model.name for model in ready_models()],
        roles=roles,
        enter_role=enter_role,
    )


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
