"""The slots of a server: which request each of its turns runs, and whose cache it used last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.engine.ids import common_length

if TYPE_CHECKING:
    from tinychat.generate.stream import Stream

# Prompts that share less have nothing to do with each other; what costs less to read again is not worth a line.
_SHARED, _LOST = 32, 64


@dataclass
class Slot:
    """A turn as clients of llama-server see it."""

    number: int
    task: int = -1  # number of the request that it runs or has run, -1 before the first
    model: str = ""  # name of that request's model
    streams: Sequence[Stream] = ()  # the replies that are being written
    # Prompt and reply of the last request, whose keys and values are cached unless others needed the memory.
    ids: Sequence[int] = ()

    @property
    def is_processing(self) -> bool:
        """Whether a request runs."""
        return bool(self.streams)

    def begin(self, task: int, model: str, streams: Sequence[Stream]) -> None:
        """Note the replies of a request."""
        self.task, self.model, self.streams, self.ids = task, model, streams, ()

    def end(self) -> None:
        """Note that they are written, or dropped."""
        if self.streams:
            reply = self.streams[0].reply
            self.ids, self.streams = [*reply.prompt.ids, *reply.token_ids], ()


def closest(slots: Sequence[Slot], model: str, ids: Sequence[int]) -> Sequence[int]:
    """Return the prompt and reply of the idle slot that shares most with the ids of a prompt to the same model."""
    others = [slot.ids for slot in slots if slot.model == model and slot.ids]
    return max(others, key=lambda other: common_length(ids, other), default=())


def missed(previous: Sequence[int], stream: Stream) -> str | None:
    """Return in words why a prompt had to be read though one like it was cached; None where that is not so."""
    ids, cached = stream.reply.prompt.ids, stream.summary.reused_tokens
    if not stream.prefill_seconds or min(len(previous), len(ids)) - cached < _LOST:
        return None
    if (agreed := common_length(ids, previous)) < _SHARED:
        return None
    # The last token of a reply was chosen but never run.
    reason = "the rest of the memory was needed, or the cache has other settings now"
    if agreed < min(len(ids), len(previous) - 1):
        # Another conversation with the same beginning has lost nothing.
        if not _have_run(previous[agreed:], ids[agreed:]):
            return None
        reason = f"it differs from an earlier prompt at token {agreed}, and the same text behind that was read again"
    return f"{cached} of {len(ids)} prompt tokens were cached: {reason}"


def _have_run(before: Sequence[int], now: Sequence[int]) -> bool:
    """Return whether both have the same run of tokens: one of the pieces that `before` is divided into."""
    size = _LOST // 2
    pieces = {tuple(before[begin : begin + size]) for begin in range(0, len(before) - size + 1, size)}
    return any(tuple(now[begin : begin + size]) in pieces for begin in range(len(now) - size + 1))
