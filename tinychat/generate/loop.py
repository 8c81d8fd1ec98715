"""Writing one reply on one sequence: prefill, then one token after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

from tinychat.engine.ids import common_length
from tinychat.generate.drafts import LONGEST, Drafts
from tinychat.generate.reply import Piece, Reply, Summary
from tinychat.generate.sequence import Ids, Logits, Sequence

PrefillProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens to run): once at the start, then after each chunk."""

MakeRoom = Callable[[Ids], bool]
"""Called with the reply so far when the context is full. Returns True after it has brought the sequence to a
shorter past that ends with the reply but for its last token, which runs next; False ends the reply."""


def _never() -> bool:
    return False


def _no_room(_token_ids: Ids) -> bool:
    return False


class Generation(Iterator[Piece]):
    """Runs one reply on one sequence; iterate it once, stop at any time.

    Nothing runs before the first piece is asked for. The sequence always ends up holding a
    prefix of prompt and reply, so the next run on it reuses what it can.

    Parameters
    ----------
    sequence : Sequence
        Runs the model; its cache is reused as far as it agrees with the prompt.
    reply : Reply
        Takes the logits; a new one for each run, whose prompt `check_prompt` has let pass.
    on_prefill : callable, optional
        Called with (tokens done, tokens to run) while the prompt is read.
    cancelled : callable, optional
        Asked before each run of the model; True ends the reply as interrupted.
    make_room : callable, optional
        Asked when the context is full; without one the reply ends there. See `MakeRoom`.
    drafts : Drafts, optional
        Proposes ids that are checked in the same pass as the next token; the reply has the same ids without.

    Attributes
    ----------
    reply : Reply
        As given.
    """

    def __init__(
        self,
        sequence: Sequence,
        reply: Reply,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        make_room: MakeRoom | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        self.reply = reply
        self._sequence = sequence
        self._on_prefill = on_prefill
        self._cancelled = cancelled or _never
        self._make_room = make_room or _no_room
        self._drafts = drafts
        most = 1 if drafts is None else 1 + LONGEST
        self._logits: Logits = sequence.new_logits(most)
        self._pieces = self._run()

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def token_ids(self) -> list[int]:
        """The reply so far."""
        return self.reply.token_ids

    @property
    def summary(self) -> Summary:
        """What has been done so far; a run that did not reach its end counts as interrupted."""
        return self.reply.summary

    def to_end(self) -> Reply:
        """Run until the reply ends, and return it."""
        for _ in self:
            pass
        return self.reply

    def _run(self) -> Iterator[Piece]:
        reply = self.reply
        logits = self._read_prompt()
        if logits is None:
            return
        yield self._at_full_context(reply.accept(logits))
        if self._drafts is not None:
            self._drafts.begin([*reply.prompt.ids, *reply.token_ids])
        while reply.finish_reason is None:
            if self._cancelled():
                yield Piece(reply.finish("interrupted"))
                return
            yield self._at_full_context(self._next_piece())

    def _next_piece(self) -> Piece:
        """Run the last token, and what may follow it; return the tokens that are settled by that."""
        reply, sequence = self.reply, self._sequence
        draft = self._propose()
        length, started = len(sequence.ids), perf_counter()
        rows = sequence.step([*reply.token_ids[-1:], *draft], outputs=1 + len(draft), out=self._logits)
        seconds = perf_counter() - started
        piece = reply.accept_draft(rows, draft, seconds)
        if draft:
            sequence.rewind(length + 1 + common_length(draft, piece.ids))
        if self._drafts is not None:
            self._drafts.note(piece.ids, seconds)
        return piece

    def _propose(self) -> list[int]:
        if self._drafts is None:
            return []
        limit = self.reply.request.max_tokens
        most = LONGEST if limit is None else limit - len(self.reply.token_ids) - 1
        return self._drafts.propose(self._sequence.rows_at_once(most + 1) - 1)

    def _read_prompt(self) -> Logits | None:
        started = perf_counter()
        logits, reused = prefill(self._sequence, self.reply.prompt.ids, self._on_prefill, self._cancelled)
        self.reply.prompt_was_read(reused, perf_counter() - started)
        return logits

    def _at_full_context(self, piece: Piece) -> Piece:
        """Return `piece`; where no position is left for its token, make room, or end the reply with it."""
        reply, sequence = self.reply, self._sequence
        if reply.finish_reason is not None or len(sequence.ids) < sequence.context_size:
            return piece
        if self._make_room(reply.token_ids):
            return piece
        return replace(piece, text=piece.text + reply.finish("interrupted" if self._cancelled() else "context"))


def prefill(
    sequence: Sequence,
    ids: Ids,
    on_progress: PrefillProgress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Logits | None, int]:
    """Bring the cache to exactly `ids` and return the logits after the last of them.

    Parameters
    ----------
    sequence : Sequence
        It goes back to the longest beginning of `ids` that it, or another one before, has run.
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
    reused = sequence.reuse(ids)
    total = len(ids) - reused
    logits: Logits | None = None
    for start in range(reused, len(ids), sequence.chunk_size):
        if on_progress is not None:
            on_progress(start - reused, total)
        if cancelled is not None and cancelled():
            return None, reused
        logits = sequence.step(ids[start : start + sequence.chunk_size], len(ids))[-1]
    if on_progress is not None:
        on_progress(total, total)
    return logits, reused
