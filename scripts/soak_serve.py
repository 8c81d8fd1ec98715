"""Send requests to a server for a long time, at random, and see that nothing grows, stays behind or is wrong.

    .venv/bin/python scripts/soak_serve.py [REQUESTS] [--seed SEED] [MODEL]

Clients send completions and chats of random lengths to a server in this process, streamed or not, some of them several
choices; one in ten leaves at some moment. Each reply that is finished must be the one that the model gives alone, with
an engine of its own. Whenever all have ended (every `ROUND` requests) no sequence, turn or task may be left, and each
block of the cache has an owner. Memory and open files are counted after a part of the requests and at the end: more
than `GROWTH_BYTES` in between, or one open file more, is an error. Exit code 1 then.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections import Counter
from contextlib import aclosing
from typing import NamedTuple

import uvicorn
from server_client import Event, answer, events
from soak import GROWTH_BYTES, WORDS, counts, use_small_pages
from trial_arguments import trial_arguments

import tinychat
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.serve.admission import Admission
from tinychat.serve.app import create_app
from tinychat.serve.guard import Door
from tinychat.serve.metrics import Metrics
from tinychat.serve.model_pool import ModelPool
from tinychat.serve.server import Server

REQUESTS, ROUND, CLIENTS, PARALLEL = 1000, 50, 12, 8
# Longer prompts than the shared budget of a step, and shorter ones.
MOST_WORDS, MOST_TOKENS, MOST_CHOICES = 300, 60, 3
LEAVING = 0.1
# Of the cache: it has room for fewer whole sequences than run.
CONTEXT, SEQUENCES = 1024, 3
# Of all requests: after them, what is used for the first time has been used.
SETTLING = 0.3


class Task(NamedTuple):
    """A request: what is sent where, and what the model is asked alone for each choice."""

    path: str
    body: Event
    prompt: Prompt
    requests: list[Request]


class Soak:
    """A server, the model alone, and what has been asked."""

    def __init__(self, served: Model, alone: Model, seed: int) -> None:
        self.served, self.alone = served, alone
        self.draw = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.wrong: list[Event] = []
        # Conversations share beginnings.
        self._beginnings = [self._words(self.draw.randint(1, 200)) for _ in range(5)]

    def _words(self, count: int) -> str:
        return " ".join(self.draw.choices(WORDS, k=count))

    def task(self) -> Task:
        """Return a request of random sizes."""
        draw = self.draw
        text = f"{draw.choice(self._beginnings)} {self._words(int(MOST_WORDS ** draw.random()))}"
        tokens, choices = int(MOST_TOKENS ** draw.random()), draw.choice([1, 1, 1, MOST_CHOICES])
        seed = draw.randrange(1 << 30)
        sampling = {"temperature": draw.choice([0.0, 1.0]), "seed": seed}
        body: Event = {"n": choices, "max_tokens": tokens, **sampling}
        requests = [Request(**sampling | {"seed": seed + n}, max_tokens=tokens) for n in range(choices)]
        if draw.random() < 0.5:
            messages = [{"role": "user", "content": text}]
            prompt = self.alone.chat_prompt(messages)
            return Task("/v1/chat/completions", body | {"messages": messages}, prompt, requests)
        path = draw.choice(["/completion", "/v1/completions"])
        return Task(path, body | {"prompt": text}, Prompt(self.alone.encode(text)), requests)

    async def client(self, port: int, tasks: list[Task]) -> None:
        """Send tasks until there are none."""
        while tasks:
            task = tasks.pop()
            leaves_after = self.draw.randint(0, 30) if self.draw.random() < LEAVING else None
            is_streamed = self.draw.random() < 0.5
            if leaves_after is not None:
                await self._leave(port, task, leaves_after, is_streamed)
                continue
            texts = [""] * len(task.requests)
            if is_streamed:
                async for event in events(port, task.path, task.body):
                    for index, text in texts_of(event):
                        texts[index] += text
            else:
                found = await answer(port, task.path, task.body)
                for one in found if isinstance(found, list) else [found]:
                    for index, text in texts_of(one):
                        texts[index] += text
            self.done["streamed" if is_streamed else "whole"] += 1
            if texts != await asyncio.to_thread(self._expected, task):
                self.wrong.append(task.body | {"path": task.path})

    async def _leave(self, port: int, task: Task, after: int, is_streamed: bool) -> None:
        """Send a task and leave after so many events, or milliseconds."""
        self.done["left"] += 1
        if not is_streamed:
            asking = asyncio.ensure_future(answer(port, task.path, task.body))
            await asyncio.wait({asking}, timeout=after / 1000)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return
        async with aclosing(events(port, task.path, task.body)) as coming:
            async for _ in coming:
                after -= 1
                if after < 0:
                    return

    def _expected(self, task: Task) -> list[str]:
        return [self.alone.reply(task.prompt, request).to_end().text for request in task.requests]


def texts_of(event: Event) -> list[tuple[int, str]]:
    """Return the texts of choices in an answer or an event of any of the endpoints."""
    if "choices" not in event:
        return [(event["index"], event["content"])]
    return [(choice["index"], text_of(choice)) for choice in event["choices"]]


def text_of(choice: Event) -> str:
    """Return the text of a choice, with what a model thinks."""
    fields = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return (fields.get("reasoning_content") or "") + (fields.get("content") or "")


def left_behind(server: Server, model: Model, tasks: int) -> list[str]:
    """Return what is there although all requests have ended."""
    admission, pool = server.admission, model.engine.pool
    found = []
    if (admission.running, admission.waiting, len(model.driver)) != (0, 0, 0):
        found.append(f"{admission.running} turns, {admission.waiting} in the queue, {len(model.driver)} replies")
    if (now := len(asyncio.all_tasks())) > tasks:
        found.append(f"{now - tasks} tasks of the loop")
    owned = {block for sequence in model.driver.idle for block in sequence.cache.table}
    if pool.used != len(owned | set(pool.prefixes.blocks())):
        found.append(f"{pool.used - len(owned | set(pool.prefixes.blocks()))} blocks without an owner")
    return found


async def quiet(server: Server, model: Model, tasks: int) -> list[str]:
    """Wait until what has been asked is over, some seconds at most; return what is left."""
    for _ in range(100):
        if not (found := left_behind(server, model, tasks)):
            return []
        await asyncio.sleep(0.05)
    return found


async def trial(soak: Soak, requests: int) -> int:
    """Send so many requests, and print what became of them; return the exit code."""
    served = soak.served
    server = Server(ModelPool({"model": lambda: (served, Request())}), Admission(PARALLEL, requests), Metrics())
    runner = uvicorn.Server(uvicorn.Config(create_app(server, Door()), log_level="warning"))
    faults: list[str] = []
    settled: tuple[int, ...] | None = None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        serving = asyncio.ensure_future(runner.serve(sockets=[listener]))
        await answer(port, "/completion", {"prompt": "Hello", "n_predict": 2})
        tasks = len(asyncio.all_tasks())
        for sent in range(0, requests, ROUND):
            batch = [soak.task() for _ in range(min(ROUND, requests - sent))]
            await asyncio.gather(*(soak.client(port, batch) for _ in range(CLIENTS)))
            faults += await quiet(server, served, tasks)
            if settled is None and sent >= SETTLING * requests:
                settled = await settled_counts()
        ended = await settled_counts()
        runner.should_exit = True
        await serving
    settled = settled or ended
    faults += [f"another text than the model's own: {body}" for body in soak.wrong]
    if ended[0] - settled[0] > GROWTH_BYTES:
        faults.append("memory grew")
    if ended[1] > settled[1]:
        faults.append("files stay open")
    print(", ".join(f"{count} {name}" for name, count in sorted(soak.done.items())))
    print(f"MiB of memory: {settled[0] >> 20} after {SETTLING:.0%}, {ended[0] >> 20} at the end")
    print(f"open files: {settled[1]}, then {ended[1]}; cached prompt tokens: {server.metrics.cached_tokens_total}")
    print("\n".join(faults) or "nothing was left behind, and every reply was the model's own")
    return int(bool(faults))


async def settled_counts() -> tuple[int, ...]:
    """Return memory, open files and threads once idle threads and connections have ended."""
    await asyncio.sleep(0.2)
    return counts()


def position_bytes(name: str) -> int:
    """Return the bytes that a token takes in the cache of a model."""
    with tinychat.load(name, context=1) as model:
        return model.engine.pool.position_bytes


def fill_cache(model: Model) -> None:
    """Use all of a model's cache at once: memory that is used for the first time later would look like a leak."""
    ids = random.Random(0).choices(range(1, model.vocab_size), k=SEQUENCES * CONTEXT)
    model.generate_many([ids[start : start + CONTEXT - 1] for start in range(0, len(ids), CONTEXT)], max_tokens=1)


def main() -> int:
    """Send requests; return the exit code."""
    use_small_pages()
    arguments = trial_arguments(__doc__, "requests", REQUESTS)
    name = (arguments.model or ["demo"])[0]
    # Too little for all: replies wait for memory, and what was cached must go.
    options = {"context": CONTEXT, "cache_memory": SEQUENCES * CONTEXT * position_bytes(name)}
    with tinychat.load(name, **options) as served, tinychat.load(name, **options) as alone:
        for model in (served, alone):
            fill_cache(model)
        return asyncio.run(trial(Soak(served, alone, arguments.seed), arguments.requests))


if __name__ == "__main__":
    sys.exit(main())
