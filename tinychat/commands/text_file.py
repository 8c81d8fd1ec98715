"""Text files that the command line names."""

from __future__ import annotations

from pathlib import Path

from tinychat.errors import TextError
from tinychat.files import read_stream

# Half a gigabyte of text is more than any context, and a week of perplexity.
MAX_BYTES = 512 << 20


def read_text(file: Path, limit: int = MAX_BYTES) -> str:
    """Return the text of a file in UTF-8.

    Raises
    ------
    TextError
        If it cannot be read, is not text in UTF-8, or has more than `limit` bytes.
    """
    try:
        return read_stream(file, limit).decode("utf-8")
    except OSError as error:
        raise TextError(f"{file} cannot be read: {error.strerror or error}; check the path") from None
    except ValueError:
        raise TextError(f"{file} is not a text in UTF-8: convert it first") from None
