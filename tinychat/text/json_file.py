"""Small JSON files that come with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tinychat.errors import TextError
from tinychat.files import read_small

# Those of published tokenizers have two megabytes at most; a byte of JSON may become thirty in memory.
_MAX_BYTES = 16 << 20


def read_json_object(path: Path) -> dict[str, object]:
    """Read a JSON object, or return an empty one where there is no such file.

    Raises
    ------
    TextError
        The file is too large, is no JSON, or holds something else than an object.
    """
    try:
        value = json.loads(read_small(path, _MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TextError(f"{path}: cannot be read ({error.strerror or error}); fetch it again") from None
    except (ValueError, RecursionError) as error:
        raise TextError(f"{path}: cannot be read as JSON ({type(error).__name__}); fetch it again") from error
    if not isinstance(value, dict):
        raise TextError(f"{path}: holds no JSON object; fetch it again")
    return value
