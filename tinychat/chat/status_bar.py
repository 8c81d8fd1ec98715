"""The line below the prompt: which model, how full its context is, how fast it wrote."""

from __future__ import annotations

from tinychat.generate.model import Model

_METER_CELLS = 10


def status_bar(model: Model, used: int, width: int) -> str:
    """Return the line for a terminal; what does not fit is left out, least needed first.

    Parameters
    ----------
    model : Model
        Who answers.
    used : int
        Tokens that the conversation takes.
    width : int
        Columns of the terminal.
    """
    size = model.context_size
    context = f"context {used}/{size}"
    meter = _meter(used / size)
    rate = "" if model.summary is None else f"{model.summary.decode_rate:.1f} tok/s"
    variants = ([model.name, f"{context} {meter}", rate], [model.name, context, rate], [context, rate], [context])
    lines = (" · ".join(part for part in parts if part) for parts in variants)
    return next((line for line in lines if len(line) < width), f"{used}/{size}")


def _meter(share: float) -> str:
    filled = round(_METER_CELLS * min(share, 1.0))
    return "▰" * filled + "▱" * (_METER_CELLS - filled)
