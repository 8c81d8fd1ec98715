"""The status bar below the prompt, and the line of counts and rates below a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinychat.generate.reply import FinishReason, Summary

_METER_CELLS = 10
# The rate of fewer tokens is mostly noise.
_MIN_FOR_RATE = 16
_ENDINGS: Mapping[FinishReason, str] = {
    "stop": "",
    "stop_string": "stop text found",
    "length": "cut at the token limit",
    "context": "cut: the context is full",
    "loop": "cut: it repeats itself",
    "interrupted": "stopped",
}


def summary_line(summary: Summary, width: int | None = None) -> str:
    """Return counts, rates and the ending of a reply; without those of the prompt if `width` columns are too few."""
    reply = [
        f"{summary.new_tokens} tokens",
        _decode_rate(summary),
        f"first token after {summary.first_token_seconds:.2f} s",
    ]
    computed = summary.prompt_tokens - summary.reused_tokens
    rate = f" at {summary.prefill_rate:.0f} tok/s" if computed >= _MIN_FOR_RATE else ""
    prompt = [
        f"prompt {summary.prompt_tokens} tokens{rate}",
        f"{summary.reused_tokens} reused" if summary.reused_tokens else "",
    ]
    ending = _ENDINGS[summary.finish_reason]
    line = ", ".join(part for part in (*reply, *prompt, ending) if part)
    if width is None or len(line) < width:
        return line
    return ", ".join(part for part in (*reply, ending) if part)


def _decode_rate(summary: Summary) -> str:
    return f"{summary.decode_rate:.1f} tok/s" if summary.new_tokens >= _MIN_FOR_RATE else ""


def status_bar(name: str, used: int, size: int, attached: Sequence[str], last: Summary | None, width: int) -> str:
    """Return the status bar, less than `width` columns wide; the least important parts are left out first.

    It shows the model's name, the tokens in `used` of the context's `size`, the names of attachments and the rate of
    the last reply.
    """
    # A context that was made smaller may be exceeded.
    used = min(used, size)
    context = f"context {used}/{size}"
    with_meter = f"{context} {meter(used / size)}"
    rate = "" if last is None else _decode_rate(last)
    names, count = (f"attached: {text}" if attached else "" for text in (", ".join(attached), len(attached)))
    variants = (
        [name, with_meter, names, rate],
        [name, with_meter, count, rate],
        [name, context, count, rate],
        [context, count, rate],
        [context, count],
        [f"{used}/{size}{f' +{len(attached)}' if attached else ''}"],
    )
    lines = (" · ".join(part for part in parts if part) for parts in variants)
    return next((line for line in lines if len(line) < width), f"{used}/{size}")


def meter(share: float) -> str:
    """Return a bar of ten cells."""
    filled = round(_METER_CELLS * min(share, 1.0))
    return "▰" * filled + "▱" * (_METER_CELLS - filled)
