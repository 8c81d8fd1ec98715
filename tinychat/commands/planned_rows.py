"""The findings of `tinychat plan`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinychat.bench.batch_rates import BatchRates
    from tinychat.bench.row_plan import Costs, Estimate, Machine, RowCount

_LIMITS = {
    "cores": "the cores",
    "bandwidth": "how fast the memory is read",
    "memory": "the memory, which has no room for more replies at once",
    "rows": "the rows: too few for more replies at once",
}


@dataclass(frozen=True)
class PlannedRows:
    """An estimate with all that it comes from."""

    model: str
    counts: Sequence[RowCount]  # one for each machine
    failed: int  # rows that cannot be answered
    new_tokens: float  # of a reply, in tokens
    how_new: str  # how that is known
    rates: BatchRates
    machine: Machine
    costs: Costs
    found: Estimate
    price: float | None  # of a machine for an hour

    @cached_property
    def total(self) -> RowCount:
        """Counts of all machines."""
        return sum(self.counts[1:], self.counts[0])

    @property
    def most_rows(self) -> int:
        """Rows of the machine that has the most."""
        return max(each.rows for each in self.counts)

    @property
    def cost(self) -> float | None:
        """The price of all machines until the last one is done."""
        return None if self.price is None else self.price * len(self.counts) * self.found.seconds / 3600

    def as_json(self) -> dict[str, object]:
        """Return all numbers."""
        return {
            "model": self.model,
            **asdict(self.total),
            "failed_rows": self.failed,
            "most_rows_of_a_machine": self.most_rows,
            "new_tokens": self.total.rows * self.new_tokens,
            "new_tokens_a_row": self.new_tokens,
            "machines": len(self.counts),
            "machine": asdict(self.machine),
            **asdict(self.found),
            "cost": self.cost,
            "batches": self.rates.as_json(),
        }

    def as_text(self) -> str:
        """Return the answer in a line, and a table of what it comes from."""
        cost = "" if self.cost is None else f", {self.cost:,.2f} at {self.price:,.2f} an hour"
        where = "one machine" if len(self.counts) == 1 else f"{len(self.counts)} machines"
        answer = f"about {_duration(self.found.seconds)} on {where} of {_counted(self.machine.cores, 'core')}{cost}"
        lines = [*self._work(), *self._machine()]
        return "\n".join([answer, *(f"{name:<10}{value}" for name, value in lines)])

    def _work(self) -> list[tuple[str, str]]:
        total = self.total
        failed = f"; {self.failed:,} more cannot be answered" if self.failed else ""
        shares = f", {self.most_rows:,} at most on a machine" if len(self.counts) > 1 else ""
        return [
            ("rows", f"{total.rows:,}{shares}{failed}"),
            ("prompts", f"{_counted(total.prompt_tokens, 'token')}, {total.cached_tokens:,} of them from the cache"),
            ("replies", f"{total.rows * self.new_tokens:,.0f} tokens, {self.new_tokens:,.1f} each: {self.how_new}"),
        ]

    def _machine(self) -> list[tuple[str, str]]:
        found, machine, rates = self.found, self.machine, self.rates
        weights, replies = self.costs.weight_bytes, found.at_once * self.costs.reply_bytes
        lines = [
            ("rate", f"{found.new_tok_s:,.0f} new tokens a second on a machine, {found.at_once} replies at once"),
            ("", f"{found.prompt_tok_s:,.0f} tokens of prompts a second"),
            ("memory", f"{found.memory_bytes / 1e9:.2f} of {machine.memory / 1e9:.2f} GB on a machine"),
            ("", f"weights {weights / 1e9:.3f}, replies {replies / 1e9:.3f}, the program the rest"),
            ("limit", _LIMITS[found.limit]),
            ("measured", f"on {_counted(rates.cores, 'core')}, memory at {rates.bandwidth_gb_s:.1f} GB/s"),
        ]
        if machine.cores != rates.cores:
            lines.append(("", f"in proportion for {machine.cores}, memory at {machine.bandwidth_gb_s:.1f} GB/s"))
        return lines


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min"
