"""JSON files that other programs wrote: read whole, every failure an error of one line."""

import json
from pathlib import Path
from typing import Any

from tinychat.errors import CheckpointError, SettingError, TextError
from tinychat.files import read_small, read_text

# The largest index of a published checkpoint has nine megabytes; a byte of JSON may become thirty in memory.
MAX_BYTES = 16 << 20

_LONGEST_PATH = 45


def read_json_object(path: Path) -> dict[str, object]:
    """Read a regular file of at most 16 MiB that must hold one JSON object; `CheckpointError` if it does not."""
    return _as_object(read_json(path), str(path))


def read_json(path: Path) -> object:
    """Read a regular file of at most 16 MiB that must hold one value in JSON; `CheckpointError` if it does not."""
    try:
        return _parse_json(read_small(path, MAX_BYTES), str(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; check the path or download it again") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None


def read_named_json(path: Path, limit: int) -> Any:
    """Return the JSON of a file, pipe or device that a person named.

    `SettingError` if it is none, `TextError` if it cannot be read or holds more than `limit` bytes.
    """
    try:
        return json.loads(read_text(path, limit))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is no JSON: {error}") from None


def read_settings(path: Path) -> dict[str, object]:
    """Read a JSON object that comes with a tokenizer; an empty one where there is no such file.

    Unlike `read_json_object` it takes the last of two equal keys, as the libraries do that such files are written for.
    `TextError` if the file is too large or not a JSON object.
    """
    try:
        value = json.loads(read_small(path, MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TextError(f"{path}: cannot be read ({error.strerror or error}); fetch it again") from None
    except (ValueError, RecursionError) as error:
        raise TextError(f"{path}: cannot be read as JSON ({type(error).__name__}); fetch it again") from error
    if not isinstance(value, dict):
        raise TextError(f"{path}: does not hold a JSON object; fetch it again")
    return value


def parse_json_object(data: bytes, source: str) -> dict[str, object]:
    """Parse bytes that must hold one JSON object without equal keys; `source` names them in a `CheckpointError`."""
    return _as_object(_parse_json(data, source), source)


def _parse_json(data: bytes, source: str) -> object:
    try:
        value: object = json.loads(data.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    except RecursionError:
        raise CheckpointError(f"{source} is nested too deeply to be a settings file") from None
    except ValueError as error:
        raise CheckpointError(f"{source} is not valid JSON: {one_line(str(error))}") from None
    return value


def _as_object(value: object, source: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{source} must hold a JSON object, found {type(value).__name__}")
    return value


def object_of(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def one_line(text: str, limit: int = 120) -> str:
    """Return `text` with line breaks and control characters escaped, cut to `limit` characters."""
    safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def path_end(path: str) -> str:
    """Return the end of a long path, which tells files apart and leaves room for the rest of an error."""
    return path if len(path) <= _LONGEST_PATH else f"...{path[3 - _LONGEST_PATH :]}"


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse equal keys: readers disagree on which of them counts."""
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice")
        result[key] = value
    return result
