"""Count valid and right calls of tools with and without a grammar, and what the grammar costs.

    .venv/bin/python scripts/measure_tools.py [MODEL] [--threads N] [--limit TOKENS] [--cost RUNS]

The tasks are our own, in scripts/tools/tasks.json: a question, the tools that the model is told of, and the calls that
are right; at temperature 0. "Free" replies may be any text, "held" ones are free until a call begins and then held to
the schemas of the tools, "required" ones must be a call where one is needed. A valid call names a tool and has the
arguments that its schema wants. A right reply has the calls of the task, in any order, and no others; the case of
letters does not count. "One call" is required, too, and ends behind the first call. "Begun" replies have
no grammar: where a call is needed, the prompt ends with the marker that begins one, and the reply ends behind it.

With --cost, single replies are written with and without the grammar in turns instead, and the rates are compared.
Prints tables in markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tinychat
from tinychat.conversation.reply_calls import ReplyCalls
from tinychat.errors import TinychatError, ToolError
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request
from tinychat.tools.argument_check import check_arguments
from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.grammars.arguments import held_schema

FILE = Path(__file__).parent / "tools" / "tasks.json"
WAYS = ("free", "held", "begun", "one call", "required")
PARALLEL = 16


@dataclass(frozen=True)
class Task:
    """A question, the tools that the model is told of, and the calls that are right."""

    kind: str
    ask: str
    tools: tuple[Tool, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...]

    def choice(self, way: str) -> ToolChoice:
        """Return the choice of tools of a way to write the reply."""
        is_single = way == "one call"
        is_required = bool(self.calls) and (is_single or way == "required")
        return ToolChoice(self.tools, is_required, is_parallel=not is_single, constrains=way not in ("free", "begun"))

    def is_valid(self, call: ToolCall) -> bool:
        """Return whether a call names a tool and has the arguments that it wants."""
        found = next((tool for tool in self.tools if tool.name == call.name), None)
        arguments = _object(call.arguments)
        if found is None or arguments is None:
            return False
        try:
            check_arguments(arguments, held_schema(self.choice("held"), found))
        except ToolError:
            return False
        return True

    def is_right(self, calls: Sequence[ToolCall]) -> bool:
        """Return whether these are the calls of the task."""
        found = [(call.name, _object(call.arguments)) for call in calls]
        return sorted(map(_plain, found)) == sorted(map(_plain, self.calls))


class Counts(NamedTuple):
    """Replies to tasks: all, those that need a call, have a call, have only valid ones, and are right."""

    replies: int
    needed: int
    called: int
    valid: int
    right: int


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _plain(value: object) -> str:
    return json.dumps(value, sort_keys=True).casefold()


def read_tasks(path: Path = FILE) -> list[Task]:
    """Return the tasks of a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    tools = {name: Tool(name, **fields) for name, fields in found["tools"].items()}
    return [
        Task(
            one["kind"],
            one["ask"],
            tuple(tools[name] for name in one["tools"]),
            tuple((call["name"], call["arguments"]) for call in one["calls"]),
        )
        for one in found["tasks"]
    ]


def asked(model: Model, task: Task, way: str, limit: int) -> tuple[Prompt, Request]:
    """Return the prompt and the request of a task."""
    question = {"role": "user", "content": task.ask}
    prompt = model.chat_prompt([question], tools=[tool.as_dict() for tool in task.tools])
    if begin := begun(model, task, way):
        prompt = replace(prompt, ids=[*prompt.ids, *model.tokenizer.encode_rendered(begin)], shown=model.call_markers)
        return prompt, Request(temperature=0.0, max_tokens=limit, stop=(model.tool_template.form.end,))
    constraint = model.call_constraint(task.choice(way))
    return prompt, Request(temperature=0.0, max_tokens=limit, constraint=constraint)


def begun(model: Model, task: Task, way: str) -> str:
    """Return the beginning of a call with which a prompt ends; nothing in other ways, and where no call is needed."""
    form = model.tool_template.form
    return f"{form.section_begin}{form.call_begin}" if way == "begun" and task.calls else ""


def calls_of(model: Model, tasks: Sequence[Task], way: str, limit: int) -> list[tuple[ToolCall, ...]]:
    """Return the calls in the replies to tasks, which are written several at once."""
    found: dict[int, tuple[ToolCall, ...]] = {}
    for number, got in model.write_many((asked(model, task, way, limit) for task in tasks), PARALLEL):
        if isinstance(got, TinychatError):
            raise got
        if isinstance(got, Reply):
            task = tasks[number]
            calls = ReplyCalls(model.tool_template.form, task.choice(way).tools, got.prompt.opens_thinking, "")
            calls.feed(begun(model, task, way) + got.text)
            calls.finish()
            found[number] = calls.calls
    return [found[number] for number in range(len(tasks))]


def counted(tasks: Sequence[Task], replies: Sequence[Sequence[ToolCall]]) -> Counts:
    """Count what the replies to tasks are."""
    pairs = list(zip(tasks, replies, strict=True))
    needing = [(task, calls) for task, calls in pairs if task.calls]
    return Counts(
        replies=len(pairs),
        needed=len(needing),
        called=sum(bool(calls) for _, calls in needing),
        valid=sum(bool(calls) and all(map(task.is_valid, calls)) for task, calls in needing),
        right=sum(task.is_right(calls) for task, calls in pairs),
    )


def rows(tasks: Sequence[Task], replies: dict[str, Sequence[Sequence[ToolCall]]]) -> Iterable[str]:
    """Yield the lines of the table: a row for each way, with the share of right replies to each kind of task."""
    kinds = dict.fromkeys(task.kind for task in tasks)
    yield f"| {len(tasks)} tasks | called | valid | right | {' | '.join(f'right: {kind}' for kind in kinds)} |"
    yield f"|---|{'---:|' * (3 + len(kinds))}"
    for way, got in replies.items():
        every = counted(tasks, got)
        shares = [_share(count, every.needed) for count in (every.called, every.valid)]
        shares.append(_share(every.right, every.replies))
        for kind in kinds:
            numbers = [number for number, task in enumerate(tasks) if task.kind == kind]
            counts = counted([tasks[number] for number in numbers], [got[number] for number in numbers])
            shares.append(_share(counts.right, counts.replies))
        yield f"| {way} | {' | '.join(shares)} |"


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %" if total else "-"


def cost_rows(model: Model, tasks: Sequence[Task], runs: int, limit: int) -> Iterable[str]:
    """Yield a line that compares the decode rates of free and held replies, written in turns."""
    chosen = tasks[:: max(1, len(tasks) // runs)][:runs]
    rates: dict[str, list[float]] = {"free": [], "held": []}
    for number, task in enumerate([chosen[0], *chosen]):
        for way in ("free", "held")[:: 1 if number % 2 else -1]:
            prompt, request = asked(model, task, way, limit)
            # The same tokens in both ways, as many as there may be: text is free, whatever it says.
            stream = model.reply(prompt, replace(request, ignore_eos=True, logit_bias=_without_calls(model)))
            stream.to_end()
            if number:
                rates[way].append(stream.summary.decode_rate)
    ratios = [held / free for held, free in zip(rates["held"], rates["free"], strict=True)]
    yield "| free, tok/s | held, tok/s | held / free | of single replies |"
    yield "|---:|---:|---:|---:|"
    free, held = (median(rates[way]) for way in ("free", "held"))
    yield f"| {free:.1f} | {held:.1f} | {median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |"


def _without_calls(model: Model) -> dict[int, float]:
    """Return a bias against the beginning of a call."""
    return {model.encode(model.tool_template.form.opening, add_bos=False)[0]: -100.0}


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count valid and right calls of tools with and without a grammar.")
    parser.add_argument("model", metavar="MODEL", nargs="?", default="smollm2-135m")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--limit", type=int, default=128, metavar="TOKENS", help="of each reply")
    parser.add_argument("--cost", type=int, default=0, metavar="RUNS", help="measure the rate of so many replies")
    arguments = parser.parse_args(given)
    tasks = read_tasks()
    with tinychat.load(arguments.model, threads=arguments.threads, draft=False) as model:
        if arguments.cost:
            lines = cost_rows(model, tasks, arguments.cost, arguments.limit)
        else:
            lines = rows(tasks, {way: calls_of(model, tasks, way, arguments.limit) for way in WAYS})
        print("\n".join(lines))


if __name__ == "__main__":
    main()
