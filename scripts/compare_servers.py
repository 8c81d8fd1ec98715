"""Compare `tinychat serve` with llama.cpp's server: rate of all streams, and time to the first token.

    .venv/bin/python scripts/compare_servers.py MODEL --llama-server PATH --gguf FILE [--clients 1 4 16] [--runs 5]

MODEL has the weights of the GGUF file: `tinychat convert FILE MODEL`, or smollm2-135m beside the file of its package.
Both servers run from the beginning, with the same number of threads, and only one works at a time. For each number of
clients they stream the same completions in alternating order, of prompts that nothing is cached of.

stdout has a markdown table of medians and, as its last line, one JSON object with every value.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from comparison.processes import SETTLE_SECONDS, clean_environment
from comparison.report import OURS, processor, rounded
from serve_load import PATH, body_of, random_prompt, words_of
from server_client import running_server, timed_streams

LLAMA = "llama.cpp"
PATIENCE_SECONDS = 120


class Turn(NamedTuple):
    """Tokens per second of all streams, and the median of the seconds to their first tokens."""

    rate: float
    first_seconds: float


@contextmanager
def running_llama_server(binary: Path, gguf: Path, flags: list[str]) -> Iterator[int]:
    """Run llama.cpp's server until the context ends; yield the port once it has loaded the model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(binary), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port), *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment() | library_path(binary)
    )
    try:
        wait_until_loaded(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


def library_path(binary: Path) -> dict[str, str]:
    """Return where the libraries beside the server are found, whatever folder they were built in."""
    return {"LD_LIBRARY_PATH": str(binary.resolve().parent)}


def wait_until_loaded(process: subprocess.Popen[bytes], port: int) -> None:
    """Ask for the server's health until it is well.

    Raises
    ------
    SystemExit
        If it ends, or takes too long.
    """
    until = monotonic() + PATIENCE_SECONDS
    while process.poll() is None and monotonic() < until:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (URLError, ConnectionError):
            sleep(0.1)
    raise SystemExit(f"{LLAMA}'s server did not start: try {process.args!r}")


def measured(port: int, prompts: list[list[int]], tokens: int) -> Turn:
    """Stream a completion of each prompt at once.

    Raises
    ------
    SystemExit
        If one has another number of tokens than was asked for.
    """
    seconds, streams = asyncio.run(timed_streams(port, PATH, [body_of((prompt, tokens)) for prompt in prompts]))
    sleep(SETTLE_SECONDS)
    for stream in streams:
        if (written := stream.events[-1]["timings"]["predicted_n"]) != tokens:
            raise SystemExit(f"a stream has {written} tokens, not {tokens}")
    return Turn(len(prompts) * tokens / seconds, median(stream.first_seconds for stream in streams))


def rows(found: dict[int, dict[str, list[Turn]]]) -> Iterator[str]:
    """Yield the lines of the table."""
    for clients, turns in found.items():
        for title, field in ((f"{clients} streams, tok/s", "rate"), ("first token, ms", "first_seconds")):
            scale = 1 if field == "rate" else 1000
            ours, theirs = ([scale * getattr(turn, field) for turn in turns[name]] for name in (OURS, LLAMA))
            ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
            yield f"| {title} | {rounded(median(ours))} | {rounded(median(theirs))} | {ratio:.2f} x |"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the server with llama.cpp's.")
    parser.add_argument("model")
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PATH")
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt", type=int, default=128, metavar="TOKENS")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of a reply")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    return parser.parse_args()


def main() -> None:
    """Measure, and print the table and all values."""
    arguments = parse_arguments()
    clients, threads = sorted({*arguments.clients}), ["--threads", str(arguments.threads)]
    slots, size = clients[-1], arguments.prompt + arguments.tokens + 1
    words, seeds = words_of(arguments.model), count(1)
    found: dict[int, dict[str, list[Turn]]] = {number: {OURS: [], LLAMA: []} for number in clients}
    flags = [*threads, "--parallel", str(slots), "--ctx-size"]
    # llama.cpp's server shares its context out among the slots.
    llama = running_llama_server(arguments.llama_server, arguments.gguf, [*flags, str(slots * max(size, 512))])
    with running_server(arguments.model, *flags, str(max(size, 512))) as ours, llama as theirs:
        ports = {OURS: ours, LLAMA: theirs}
        # The first run is not counted: code and pages are used for the first time.
        for run in range(arguments.runs + 1):
            for number, turns in found.items():
                prompts = [random_prompt(arguments.prompt, words, next(seeds)) for _ in range(number)]
                for name in sorted(ports, reverse=bool(run & 1)):
                    turn = measured(ports[name], prompts, arguments.tokens)
                    sys.stderr.write(f"run {run}, {number} clients, {name}: {turn.rate:.1f} tok/s\n")
                    if run:
                        turns[name].append(turn)
    print(f"{arguments.threads} threads of {processor()}; prompts of {arguments.prompt} tokens, replies of")
    print(f"{arguments.tokens}; medians of {arguments.runs} runs in turns\n")
    print(f"| | {OURS} | {LLAMA} | {OURS} / {LLAMA} |\n|---|---:|---:|---:|")
    print("\n".join(rows(found)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
