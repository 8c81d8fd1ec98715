"""What every engine's process has in common: it takes commands as JSON lines and answers in JSON lines.

Standard library only: the engines run in interpreters that have nothing else in common.

    {"do": "prefill", "tokens": 512}               ->  {"seconds": 0.7}
    {"do": "decode", "depth": 2048, "tokens": 64}  ->  {"seconds": 0.8}
    {"do": "many", "sequences": 16, "tokens": 32}  ->  {"seconds": 0.9}
    {"do": "logits", "tokens": 32}                 ->  {"logits": [...]}
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from typing import Any, Protocol

ONCE_CONTEXT = 2048
SHORT_PROMPT = 8


class Engine(Protocol):
    """One engine with one model."""

    vocab_size: int
    version: str

    def prefill(self, tokens: int) -> float:
        """Return the seconds that a prompt of so many tokens takes from an empty context."""

    def decode(self, depth: int, tokens: int) -> float:
        """Return the seconds that so many single tokens take after `depth` others."""

    def many(self, sequences: int, tokens: int) -> float:
        """Return the seconds of so many steps, each over one token of every sequence, after a short prompt of each."""

    def logits(self, tokens: int, context_size: int) -> list[float]:
        """Return the logits after so many tokens."""


def token_ids(count: int, vocab_size: int) -> list[int]:
    """Return the token ids that every engine is given: a fixed random sequence without special tokens."""
    generator = random.Random(1)
    return [generator.randrange(300, min(vocab_size, 32000)) for _ in range(count)]


def serve(engine: Engine) -> None:
    """Answer commands until stdin ends."""
    answer({"version": engine.version})
    for line in sys.stdin:
        command = json.loads(line)
        kind = command["do"]
        if kind == "prefill":
            answer({"seconds": engine.prefill(command["tokens"])})
        elif kind == "decode":
            answer({"seconds": engine.decode(command["depth"], command["tokens"])})
        elif kind == "many":
            answer({"seconds": engine.many(command["sequences"], command["tokens"])})
        elif kind == "logits":
            answer({"logits": engine.logits(command["tokens"], ONCE_CONTEXT)})


def answer(value: dict[str, Any]) -> None:
    """Write one JSON line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def run(make: Callable[[argparse.Namespace], Engine], parser: argparse.ArgumentParser) -> None:
    """Make the engine from the command line; serve, or with ``--once N`` find one token after N and leave."""
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--once", type=int, metavar="N")
    arguments = parser.parse_args()
    engine = make(arguments)
    if arguments.once is None:
        serve(engine)
    else:
        logits = engine.logits(arguments.once, ONCE_CONTEXT)
        answer({"token": logits.index(max(logits))})
