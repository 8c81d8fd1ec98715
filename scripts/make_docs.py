"""Write the tables of README.md and docs/ that the code knows: commands, options, settings, families and others.

    .venv/bin/python scripts/make_docs.py

A page has a table between ``<!-- table: NAME -->`` and ``<!-- end of table -->``; a name may have an argument, as in
``options chat``. `tests/scripts/test_make_docs.py` compares the pages with the tables that this script would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from tinychat.chat.commands import COMMANDS
from tinychat.cli import command_line
from tinychat.commands.exit_codes import EXIT_CODES
from tinychat.commands.options import long_spelling
from tinychat.models.architectures import supported_families
from tinychat.settings import CONFIG, FLAG, LINE, SET, SETTINGS, Setting
from tinychat.settings import names as setting_names
from tinychat.store.catalog import CATALOG
from tinychat.store.estimates import disk_bytes, memory_bytes_needed, positions

REPO = Path(__file__).resolve().parents[1]
COMMAND = ".venv/bin/python scripts/make_docs.py"
TABLE = re.compile(r"(<!-- table: ([^\n]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_LONGEST_HELP = 1000
SCOPES = {
    "sampling": "Sampling",
    "reply": "Length and end of a reply",
    "load": "Loading a model",
    "chat": "Conversation",
    "tools": "Tools",
    "screen": "Display",
}
"""Headings of docs/configuration.md by the scope of their settings."""


def pages() -> list[Path]:
    """Return the files that may have tables."""
    return [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]


def with_tables(text: str) -> str:
    """Return the text of a page with the tables of the present code."""
    return TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", text)


def table(name: str) -> str:
    """Return a table by its name and argument."""
    longest = max((known for known in TABLES if name.startswith(known)), key=len, default=None)
    if longest is None:
        raise ValueError(f"unknown table {name!r}; expected one of {', '.join(TABLES)}")
    return TABLES[longest](*name.removeprefix(longest).split())


def commands() -> str:
    """Return the commands with their one-line help."""
    listed = command_line.commands.items()
    rows = [(f"`tinychat {name}`", each.get_short_help_str(_LONGEST_HELP)) for name, each in listed]
    return _markdown("command | effect", rows)


def options(command: str) -> str:
    """Return the options that a command alone has, and a line with its settings."""
    found = [each for each in command_line.commands[command].params if isinstance(each, click.Option)]
    own = [each for each in found if each.name not in SETTINGS]
    rows = []
    for each in own:
        record = each.get_help_record(click.Context(command_line.commands[command]))
        assert record is not None
        rows.append((f"`{record[0]}`", _sentence(record[1])))
    flags = {each.name: f"`{long_spelling(each)}`" for each in found if each.name in SETTINGS}
    return _markdown("option | effect", rows) + (_settings_line(flags) if flags else "")


def slash_commands() -> str:
    """Return the slash commands of the chat."""
    return _markdown("command | effect", [(f"`{each.usage}`", each.help) for each in COMMANDS.values()])


def settings(scope: str) -> str:
    """Return the settings of a scope: flag, values, default, other entries and help."""
    rows = [
        (f"`{each.name}`", _flag_of(each), _values_of(each), _default_of(each), _entries_of(each), _sentence(each.help))
        for each in SETTINGS.values()
        if each.scope == scope
    ]
    return _markdown("setting | flag | values | default | also in | effect", rows)


def names_elsewhere() -> str:
    """Return the names that settings have in model files and in OpenAI-style bodies."""
    rows = [
        (
            f"`{each.name}`",
            f"`{each.huggingface}`" if each.huggingface else "",
            f"`general.sampling.{each.gguf}`" if each.gguf else "",
            ", ".join(f"`{name}`" for name in each.openai),
        )
        for each in SETTINGS.values()
        if each.huggingface or each.gguf or each.openai
    ]
    return _markdown("setting | `generation_config.json` | GGUF | OpenAI-style body, beside the setting's name", rows)


def families() -> str:
    """Return the supported families, as their files describe them."""
    rows = [(f"`{name}`", each.models, each.covered) for name, each in supported_families().items()]
    return _markdown("architecture | families | covered", rows)


def catalog() -> str:
    """Return the models of the catalog with their estimated sizes."""
    rows = [
        (
            f"`{name}`",
            each.repository,
            each.licence,
            positions(each.context),
            each.abilities or "-",
            f"{disk_bytes(each) / 1e9:.2f} GB",
            f"{memory_bytes_needed(each) / 1e9:.1f} GB",
        )
        for name, each in CATALOG.items()
    ]
    return _markdown("name | repository | licence | context | able to | on disk | memory", rows)


def exit_codes() -> str:
    """Return the exit codes and their meanings."""
    return _markdown("code | meaning", [(str(code), meaning) for code, meaning in EXIT_CODES.items()])


TABLES: dict[str, Callable[..., str]] = {
    "commands": commands,
    "options": options,
    "slash commands": slash_commands,
    "settings": settings,
    "setting names": names_elsewhere,
    "families": families,
    "catalog": catalog,
    "exit codes": exit_codes,
}


def _settings_line(flags: dict[str | None, str]) -> str:
    """Return the sentence about the settings of a command; a scope that it takes as a whole is named by its title."""
    parts = []
    for scope, title in SCOPES.items():
        names = setting_names(scope, FLAG)
        given = [flags[name] for name in names if name in flags]
        link = f"[{title.lower()}](configuration.md#{title.lower().replace(' ', '-')})"
        if given:
            parts.append(f"{link} (all)" if len(given) == len(names) else f"{link} ({', '.join(given)})")
    return f"\nIt also takes the flags of these settings: {', '.join(parts)}.\n"


def _flag_of(setting: Setting) -> str:
    if FLAG not in setting.entries:
        return ""
    name = setting.flag or f"--{setting.name.replace('_', '-')} {setting.metavar}"
    return f"`{name}`"


def _values_of(setting: Setting) -> str:
    kind = setting.kind
    return f"{kind.typed}, {kind.bounds}" if kind.bounds else kind.typed


def _default_of(setting: Setting) -> str:
    return "" if setting.default is None else f"`{setting.write(setting.default)}`"


def _entries_of(setting: Setting) -> str:
    entries = {CONFIG: "config", SET: "/set", LINE: "batch"}
    return ", ".join(word for entry, word in entries.items() if entry in setting.entries)


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _markdown(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a markdown table; `head` has the titles of the columns with bars between them."""
    lines = [head.split(" | "), ["---"] * (head.count(" | ") + 1)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
