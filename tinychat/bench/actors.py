"""Processes that answer rows beside each other on this machine: tokens a second and memory, by their number.

Such processes are what Ray, Spark and Dask run: each has the model, a share of the cores, and rows of its own. All map
the same weights. A turn starts them, waits until each has answered some rows, and counts the tokens of all in the same
seconds; numbers of processes take turns, since a shared machine drifts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count as numbers
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tinychat.bench.fresh_process import last_line, start
from tinychat.engine.blocks import sequence_bytes
from tinychat.engine.loading import default_kv
from tinychat.machine import available_cores, proportional_bytes
from tinychat.models.folder import open_model_folder
from tinychat.rows.answerer import RowAnswerer

if TYPE_CHECKING:
    from tinychat.generate.prompt import Prompt
    from tinychat.generate.request import Request

NEW_TOKENS, AT_ONCE, CONTEXT = 32, 8, 256
"""Tokens of a reply, replies that a process writes at once, and the longest of prompt and reply together."""
SECONDS = 8.0
"""Duration of a measurement."""
# Of two numbers of processes that differ by less, the smaller one is better: it takes less memory.
_ALIKE = 0.97
_ACTOR = "from tinychat.bench.actors import answer_rows\nanswer_rows()"


@dataclass(frozen=True)
class ActorRates:
    """Measurements of one number of processes."""

    actors: int  # processes
    threads: int  # of each process
    tok_s: float  # new tokens in a second of all processes together, the median of the turns
    # Memory of all processes, in which a page that several map counts once; None where the system does not tell.
    memory_mib: float | None


def measure_actors(
    folder: Path,
    counts: Sequence[int],
    rounds: int,
    *,
    threads: int | None = None,
    kv: str | None = None,
    seconds: float = SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> list[ActorRates]:
    """Measure these numbers of processes in turns, each number once in a round.

    Parameters
    ----------
    folder : path
        The model folder.
    counts : sequence of int
        Numbers of processes, 1 or more, each once.
    threads : int, optional
        Threads of all processes together, by default as many as there are cores; each process has one at least.
    kv : str, optional
        Type of keys and values, by default the model's.
    seconds : float
        Duration of a measurement.

    Raises
    ------
    TinychatError
        If a process ends: its own message.
    """
    shared = threads or available_cores()
    turns: dict[int, list[tuple[float, int | None]]] = {count: [] for count in counts}
    for run in range(rounds):
        for done, count in enumerate(counts if run % 2 == 0 else reversed(counts)):
            if progress is not None:
                progress(run * len(counts) + done, rounds * len(counts))
            settings = {"folder": str(folder), "threads": max(1, shared // count), "kv": kv, "seconds": seconds}
            turns[count].append(_turn(count, json.dumps(settings)))
    return [_medians(count, max(1, shared // count), found) for count, found in turns.items()]


def best_of(found: Sequence[ActorRates]) -> ActorRates:
    """Return the measurement of the highest rate; of those that are alike, that of the fewest processes."""
    fastest = max(each.tok_s for each in found)
    return min((each for each in found if each.tok_s >= _ALIKE * fastest), key=lambda each: each.actors)


def _medians(actors: int, threads: int, turns: Sequence[tuple[float, int | None]]) -> ActorRates:
    memory = [size / (1 << 20) for _, size in turns if size is not None]
    return ActorRates(actors, threads, median(rate for rate, _ in turns), median(memory) if memory else None)


def _turn(count: int, settings: str) -> tuple[float, int | None]:
    """Return the tokens in a second of so many processes, and the bytes of their memory."""
    with ExitStack() as stack:
        actors = [stack.enter_context(start(_ACTOR, settings, stdin=subprocess.PIPE)) for _ in range(count)]
        try:
            for actor in actors:
                _told(actor)
            for actor in actors:
                _tell(actor)
            rate = sum(float(_told(actor)) for actor in actors)
            sizes = [proportional_bytes(actor.pid) for actor in actors]
            for actor in actors:
                _tell(actor)
                last_line(actor)
        finally:
            for actor in actors:
                actor.kill()
    return rate, sum(size for size in sizes if size is not None) if None not in sizes else None


def _tell(actor: subprocess.Popen[bytes]) -> None:
    assert actor.stdin is not None
    actor.stdin.write(b"\n")


def _told(actor: subprocess.Popen[bytes]) -> bytes:
    """Return the next line of a process; its own error if it has ended."""
    assert actor.stdout is not None
    if not (line := actor.stdout.readline()):
        last_line(actor)
    return line


def answer_rows() -> None:
    """Answer rows in a process of `measure_actors`, which waits for a line before and after the measurement."""
    given: Mapping[str, Any] = json.loads(sys.argv[1])
    answerer = _answerer(Path(given["folder"]), given["threads"], given["kv"])
    events = answerer.model.write_many(endless_rows(answerer), AT_ONCE)
    # The first rows wake threads and fill caches.
    next(event for event in events if event[0] >= AT_ONCE)
    _report("ready")
    started, tokens = perf_counter(), 0
    for _, event in events:
        tokens += len(getattr(event, "ids", ()))
        if (seconds := perf_counter() - started) >= given["seconds"]:
            break
    _report(str(tokens / seconds))


def _report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _answerer(folder: Path, threads: int, kv: str | None) -> RowAnswerer:
    """Return the answerer of a process, with as much memory of keys and values as its rows take."""
    opened = open_model_folder(folder)
    kv = kv or default_kv(opened.config, opened.quantization)
    memory = AT_ONCE * sequence_bytes(opened.config, kv, CONTEXT)
    reply: dict[str, Any] = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    return RowAnswerer(folder, cores=threads, context=CONTEXT, kv=kv, cache_memory=memory, **reply)


def endless_rows(answerer: RowAnswerer) -> Iterator[tuple[Prompt, Request]]:
    """Yield prompts and requests without end."""
    model, request = answerer.model, answerer.request
    return ((model.text_prompt(f"Row {number}: tell me a story."), request) for number in numbers())
