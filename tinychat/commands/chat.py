"""tinychat chat: the interactive conversation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands import options
from tinychat.commands.first_start import offer_better_model
from tinychat.commands.loading import Loader, load_draft, load_or_demo, load_writer
from tinychat.commands.remote import remote_chat_models, server_flags, tell_of_server
from tinychat.generate.precedence import FLAGS, Preferences
from tinychat.store.default_model import advice, default_model
from tinychat.user_folders import expanded, state_folder

if TYPE_CHECKING:
    from tinychat.chat.draft import Draft
    from tinychat.chat.workspace import Models, Workspace
    from tinychat.generate.model import Model
    from tinychat.generate.precedence import Resolved
    from tinychat.mcp.server import McpServer
    from tinychat.settings import LoadSettings, ToolSettings


def _saved_names() -> list[str]:
    from tinychat.conversation.store import SessionStore

    with suppress(OSError):
        return SessionStore(state_folder(os.environ) / "sessions").names()
    return []


@click.command()
@options.model_argument()
@options.model_option
@options.setting_flags("system", "plain")
@click.option("--private", is_flag=True, help="Save nothing: neither the conversation nor the input history")
@options.continue_flag("conversation")
@click.option(
    "--resume",
    metavar="NAME",
    shell_complete=options.complete_from(_saved_names),
    help="Continue this saved conversation",
)
@options.setting_flags("overflow", "image_detail", "stats")
@options.request_flags
@options.tool_flags
@options.load_flags
@options.draft_flag
@options.setting_flags("cache_disk")
@server_flags
@click.pass_context
def chat(
    context: click.Context,
    /,
    model: str | None,
    named_model: str | None,
    private: bool,
    continues: bool,
    resume: str | None,
    server: str | None,
    api_key: str | None,
    **flags: Any,
) -> None:
    """Chat with MODEL in the terminal.

    MODEL is a model folder, a GGUF file, a Hugging Face checkpoint folder or repo id (converted
    on first use), or the name of a stored model. Without MODEL, the model of $TINYCHAT_MODEL or of
    the configuration file answers, else smollm2-135m if it is installed, else the small demo model.
    When stdin or stdout is not a terminal, every line of stdin is a message or a command of the chat.
    With --server, MODEL is the name of one of the server's models, which answers.
    """
    if continues and resume is not None:
        raise click.UsageError("--continue and --resume exclude each other: leave out one")
    if model is not None and any(map(str.isspace, model)) and not os.path.exists(model):
        shown = shorten(model, 60, placeholder="...")
        raise click.UsageError(f'chat takes no prompt: type it in the chat, or ask one question by tinychat "{shown}"')
    if model is not None and named_model is not None:
        raise click.UsageError(f"MODEL is given twice, as {model!r} and as -m {named_model!r}: leave out one")
    named = model or named_model
    preferences = options.take_preferences(flags)
    # Imported here: `tinychat --help` must not wait for the terminal libraries.
    from tinychat.terminal.open_input import open_input

    # The notices of models that are loaded appear in the conversation, which begins later.
    load = _with_notices(context.obj, lambda text: repl.notice(text))
    remote = None if server is None else remote_chat_models(server, api_key, preferences)
    is_new = not (continues or resume or private or remote) and preferences.model(named) is None
    typed = offer_better_model() if is_new and sys.stdin.isatty() and sys.stdout.isatty() else None
    # Before anything that takes time, the other imports too: text typed meanwhile appears in the prompt.
    with open_input(sys.stdin, sys.stdout, sys.stderr, os.environ, keeps_history=not private) as lines:
        from tinychat.chat.draft import Draft
        from tinychat.chat.repl import Repl
        from tinychat.chat.tool_setup import set_up_tools
        from tinychat.chat.workspace import Workspace, session_store
        from tinychat.conversation.conversation import Chat
        from tinychat.engine.saved_caches import SavedCaches
        from tinychat.terminal.rendering import Renderer

        renderer = Renderer(sys.stdout, sys.stderr, os.environ, preferences.resolve().screen.plain)
        store = session_store()
        name = store.latest(renderer.notice) if continues else resume
        if named is None and name is not None and remote is None:
            named = store.read(name).model
        if remote is None:
            tell_of_server(preferences.model(named) or default_model(), "chat")
            model, loaded = _load(load, preferences, named, renderer.notice if lines.interactive else None)
        else:
            loaded = remote(named)
            model = loaded.name
        found = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults)
        renderer.show_stats = found.screen.stats
        conversation = Chat(loaded)
        conversation.adopt(found)
        workspace = Workspace(
            conversation,
            store,
            model=model,
            models=_models(load, preferences) if remote is None else _remote_models(remote, loaded, preferences),
            private=private,
            caches=None if private else SavedCaches(store.folder, found.chat.cache_disk),
            role=preferences.role,
        )
        repl = Repl(conversation, lines, renderer, workspace)
        conversation.on_notice = repl.notice
        if name is not None:
            repl.show_loaded(*_resume(workspace, name, preferences.flags))
        if typed:
            repl.prefill(Draft(typed, is_command=typed.startswith("/")))
        elif typed is None and lines.interactive and model is None and (hint := advice()):
            repl.notice(hint)
        if lines.interactive or name is not None:
            workspace.autosave()
        try:
            with _servers(preferences, found.tools) as servers:
                set_up_tools(repl, found.tools, servers)
                repl.run()
        finally:
            workspace.save_cache()


def _servers(preferences: Preferences, settings: ToolSettings) -> AbstractContextManager[Mapping[str, McpServer]]:
    """Return the servers of the configuration file and of the file that was named; none where none is asked for."""
    if not settings.mcp and settings.mcp_config is None:
        return nullcontext({})
    from tinychat.mcp.servers import all_servers, mcp_servers

    path = None if settings.mcp_config is None else expanded(settings.mcp_config)
    return mcp_servers(all_servers(preferences.configuration.servers if settings.mcp else {}, path))


def _load(
    load: Loader, preferences: Preferences, named: str | None, notice: Callable[[str], None] | None
) -> tuple[str | None, Model]:
    """Return the name of the model to chat with, and the model; `notice` hears of a fallback to the demo model.

    Without `notice`, a model of the configuration file that cannot be used is an error, as for other commands.
    """

    def load_with_settings(name: str | None) -> Model:
        return load_writer(load, name, preferences.resolve(named, name).loading)

    model = preferences.model(named)
    if named is None and notice is not None:
        return load_or_demo(load_with_settings, model, notice)
    return model, load_with_settings(model)


def _with_notices(load: Loader, notice: Callable[[str], None]) -> Loader:
    """Return a loader of models whose notices go there."""

    def loaded(name: str | None, settings: LoadSettings) -> Model:
        model = load(name, settings)
        model.driver.memory_watch.on_notice = notice
        return model

    return loaded


def _models(load: Loader, preferences: Preferences) -> Models:
    """Return the models and roles that the chat can switch to; settings of a role apply once it is entered."""
    from tinychat.chat.workspace import Models
    from tinychat.store.names import known_names, ready_models

    current, file = preferences, preferences.configuration

    def enter_role(name: str | None) -> None:
        nonlocal current
        section = {} if name is None else file.role(name)
        flags = {setting: value for setting, value in preferences.flags.items() if setting not in section}
        current = replace(preferences, role=name, flags=flags)

    def roles() -> dict[str, dict[str, Any]]:
        return {
            name: {**section, **({"model": preferences.model(section["model"])} if "model" in section else {})}
            for name, section in file.roles.items()
        }

    def settings_for(name: str | None, loaded: Model) -> Resolved:
        return current.resolve(name, current.model(name), loaded.name, advice=loaded.own_defaults)

    def to_load(name: str) -> tuple[str | None, LoadSettings]:
        model = current.model(name)
        return model, current.resolve(name, model).loading

    return Models(
        open=lambda name: load_writer(load, *to_load(name)),
        open_draft=lambda name: load_draft(load, *to_load(name)),
        names=known_names,
        settings_for=settings_for,
        default=lambda: current.model(None) or default_model(),
        ready=lambda: [model.name for model in ready_models()],
        roles=roles,
        enter_role=enter_role,
    )


def _remote_models(remote: Callable[[str | None], Model], loaded: Model, preferences: Preferences) -> Models:
    """Return the server's models, among which the chat can switch; roles are those of this machine."""
    own = _models(lambda name, _settings: remote(name), preferences)
    names: list[str] = loaded.names  # type: ignore[attr-defined]
    return replace(own, open=remote, names=lambda: names, default=lambda: loaded.name, ready=lambda: names)


def _resume(workspace: Workspace, name: str, flags: Mapping[str, Any]) -> tuple[list[str], Draft]:
    """Load a conversation and override its settings by flags; return the same as `Workspace.load`."""
    from tinychat.chat.settings import NAMES, change_setting

    loaded = workspace.load(name)
    for setting in (*NAMES, "stop"):
        if setting in flags:
            change_setting(workspace.chat, setting, flags[setting], FLAGS)
    if "system" in flags:
        workspace.chat.system = flags["system"]
        workspace.chat.origins["system"] = FLAGS
    return loaded
