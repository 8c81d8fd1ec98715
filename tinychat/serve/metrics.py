"""Counters of a server, in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

Those that llama-server has, too, have its names, so that its dashboards show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinychat.generate.reply import Summary

_SHARED = {
    "prompt_tokens_total": "Prompt tokens that were read, without those that were cached.",
    "prompt_seconds_total": "Seconds of reading prompts.",
    "tokens_predicted_total": "Tokens that were written.",
    "tokens_predicted_seconds_total": "Seconds of writing replies, their first tokens aside.",
    "n_tokens_max": "Most tokens of a prompt and its reply.",
    "spec_decode_num_draft_tokens_total": "Tokens that were proposed by drafts.",
    "spec_decode_num_accepted_tokens_total": "Tokens of drafts that became part of replies.",
}
_OWN = {
    "requests_total": "Requests for replies.",
    "errors_total": "Requests that were answered by an error.",
    "cached_tokens_total": "Prompt tokens that were cached.",
}
_GAUGES = {
    "prompt_tokens_seconds": "Prompt tokens read per second, on average.",
    "predicted_tokens_seconds": "Tokens written per second and reply, on average.",
    "requests_processing": "Requests that run.",
    "requests_deferred": "Requests that wait for a turn.",
}


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
    n_tokens_max: int = 0
    spec_decode_num_draft_tokens_total: int = 0
    spec_decode_num_accepted_tokens_total: int = 0
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
        for prefix, table in (("llamacpp", _SHARED), ("tinychat", _OWN)):
            for name, help_text in table.items():
                yield _metric(f"{prefix}:{name}", "counter", help_text, getattr(self, name))
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
