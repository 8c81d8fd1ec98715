"""The line below the prompt: which model, how full its context is, what is attached, how fast it wrote."""

from __future__ import annotations

from tinychat.chat.session import Chat

_METER_CELLS = 10


def status_bar(chat: Chat, used: int, width: int) -> str:
    """Return the line for a terminal; what does not fit is left out, least needed first.

    Parameters
    ----------
    chat : Chat
        The conversation.
    used : int
        Tokens that it takes.
    width : int
        Columns of the terminal.
    """
    name, size = chat.model.name, chat.model.context_size
    context = f"context {used}/{size}"
    meter = _meter(used / size)
    last = chat.summary
    rate = f"{last.decode_rate:.1f} tok/s" if last is not None and last.new_tokens else ""
    attached = [attachment.name for attachment in chat.attachments]
    names, count = (f"attached: {what}" if attached else "" for what in (", ".join(attached), len(attached)))
    variants = (
        [name, f"{context} {meter}", names, rate],
        [name, f"{context} {meter}", count, rate],
        [name, context, count, rate],
        [context, count, rate],
        [context, count],
        [f"{used}/{size}{f' +{len(attached)}' if attached else ''}"],
    )
    lines = (" · ".join(part for part in parts if part) for parts in variants)
    return next((line for line in lines if len(line) < width), f"{used}/{size}")


def _meter(share: float) -> str:
    filled = round(_METER_CELLS * min(share, 1.0))
    return "▰" * filled + "▱" * (_METER_CELLS - filled)
