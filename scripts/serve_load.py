"""Measure a server under load: many streams beside `batch --parallel`, and a short prompt beside a long one.

    .venv/bin/python scripts/serve_load.py [MODEL] [--clients 8] [--runs 5]

A run has two turns, in alternating order: --clients clients stream a completion each from a server, and `batch
--parallel` writes the same ones. Each is a process of its own that has loaded the model before the clock starts; the
other waits. The texts must be the same.

In each run, too, a prompt of 50 tokens comes while one of 4,000 is read and a reply is written: how long its first
token takes, in seconds and in steps of the server, which are the tokens of that reply meanwhile, against when it is
alone.

stdout has a markdown table of medians and, as its last line, one JSON object with every value.
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
from statistics import median
from time import perf_counter
from typing import NamedTuple

from server_client import Event, events, running_server

import tinychat
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request

SHORT, LONG = 50, 4000
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
            asked = [(Prompt(ids), Request(temperature=0.0, max_tokens=most, ignore_eos=True)) for ids, most in tasks]
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
    """Return the body of a request for a task."""
    return {"prompt": task[0], "n_predict": task[1], "temperature": 0, "ignore_eos": True}


async def text_of(port: int, task: Task) -> str:
    """Stream a completion and return its text."""
    return "".join([event["content"] async for event in events(port, "/completion", body_of(task))])


async def streamed(port: int, tasks: list[Task]) -> tuple[float, list[str]]:
    """Return the seconds in which a client for each task has its stream, and the texts."""
    began = perf_counter()
    texts = await asyncio.gather(*(text_of(port, task) for task in tasks))
    return perf_counter() - began, texts


async def first_token(port: int, prompts: Iterator[list[int]], long: list[int]) -> FirstToken:
    """Measure the first token of a short prompt, alone and beside a long one."""

    async def seconds() -> float:
        began = perf_counter()
        await text_of(port, (next(prompts), 1))
        return perf_counter() - began

    alone = await seconds()
    steps, writes, reads = 0, asyncio.Event(), asyncio.Event()

    async def write() -> None:
        nonlocal steps
        async with aclosing(events(port, "/completion", body_of((next(prompts), LONG)))) as coming:
            async for event in coming:
                writes.set()
                steps += len(event["tokens"])

    async def read() -> None:
        async for event in events(port, "/completion", body_of((long, 1)) | {"return_progress": True}):
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


def prompts_of(length: int, vocab_words: list[list[int]], salt: int) -> list[int]:
    """Return so many ids that begin like those of no other salt."""
    ids = [token_id for n in range(length) for token_id in vocab_words[(salt * (n + 1) + n) % len(vocab_words)]]
    return ids[:length]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a server under load.")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--clients", type=int, default=8, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of a reply")
    return parser.parse_args()


def main() -> None:
    """Measure, and print the table and all values."""
    arguments = parse_arguments()
    with tinychat.load(arguments.model) as model:
        words = [model.encode(f" {word}", add_bos=False) for word in WORDS]
    salts = count(1)
    short = (prompts_of(SHORT, words, salt) for salt in salts)
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
            first = asyncio.run(first_token(port, short, prompts_of(LONG, words, next(salts))))
            if run:
                firsts.append(first)
                for name, (seconds, _) in found.items():
                    rates[name].append(arguments.clients * arguments.tokens / seconds)
    report(arguments, rates, firsts)


def in_server(port: int, tasks: list[Task]) -> tuple[float, list[str]]:
    """Return the seconds and the texts of streams."""
    return asyncio.run(streamed(port, tasks))


def in_batch(batch: Connection, tasks: list[Task]) -> tuple[float, list[str]]:
    """Return the seconds and the texts of a batch."""
    batch.send(tasks)
    seconds, texts = batch.recv()
    return seconds, texts


def report(arguments: argparse.Namespace, rates: dict[str, list[float]], firsts: list[FirstToken]) -> None:
    """Print the table and all values."""
    ratio = median(ours / theirs for ours, theirs in zip(rates["server"], rates["batch"], strict=True))
    print("| what | median |\n|---|---:|")
    print(f"| {arguments.clients} streams, tokens/s | {median(rates['server']):.1f} |")
    print(f"| batch --parallel {arguments.clients}, tokens/s | {median(rates['batch']):.1f} |")
    print(f"| streams / batch | {ratio:.2f} x |")
    print(f"| first token of {SHORT} tokens, alone, ms | {1000 * median(one.alone for one in firsts):.1f} |")
    print(f"| the same beside {LONG} tokens, ms | {1000 * median(one.beside for one in firsts):.1f} |")
    print(f"| the same, steps | {median(one.steps for one in firsts):g} |")
    print(json.dumps({"model": arguments.model, "rates": rates, "first_token": [one._asdict() for one in firsts]}))


if __name__ == "__main__":
    main()
