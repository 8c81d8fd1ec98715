"""Count replies that go round in a loop, before and after: scripts/measure_loops.py [MODEL] [--limit TOKENS].

"Before" is how replies were written without a default against repetition and without an end of loops, "after" how the
command line writes them. Prompts, tasks and questions are our own, in scripts/loops. Prints tables in markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loops.right_answers import right_answers

import tinychat
from tinychat.errors import TinychatError
from tinychat.generate.loops import LoopDetector
from tinychat.generate.model import Model
from tinychat.generate.precedence import LOOP_DEFAULTS
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request

FOLDER = Path(__file__).parent / "loops"
TEMPERATURES = (0.0, 0.2, 0.8)
BEFORE = Request(loop_stop=False)
AFTER = Request(**LOOP_DEFAULTS)
# Tokens that are written at most in answer to a plain question.
ANSWER = 80
# A loop begins where all that follows has been said before, in runs of so many tokens, in this share of each window.
RUN, WINDOW, SHARE = 6, 32, 0.75


class Count(NamedTuple):
    """Replies to open prompts: all, at the limit, ended in a loop, and the most tokens of one past its beginning."""

    replies: int
    ran_away: int
    ended: int
    longest: int


def write(model: Model, asked: Sequence[str], request: Request, temperature: float, limit: int) -> list[Reply]:
    """Return the replies to messages, written at once, each with a seed of its own."""
    prompts = (model.chat_prompt([{"role": "user", "content": text}]) for text in asked)
    requests = (replaced(request, temperature=temperature, max_tokens=limit, seed=n) for n in range(len(asked)))
    replies: dict[int, Reply] = {}
    for number, got in model.write_many(zip(prompts, requests), 16):
        if isinstance(got, TinychatError):
            raise got
        if isinstance(got, Reply):
            replies[number] = got
    return [replies[number] for number in range(len(asked))]


def replaced(request: Request, **values: object) -> Request:
    """Return a request with other values."""
    return Request(**(request.values() | values))  # type: ignore[arg-type]


def count(replies: Sequence[Reply]) -> Count:
    """Count what became of replies."""
    ends = [reply.finish_reason for reply in replies]
    past = [tokens_past_start(reply.token_ids) for reply in replies if reply.finish_reason in ("loop", "length")]
    return Count(len(replies), ends.count("length"), ends.count("loop"), max(past, default=0))


def tokens_past_start(ids: Sequence[int]) -> int:
    """Return how many tokens there are behind the first round of the loop that a reply ends in; 0 without one."""
    said: set[tuple[int, ...]] = set()
    again = [False] * len(ids)
    for end in range(RUN, len(ids) + 1):
        run = tuple(ids[end - RUN : end])
        if run in said:
            again[end - RUN : end] = [True] * RUN
        said.add(run)
    start = len(ids)
    while start > WINDOW and sum(again[start - WINDOW : start]) >= SHARE * WINDOW:
        start -= 1
    return len(ids) - start


def is_right(reply: Reply, answers: Sequence[str]) -> bool:
    """Return whether a reply holds one of the answers."""
    return any(answer.casefold() in reply.text.casefold() for answer in answers)


def wrongly_cut(model: Model, limit: int) -> tuple[int, int]:
    """Return how many right answers would be cut, and how many replies of the model that would end by themselves."""
    tasks = [*right_answers()]
    cut = 0
    for _, answer in tasks:
        detector = LoopDetector(model.tokenizer.token_bytes)
        cut += any(map(detector.add, model.encode(answer, add_bos=False)))
    free = write(model, [task for task, _ in tasks], replaced(AFTER, loop_stop=False), 0.0, limit)
    ended = write(model, [task for task, _ in tasks], AFTER, 0.0, limit)
    return cut, sum(a.finish_reason == "stop" and b.finish_reason == "loop" for a, b in zip(free, ended))


def lines(model: Model, limit: int) -> Iterator[str]:
    """Yield the lines of the tables as they are measured."""
    prompts = (FOLDER / "prompts.txt").read_text().splitlines()
    questions = [line.split("|") for line in (FOLDER / "questions.txt").read_text().splitlines()]
    yield f"| {model.name}, temperature | | at the limit of {limit} | ended in a loop | tokens past its start | right |"
    yield "|---|---|---|---|---|---|"
    for temperature in TEMPERATURES:
        for name, request in (("before", BEFORE), ("after", AFTER)):
            found = count(write(model, prompts, request, temperature, limit))
            answers = write(model, [question for question, *_ in questions], request, temperature, ANSWER)
            right = sum(is_right(reply, accepted) for reply, (_, *accepted) in zip(answers, questions))
            yield (
                f"| {temperature:g} | {name} | {found.ran_away} of {found.replies} | {found.ended} | {found.longest} | "
                f"{right} of {len(questions)} |"
            )
    cut, early = wrongly_cut(model, limit)
    yield ""
    yield f"Cut: {cut} of 40 right answers that repeat themselves; {early} of the model's own that end by themselves."


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--limit", type=int, default=1000, help="most tokens of a reply")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    for line in lines(tinychat.load(given.model, threads=given.threads), given.limit):
        print(line, flush=True)


if __name__ == "__main__":
    main()
