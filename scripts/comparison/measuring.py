"""What is measured, in turns: every figure of every engine once per run, the order turned round each time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import correlation

from comparison.processes import EngineError, EngineProcess, Finished, run_measured, running

DECODED_TOKENS = 64
PROMPT = "Once upon a time there was a little girl who"
CHECKED_TOKENS = 32


@dataclass(frozen=True)
class Rate:
    """Tokens per second of a prompt, of single tokens after `depth` others, or of several sequences together."""

    kind: str
    tokens: int
    depth: int = 0
    sequences: int = 1

    @property
    def label(self) -> str:
        """Say what it is, in the table."""
        if self.kind == "prefill":
            return f"prefill {self.tokens}, tok/s"
        if self.kind == "many":
            return f"decode of {self.sequences} at once, tok/s"
        return f"decode at depth {self.depth}, tok/s"

    def of(self, engine: EngineProcess) -> float:
        """Measure it once."""
        command = {"do": self.kind, "tokens": self.tokens}
        if self.kind == "decode":
            command["depth"] = self.depth
        if self.kind == "many":
            command["sequences"] = self.sequences
        return float(self.sequences * self.tokens / engine.ask(**command)["seconds"])


def planned_rates(prompts: Iterable[int], depths: Iterable[int]) -> list[Rate]:
    """Return the rates to measure."""
    return [Rate("prefill", count) for count in prompts] + [Rate("decode", DECODED_TOKENS, depth) for depth in depths]


def in_turns(names: list[str], run: int) -> list[str]:
    """Return the order of one run: forwards, then backwards, so that a drift of the machine favours nobody."""
    return names[:: 1 if run % 2 == 0 else -1]


def measure_rates(
    engines: dict[str, EngineProcess], rates: list[Rate], runs: int
) -> dict[Rate, dict[str, list[float]]]:
    """Measure all rates `runs` times after one run that does not count."""
    found: dict[Rate, dict[str, list[float]]] = {rate: {name: [] for name in engines} for rate in rates}
    for run in range(-1, runs):
        for rate in rates:
            for name in in_turns(list(engines), run):
                value = rate.of(engines[name])
                sys.stderr.write(f"{'warm-up' if run < 0 else f'run {run + 1}'}: {name}: {rate.label}: {value:.1f}\n")
                if run >= 0:
                    found[rate][name].append(value)
    return found


def rates_of(commands: Mapping[str, list[str]], rates: list[Rate], runs: int) -> dict[Rate, dict[str, list[float]]]:
    """Start an engine by each command, measure all rates, and end; or exit with the error of one that fails."""
    try:
        with running(commands) as engines:
            return measure_rates(engines, rates, runs)
    except (EngineError, OSError) as error:
        sys.exit(f"error: {error}")


def measure_starts(commands: dict[str, list[str]], runs: int) -> dict[str, list[Finished]]:
    """Start each engine's one-shot process `runs` times after one start that does not count."""
    found: dict[str, list[Finished]] = {name: [] for name in commands}
    for run in range(-1, runs):
        for name in in_turns(list(commands), run):
            finished = run_measured(commands[name])
            sys.stderr.write(f"start: {name}: {finished.first_line_seconds:.2f} s, {finished.peak_mib:.0f} MiB\n")
            if run >= 0:
                found[name].append(finished)
    return found


def prompt_tokens(tinychat_command: list[str]) -> int:
    """Return how many tokens tinychat makes of `PROMPT`, so that the others start with as many."""
    return int(json.loads(run_measured(tinychat_command).first_line)["prompt_tokens"])


def agreement(engines: dict[str, EngineProcess]) -> dict[str, float]:
    """Return the correlation of each engine's logits with the first one's: low if a model was translated wrongly."""
    logits = [engine.ask(do="logits", tokens=CHECKED_TOKENS)["logits"] for engine in engines.values()]
    return {name: correlation(logits[0], row) for name, row in zip(engines, logits, strict=True)}
