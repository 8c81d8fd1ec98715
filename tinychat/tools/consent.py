"""Consent to calls of tools: asking a person, and remembering what was allowed for good."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tinychat.errors import CheckpointError
from tinychat.files import open_regular, read_up_to, replacing
from tinychat.json_file import one_line, parse_json_object
from tinychat.tools.definitions import Tool
from tinychat.tools.runnable import RunnableTool, fingerprint
from tinychat.user_folders import trusted_folder

FILE = "allowed-tools.json"
"""The name of the file in `tinychat.user_folders.config_folder`."""

_FORMAT = 1
_MAX_BYTES = 4 << 20
_LONGEST_WARNING = 300
_OTHERS_WRITE = 0o022


class Decision(Enum):
    """The answer of a person to a call."""

    ONCE = "once"
    EXACTLY = "exactly"
    TOOL_IN_FOLDER = "tool_in_folder"
    NO = "no"


@dataclass(frozen=True)
class ConsentAnswer:
    """A decision and, for a no, its reason, which the model reads."""

    decision: Decision
    reason: str = ""

    @property
    def is_yes(self) -> bool:
        """Whether the call may run."""
        return self.decision is not Decision.NO

    @property
    def refusal(self) -> str:
        """The result of a call that may not run: what the model reads."""
        return f"the user did not allow this call: {self.reason}" if self.reason else "the user did not allow this call"


@dataclass(frozen=True)
class Question:
    """A call that a person decides on."""

    tool: Tool
    arguments: dict[str, Any]
    preview: str | None  # the effect that the call would have: a diff, a command line
    folder: Path  # the one that "always" is for
    decisions: tuple[Decision, ...]  # the answers to offer
    # Whether something was allowed for good to a tool of this name whose description or schema was another.
    has_changed: bool


Ask = Callable[[Question], ConsentAnswer]


class Consent:
    """Decides on calls: by what is remembered, by what was allowed by name, else by asking.

    Without `ask` nobody is there to be asked, and only the tools whose names are in `allowed` may run.
    """

    def __init__(
        self, store: ConsentStore, folder: Path, ask: Ask | None = None, allowed: Collection[str] = ()
    ) -> None:
        self._store = store
        self._folder = Path(os.path.realpath(folder))
        self._ask = ask
        self._allowed = frozenset(allowed)

    def decide(
        self, tool: RunnableTool, arguments: dict[str, Any], preview: str | None = None, must_ask: bool = False
    ) -> ConsentAnswer:
        """Return whether a checked call may run; with `must_ask`, for one that is repeated, memory does not count."""
        name, call = tool.definition.name, _Call.of(tool, arguments, self._folder)
        if not must_ask and (name in self._allowed or self._store.allows(call, tool.exact_only)):
            return ConsentAnswer(Decision.ONCE)
        if self._ask is None:
            return ConsentAnswer(Decision.NO, f"nobody can be asked here, and the tool {name} was not allowed by name")
        decisions = [
            decision for decision in Decision if decision is not Decision.TOOL_IN_FOLDER or not tool.exact_only
        ]
        changed = self._store.knows_another(call)
        answer = self._ask(Question(tool.definition, arguments, preview, self._folder, tuple(decisions), changed))
        if answer.decision not in decisions:
            return ConsentAnswer(Decision.NO)
        if answer.decision in (Decision.EXACTLY, Decision.TOOL_IN_FOLDER):
            self._store.remember(call, answer.decision is Decision.EXACTLY)
        return answer


@dataclass(frozen=True)
class _Call:
    """A call as it is remembered; `arguments` is their JSON text, of which equal ones have one only."""

    tool: str
    fingerprint: str
    folder: str
    arguments: str | None

    @classmethod
    def of(cls, tool: RunnableTool, arguments: dict[str, Any], folder: Path) -> _Call:
        definition = tool.definition
        return cls(definition.name, fingerprint(definition), str(folder), _canonical(arguments))

    @property
    def of_any_arguments(self) -> _Call:
        return _Call(self.tool, self.fingerprint, self.folder, None)

    def as_dict(self) -> dict[str, object]:
        fields: dict[str, object] = {"tool": self.tool, "folder": self.folder, "fingerprint": self.fingerprint}
        return fields if self.arguments is None else fields | {"arguments": json.loads(self.arguments)}


class ConsentStore:
    """Calls that were allowed for good: a JSON file that its owner may read and edit."""

    def __init__(self, path: Path | None) -> None:
        """Read the file, which need not be there; without a path nothing is read or written."""
        self._path = path
        self._calls: dict[_Call, None] = {}
        # Why nothing in the file counts, in one line: it is damaged, or others can change it. Then what is allowed for
        # good is remembered in this process only, and the file stays as it is.
        self.warning: str | None = None
        self._load()

    def allows(self, call: _Call, exact_only: bool) -> bool:
        """Return whether a call was allowed for good, by itself or by its tool."""
        self._load()
        return call in self._calls or (not exact_only and call.of_any_arguments in self._calls)

    def knows_another(self, call: _Call) -> bool:
        """Return whether something was allowed to a tool of this name in this folder that has changed since."""
        others = [known for known in self._calls if (known.tool, known.folder) == (call.tool, call.folder)]
        return any(known.fingerprint != call.fingerprint for known in others)

    def remember(self, call: _Call, is_exact: bool) -> None:
        """Allow a call, or its tool in its folder, for good."""
        # Another chat, or an editor, may have written it since.
        self._load()
        self._calls[call if is_exact else call.of_any_arguments] = None
        if self._path is None or self.warning is not None:
            return
        # In ASCII: nothing is hidden from whoever reads the file.
        text = json.dumps({"format": _FORMAT, "allowed": [known.as_dict() for known in self._calls]}, indent=2)
        try:
            folder = trusted_folder(self._path.parent)
            with replacing(Path(os.path.realpath(folder / self._path.name))) as file:
                file.write(text.encode() + b"\n")
        except OSError as error:
            self.warning = one_line(f"{self._path} cannot be written: {error.strerror or error}", _LONGEST_WARNING)

    def _load(self) -> None:
        if self._path is None or self.warning is not None:
            return
        try:
            self._calls = dict.fromkeys(_read_calls(self._path))
        except FileNotFoundError:
            self._calls = {}
        except (OSError, ValueError, CheckpointError) as error:
            reason = getattr(error, "strerror", None) or error
            self._calls = {}
            warning = f"{self._path} allows nothing: {reason}; repair or remove it"
            self.warning = one_line(warning, _LONGEST_WARNING)


def _read_calls(path: Path) -> list[_Call]:
    """Return the calls of a file that only this user and root can change; an error for anything else in it."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        data = read_up_to(file, path, _MAX_BYTES)
    if hasattr(os, "geteuid") and (status.st_uid not in (0, os.geteuid()) or status.st_mode & _OTHERS_WRITE):
        raise PermissionError(errno.EPERM, "other users can write to it", str(path))
    trusted_folder(Path(os.path.realpath(path)).parent)
    found = parse_json_object(data, path.name)
    allowed = found.get("allowed")
    if found.get("format") != _FORMAT or not isinstance(allowed, list):
        raise ValueError(f'it must be {{"format": {_FORMAT}, "allowed": [...]}}')
    return [_as_call(item, index) for index, item in enumerate(allowed)]


def _as_call(item: object, index: int) -> _Call:
    match item:
        case {"tool": str() as tool, "folder": str() as folder, "fingerprint": str() as digest, **rest}:
            arguments = rest.get("arguments", {})
            if set(rest) <= {"arguments"} and isinstance(arguments, dict):
                return _Call(tool, digest, folder, _canonical(arguments) if rest else None)
    raise ValueError(f"allowed[{index}] must have the texts tool, folder and fingerprint, and may have arguments")


def _canonical(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)
