"""A run: one reply that the driver writes, its events, and its share of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tinychat.errors import TinychatError
from tinychat.generate.drafts import LONGEST, DraftText
from tinychat.generate.prefix_miss import PrefixMiss
from tinychat.generate.reply import Delta, Reply
from tinychat.generate.sequence import Ids
from tinychat.models.rope import angle_set

if TYPE_CHECKING:
    from tinychat.engine.cache import KVCache
    from tinychat.engine.image_ids import ImageIds, Tile
    from tinychat.engine.scheduled_chunk import ScheduledChunk
    from tinychat.engine.sequence import Sequence as EngineSequence


class Prefill(NamedTuple):
    """Progress of the prompt.

    `cached` leading tokens did not have to run; of the others `done` of `total` have.
    """

    cached: int
    done: int
    total: int


class Room(NamedTuple):
    """A shorter past for a reply whose context is full.

    `ids` replace its prompt. `removed` tokens may be cut out of the cache where the two pasts first differ, so that
    what follows them is not read again; 0 to read it again.
    """

    ids: list[int]
    removed: int = 0


MakeRoom = Callable[[Ids], Room | None]
"""Called with the reply so far when the context is full. None ends the reply."""

Event = Prefill | Delta | TinychatError
"""Progress of the prompt, text and tokens, or the error that ended the run."""


class Run:
    """A reply that the driver writes; its sequence is another one after it was preempted.

    `ahead` is how many unread events there are at most before it pauses (None for no limit); a `listener` is called
    with each event, and at last with None, in whichever thread makes a step. `images` are the engine's. `base` are the
    ids before the reply, fewer than its prompt's once room was made; `sequence` is set only while it runs.
    """

    sequence: EngineSequence

    def __init__(
        self,
        reply: Reply,
        make_room: MakeRoom | None = None,
        ahead: int | None = 1,
        images: ImageIds | None = None,
    ) -> None:
        self.reply = reply
        self.make_room = make_room
        self.listener: Callable[[Event | None], None] | None = None
        self.events: deque[Event] = deque()
        self.is_submitted = self.has_begun = self.is_over = False
        self.cached = 0
        self.miss: PrefixMiss | None = None
        self.base: list[int] = list(reply.prompt.ids)
        self.removed: int = reply.prompt.removed
        self.text: DraftText | None = None
        self.seconds: float = 0.0
        self._ahead = ahead
        self.hold_images(images)

    @property
    def ids(self) -> list[int]:
        """The ids before the reply, and those of the reply so far."""
        return [*self.base, *self.reply.token_ids]

    @property
    def length(self) -> int:
        """Length of `ids`."""
        return len(self.base) + len(self.reply.token_ids)

    @property
    def missing(self) -> int:
        """Number of the last `ids` that are not in the cache."""
        return self.length - len(self.sequence.ids)

    def hold_images(self, images: ImageIds | None) -> None:
        """Let the images of the prompt stay until the run ends; SettingError if one is gone."""
        self.tiles: Sequence[Tile] = () if images is None else images.tiles_of(self.base)

    def begin_after(self, room: Room, images: ImageIds | None) -> None:
        """Go on after a shorter past, whose prefix is looked for in the cache; errors are those of `hold_images`."""
        self.base, self.removed, self.has_begun = room.ids, room.removed, False
        self.hold_images(images)

    def next_ids(self, count: int, most: int, images: ImageIds | None, computes: bool) -> list[int]:
        """Return about `count` ids that the cache lacks, up to `most`: see `ImageIds.step_length`.

        Rows are missing of one tile of an image, or of none unless it `computes`.
        """
        done = len(self.sequence.ids)
        if images is None:
            return self.ids[done : done + min(count, most)]
        ids = self.ids[done : done + most + 1]
        ids = ids[: images.step_length(ids, count, most)]
        return ids[: images.until_computed(ids, int(computes))]

    def decoded_rows(self) -> int:
        """Return how many next rows are the last tokens of the reply, after its cache is brought in order.

        That is one, and before it those of a draft that a state does not contain any more; 0 while it reads its prompt.
        """
        sequence, missing = self.sequence, self.missing
        if missing < 1:
            # An error of another run's listener came before its logits were accepted.
            sequence.rewind(self.length - 1)
            missing = 1
        most = 1 + LONGEST if sequence.has_state else 1
        if missing > min(most, len(self.reply.token_ids)):
            return 0
        config = sequence.engine.config
        if config.rope_scaling is not None:
            now, then = (angle_set(config, count) for count in (len(sequence.ids), self.length))
            if None not in (now, then) and now != then:
                # Keys of other angles cannot be used any more.
                sequence.reuse(self.ids)
                return 0
        return missing

    def prompt_was_read(self) -> None:
        """Tell of the end of the prompt."""
        self.report()
        self.reply.prompt_was_read(self.cached, self.seconds)
        self.seconds = 0.0

    @property
    def tokens_left(self) -> int | None:
        """Most tokens that the reply may still get; None without a limit."""
        limit = self.reply.request.max_tokens
        return None if limit is None else limit - len(self.reply.token_ids)

    @property
    def pauses(self) -> bool:
        """Whether it goes on only as its events are read."""
        return self.listener is None and self._ahead is not None

    @property
    def wants_more(self) -> bool:
        """Whether a reader waits for the next event, or there is room for it."""
        return self.listener is not None or self._ahead is None or len(self.events) < self._ahead

    def deliver(self, event: Event) -> None:
        """Pass an event to the listener, or queue it."""
        if self.listener is None:
            self.events.append(event)
        else:
            self.listener(event)

    def report(self) -> None:
        """Deliver the progress of the prompt."""
        if not self.reply.token_ids:
            done, total = len(self.sequence.ids) - self.cached, len(self.base) - self.cached
            self.deliver(Prefill(self.cached, done, total))


class ScheduledRun(NamedTuple):
    """The share of one run in a step.

    `draft` is the end of its ids that is only proposed; None while the run reads what is before its last token.
    """

    run: Run
    chunk: ScheduledChunk
    draft: list[int] | None

    @property
    def rows(self) -> tuple[DraftText | None, int, int, KVCache]:
        """The text of drafts, the position of the first row, how many rows have run, and in which cache."""
        count = len(self.chunk.ids)
        return self.run.text, len(self.run.sequence.ids) - count, count, self.chunk.cache


def row_shares(left: list[int], rows: int) -> list[int]:
    """Return how many rows of a step each prompt gets by how many it has left, the oldest first."""
    shares = [0] * len(left)
    shares[0] = min(left[0], -(-rows // 2))
    rows -= shares[0]
    for index in sorted(range(len(left)), key=left.__getitem__):
        more = min(left[index] - shares[index], rows)
        shares[index] += more
        rows -= more
    return shares
