"""Times of replies and of prompts that are read, in llama-server's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinychat.generate.reply import Summary
from tinychat.generate.run import Prefill
from tinychat.generate.stream import Stream


def timings(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return counts, milliseconds and rates of the choices of one prompt, which are written at once.

    The first token of a reply comes with its prompt, so the time of the others is that of `predicted_ms`.
    """
    first = summaries[0]
    new, steps = (sum(getattr(one, name) for one in summaries) for name in ("new_tokens", "decode_steps"))
    read = first.prompt_tokens - first.reused_tokens
    fields: dict[str, Any] = {"cache_n": first.reused_tokens}
    fields |= _rates("prompt", read, read, first.prefill_seconds)
    fields |= _rates("predicted", new, steps, max(one.decode_seconds for one in summaries))
    drafted = sum(one.drafted_tokens for one in summaries)
    if drafted:
        fields |= {"draft_n": drafted, "draft_n_accepted": sum(one.accepted_tokens for one in summaries)}
    return fields


def _rates(name: str, count: int, timed: int, seconds: float) -> dict[str, Any]:
    """Return the fields of `count` tokens, `timed` of which took so many seconds."""
    milliseconds = 1000 * seconds
    return {
        f"{name}_n": count,
        f"{name}_ms": round(milliseconds, 3),
        f"{name}_per_token_ms": round(milliseconds / timed, 3) if timed else 0.0,
        f"{name}_per_second": round(timed / seconds, 3) if seconds > 0 else 0.0,
    }


def progress_fields(prefill: Prefill, stream: Stream) -> dict[str, Any]:
    """Return how far a prompt is read, and an estimate of the seconds that are left."""
    seconds, left = stream.prefill_seconds, prefill.total - prefill.done
    return {
        "total": prefill.cached + prefill.total,
        "cache": prefill.cached,
        "processed": prefill.cached + prefill.done,
        "time_ms": round(1000 * seconds, 3),
        "seconds_left": seconds / prefill.done * left if prefill.done else None,
    }
