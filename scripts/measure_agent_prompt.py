"""Time the first token behind a long system prompt and tool list, as coding agents send them, by Anthropic's messages.

    .venv/bin/python scripts/measure_agent_prompt.py MODEL [--tokens 20000] [--context 24576] [--seed 1] [--kv int8]

The prompt is written at random from the seed. The first request finds nothing cached, the second has another question
behind the same prompt, the third is sent to a new server that finds on disk what the first one saved.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from time import perf_counter
from typing import NamedTuple

from server_client import Event, answer, events, running_server

PATH = "/v1/messages"
WORDS = (
    "file folder line text test branch change user command result error name value list call read write search before "
    "after never always only each other when unless must may keep show explain small whole first last new old the a of "
    "in on by for with and or not is are has had that this it its"
).split()
TOOLS = 24
DISK = "8GB"


class FirstToken(NamedTuple):
    """The seconds to the first token of a reply, and the tokens of the prompt: those computed, and those cached."""

    seconds: float
    computed: int
    cached: int


def sentence(draw: random.Random) -> str:
    """Return a sentence of random words."""
    return " ".join(draw.choices(WORDS, k=draw.randint(6, 18))).capitalize() + "."


def agent_body(seed: int, sentences: int) -> Event:
    """Return a request with a system prompt of so many sentences, a third of them in descriptions of tools."""
    draw = random.Random(seed)
    in_tools = sentences // 3
    tools = []
    for number in range(TOOLS):
        description = " ".join(sentence(draw) for _ in range(in_tools // TOOLS))
        properties = {name: {"type": "string", "description": sentence(draw)} for name in ("path", "text")}
        schema = {"type": "object", "properties": properties, "required": ["path"]}
        tools.append({"name": f"tool_{number}", "description": description, "input_schema": schema})
    system = [{"type": "text", "text": " ".join(sentence(draw) for _ in range(sentences - in_tools))}]
    return {"model": "any", "max_tokens": 2, "system": system, "tools": tools}


async def body_of(port: int, seed: int, tokens: int) -> Event:
    """Return a request whose prompt has about so many tokens."""
    sentences = tokens // 20
    for _ in range(4):
        body = agent_body(seed, sentences)
        counted = await answer(port, f"{PATH}/count_tokens", {**body, "messages": asking("Hello")})
        sentences = max(TOOLS, round(sentences * tokens / counted["input_tokens"]))
    return agent_body(seed, sentences)


def asking(question: str) -> list[Event]:
    """Return the messages of a question."""
    return [{"role": "user", "content": question}]


async def first_token(port: int, body: Event, question: str) -> FirstToken:
    """Return when the first token of the reply to a question came."""
    began, seconds, usage = perf_counter(), None, {}
    async for event in events(port, PATH, body | {"messages": asking(question)}):
        if event["type"] == "content_block_delta" and seconds is None:
            seconds = perf_counter() - began
        if event["type"] == "message_delta":
            usage = event["usage"]
    return FirstToken(seconds or perf_counter() - began, usage["input_tokens"], usage["cache_read_input_tokens"])


async def two_requests(port: int, seed: int, tokens: int) -> tuple[Event, list[FirstToken]]:
    """Return the request, and its times with two questions, one after the other."""
    body = await body_of(port, seed, tokens)
    return body, [await first_token(port, body, question) for question in ("What is here?", "And where are the tests?")]


def main() -> None:
    """Measure and print the three times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=24_576)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kv", default="bf16")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        flags = ("--cache-disk", DISK, "--context", str(given.context), "--kv", given.kv)
        with running_server(given.model, *flags) as port:
            body, times = asyncio.run(two_requests(port, given.seed, given.tokens))
        with running_server(given.model, *flags) as port:
            times.append(asyncio.run(first_token(port, body, "What comes after a restart?")))
    for name, time in zip(("first", "second", "after a restart"), times):
        share = 100 * time.seconds / times[0].seconds
        print(f"{name:16}{time.seconds:9.3f} s {share:6.1f} %   {time.computed:6} computed, {time.cached:6} cached")


if __name__ == "__main__":
    main()
