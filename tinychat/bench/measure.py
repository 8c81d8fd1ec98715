"""Rates of prefill and decode, taken in turns with the machine's own limits.

A shared machine drifts by a third within seconds: a rate is measured in chunks, and before each chunk the machine's
limit. The mean of these is the rate's denominator. Medians over the rounds are reported.
"""

from __future__ import annotations

import itertools
from collections import abc, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import harmonic_mean, median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from tinychat.bench.ceilings import Ceilings
from tinychat.bench.work import Work
from tinychat.errors import FieldError
from tinychat.generate.sequence import Ids, Logits

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence

Progress = Callable[[int, int], None]
"""Called with (measurements done, measurements in all)."""
Limit = Callable[[], float]
"""Measures once what the machine can do."""
TOKENS_BETWEEN_LIMITS = 16


@dataclass(frozen=True)
class Plan:
    """A plan of measurements."""

    prefill: tuple[int, ...] = (512, 2048)  # lengths of prompts, ascending
    depths: tuple[int, ...] = (0, 2048, 4096)  # tokens in the cache before decoding, ascending
    new_tokens: int = 64  # decoded at each depth
    rounds: int = 3

    @property
    def context_size(self) -> int:
        """Positions of the longest measurement."""
        return max((*self.prefill, *(depth + self.new_tokens for depth in self.depths)))

    @property
    def measurements(self) -> int:
        """Number of rates, over all rounds."""
        return self.rounds * (len(self.prefill) + len(self.depths))

    def fitted(self, context_size: int) -> tuple[Plan, list[str]]:
        """Return the part of the plan that fits into a context, and notes on the rest; FieldError if nothing fits."""
        prefill = tuple(length for length in self.prefill if length <= context_size)
        depths = tuple(depth for depth in self.depths if depth + self.new_tokens <= context_size)
        if not prefill and not depths:
            raise FieldError("context", f"must be larger: {context_size} tokens hold none of the measurements")
        left_out = [f"prefill of {length}" for length in self.prefill if length not in prefill]
        left_out += [f"decode at depth {depth}" for depth in self.depths if depth not in depths]
        notes = [f"{what} left out: the context holds {context_size} tokens" for what in left_out]
        return Plan(prefill, depths, self.new_tokens, self.rounds), notes


@dataclass
class Rates:
    """Every measurement: one entry of a rate for each round, of a limit for each rate and round."""

    prefill_tok_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    decode_tok_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    prefill_peak_share: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    decode_bandwidth_share: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    bandwidth_gb_s: list[float] = field(default_factory=list)
    int8_peak_gmac_s: list[float] = field(default_factory=list)


def medians(values: dict[int, list[float]]) -> dict[str, float]:
    """Return the median of each list."""
    return {str(key): median(found) for key, found in values.items()}


def measure(sequence: Sequence, work: Work, ceilings: Ceilings, plan: Plan, progress: Progress | None = None) -> Rates:
    """Measure everything in `plan`, which fits into the sequence's context."""
    done = itertools.count()

    def report() -> None:
        if progress is not None:
            progress(next(done), plan.measurements)

    report()
    ids = np.random.default_rng(1).integers(0, sequence.vocab_size, plan.context_size).tolist()
    rates = Rates()
    _warm_up(sequence, ids)
    for _ in range(plan.rounds):
        rates.int8_peak_gmac_s.append(ceilings.int8_peak())
        rates.bandwidth_gb_s.append(ceilings.bandwidth())
        for length in plan.prefill:
            rate, peak = prefill_rate(sequence, ids[:length], ceilings.int8_peak)
            rates.int8_peak_gmac_s.append(peak)
            rates.prefill_tok_s[length].append(rate)
            rates.prefill_peak_share[length].append(rate * work.multiply_adds / 1e9 / peak)
            report()
        for depth in plan.depths:
            rate, bandwidth = decode_rate(sequence, ids, depth, plan.new_tokens, ceilings.bandwidth)
            read = work.weight_bytes + work.state_bytes + work.cache_bytes * (depth + plan.new_tokens // 2)
            rates.bandwidth_gb_s.append(bandwidth)
            rates.decode_tok_s[depth].append(rate)
            rates.decode_bandwidth_share[depth].append(rate * read / 1e9 / bandwidth)
            report()
    return rates


def prefill_rate(sequence: Sequence, ids: Ids, limit: Limit) -> tuple[float, float]:
    """Return tokens in a second when `ids` are read from an empty cache, and the mean of `limit` before each chunk."""
    sequence.rewind(0)
    chunks = [ids[start : start + sequence.chunk_size] for start in range(0, len(ids), sequence.chunk_size)]
    return _rate(chunks, lambda chunk: sequence.step(chunk, len(ids)), limit)


def decode_rate(sequence: Sequence, ids: Ids, depth: int, new_tokens: int, limit: Limit) -> tuple[float, float]:
    """Return tokens in a second, one by one, after the first `depth` ids, and the mean of `limit` meanwhile."""
    sequence.rewind(min(depth, len(sequence.ids)))
    _extend(sequence, ids[:depth])
    stop = depth + new_tokens

    def limit_then_wake() -> float:
        found = limit()
        # The limit has emptied the caches and put the threads to sleep: the token that bears that is not counted.
        sequence.step(ids[depth : depth + 1])
        sequence.rewind(len(sequence.ids) - 1)
        return found

    starts = range(depth, stop, TOKENS_BETWEEN_LIMITS)
    chunks = [ids[start : min(start + TOKENS_BETWEEN_LIMITS, stop)] for start in starts]
    logits: Logits = sequence.new_logits(1)

    def decode(chunk: Ids) -> None:
        for token_id in chunk:
            sequence.step([token_id], out=logits)

    return _rate(chunks, decode, limit_then_wake)


def _rate(chunks: abc.Sequence[Ids], run: Callable[[Ids], object], limit: Limit) -> tuple[float, float]:
    """Return the tokens in a second of all chunks together, and the harmonic mean of `limit` before each."""
    limits, seconds = [], 0.0
    for chunk in chunks:
        limits.append(limit())
        started = perf_counter()
        run(chunk)
        seconds += perf_counter() - started
    return sum(map(len, chunks)) / seconds, harmonic_mean(limits)


def _extend(sequence: Sequence, ids: Ids) -> None:
    """Run the ids that the cache does not hold yet."""
    for start in range(len(sequence.ids), len(ids), sequence.chunk_size):
        sequence.step(ids[start : start + sequence.chunk_size], len(ids))


def _warm_up(sequence: Sequence, ids: Ids) -> None:
    """Touch all weights and wake the threads."""
    sequence.rewind(0)
    _extend(sequence, ids[: sequence.chunk_size])
    sequence.rewind(0)
    sequence.step(ids[:1])
