"""The columns that an answer adds to a row."""

from collections.abc import Mapping

COLUMNS: Mapping[str, type] = {
    "reply": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "new_tokens": int,
    "error": str,
}
"""Types by column."""
