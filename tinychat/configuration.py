"""The user's configuration file: default model, settings, roles, prompt templates, settings and aliases of models.

It is TOML, ``config.toml`` in the folder that `tinychat.user_folders.config_folder` gives. Settings are at its top, in
``[roles.NAME]``, ``[templates.NAME]`` and ``[models."NAME"]``; ``[aliases]`` has names of models, and
``[mcp.servers.NAME]`` a server of tools.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tinychat.errors import ConfigurationError, FieldError
from tinychat.files import read_small
from tinychat.json_file import one_line
from tinychat.mcp.server_settings import ServerSettings, server_settings
from tinychat.settings import CONFIG, SETTINGS, names
from tinychat.user_folders import config_folder

FILE = "config.toml"
_MAX_BYTES = 256 << 10
# Python's parser takes time that grows with the square of them.
_MOST_DOTS = 16
_LONGEST_PROBLEM = 300
_DOTTED = re.compile(rf"""(?<![\w.-])(?:(?:"[^"\n]*+"|'[^'\n]*+'|[\w-]++)[ \t]*+\.[ \t]*+){{{_MOST_DOTS + 1}}}""")

_COMMENT_COLUMN = 32
_SETTINGS = names(entry=CONFIG)
_SECTIONS = ("models", "roles", "templates")


def _example(name: str, value: str, remark: str) -> str:
    line = f"# {name} = {value}"
    return f"{line:<{_COMMENT_COLUMN}}# {remark}" if remark else line


_EXAMPLES = "\n".join(_example(row.name, *row.example) for row in SETTINGS.values() if row.example)
STARTER = f"""\
# Settings of tinychat. What stands behind a # says nothing yet: take the # away.
# A flag of the command line comes before all of this; what is left open is the model's own advice, else tinychat's.

{_example("model", '"qwen3-0.6b"', "answers where no MODEL is named")}
{_EXAMPLES}

# [models."qwen3-0.6b"]         # for one model: by the name that you call it by, or that `tinychat models` lists
# temperature = 0.6
# top_k = 20

# [roles.reviewer]              # tinychat chat -r reviewer
# system = "You review code. Name the worst fault first."
# temperature = 0.2

# [templates.translate]         # tinychat -t translate language=German < letter.txt
# prompt = "Translate to {{language}}, and write nothing else: {{input}}"
# temperature = 0.0
# defaults = {{ language = "English" }}

# [aliases]                     # tinychat chat small
# small = "smollm2-135m"

# [mcp.servers.files]           # tools of other programs: tinychat mcp list
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes"]
# env = {{ TOKEN = "${{MY_TOKEN}}" }}
"""


@dataclass(frozen=True)
class Configuration:
    """The contents of the file; empty where there is none.

    `path` is None where this user has no home. `general`, and by name `models` and `roles`, are settings by name; those
    of a role may have a "model". `templates` have a "prompt", settings, a "model" if any, and "defaults" of variables
    by name. `aliases` are names of models by other names for them, `model` is the MODEL where none is named. `servers`
    are those of MCP, by name.
    """

    path: Path | None = None
    general: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    servers: Mapping[str, ServerSettings] = field(default_factory=dict)

    def role(self, name: str | None) -> Mapping[str, Any]:
        """Return the settings of a role, none without a name; `ConfigurationError` if it is unknown."""
        return self._named("role", name, self.roles)

    def template(self, name: str | None) -> Mapping[str, Any]:
        """Return a prompt template, as `role` does."""
        return self._named("template", name, self.templates)

    def _named(self, kind: str, name: str | None, known: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        if name is None:
            return {}
        if name not in known:
            others = nearest(name, known) or (f"; there are {', '.join(known)}" if known else ", nor any other")
            raise ConfigurationError(f"{self.path} has no {kind} {name!r}{others}")
        return known[name]

    def of_model(self, *names: str | None) -> Mapping[str, Any]:
        """Return the settings of a model that is called by these names."""
        return next((self.models[name] for name in names if name is not None and name in self.models), {})


def configuration_path() -> Path | None:
    """Return the path of the file, which may not exist; None for a user without a home."""
    try:
        return config_folder(os.environ) / FILE
    except OSError:
        return None


def read_configuration() -> Configuration:
    """Read the file, if there is one.

    `ConfigurationError` with the line if it cannot be read, is not TOML, or has an unknown key or a wrong value.
    """
    path = configuration_path()
    if path is None:
        return Configuration()
    try:
        data = read_small(path, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Configuration(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    return parse_configuration(data, path)


def parse_configuration(data: bytes, path: Path) -> Configuration:
    """Parse the bytes of a file; `path` names it in errors, which are those of `read_configuration`."""
    # Imported here: most users have no such file.
    import tomllib

    try:
        text = data.decode("utf-8-sig")
        if dotted := _DOTTED.search(text):
            line = text.count("\n", 0, dotted.start()) + 1
            raise ConfigurationError(f"{path}, line {line}: a key has more than {_MOST_DOTS} dots")
        found = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not text in UTF-8: save it as such") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not TOML: {one_line(str(error))}") from None
    return _Reader(path, text).read(found)


def resolve_alias(model: str | None) -> str | None:
    """Return the model of a name of ``[aliases]``; any other MODEL as it is."""
    return None if model is None else read_configuration().aliases.get(model, model)


def nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """Return the end of an error about an unknown name: the nearest known one, if one is near."""
    close = get_close_matches(name, [*known], n=1)
    return f": did you mean {close[0]}?" if close else ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


class _Reader:
    """Checks the parsed file; errors name the line."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, text.splitlines()

    def read(self, found: Mapping[str, Any]) -> Configuration:
        tables = {name: self._table(found.get(name, {}), name) for name in (*_SECTIONS, "aliases", "mcp")}
        general = {key: value for key, value in found.items() if key not in (*tables, "model")}
        self._check(found, (), ("model", *tables))
        sections = {
            kind: {name: self._table(value, kind, name) for name, value in tables[kind].items()} for kind in _SECTIONS
        }
        for name, section in sections["models"].items():
            self._check(section, ("models", name))
        for name, section in sections["roles"].items():
            self._check(section, ("roles", name), ("model",))
            self._check_model(section, ("roles", name), "model")
        for name, section in sections["templates"].items():
            self._check_template(section, ("templates", name))
        self._check_model(found, (), "model")
        for name in tables["aliases"]:
            self._check_model(tables["aliases"], ("aliases",), name)
        return Configuration(
            self._path,
            general,
            **sections,
            aliases=tables["aliases"],
            model=found.get("model"),
            servers=self._servers(tables["mcp"]),
        )

    def _servers(self, table: Mapping[str, Any]) -> dict[str, ServerSettings]:
        if unknown := [key for key in table if key != "servers"]:
            raise self._error(("mcp",), unknown[0], "is unknown: servers are in [mcp.servers.NAME]")
        found = {}
        for name, section in self._table(table.get("servers", {}), "mcp", "servers").items():
            parents = ("mcp", "servers", name)
            try:
                found[name] = server_settings(name, self._table(section, *parents), self._path.absolute().parent)
            except FieldError as error:
                if error.field == "name":
                    raise self._error(parents[:2], name, error.problem) from None
                raise self._error(parents, error.field, error.problem) from None
        return found

    def _table(self, value: object, *names: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(names[:-1], names[-1], f"must be a section, as [{'.'.join(names)}]")
        return value

    def _check_template(self, section: Mapping[str, Any], parents: tuple[str, ...]) -> None:
        self._check(section, parents, ("model", "prompt", "defaults"))
        self._check_model(section, parents, "model")
        if not _is_name(section.get("prompt")):
            raise self._error(parents[:1], parents[1], "must have a prompt, such as 'Summarise this: {input}'")
        for name, text in self._table(section.get("defaults", {}), *parents, "defaults").items():
            if not isinstance(text, str):
                raise self._error((*parents, "defaults"), name, "must be a text")

    def _check_model(self, section: Mapping[str, Any], parents: tuple[str, ...], key: str) -> None:
        if key in section and not _is_name(section[key]):
            raise self._error(parents, key, "must be the name of a model")

    def _check(self, section: Mapping[str, Any], parents: tuple[str, ...], others: tuple[str, ...] = ()) -> None:
        """Check the settings of a section, in which the keys `others` may stand beside them."""
        for key, value in section.items():
            if key in others:
                continue
            if key not in _SETTINGS:
                known = (*_SETTINGS, *others)
                near = nearest(key, known) or f"; expected one of {', '.join(known)}"
                raise ConfigurationError(f"{self._position(parents, key)}: unknown key {one_line(key)!r}{near}")
            try:
                SETTINGS[key].check(value)
            except FieldError as error:
                raise self._error(parents, key, error.problem) from None

    def _error(self, parents: tuple[str, ...], key: str, problem: str) -> ConfigurationError:
        problem = one_line(problem, _LONGEST_PROBLEM)
        return ConfigurationError(f"{self._position(parents, key)}: {one_line(key)} {problem}")

    def _position(self, parents: tuple[str, ...], key: str) -> str:
        """Return the file with the line of a key, or its section where that is not found."""
        line = next(self._lines_of(parents, key), None)
        section = f", in {one_line('.'.join(parents))}" if parents else ""
        return f"{self._path}, line {line}" if line else f"{self._path}{section}"

    def _lines_of(self, parents: tuple[str, ...], key: str) -> Iterator[int]:
        """Yield the numbers of the lines that set a key, as far as they can be found."""
        section: tuple[str, ...] = ()
        for number, line in enumerate(self._lines, 1):
            if header := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
                section = tuple(quoted or bare for quoted, bare in _WORDS.findall(header[1]))
                if section == (*parents, key):
                    yield number
            elif section == parents and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
                yield number


_WORDS = re.compile(r"[\"']([^\"']*)[\"']|([A-Za-z0-9_-]+)")
