"""Counters of a server, in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

Those that llama-server has, too, have its names, so that its dashboards show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from tinychat.generate.reply import Summary

_GAUGES = {
    "prompt_tokens_seconds": "Prompt tokens read per second, on average.",
    "predicted_tokens_seconds": "Tokens written per second and reply, on average.",
    "requests_processing": "Requests that run.",
    "requests_deferred": "Requests that wait for a turn.",
}


def _counter(help_text: str, program: str = "llamacpp") -> Any:
    return field(default=0, metadata={"help": help_text, "program": program})


@dataclass
class Metrics:
    """Counts of everything since the server's start; times in seconds."""

    prompt_tokens_total: int = _counter("Prompt tokens that were read, without those that were cached.")
    prompt_seconds_total: float = _counter("Seconds of reading prompts.")
    tokens_predicted_total: int = _counter("Tokens that were written.")
    tokens_predicted_seconds_total: float = _counter("Seconds of writing replies, their first tokens aside.")
    n_tokens_max: int = _counter("Most tokens of a prompt and its reply.")
    spec_decode_num_draft_tokens_total: int = _counter("Tokens that were proposed by drafts.")
    spec_decode_num_accepted_tokens_total: int = _counter("Tokens of drafts that became part of replies.")
    requests_total: int = _counter("Requests for replies.", "tinychat")
    errors_total: int = _counter("Requests that were answered by an error.", "tinychat")
    cached_tokens_total: int = _counter("Prompt tokens that were cached.", "tinychat")
    decode_steps: int = 0

    def add(self, summary: Summary) -> None:
        """Count a reply, unless it was dropped before its prompt was read."""
        if not summary.prefill_seconds:
            return
        self.prompt_tokens_total += summary.prompt_tokens - summary.reused_tokens
        self.cached_tokens_total += summary.reused_tokens
        self.tokens_predicted_total += summary.new_tokens
        self.prompt_seconds_total += summary.prefill_seconds
        self.tokens_predicted_seconds_total += summary.decode_seconds
        self.n_tokens_max = max(self.n_tokens_max, summary.prompt_tokens + summary.new_tokens)
        self.spec_decode_num_draft_tokens_total += summary.drafted_tokens
        self.spec_decode_num_accepted_tokens_total += summary.accepted_tokens
        self.decode_steps += summary.decode_steps

    def text(self, **gauges: float) -> str:
        """Return all counters, and gauges of this moment."""
        return "".join(self._lines(gauges))

    def _lines(self, gauges: dict[str, float]) -> Iterator[str]:
        for one in fields(self):
            if one.metadata:
                name = f"{one.metadata['program']}:{one.name}"
                yield _metric(name, "counter", one.metadata["help"], getattr(self, one.name))
        rates = {
            "prompt_tokens_seconds": _rate(self.prompt_tokens_total, self.prompt_seconds_total),
            "predicted_tokens_seconds": _rate(self.decode_steps, self.tokens_predicted_seconds_total),
        }
        for name, value in (rates | gauges).items():
            yield _metric(f"llamacpp:{name}", "gauge", _GAUGES[name], value)


def _metric(name: str, kind: str, help_text: str, value: float) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n{name} {value:.10g}\n"


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
