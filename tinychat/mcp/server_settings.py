"""The settings of one MCP server: what starts it, or where it is."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tinychat.errors import FieldError, McpError
from tinychat.json_file import one_line
from tinychat.user_folders import expanded

DEFAULT_SECONDS = 60.0
ALLOW_PLAIN_HTTP = "TINYCHAT_PLAIN_HTTP"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LOCAL = ("127.0.0.1", "localhost", "::1")
_MOST_SECONDS = 3600
_MOST_ENTRIES, _LONGEST_TEXT = 1000, 32 << 10


@dataclass(frozen=True)
class ServerSettings:
    """A server of config.toml or of an mcp.json.

    ``${NAME}`` in `args`, `env`, `cwd`, `url` and `headers` stands for a variable of the environment: see `resolved`.
    """

    name: str
    command: str = ""  # the program that is the server; empty: the server is at `url`
    args: tuple[str, ...] = ()
    # Variables added to the program's environment. Secrets: shown nowhere.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""  # the program's working folder, relative to `folder`
    url: str = field(default="", repr=False)  # of a server that speaks Streamable HTTP
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with each request
    timeout: float = DEFAULT_SECONDS  # seconds to wait for an answer
    tools: tuple[str, ...] | None = None  # those that are used, by the server's names for them; None for all
    is_enabled: bool = True
    folder: Path | None = None  # that of the file that these settings are from

    @property
    def line(self) -> str:
        """The whole command line, or the address, as a person is asked about it: variables by name, without values."""
        if self.url:
            return _address(self.url) + (f" (headers: {', '.join(self.headers)})" if self.headers else "")
        words = [f"{name}=..." for name in self.env] + [shlex.join([self.command, *self.args])]
        return " ".join(words) + (f" (in {self.cwd})" if self.cwd else "")

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides what is started, or where requests go; values of variables are not in it."""
        # Imported here: every start reads the settings, few need this.
        import hashlib

        what = [self.command, self.args, dict(self.env), self.cwd, str(self.folder), self.url, dict(self.headers)]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def resolved(self, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """Return the settings with the values of variables for ``${NAME}``.

        `McpError` if one is not set, the working folder is in a home that is not known, or the address is not encrypted
        and not of this machine.
        """

        def value(text: str) -> str:
            return _VARIABLE.sub(lambda found: self._variable(found[1], environment), text)

        try:
            cwd = expanded(value(self.cwd)) if self.cwd else None
        except OSError as error:
            folder = one_line(self.cwd)
            raise McpError(f"the MCP server {self.name} cannot start in {folder}: {error.strerror}") from None
        found = replace(
            self,
            args=tuple(map(value, self.args)),
            env={name: value(text) for name, text in self.env.items()},
            cwd=str(cwd if cwd is None or self.folder is None else self.folder / cwd) if cwd else "",
            url=value(self.url),
            headers={name: value(text) for name, text in self.headers.items()},
        )
        if found.url:
            found._check_address(environment)
        return found

    def _variable(self, name: str, environment: Mapping[str, str]) -> str:
        if name not in environment:
            raise McpError(f"the MCP server {self.name} wants ${{{name}}}: set this variable of the environment")
        return environment[name]

    def _check_address(self, environment: Mapping[str, str]) -> None:
        try:
            parts = urlsplit(self.url)
            host, _port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or not self.url.isprintable():
            raise McpError(f"the MCP server {self.name} has no address: url must be such as https://example.org/mcp")
        if parts.scheme == "http" and host not in _LOCAL and environment.get(ALLOW_PLAIN_HTTP) != "1":
            raise McpError(
                f"the MCP server {self.name} is not encrypted, so anybody on the way could read it: use https, or set "
                f"{ALLOW_PLAIN_HTTP}=1 to take that risk"
            )
        if not all(text.isascii() and text.isprintable() for text in self.headers.values()):
            raise McpError(f"the MCP server {self.name} has a header with characters that no header can have")


def server_settings(name: str, table: Mapping[str, Any], folder: Path | None = None) -> ServerSettings:
    """Return the settings of a table of config.toml.

    `FieldError` names the key that is unknown or has a wrong value; "name" for the server's own.
    """
    if not _NAME.fullmatch(name):
        raise FieldError("name", "must be up to 40 letters, digits, '.', '_' and '-', the first a letter or digit")
    for key, value in table.items():
        if key not in _KINDS:
            raise FieldError(key, f"is unknown; expected one of {', '.join(_KINDS)}")
        is_right, wanted = _KINDS[key]
        if not is_right(value):
            raise FieldError(key, f"must be {wanted}")
    if ("command" in table) == ("url" in table):
        raise FieldError("command", "or url must be given, and not both")
    alien = ("args", "env", "cwd") if "url" in table else ("headers",)
    if wrong := [key for key in alien if key in table]:
        raise FieldError(wrong[0], "is only for a server with a " + ("command" if "url" in table else "url"))
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    given["is_enabled"] = given.pop("enabled", True)
    return ServerSettings(name=name, folder=folder, **given)


def _address(url: str) -> str:
    """Return an address without user, password and query, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no address)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{'?...' if parts.query else ''}"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and "\0" not in value


def _is_given(value: object) -> bool:
    return _is_text(value) and bool(str(value).strip())


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_ENTRIES and all(map(_is_text, value))


def _is_table(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    def is_right(value: object) -> bool:
        return (
            isinstance(value, Mapping)
            and len(value) <= _MOST_ENTRIES
            and all(pattern.fullmatch(name) and _is_text(text) for name, text in value.items())
        )

    return is_right


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MOST_SECONDS


_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "command": (_is_given, "the program that is the server"),
    "args": (_is_list, "a list of texts"),
    "env": (_is_table(_VARIABLE_NAME), "a table of texts by names of variables"),
    "cwd": (_is_given, "a folder"),
    "url": (_is_given, "an address, such as https://example.org/mcp"),
    "headers": (_is_table(_HEADER_NAME), "a table of texts by names of headers"),
    "timeout": (_is_seconds, f"a number of seconds, up to {_MOST_SECONDS}"),
    "tools": (_is_list, "a list of names of tools"),
    "enabled": (lambda value: isinstance(value, bool), "true or false"),
}
KEYS = tuple(_KINDS)
"""The keys of a server's table."""
