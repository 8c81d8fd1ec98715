"""Time and memory that machines take to answer the rows of a file: plain arithmetic from counts and measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from tinychat.bench.batch_rates import WORTHWHILE, BatchRates
from tinychat.bench.work import Work, work_of
from tinychat.engine.blocks import bytes_per_position, sequence_bytes
from tinychat.errors import SettingError
from tinychat.models.folder import read_description
from tinychat.models.layout import looked_up_bytes, tensor_specs
from tinychat.store.estimates import PROGRAM_BYTES, gigabytes

if TYPE_CHECKING:
    from tinychat.generate.model import Model

# About 60 MB of hashes.
_MOST_PREFIXES = 1 << 19


@dataclass
class RowCount:
    """Counts of the rows that one machine answers."""

    rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # those of the prompts that are the beginning of an earlier row of this machine
    most_new_tokens: int | None = 0  # sum of the limits of the replies; None if a row has no limit
    longest_prompt: int = 0  # in tokens

    @property
    def read_tokens(self) -> int:
        """Tokens of the prompts that are not cached."""
        return self.prompt_tokens - self.cached_tokens

    def __add__(self, other: RowCount) -> RowCount:
        limits = (self.most_new_tokens, other.most_new_tokens)
        return RowCount(
            self.rows + other.rows,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            None if None in limits else sum(limit for limit in limits if limit is not None),
            max(self.longest_prompt, other.longest_prompt),
        )


@dataclass(frozen=True)
class Machine:
    """A machine: its cores, bytes of memory, and how fast it reads them, in 1e9 bytes a second."""

    cores: int
    memory: int
    bandwidth_gb_s: float


@dataclass(frozen=True)
class Costs:
    """The costs of a model: the `work` of a token, the bytes of its weights in memory, and those of a reply's cache."""

    work: Work
    weight_bytes: int
    reply_bytes: int

    def memory(self, at_once: int) -> int:
        """Return the bytes of memory of a process that writes so many replies at once."""
        return self.weight_bytes + at_once * self.reply_bytes + PROGRAM_BYTES


@dataclass(frozen=True)
class Estimate:
    """The time and memory that machines take."""

    seconds: float  # until the machine with the most work has answered its rows
    machine_seconds: float  # of all machines together, while they answer
    at_once: int  # replies that a machine writes at once
    prompt_tok_s: float  # tokens of prompts in a second of one machine
    new_tok_s: float  # tokens of replies in a second of one machine
    memory_bytes: int  # that a machine needs
    # "cores", "bandwidth", "memory" or "rows": it keeps a machine from being faster; the last two limit `at_once`.
    limit: str


def costs_of(model: Model, positions: int) -> Costs:
    """Return the costs of a model, whose replies with their prompts have so many tokens."""
    config, kv, quantization = model.engine.config, model.engine.kv, read_description(model.path)
    work = work_of(config, quantization, bytes_per_position(config, kv))
    weights = work.file_bytes - looked_up_bytes(tensor_specs(config, quantization))
    return Costs(work, weights, sequence_bytes(config, kv, positions))


def count_rows(prompts: Iterable[tuple[int, Sequence[int], int | None]], machines: int) -> list[RowCount]:
    """Count rows by machine: each is the number of its machine, the ids of its prompt, and the limit of its reply."""
    counts = [RowCount() for _ in range(machines)]
    seen: dict[int, None] = {}
    for machine, ids, limit in prompts:
        # The last token is never cached: its logits are needed.
        cached = min(_add_prefixes(seen, machine, ids), max(0, len(ids) - 1))
        counts[machine] += RowCount(1, len(ids), cached, limit, len(ids))
    return counts


def _add_prefixes(seen: dict[int, None], machine: int, ids: Sequence[int]) -> int:
    """Add the hash of each prefix of a machine's prompt; return the length of the longest that it has seen.

    The oldest are dropped, as a cache does.
    """
    hashes = [*accumulate(ids, lambda before, token: hash((before, token)), initial=machine)][1:]
    known = next((length for length, one in enumerate(hashes) if one not in seen), len(hashes))
    seen.update(dict.fromkeys(hashes))
    while len(seen) > _MOST_PREFIXES:
        del seen[next(iter(seen))]
    return known


def estimate(
    counts: Sequence[RowCount], new_tokens: float, rates: BatchRates, costs: Costs, machine: Machine
) -> Estimate:
    """Estimate the time of these counts, one for each of the machines, all of one kind.

    Cores count in proportion to those that were measured, as far as the memory is fast enough. A reply has `new_tokens`
    on average. `SettingError` if the model does not fit into the memory of a machine.
    """
    total = sum(counts, RowCount())
    depth = total.prompt_tokens / max(1, total.rows) + new_tokens / 2
    seconds = {level: _seconds_of_new(level, depth, rates, costs, machine) for level in sorted(rates.new_tok_s)}
    fitting = [level for level in seconds if costs.memory(level) <= machine.memory]
    if not fitting:
        needed = gigabytes(costs.memory(min(seconds)))
        raise SettingError(
            f"a machine has {gigabytes(machine.memory)} of memory and {needed} are needed:"
            " give more with --memory, or choose a smaller model"
        )
    most = max(each.rows for each in counts)
    wanted = _best(seconds, [*seconds])
    chosen = _best(seconds, [each for each in fitting if each <= most] or fitting[:1])
    of_prompt = rates.cores / machine.cores / rates.prompt_tok_s[chosen]
    of_new = max(seconds[chosen])
    times = [each.read_tokens * of_prompt + each.rows * new_tokens * of_new for each in counts]
    limit = "cores" if of_new == seconds[chosen][0] else "bandwidth"
    if chosen < wanted:
        limit = "memory" if chosen == fitting[-1] else "rows"
    return Estimate(max(times), sum(times), chosen, 1 / of_prompt, 1 / of_new, costs.memory(chosen), limit)


def _best(seconds: Mapping[int, tuple[float, float]], levels: Sequence[int]) -> int:
    """Return the largest of ascending levels that is worth while, beside those before it."""
    best = levels[0]
    for level in levels:
        best = level if max(seconds[best]) > WORTHWHILE * max(seconds[level]) else best
    return best


def _seconds_of_new(
    at_once: int, depth: float, rates: BatchRates, costs: Costs, machine: Machine
) -> tuple[float, float]:
    """Return the seconds of a new token, so many written at once, by the cores and by the memory's speed alone."""
    work, measured = costs.work, 1 / rates.new_tok_s[at_once]

    def read(positions: float) -> float:
        return work.weight_bytes / at_once + work.state_bytes + positions * work.cache_bytes

    # A model that is read faster than from memory is in the processor's caches.
    read_gb_s = max(rates.bandwidth_gb_s, read(rates.depth) / measured / 1e9)
    by_cores = measured + (read(depth) - read(rates.depth)) / (read_gb_s * 1e9)
    speed = read_gb_s * machine.bandwidth_gb_s / rates.bandwidth_gb_s
    return by_cores * rates.cores / machine.cores, read(depth) / (speed * 1e9)
