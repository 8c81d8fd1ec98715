"""How many positions a cache may have."""

from tinychat.errors import SettingError

DEFAULT_CONTEXT = 8192
MAX_CONTEXT = 1 << 20


def check_context(context_size: int) -> None:
    """Refuse a capacity that no model has.

    Raises
    ------
    SettingError
        If it is out of range.
    """
    if not 1 <= context_size <= MAX_CONTEXT:
        raise SettingError(f"context {context_size} is out of range: give 1 to {MAX_CONTEXT} tokens")
