"""Small JSON files that come with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tinychat.errors import TextError


def read_json_object(path: Path) -> dict[str, object]:
    """Read a JSON object, or return an empty one where there is no such file.

    Raises
    ------
    TextError
        The file is no JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise TextError(f"{path}: cannot be read as JSON ({type(error).__name__}); fetch it again") from error
    if not isinstance(value, dict):
        raise TextError(f"{path}: holds no JSON object; fetch it again")
    return value
