"""Measure a server under load: many streams beside `batch --parallel`, and a short prompt beside a long one.

    .venv/bin/python scripts/serve_load.py [MODEL] [--clients 16] [--runs 5]

A run has two turns, in alternating order: --clients clients stream a completion each from a server, and `batch
--parallel` writes the same ones. Each is a process of its own that has loaded the model before the clock starts; the
other waits. The texts must be the same.

In each run, too, a prompt of 50 tokens comes while one of 4,000 is read and a reply is written: how long its first
token takes, in seconds and in steps of the server, which are the events of that reply meanwhile, against when it is
alone.

stdout has a markdown table of medians and, as its last line, one JSON object with every value. Exit code 1 if streams
have less than 0.9 times the rate of `batch`, or the first token beside the long prompt takes more than 5 steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

from server_client import Event, events, running_server, timed_stream, timed_streams

import tinychat
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request

PATH = "/completion"
SHORT, LONG = 50, 4000
# Of streams to batch at least, and of steps to the first token at most.
LEAST_RATIO, MOST_STEPS = 0.9, 5
SAMPLING: Event = {"temperature": 0.0, "repeat_penalty": 1.0, "loop_stop": False, "ignore_eos": True}
WORDS = "Once upon a time there was a little fox who liked to look at the stars and to count them one by one".split()
Task = tuple[list[int], int]
"""Ids of a prompt, and the tokens to write."""


class FirstToken(NamedTuple):
    """How long the first token of the short prompt took."""

    alone: float
    beside: float
    steps: int


def write_batches(model: str, ends: Connection) -> None:
    """Write lists of tasks that come by a pipe, as `tinychat batch` does; send the seconds and the texts back."""
    with tinychat.load(model) as loaded:
        loaded.generate(loaded.encode("Hello"), max_tokens=2)
        ends.send(None)
        while (tasks := ends.recv()) is not None:
            began = perf_counter()
            asked = [(Prompt(ids), Request(**SAMPLING, max_tokens=most)) for ids, most in tasks]
            written = {number: got for number, got in loaded.write_many(asked, len(tasks)) if isinstance(got, Reply)}
            ends.send((perf_counter() - began, [written[number].text for number in range(len(tasks))]))


@contextmanager
def batch_process(model: str) -> Iterator[Connection]:
    """Start `write_batches`; yield the end of its pipe once the model is loaded."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=write_batches, args=(model, theirs))
    process.start()
    try:
        ours.recv()
        yield ours
    finally:
        ours.send(None)
        process.join()


def body_of(task: Task) -> Event:
    """Return the body of a request for a task, whatever the makers of the model advise."""
    return {"prompt": task[0], "n_predict": task[1], **SAMPLING}


async def first_token(port: int, prompts: Iterator[list[int]], long: list[int]) -> FirstToken:
    """Measure the first token of a short prompt, alone and beside a long one."""

    async def seconds() -> float:
        return (await timed_stream(port, PATH, body_of((next(prompts), 1)))).first_seconds

    alone = await seconds()
    steps, writes, reads = 0, asyncio.Event(), asyncio.Event()

    async def write() -> None:
        nonlocal steps
        async with aclosing(events(port, PATH, body_of((next(prompts), LONG)))) as coming:
            async for event in coming:
                writes.set()
                # One for each step, however many of its drafts are accepted.
                steps += bool(event["tokens"])

    async def read() -> None:
        async for event in events(port, PATH, body_of((long, 1)) | {"return_progress": True}):
            if event.get("prompt_progress", {}).get("processed", 0) > 0:
                reads.set()

    writing = asyncio.ensure_future(write())
    await writes.wait()
    reading = asyncio.ensure_future(read())
    await reads.wait()
    before = steps
    beside, steps_between = await seconds(), steps - before
    if reading.done():
        sys.exit("the long prompt was read too soon: take a larger model")
    await reading
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    return FirstToken(alone, beside, steps_between)


def words_of(name: str) -> list[list[int]]:
    """Return the ids of words in a model's vocabulary."""
    with tinychat.load(name, context=1) as model:
        return [model.encode(f" {word}", add_bos=False) for word in WORDS]


def random_prompt(length: int, words: list[list[int]], seed: int) -> list[int]:
    """Return so many ids of words in an order that no other seed gives: nothing of it is cached."""
    return [token_id for word in Random(seed).choices(words, k=length) for token_id in word][:length]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a server under load.")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--clients", type=int, default=16, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="tokens of a reply")
    return parser.parse_args()


def main() -> bool:
    """Measure, and print the table and all values; return whether the server is as fast as wanted."""
    arguments = parse_arguments()
    words = words_of(arguments.model)
    seeds = count(1)
    short = (random_prompt(SHORT, words, seed) for seed in seeds)
    rates: dict[str, list[float]] = {"server": [], "batch": []}
    firsts: list[FirstToken] = []
    flags = ["--context", str(2 * LONG + SHORT), "--parallel", str(max(arguments.clients, 4))]
    with running_server(arguments.model, *flags) as port, batch_process(arguments.model) as batch:
        # The first run is not counted: code and pages are used for the first time.
        for run in range(arguments.runs + 1):
            tasks = [(next(short), arguments.tokens) for _ in range(arguments.clients)]
            turns = {"server": partial(in_server, port, tasks), "batch": partial(in_batch, batch, tasks)}
            found = {name: turns[name]() for name in sorted(turns, reverse=bool(run & 1))}
            if found["server"][1] != found["batch"][1]:
                sys.exit("the server and `batch` wrote different texts")
            first = asyncio.run(first_token(port, short, random_prompt(LONG, words, next(seeds))))
            if run:
                firsts.append(first)
                for name, (seconds, _) in found.items():
                    rates[name].append(arguments.clients * arguments.tokens / seconds)
    return report(arguments, rates, firsts)


def in_server(port: int, tasks: list[Task]) -> tuple[float, list[str]]:
    """Return the seconds and the texts of streams."""
    seconds, streams = asyncio.run(timed_streams(port, PATH, [body_of(task) for task in tasks]))
    return seconds, [stream.text for stream in streams]


def in_batch(batch: Connection, tasks: list[Task]) -> tuple[float, list[str]]:
    """Return the seconds and the texts of a batch."""
    batch.send(tasks)
    seconds, texts = batch.recv()
    return seconds, texts


def report(arguments: argparse.Namespace, rates: dict[str, list[float]], firsts: list[FirstToken]) -> bool:
    """Print the table and all values; return whether the server is as fast as wanted."""
    ratio = median(ours / theirs for ours, theirs in zip(rates["server"], rates["batch"], strict=True))
    steps = median(one.steps for one in firsts)
    rows = {
        f"{arguments.clients} streams, tokens/s": f"{median(rates['server']):.1f} |",
        f"batch --parallel {arguments.clients}, tokens/s": f"{median(rates['batch']):.1f} |",
        "streams / batch": f"{ratio:.2f} x | at least {LEAST_RATIO} x",
        f"first token of {SHORT} tokens, alone, ms": f"{1000 * median(one.alone for one in firsts):.1f} |",
        f"the same beside {LONG} tokens, ms": f"{1000 * median(one.beside for one in firsts):.1f} |",
        "the same, steps": f"{steps:g} | at most {MOST_STEPS}",
    }
    print("| what | median | wanted |\n|---|---:|---:|")
    print("\n".join(f"| {what} | {value} |" for what, value in rows.items()))
    print(json.dumps({"model": arguments.model, "rates": rates, "first_token": [one._asdict() for one in firsts]}))
    return ratio >= LEAST_RATIO and steps <= MOST_STEPS


if __name__ == "__main__":
    sys.exit(not main())
