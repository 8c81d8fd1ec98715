"""Text files that the command line names."""

from __future__ import annotations

from pathlib import Path

from tinychat.errors import TextError


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8.

    Raises
    ------
    TextError
        If it cannot be read, or is no text in UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise TextError(f"{file} cannot be read: {error.strerror or error}; check the path") from None
    except ValueError:
        raise TextError(f"{file} is not a text in UTF-8: convert it first") from None
