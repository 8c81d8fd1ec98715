"""Limits of what a model is loaded with: positions of a cache, threads."""

from tinychat.errors import SettingError
from tinychat.models.config import ModelConfig

DEFAULT_CONTEXT = 8192
CHUNK_SIZE = 256
# A drafter gets the last token of so many texts at most.
DRAFTED_TEXTS = 16
MAX_CONTEXT = 1 << 20


def largest_step(config: ModelConfig) -> int:
    """Return the most tokens of one step, but for the rest of an image whose tokens attend to later ones.

    A whole text runs in one where its tokens do.
    """
    if config.drafter is not None:
        return DRAFTED_TEXTS
    return min(config.trained_length, DEFAULT_CONTEXT) if config.bidirectional else CHUNK_SIZE


def check_context(context_size: int) -> None:
    """Refuse a capacity that no model has, with a SettingError."""
    if not 1 <= context_size <= MAX_CONTEXT:
        raise SettingError(f"context {context_size} is out of range: give 1 to {MAX_CONTEXT} tokens")


def beyond_training(context_size: int, trained_length: int) -> str:
    """Return the warning of a context beyond the trained length."""
    return (
        f"the model was trained on {trained_length} tokens at most: "
        f"in a context of {context_size} its replies may lose their sense"
    )


def fewer_threads(wanted: int, used: int) -> str:
    """Return the note on a number of threads beyond the cores."""
    return f"threads {wanted}: this process may use {used} core{'s' if used > 1 else ''}; using {used}"
