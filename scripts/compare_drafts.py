"""Measure replies with drafts and without: chat, summaries of a given text, edits of given code.

    .venv/bin/python scripts/compare_drafts.py MODEL

Twenty prompts of each kind. Texts and functions are this project's own: sections of its documents, and its shorter
functions, one after the other. Each prompt is answered with drafts and without, in turns, first one, then the other;
what drafts have learnt stays from reply to reply, as in a chat. The ids must be the same.

With --at-once N the prompts of each kind are answered N at a time, whole groups with drafts and without in turns: the
ratio is that of the seconds for all of them, their prompts cached.

stdout has a markdown table and, as its last line, one JSON object with every value.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

import tinychat
from tinychat.generate.drafts import Drafts
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, Reply, Summary
from tinychat.generate.request import Request

ROOT = Path(__file__).resolve().parents[1]
COUNT = 20
DOCUMENTS = ("CONTRIBUTING.md", "README.md", "tests/README.md", "CHANGELOG.md")
SECTION = range(200, 6000)  # characters
LINES = range(8, 26)
EDITS = (
    "Rename the function {name} to {name}_now. Give the whole function, changed in nothing else.",
    "Remove the docstring from this function. Give the whole function, changed in nothing else.",
    "Write `# Checked.` as a comment above this function. Give the whole function, changed in nothing else.",
    "Add the line `print('{name}')` at the beginning of this function. Give the whole function.",
)
QUESTIONS = (
    "Hello! Who are you?",
    "What is the capital of France?",
    "Why is the sky blue?",
    "Give me three tips for learning to cook.",
    "Write a short poem about the sea.",
    "What is a good name for a cat, and why?",
    "How do I make a paper boat?",
    "Explain what a prime number is.",
    "Tell me a short story about a robot who likes rain.",
    "What should I pack for a week in the mountains?",
    "How does a refrigerator work?",
    "What is the difference between weather and climate?",
    "Suggest a simple dinner for two.",
    "Why do we have leap years?",
    "Write an email that thanks a colleague for her help.",
    "Which planets have rings?",
    "How can I sleep better?",
    "What is photosynthesis?",
    "Give me a riddle, and its answer.",
    "How do I say good morning in five languages?",
)


def sections() -> Iterator[str]:
    """Yield a prompt for each section of the documents that has a fitting length."""
    for name in DOCUMENTS:
        for section in re.split(r"\n##+ ", (ROOT / name).read_text("utf-8")):
            if len(section) in SECTION:
                yield f"Summarise this text in a few sentences, in its own words:\n\n{section}"


def edits() -> Iterator[str]:
    """Yield a prompt for each function of the package that has a fitting length, the kinds of edit in turns."""
    number = 0
    for path in sorted((ROOT / "tinychat").rglob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno in LINES:
                edit = EDITS[number % len(EDITS)].format(name=node.name)
                yield f"{edit}\n\n```python\n{ast.get_source_segment(source, node)}\n```"
                number += 1


def answer(model: Model, drafts: Drafts | None, prompt: str, request: Request) -> tuple[list[int], Summary]:
    """Return the ids of a reply, from an empty context, and what it took."""
    model.driver.drafts = drafts
    model.sequence.rewind(0)
    reply = model.reply(Prompt(model.render_ids([{"role": "user", "content": prompt}])), request).to_end()
    return reply.token_ids, reply.summary


def compare(model: Model, drafts: Drafts, prompt: str, request: Request, runs: int) -> dict[str, float]:
    """Return the ratio of the rates of decoding, and tokens per pass.

    Raises
    ------
    SystemExit
        If the ids differ.
    """
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(runs):
        found = {}
        for with_drafts in (False, True):
            found[with_drafts], summary = answer(model, drafts if with_drafts else None, prompt, request)
            rates[with_drafts].append(summary.decode_rate)
        if found[True] != found[False]:
            sys.exit(f"the ids differ: {prompt!r}")
    passes = summary.decode_steps - summary.accepted_tokens
    return {
        "tokens": summary.new_tokens,
        "plain": median(rates[False]),
        "drafts": median(rates[True]),
        "ratio": median(a / b for a, b in zip(rates[True], rates[False], strict=True)),
        "tokens_per_pass": summary.decode_steps / max(passes, 1),
        "accepted": summary.accepted_tokens / max(summary.drafted_tokens, 1),
    }


def answer_at_once(
    model: Model, drafts: Drafts | None, prompts: list[str], request: Request
) -> tuple[list[list[int]], float]:
    """Return the ids of the replies to several prompts, written at once, and the seconds for all of them."""
    model.driver.drafts = drafts
    asked = [(Prompt(model.render_ids([{"role": "user", "content": prompt}])), request) for prompt in prompts]
    found: dict[int, list[int]] = {}
    started = perf_counter()
    for number, got in model.write_many(asked, parallel=len(asked)):
        assert isinstance(got, Delta | Reply)
        if isinstance(got, Reply):
            found[number] = got.token_ids
    return [found[number] for number in range(len(asked))], perf_counter() - started


def compare_at_once(model: Model, prompts: list[str], request: Request, runs: int) -> dict[str, float]:
    """Return the ratio of the seconds without drafts and with them, for prompts that are answered at once.

    Raises
    ------
    SystemExit
        If the ids differ.
    """
    drafts = Drafts()
    for learning in (None, drafts):
        answer_at_once(model, learning, prompts, request)
    ratios, tokens = [], 0
    for _ in range(runs):
        plain, seconds = answer_at_once(model, None, prompts, request)
        drafted, with_drafts = answer_at_once(model, drafts, prompts, request)
        if plain != drafted:
            sys.exit("the ids differ")
        ratios.append(seconds / with_drafts)
        tokens = sum(map(len, plain))
    return {"tokens": tokens, "ratio": median(ratios), "lowest": min(ratios)}


def print_at_once(model: Model, arguments: argparse.Namespace, prompts: dict[str, Iterator[str]]) -> None:
    """Print the table of replies that are written at once."""
    count, results = arguments.at_once, {}
    request = Request(temperature=arguments.temperature, seed=1, max_tokens=arguments.max_tokens)
    print(f"| {count} at once | speed, drafts on / off | lowest run |")
    print("|---|---|---|")
    for kind in arguments.kinds:
        found = compare_at_once(model, list(islice(prompts[kind], count)), request, arguments.runs)
        results[kind] = found
        print(f"| {kind} | {found['ratio']:.2f} x | {found['lowest']:.2f} x |", flush=True)
    print(json.dumps(results))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure replies with drafts and without.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kinds", nargs="+", default=["chat", "summary", "edit"])
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    model, drafts, results = tinychat.load(arguments.model, threads=arguments.threads), Drafts(), {}
    prompts = {"chat": iter(QUESTIONS), "summary": sections(), "edit": edits()}
    if arguments.at_once > 1:
        print_at_once(model, arguments, prompts)
        return
    print("| | speed, drafts on / off | lowest | tokens per pass | drafted tokens that were right |")
    print("|---|---|---|---|---|")
    for kind in arguments.kinds:
        found = results[kind] = []
        for seed, prompt in enumerate(islice(prompts[kind], COUNT)):
            request = Request(temperature=arguments.temperature, seed=seed, max_tokens=arguments.max_tokens)
            found.append(compare(model, drafts, prompt, request, arguments.runs))
            print(f"{kind} {seed}: {found[-1]}", file=sys.stderr)
        middle = {key: median(one[key] for one in found) for key in found[0]}
        lowest = min(one["ratio"] for one in found)
        cells = [f"{middle['ratio']:.2f} x", f"{lowest:.2f} x", f"{middle['tokens_per_pass']:.2f}"]
        print(f"| {kind} ({len(found)}) | {' | '.join(cells)} | {100 * middle['accepted']:.0f} % |", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
