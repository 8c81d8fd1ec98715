"""The driver of the replies of an engine: each pass over the weights runs a token of every reply, and some prompts.

A pass over several rows costs little more than one over a single row, as long as it is bound by memory, and each row's
numbers do not depend on the others: every reply has the tokens that it would have alone.

While every reply gets its tokens in each step, prompts are read as far as the budget of a step goes: half of it is the
oldest prompt's, the rest goes to those that have the least left. So a long prompt holds up neither the replies, by more
than the budget, nor short prompts, and is not held up by many of them. Where the memory of keys and values is full, a
run is preempted: it waits until there is room, and its text so far stays.
(Yu et al., 2022, "Orca"; Agrawal et al., 2023, https://arxiv.org/abs/2308.16369.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING

from tinychat.engine.ids import common_length
from tinychat.errors import CacheFullError, SettingError, TinychatError
from tinychat.generate.drafts import LONGEST, Drafts
from tinychat.generate.idle_sequences import IdleSequences, cut_cache
from tinychat.generate.listener_thread import ListenerThread
from tinychat.generate.memory_watch import MemoryWatch
from tinychat.generate.prefix_miss import explain_miss
from tinychat.generate.proposals import proposed_ids
from tinychat.generate.reply import Delta
from tinychat.generate.run import Run, ScheduledRun, row_shares
from tinychat.generate.sequence import Logits
from tinychat.held_signals import held_signals
from tinychat.json_file import one_line

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine
    from tinychat.engine.sequence import Sequence

# Tokens of prompts in a step, while replies are being written.
PROMPT_BUDGET = 64
# A prompt waits for another one that is being read only if they share so many tokens.
SHARED = 64
# How long a signal waits while another thread makes a step.
SIGNAL_SECONDS = 0.05


class Driver:
    """Writes the replies of one engine, any number at once.

    Any thread may submit, cancel and step; steps take turns. A run whose events nobody reads pauses, so whoever waits
    for one reply makes the steps of all. `drafts` proposes ids that are checked in the same pass as the next token; a
    step has up to `prompt_budget` tokens of prompts while replies are being written. `rows` counts the tokens of all
    steps; whoever uses a sequence of the driver does so within `exclusive`. Without `shares_prefixes` each reply reads
    all of its prompt.
    """

    def __init__(self, sequence: Sequence, drafts: Drafts | None = None, prompt_budget: int = PROMPT_BUDGET) -> None:
        self.drafts = drafts
        self.rows: int = 0
        self.shares_prefixes: bool = True
        self._lock, self._prompt_budget = threading.RLock(), prompt_budget
        self.memory_watch: MemoryWatch = MemoryWatch()
        self._waiting, self._dropped = deque[Run](), deque[Run]()
        self._running: list[Run] = []  # in the order in which they were submitted
        self._is_full = self._is_closed = False  # full: until a run ends, no other begins
        self._turn, self._is_led = threading.Condition(), False  # one thread steps; others wait for their events
        self._listener_thread = ListenerThread()
        self.adopt(sequence)

    @contextmanager
    def exclusive(self) -> Iterator[Callable[[], None]]:
        """Keep other threads out, and put off handlers of signals: what they raise comes before or after the block.

        Yields a function that runs handlers at once, for where nothing is half done.
        """
        with held_signals(always=True) as let_signals_act, self._locked(let_signals_act):
            yield let_signals_act

    @contextmanager
    def _locked(self, let_signals_act: Callable[[], None]) -> Iterator[None]:
        """Keep other threads out, while signals are held."""
        while not self._lock.acquire(timeout=SIGNAL_SECONDS):
            let_signals_act()
        try:
            yield
        finally:
            self._lock.release()

    def adopt(self, sequence: Sequence, drafts: Drafts | None = None) -> None:
        """Continue with another sequence, its engine and capacity, instead of all idle ones; and with other drafts."""
        with self.exclusive():
            self._end_dropped()
            if len(self):
                raise SettingError("the cache cannot be changed while replies are written: wait for their end")
            self.engine: Engine = sequence.engine
            self.context_size: int = sequence.context_size
            self._another = sequence.another
            self.drafts = drafts or self.drafts
            self._logits: Logits | None = None
            self._idle = IdleSequences()
            self._idle.put(sequence)

    def change_drafts(self, drafts: Drafts | None) -> None:
        """Propose other drafts."""
        with self.exclusive():
            self.drafts = drafts
            self._idle.drop_texts()

    def __len__(self) -> int:
        """Return how many runs are not over."""
        return len(self._waiting) + len(self._running)

    @property
    def idle(self) -> list[Sequence]:
        """The sequences that no run uses, the least recently used first."""
        with self.exclusive():
            self._end_dropped()
            return self._idle.sequences

    @property
    def recent(self) -> Sequence:
        """The most recently used idle sequence."""
        with self.exclusive():
            self._end_dropped()
            if not len(self._idle):
                self._check_open()
                self._idle.put(self._another())
            return self._idle.last

    def release_idle(self) -> bool:
        """Free the memory of the sequence that was idle longest; False if there is none."""
        with self.exclusive():
            return self._idle.release_oldest()

    def submit(self, run: Run) -> None:
        """Let a reply be written, unless it is already; `SettingError` if the driver is closed."""
        with self.exclusive():
            self._check_open()
            if run.is_over or run.is_submitted:
                return
            run.is_submitted = True
            self._waiting.append(run)
            if run.listener is not None:
                self._listener_thread.add(run, self.advance, self._fail)

    def cancel(self, run: Run) -> None:
        """End a run; what it has written stays, with the text that was held back."""
        with self.exclusive():
            if not run.is_over:
                if run.reply.token_ids and run.reply.finish_reason is None:
                    run.deliver(Delta(run.reply.finish("interrupted")))
                self._end(run)

    def cancel_all(self) -> None:
        """End all runs."""
        with self.exclusive():
            for run in [*self._running, *self._waiting]:
                self.cancel(run)

    def drop(self, run: Run) -> None:
        """End a run without readers at the next step; from any thread and at any moment, without waiting."""
        self._dropped.append(run)

    def advance(self, run: Run) -> None:
        """Make a step, or wait for another thread's, unless the run has events or is over."""
        with held_signals(always=True) as let_signals_act:
            with self._turn:
                while self._is_led and not run.events and not run.is_over:
                    self._turn.wait(SIGNAL_SECONDS)
                    let_signals_act()
                if run.events or run.is_over:
                    return
                self._is_led = True
            try:
                self.engine.share.wait(let_signals_act)
                with self._locked(let_signals_act):
                    self._step()
            finally:
                with self._turn:
                    self._is_led = False
                    self._turn.notify_all()

    def close(self) -> None:
        """End all runs and free their memory; nothing can be submitted afterwards."""
        with self.exclusive():
            self.cancel_all()
            self._idle.release_all_but(0)
            self._logits, self._is_closed = None, True
            self._listener_thread.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SettingError("the model is closed: load it again")

    def _fail(self, runs: Iterable[Run], error: Exception) -> None:
        """End runs by an error that is none of ours, which no reader shall wait beyond."""
        told = TinychatError(f"the reply broke off by {type(error).__name__}: {one_line(str(error), 80)}".rstrip(": "))
        with self.exclusive():
            for run in runs:
                if not run.is_over:
                    with suppress(Exception):  # A listener may be what has failed.
                        self._end(run, told)

    def step(self, *submitted: Run, is_enough: Callable[[], bool] = lambda: True) -> None:
        """Submit runs, as `submit` does; run passes for all that want more, and deliver events, until `is_enough`."""
        with held_signals(always=True) as let_signals_act:
            while True:
                with self._locked(let_signals_act):
                    for run in submitted:
                        self.submit(run)
                    self._step()
                if is_enough():
                    return
                submitted = ()
                let_signals_act()

    def _step(self) -> None:
        self._end_dropped()
        self._admit()
        # Readers see the beginning before the first chunk runs.
        if not self._begin():
            self._make_step()

    def _make_step(self) -> None:
        """Run one pass, and accept its logits."""
        started = perf_counter()
        self.memory_watch.look(started, self.engine, self._idle)
        parts, logits = self._run_pass()
        seconds = perf_counter() - started
        rows = sum([len(part.chunk.ids) for part in parts])
        self.rows += rows
        if self.drafts is not None:
            self.drafts.follow((part.rows for part in parts), self.engine)
            if rows and None not in [part.draft for part in parts]:
                self.drafts.note_pass(rows, seconds)
        for part, rows_of_part in zip(parts, logits):
            self._accept(part, rows_of_part, seconds)

    def _end_dropped(self) -> None:
        """End the runs without readers."""
        while self._dropped:
            if not (run := self._dropped.popleft()).is_over:
                self._end(run)

    def _admit(self) -> None:
        """Assign sequences to waiting runs, in their order, unless memory is full and another run wants more."""
        if not self._waiting or (self._is_full and any(run.wants_more for run in self._running)):
            return
        for run in [run for run in self._waiting if run.wants_more]:
            self._waiting.remove(run)
            taken = self._idle.take(run.reply.prompt.previous or run.base, bool(self._running))
            run.sequence, run.text = taken or (self._another(), None)
            run.text = run.text or (self.drafts.new_text() if self.drafts else None)
            self._running.append(run)

    def _begin(self) -> bool:
        """Find the cached prefix of prompts that have not begun; return whether a reader should see one of them now."""
        told = False
        for run in self._running:
            if run.has_begun or not self._find_cached(run):
                continue
            run.has_begun = True
            if run.seconds == 0.0 and not run.reply.token_ids:
                run.cached = len(run.sequence.ids)
                run.miss = explain_miss(run.base, run.reply.prompt.previous, run.cached, run.reply.decode)
                run.report()
                told = told or run.pauses
        return told

    def _find_cached(self, run: Run) -> bool:
        """Match the cached prefix of a run; False if another run will soon have more of it."""
        ids = run.ids
        if run.removed:
            cut_cache(run.sequence, ids, run.removed)
            run.removed = 0
        if not self.shares_prefixes:
            run.sequence.rewind(0)
            return True
        # Of a reply that goes on, the last token that has run is run again, as the last one of a prompt is.
        found = run.sequence.reuse(ids[:-1] if run.reply.token_ids else ids)
        if len(ids) < found + SHARED:
            return True
        shared = ids[: found + SHARED]
        reading = (run for run in self._running if run.has_begun and run.wants_more and not run.reply.token_ids)
        if any(other.base[: len(shared)] == shared for other in reading):
            run.sequence.rewind(0)
            return False
        return True

    def _run_pass(self) -> tuple[list[ScheduledRun], list[Logits]]:
        """Schedule and run a pass, and return its logits; memory is freed as long as it is too small."""
        while parts := self._schedule():
            chunks = [part.chunk for part in parts]
            try:
                return parts, self.engine.run(chunks, self._memory(sum([chunk.outputs for chunk in chunks])))
            except CacheFullError as error:
                self._free_memory(error)
        return [], []

    def _memory(self, rows: int) -> Logits:
        """Return memory for so many rows of logits: fresh pages cost time."""
        if self._logits is None or len(self._logits) < rows:
            self._logits = self.engine.new_logits(max(rows, LONGEST + 1))
        return self._logits

    def _schedule(self) -> list[ScheduledRun]:
        """Schedule the next step: the next tokens of replies, and parts of prompts in the rows that are left."""
        counts = {run: run.decoded_rows() for run in self._running if run.has_begun and run.wants_more}
        parts = self._next_tokens({run: count for run, count in counts.items() if count})
        reading = [run for run, count in counts.items() if not count]
        return parts + self._next_of_prompts(reading, parts) if reading else parts

    def _next_tokens(self, counts: dict[Run, int]) -> list[ScheduledRun]:
        """Schedule the last tokens of replies, so many of each, with drafts behind them."""
        totals = accumulate(counts.values())
        writing, parts = [run for run, rows in zip(counts, totals) if rows <= self.engine.chunk_size], []
        for run, draft in zip(writing, proposed_ids(self.drafts, writing, self.engine)):
            ids = run.reply.token_ids[-counts[run] :] + draft
            parts.append(ScheduledRun(run, run.sequence.chunk(ids, run.length + len(draft), 1 + len(draft)), draft))
        return parts

    def _next_of_prompts(self, reading: list[Run], beside: list[ScheduledRun]) -> list[ScheduledRun]:
        """Schedule parts of prompts; a run whose part cannot be made ends."""
        most = self.engine.most_rows - sum(len(part.chunk.ids) for part in beside)
        left = min(most, self._prompt_budget if beside else self.engine.chunk_size)
        # Of images, rows of one tile at most are computed in a step, for which all others wait.
        images, computed, parts = self.engine.images, False, []
        for run, count in zip(reading, row_shares([run.missing for run in reading], left)):
            try:
                ids = run.next_ids(count, most, images, not computed) if count > 0 else []
                computed = (images is not None and images.compute(ids)) or computed
                if ids:
                    chunk = run.sequence.chunk(ids, run.length, int(len(ids) == run.missing))
                    parts.append(ScheduledRun(run, chunk, None))
                    most -= len(ids)
            except TinychatError as error:
                self._end(run, error)
        return parts

    def _free_memory(self, error: CacheFullError) -> None:
        """Free memory: of an idle sequence, else of a paused run, else of the youngest."""
        still = [run for run in self._running if not run.wants_more]
        if not self._idle.release_oldest():
            if still or len(self._running) > 1:
                self._preempt((still or self._running)[-1])
            else:
                self._end(self._running[0], error)

    def _preempt(self, run: Run) -> None:
        """Let the run wait again, before all that came after it."""
        self._running.remove(run)
        self._waiting.appendleft(run)
        self._is_full, run.has_begun = True, False
        run.sequence.release()
        del run.sequence

    def _accept(self, part: ScheduledRun, logits: Logits, seconds: float) -> None:
        """Accept the logits of a step for a run, and deliver its events."""
        run = part.run
        if run.is_over:
            # A listener of an earlier run of this step has ended it.
            return
        run.seconds += seconds
        if not part.chunk.outputs:
            run.report()
            return
        if not run.reply.token_ids:
            run.prompt_was_read()
            # Others find it at once.
            if len(self) > 1:
                run.sequence.insert_prefix()
        seconds, run.seconds = run.seconds, 0.0
        try:
            delta = self._choose(part, logits, seconds)
        except TinychatError as error:
            self._end(run, error)
            return
        run.deliver(delta)
        if run.reply.finish_reason is not None:
            self._end(run)

    def _choose(self, part: ScheduledRun, logits: Logits, seconds: float) -> Delta:
        """Let a reply choose its next tokens, and end where its context is full and no room can be made."""
        run, reply = part.run, part.run.reply
        delta = reply.accept_draft(logits, part.draft or (), seconds)
        if part.draft:
            # Rejected drafts leave the cache.
            rejected = len(part.draft) - common_length(part.draft, delta.ids)
            run.sequence.cut(len(run.sequence.ids) - rejected)
        if self.drafts is not None and not self.drafts.is_resting:
            if run.text is not None and part.draft is not None:
                self.drafts.learn(run.text, len(part.draft), delta.ids)
            else:
                run.text = run.text or self.drafts.new_text()
                run.text.begin(run.ids)
        is_full = reply.finish_reason is None and run.length > run.sequence.context_size
        if is_full and not self._make_room(run):
            return replace(delta, text=delta.text + reply.finish("context"))
        return delta

    def _make_room(self, run: Run) -> bool:
        """Continue after a shorter past, if there is one; return whether there is."""
        room = run.make_room and run.make_room(run.reply.token_ids)
        if room is None:
            return False
        run.begin_after(room, self.engine.images)
        return True

    def _end(self, run: Run, error: TinychatError | None = None) -> None:
        """End a run, by an error if there is one; its sequence becomes idle."""
        try:
            if error is not None:
                run.deliver(error)
        finally:
            self._forget(run)

    def _forget(self, run: Run) -> None:
        """Let a run be over."""
        run.is_over, self._is_full = True, False
        if run in self._waiting:
            self._waiting.remove(run)
        if run in self._running:
            self._running.remove(run)
            self._idle.put(run.sequence, run.text)
            del run.sequence
        # Both may hold the stream, whose finalizer holds the run: none of them would ever go.
        listener, run.listener, run.make_room, run.tiles = run.listener, None, None, ()
        if listener is not None:
            self._listener_thread.remove(run)
            listener(None)
