"""Costs of a row of a batch: seconds of its prompt's tokens and of its new ones, by the number of replies at once.

While replies are written, prompts are read between them, some tokens in each step. So both are measured together: rows
with long and with short prompts are answered, each long enough, and two equations give the two costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.bench.ceilings import Ceilings
from tinychat.errors import SettingError, TinychatError
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta
from tinychat.generate.request import Request
from tinychat.machine import memory_bytes

if TYPE_CHECKING:
    from tinychat.generate.model import Model

LEVELS = (1, 8, 16, 32, 64)
"""Replies at once that are measured, as long as more of them bring something."""
PROMPT_TOKENS, NEW_TOKENS = 128, 32
"""Tokens of the measured rows where nothing else is asked for."""
SECONDS = 1.5
"""Least duration of a measurement; there are two for each level."""
WORTHWHILE = 1.04
"""By how much more replies at once must be faster, for them to be written: see `tinychat.generate.batched`."""
_SHORT_PROMPT = 4
_COUNTS, _RATES = ("cores", "memory", "prompt_tokens", "new_tokens"), ("prompt_tok_s", "new_tok_s")
_ROWS_AT_LEAST = 3  # for each of the replies at once
_MOST_PROMPT, _MOST_NEW, _LEAST_PROMPT, _LEAST_NEW = 256, 48, 16, 8


@dataclass(frozen=True)
class BatchRates:
    """Measured rates of a model on a machine."""

    cores: int  # threads that ran
    memory: int  # bytes of the machine's memory; 0 if unknown
    bandwidth_gb_s: float  # how fast all threads read memory, in 1e9 bytes a second
    prompt_tokens: int  # length of the prompts of the measured rows
    new_tokens: int  # length of their replies
    prompt_tok_s: Mapping[int, float]  # tokens of prompts in a second, by replies at once
    new_tok_s: Mapping[int, float]  # tokens of replies in a second, by replies at once

    @property
    def depth(self) -> float:
        """Tokens before a new one, on average."""
        return self.prompt_tokens + self.new_tokens / 2

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain data, as `from_json` reads them."""
        return asdict(self)

    @staticmethod
    def from_json(found: Any) -> BatchRates:
        """Return the rates of plain data; `SettingError` if it is something else."""
        try:
            cores, memory, prompt, new = (int(found[name]) for name in _COUNTS)
            by_level = ({int(level): float(rate) for level, rate in found[name].items()} for name in _RATES)
            rates = BatchRates(cores, memory, float(found["bandwidth_gb_s"]), prompt, new, *by_level)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SettingError("has no rates of many replies at once") from None
        numbers = (rates.cores, rates.bandwidth_gb_s, *rates.prompt_tok_s.values(), *rates.new_tok_s.values())
        same_levels = rates.new_tok_s.keys() == rates.prompt_tok_s.keys()
        if not rates.new_tok_s or not same_levels or min(numbers) <= 0:
            raise SettingError("has rates that are not above 0, or not for the same numbers of replies at once")
        return rates


def measure_batches(
    model: Model,
    request: Request,
    *,
    prompt_tokens: float = PROMPT_TOKENS,
    new_tokens: float = NEW_TOKENS,
    levels: Sequence[int] = LEVELS,
    seconds: float = SECONDS,
    progress: Callable[[int, int], None] | None = None,
    make_ceilings: Callable[[int], Ceilings] = Ceilings,
) -> BatchRates:
    """Measure a model with rows of about this length, in prompts of random tokens that share no beginning.

    `request` has the settings of sampling, which take part of the time; `seconds` is the least duration of each of the
    two measurements of a level. Lengths are brought into a range that can be measured soon. `make_ceilings` makes the
    meter of the memory's speed for a number of threads.
    """
    # The longest reply has half as much again.
    new = round(min(max(new_tokens, _LEAST_NEW), _MOST_NEW, model.context_size / 4))
    prompt = round(min(max(prompt_tokens, _LEAST_PROMPT), _MOST_PROMPT, model.context_size - 2 * new))
    request = replace(request, ignore_eos=True, constraint=None, stop=())
    rows, ceilings = _RandomRows(model, request, seconds), make_ceilings(model.engine.threads)
    bandwidth = []
    prompt_tok_s: dict[int, float] = {}
    new_tok_s: dict[int, float] = {}
    for done, level in enumerate(levels):
        if progress is not None:
            progress(done, len(levels))
        bandwidth.append(ceilings.bandwidth())
        found = _solved(rows.answer(level, prompt, new), rows.answer(level, _SHORT_PROMPT, new))
        before = max(new_tok_s.values(), default=0.0)
        prompt_tok_s[level], new_tok_s[level] = (1 / cost for cost in found)
        if new_tok_s[level] < WORTHWHILE * before:
            break
    cores, memory = model.engine.threads, memory_bytes() or 0
    return BatchRates(cores, memory, median(bandwidth), prompt, new, prompt_tok_s, new_tok_s)


@dataclass(frozen=True)
class Answered:
    """Seconds in which rows were answered, all places taken, and the tokens of their prompts and replies."""

    seconds: float
    prompt_tokens: int
    new_tokens: int


def _solved(long: Answered, short: Answered) -> tuple[float, float]:
    """Return the seconds of a token of a prompt, and of a new one, which explain the seconds of two measurements."""
    both = long.prompt_tokens * short.new_tokens - short.prompt_tokens * long.new_tokens
    of_prompt = (long.seconds * short.new_tokens - short.seconds * long.new_tokens) / both
    # Where the machine drifts between the two, reading would take less than no time.
    of_prompt = min(max(of_prompt, 0.01 * long.seconds / long.prompt_tokens), 0.99 * long.seconds / long.prompt_tokens)
    return of_prompt, (long.seconds - of_prompt * long.prompt_tokens) / long.new_tokens


class _RandomRows:
    """Rows of random tokens, whose replies differ in length, so that places become free one by one."""

    def __init__(self, model: Model, request: Request, seconds: float) -> None:
        self._model, self._request, self._seconds = model, request, seconds
        self._random = np.random.default_rng(1)

    def answer(self, at_once: int, prompt_tokens: int, new_tokens: int) -> Answered:
        """Answer rows until enough of them have begun, and return what was done by then."""
        begun: set[int] = set()
        new, ended = 0, 0.0
        started = perf_counter()

        def asked() -> Iterator[tuple[Prompt, Request]]:
            nonlocal ended
            number = 0
            while number < _ROWS_AT_LEAST * at_once or perf_counter() - started < self._seconds:
                ids = self._random.integers(0, self._model.vocab_size, prompt_tokens).tolist()
                length = new_tokens // 2 + number * 7 % (new_tokens + 1)
                yield Prompt(ids), replace(self._request, max_tokens=max(1, length))
                number += 1
            ended = perf_counter()

        with closing(self._model.write_many(asked(), at_once)) as events:
            for number, event in events:
                if ended:
                    break
                if isinstance(event, TinychatError):
                    raise event
                if isinstance(event, Delta):
                    begun.add(number)
                    new += len(event.ids)
        return Answered(ended - started, prompt_tokens * len(begun), new)
