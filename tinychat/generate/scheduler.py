"""Writing many replies at once: each pass over the weights runs one token of every reply, and some of the prompts.

A pass over several rows costs little more than one over a single row, as long as it is bound by memory, and each row's
numbers do not depend on the others: every reply has the tokens that it would have alone.

Who comes first is read first: prompts are read in the order in which they were asked for, as far as the budget of a
step goes, while every reply that is being written gets one token in each step. So none waits for more than those
before it, and a long prompt holds up the others by no more than the budget. Where the memory of keys and values is
full, the youngest is put back: its turn comes again as soon as there is room, and what it had written stays.
(Yu et al., 2022, "Orca"; Agrawal et al., 2023, https://arxiv.org/abs/2308.16369.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from tinychat.errors import CacheFullError, TinychatError
from tinychat.generate.prompt import check_prompt
from tinychat.generate.reply import Piece, Reply
from tinychat.generate.sequence import Engine, Logits, Sequence

# Tokens of prompts in a step, while replies are being written.
PROMPT_BUDGET = 64
# A prompt waits for another one that is being read only if they share so many tokens.
SHARED = 64


class Progress(NamedTuple):
    """What a reply has got by a step: a piece, or the error that ends it."""

    reply: Reply
    piece: Piece | None
    error: TinychatError | None = None


class Run:
    """A reply and the sequence that it is written on; the sequence is new after the reply was put back."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.sequence: Sequence | None = None
        self.reused: int | None = None
        self.seconds = 0.0

    @property
    def ids(self) -> list[int]:
        """Prompt and reply so far."""
        return [*self.reply.prompt.ids, *self.reply.token_ids]

    @property
    def is_writing(self) -> bool:
        """Whether all but the last token have run."""
        return self.sequence is not None and len(self.sequence.ids) + 1 == self._length

    @property
    def _length(self) -> int:
        return len(self.reply.prompt.ids) + len(self.reply.token_ids)

    def next_ids(self, count: int) -> list[int]:
        """Return the next ids that have to run, at most `count`."""
        assert self.sequence is not None
        start = len(self.sequence.ids)
        return self.reply.token_ids[-1:] if self.is_writing and self.reply.token_ids else self.ids[start:][:count]

    def span(self, count: int) -> Any:
        """Return the next rows of the run; logits are wanted after its last id."""
        assert self.sequence is not None
        ids = self.next_ids(count)
        is_last = len(self.sequence.ids) + len(ids) == self._length
        return self.sequence.span(ids, self._length, outputs=int(is_last))


class Scheduler:
    """Writes replies on one engine, several at once.

    One thread at a time may use it.

    Parameters
    ----------
    engine : Engine
    context_size : int
        Most positions of each reply with its prompt.
    parallel : int
        Most replies at once.
    prompt_budget : int
        Tokens of prompts in a step, while replies are being written.

    Attributes
    ----------
    rows : int
        How many tokens there were in all steps.
    """

    def __init__(self, engine: Engine, context_size: int, parallel: int, prompt_budget: int = PROMPT_BUDGET) -> None:
        self.parallel = parallel
        self.rows = 0
        self._engine = engine
        self._context_size = context_size
        self._prompt_budget = prompt_budget
        self._logits: Logits = engine.new_logits(engine.chunk_size)
        self._waiting: deque[Run] = deque()
        # In the order in which they were asked for.
        self._running: list[Run] = []
        # Until somebody leaves, nobody else is let in.
        self._is_full = False

    def __len__(self) -> int:
        """Return how many replies are not finished."""
        return len(self._waiting) + len(self._running)

    def add(self, reply: Reply) -> None:
        """Ask for a reply.

        Raises
        ------
        ContextError, SettingError
            If the prompt does not fit, or has ids that the model does not know.
        """
        check_prompt(reply.prompt.ids, self._engine, self._context_size)
        self._waiting.append(Run(reply))

    def remove(self, reply: Reply) -> None:
        """Take a reply out that need not go on; it ends as it is."""
        self._waiting = deque(run for run in self._waiting if run.reply is not reply)
        for run in [run for run in self._running if run.reply is reply]:
            self._leave(run)

    def step(self) -> list[Progress]:
        """Run one pass; return what replies have got by it.

        Raises
        ------
        CacheFullError
            If the memory is too small for a single reply.
        """
        while self._waiting and len(self._running) < self.parallel and not self._is_full:
            run = self._waiting.popleft()
            run.sequence = self._engine.sequence(self._context_size)
            self._running.append(run)
        started = perf_counter()
        runs, spans = self._choose()
        while spans:
            try:
                logits = self._engine.run(spans, self._logits)
                break
            except CacheFullError:
                if len(self._running) == 1:
                    raise
                self._put_back(self._running[-1])
                runs, spans = self._choose()
        else:
            return []
        self.rows += sum(len(span.ids) for span in spans)
        seconds = perf_counter() - started
        for run in runs:
            run.seconds += seconds
        return [self._accept(run, rows[-1]) for run, rows in zip(runs, logits) if len(rows)]

    def _choose(self) -> tuple[list[Run], list[Any]]:
        """Return who has rows in the next step, and which."""
        writing = [run for run in self._running if run.is_writing][: self._engine.chunk_size]
        spans = [run.span(1) for run in writing]
        left = self._engine.chunk_size - len(spans)
        left = min(left, self._prompt_budget) if spans else left
        reading: list[Run] = []
        for run in self._running:
            if left <= 0 or run.is_writing:
                continue
            if not self._begin(run, reading):
                continue
            span = run.span(left)
            left -= len(span.ids)
            reading.append(run)
            spans.append(span)
        return writing + reading, spans

    def _begin(self, run: Run, reading: list[Run]) -> bool:
        """Take over what is kept of the run's beginning; False if another run will soon have more of it."""
        assert run.sequence is not None
        if run.sequence.ids:
            return True
        found = run.sequence.reuse(run.ids)
        shared = run.ids[: found + SHARED]
        if len(shared) == found + SHARED and any(other.ids[: len(shared)] == shared for other in reading):
            run.sequence.rewind(0)
            return False
        if run.reused is None:
            run.reused = found
        return True

    def _accept(self, run: Run, logits: Logits) -> Progress:
        """Give a run the logits after its last id."""
        reply, sequence = run.reply, run.sequence
        assert sequence is not None
        seconds, run.seconds = run.seconds, 0.0
        if not reply.token_ids:
            reply.prompt_was_read(run.reused or 0, seconds)
            sequence.remember()
            seconds = 0.0
        try:
            piece = reply.accept(logits, seconds)
        except TinychatError as error:
            self._leave(run)
            return Progress(reply, None, error)
        if reply.finish_reason is None and len(sequence.ids) >= self._context_size:
            piece = replace(piece, text=piece.text + reply.finish("context"))
        if reply.finish_reason is not None:
            self._leave(run)
        return Progress(reply, piece)

    def _put_back(self, run: Run) -> None:
        """Let the run wait again, before all that came after it."""
        self._leave(run)
        self._waiting.appendleft(run)
        self._is_full = True

    def _leave(self, run: Run) -> None:
        self._running.remove(run)
        self._is_full = False
        if run.sequence is not None:
            run.sequence.release()
        run.sequence = None
