"""Reading the prompt: reuse what the cache holds, run the rest in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinychat.errors import ContextError, SettingError
from tinychat.generate.engine import Engine, Logits

PrefillProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens to run): once at the start, then after each chunk."""


def check_prompt(ids: Sequence[int], vocab_size: int, context_size: int) -> None:
    """Refuse ids that the engine must never see.

    Raises
    ------
    SettingError
        If there are no ids, or one is not a token id of the model.
    ContextError
        If there are more ids than the context has positions.
    """
    if not ids:
        raise SettingError("the prompt is empty: give at least one token to continue")
    smallest, largest = min(ids), max(ids)
    if smallest < 0 or largest >= vocab_size:
        wrong = smallest if smallest < 0 else largest
        raise SettingError(f"token id {wrong} is outside the model's vocabulary: use 0 to {vocab_size - 1}")
    if len(ids) > context_size:
        raise ContextError(
            f"the prompt has {len(ids)} tokens but the context holds {context_size}: "
            "shorten it, or ask for a larger context with --context"
        )


def prefill(
    engine: Engine,
    ids: Sequence[int],
    on_progress: PrefillProgress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Logits | None, int]:
    """Bring the cache to exactly `ids` and return the logits after the last of them.

    Parameters
    ----------
    engine : Engine
        Its cache is rewound to the prefix that it shares with `ids`.
    ids : sequence of int
        The whole prompt, already checked by `check_prompt`.
    on_progress : callable, optional
        Called with (tokens done, tokens to run), reused ones in neither.
    cancelled : callable, optional
        Asked before each chunk; what was run until then stays in the cache.

    Returns
    -------
    logits : float32 [vocab_size] or None
        None when cancelled.
    reused : int
        Leading ids that were not run again.
    """
    # The last id always runs: the cache holds keys and values, not logits.
    reused = min(engine.reusable_prefix(ids), len(ids) - 1)
    engine.rewind(reused)
    total = len(ids) - reused
    logits: Logits | None = None
    for start in range(reused, len(ids), engine.chunk_size):
        if on_progress is not None:
            on_progress(start - reused, total)
        if cancelled is not None and cancelled():
            return None, reused
        logits = engine.step(ids[start : start + engine.chunk_size], len(ids))
    if on_progress is not None:
        on_progress(total, total)
    return logits, reused
