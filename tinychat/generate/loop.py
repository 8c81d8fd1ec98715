"""From prompt ids to a stream of text: prefill, then one token after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from tinychat.errors import SettingError
from tinychat.generate.constraint import Constraint
from tinychat.generate.engine import Engine, Logits
from tinychat.generate.logprobs import TokenLogprobs, token_logprobs
from tinychat.generate.prefill import PrefillProgress, check_prompt, prefill
from tinychat.generate.sampling import Sampler
from tinychat.generate.settings import SamplingSettings
from tinychat.generate.stopping import StopConditions, StopStringFilter
from tinychat.generate.summary import FinishReason, Summary
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.tokenizer import Tokenizer

MakeRoom = Callable[[Sequence[int]], bool]
"""Called with the reply so far when the context is full. Returns True after it has brought the engine's cache to a
shorter past that ends with the reply but for its last token, which runs next; False ends the reply."""


@dataclass(frozen=True)
class Piece:
    """A piece of the reply.

    Attributes
    ----------
    text : str
        New text that is final; empty while a character or a stop string may be incomplete.
    ids : tuple of int
        The token that was chosen; empty in a last piece that only brings held-back text.
    logprobs : tuple of TokenLogprobs
        One for each id, if they were asked for.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class Generation(Iterator[Piece]):
    """One run of the model; iterate it once, stop at any time.

    The engine's cache always ends up holding a prefix of prompt and reply, so the next
    run on the same engine reuses what it can.

    Attributes
    ----------
    token_ids : list of int
        The reply so far.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        sampler: Sampler,
        stopping: StopConditions,
        on_prefill: PrefillProgress | None,
        cancelled: Callable[[], bool],
        joins_prompt: bool,
        make_room: MakeRoom,
        logprobs: int | None,
        constraint: Constraint | None,
    ) -> None:
        check_prompt(prompt_ids, engine.vocab_size, engine.context_size)
        self.token_ids: list[int] = []
        self._engine = engine
        self._prompt_ids = list(prompt_ids)
        self._history = list(prompt_ids)
        self._sampler = sampler
        self._stopping = stopping
        self._on_prefill = on_prefill
        self._cancelled = cancelled
        self._make_room = make_room
        self._logprobs = logprobs
        self._constraint = None if constraint is None else constraint.start()
        # A grammar counts every space, so that none may be taken for a mark of the first word.
        joins_prompt = joins_prompt or constraint is not None
        self._detokenizer = Detokenizer(tokenizer, after=prompt_ids if joins_prompt else ())
        self._stop_strings = StopStringFilter(stopping.strings)
        self._finish_reason: FinishReason | None = None
        self._reused = self._decode_steps = 0
        self._prefill_seconds = self._decode_seconds = self._first_token_seconds = self._room_seconds = 0.0
        self._pieces = self._run()

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def summary(self) -> Summary:
        """What has been done so far; a run that did not reach its end counts as interrupted."""
        return Summary(
            prompt_tokens=len(self._prompt_ids),
            reused_tokens=self._reused,
            new_tokens=len(self.token_ids),
            decode_steps=self._decode_steps,
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds,
            first_token_seconds=self._first_token_seconds,
            finish_reason=self._finish_reason or "interrupted",
            seed=self._sampler.seed,
        )

    def _run(self) -> Iterator[Piece]:
        logits = self._read_prompt()
        if logits is None:
            return
        started = perf_counter()
        piece = self._choose(logits)
        self._first_token_seconds = self._prefill_seconds + perf_counter() - started
        yield piece
        while self._finish_reason is None:
            if self._cancelled():
                yield self._finish("interrupted")
                return
            started, making_room = perf_counter(), self._room_seconds
            piece = self._choose(self._engine.step(self.token_ids[-1:]))
            # Reading again what stays after turns were forgotten is no decoding.
            self._decode_seconds += perf_counter() - started - (self._room_seconds - making_room)
            self._decode_steps += 1
            yield piece

    def _read_prompt(self) -> Logits | None:
        started = perf_counter()
        logits, self._reused = prefill(self._engine, self._prompt_ids, self._on_prefill, self._cancelled)
        self._prefill_seconds = perf_counter() - started
        return logits

    def _choose(self, logits: Logits) -> Piece:
        """Choose the next token and return the text that it settles."""
        token_id = self._sampler.sample(self._masked(logits), self._history)
        if token_id in self._stopping.ids:
            return self._finish("stop")
        self._take(token_id)
        text = self._stop_strings.add(self._detokenizer.add(token_id))
        if self._stop_strings.found is not None:
            self._finish_reason = "stop_string"
        elif self._constraint is not None and self._constraint.finished:
            text += self._finish("stop").text
        elif len(self.token_ids) == self._stopping.max_tokens:
            text += self._finish("length").text
        elif len(self._engine.cached_ids) == self._engine.context_size and not self._has_made_room():
            text += self._finish("interrupted" if self._cancelled() else "context").text
        return Piece(text, (token_id,), self._logprobs_of(token_id, logits))

    def _has_made_room(self) -> bool:
        started = perf_counter()
        made = self._make_room(self.token_ids)
        self._room_seconds += perf_counter() - started
        return made

    def _masked(self, logits: Logits) -> Logits:
        """Return the logits with those of the tokens that the grammar forbids at minus infinity."""
        if self._constraint is None:
            return logits
        return np.where(self._constraint.allowed(), logits, np.float32(-np.inf))

    def _take(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._history.append(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)

    def _logprobs_of(self, token_id: int, logits: Logits) -> tuple[TokenLogprobs, ...]:
        return () if self._logprobs is None else (token_logprobs(logits, token_id, self._logprobs),)

    def _finish(self, reason: FinishReason) -> Piece:
        """End the reply and return the text that was held back."""
        text = self._stop_strings.add(self._detokenizer.finish())
        text += self._stop_strings.finish()
        self._finish_reason = reason if self._stop_strings.found is None else "stop_string"
        return Piece(text, ())


def generate(
    engine: Engine,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    sampling: SamplingSettings,
    stop_ids: frozenset[int] = frozenset(),
    stop_strings: Sequence[str] = (),
    max_tokens: int | None = None,
    on_prefill: PrefillProgress | None = None,
    ignore_eos: bool = False,
    cancelled: Callable[[], bool] | None = None,
    joins_prompt: bool = True,
    make_room: MakeRoom | None = None,
    logprobs: int | None = None,
    constraint: Constraint | None = None,
) -> Generation:
    """Continue `ids`, token by token.

    Nothing runs until the result is iterated.

    Parameters
    ----------
    engine : Engine
        Runs the model; its cache is reused as far as it agrees with `ids`.
    tokenizer : Tokenizer
        Turns the new tokens into text.
    ids : sequence of int
        The whole prompt.
    sampling : SamplingSettings
        How tokens are chosen.
    stop_ids : frozenset of int
        Tokens that end the reply.
    stop_strings : sequence of str
        Texts that end the reply.
    max_tokens : int, optional
        Most new tokens; None for as many as the context holds.
    on_prefill : callable, optional
        Called with (tokens done, tokens to run) while the prompt is read.
    ignore_eos : bool
        Treat `stop_ids` as ordinary tokens.
    cancelled : callable, optional
        Asked before each run of the model; True ends the reply as interrupted.
    joins_prompt : bool
        Whether the text goes on where the prompt's text ends. False begins it afresh: a tokenizer
        that marks the first word by a space loses that space, as in the reply of a chat.
    make_room : callable, optional
        Asked when the context is full; without one the reply ends there. See `MakeRoom`.
    logprobs : int, optional
        Report each token's log-probability and this many of the most likely ones, from the
        model's own logits: before penalty, temperature, filters and constraint.
    constraint : Constraint, optional
        Tokens that it forbids are masked before the sampler sees the logits.

    Raises
    ------
    ContextError
        If the prompt is longer than the context.
    SettingError
        If an argument is out of range.
    """
    if logprobs is not None and logprobs < 0:
        raise SettingError(f"--logprobs (logprobs) must be 0 or more, not {logprobs}")
    stopping = StopConditions(frozenset() if ignore_eos else stop_ids, tuple(stop_strings), max_tokens)
    return Generation(
        engine,
        tokenizer,
        ids,
        Sampler(sampling),
        stopping,
        on_prefill,
        cancelled or _never,
        joins_prompt,
        make_room or _no_room,
        logprobs,
        constraint,
    )


def _never() -> bool:
    return False


def _no_room(_token_ids: Sequence[int]) -> bool:
    return False
