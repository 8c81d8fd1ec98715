"""Counters of a server, in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tinychat.generate.reply import Summary


@dataclass
class Metrics:
    """Counts of everything since the server's start; times in seconds."""

    requests_total: int = 0
    errors_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    tokens_predicted_total: int = 0
    prompt_seconds_total: float = 0.0
    tokens_predicted_seconds_total: float = 0.0

    def add(self, summary: Summary) -> None:
        """Count a reply."""
        self.prompt_tokens_total += summary.prompt_tokens - summary.reused_tokens
        self.cached_tokens_total += summary.reused_tokens
        self.tokens_predicted_total += summary.new_tokens
        self.prompt_seconds_total += summary.prefill_seconds
        self.tokens_predicted_seconds_total += summary.decode_seconds

    def text(self, **gauges: float) -> str:
        """Return all counters, and gauges of this moment."""
        counters = [(field.name, "counter", getattr(self, field.name)) for field in fields(self)]
        now = [(name, "gauge", value) for name, value in gauges.items()]
        lines = [
            f"# TYPE tinychat:{name} {kind}\ntinychat:{name} {value:.10g}\n" for name, kind, value in (*counters, *now)
        ]
        return "".join(lines)
