"""The slots of a server: which request each of its turns runs, and whose cache it used last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinychat.generate.stream import Stream


@dataclass
class Slot:
    """A turn as clients of llama-server see it.

    Attributes
    ----------
    number : int
    task : int
        Number of the request that it runs or has run, -1 before the first.
    model : str
        Name of that request's model.
    streams : sequence of Stream
        The replies that are being written.
    ids : list of int
        Prompt and reply of the last request, whose keys and values are cached unless others needed the memory.
    """

    number: int
    task: int = -1
    model: str = ""
    streams: Sequence[Stream] = ()
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
