"""Examine the demo model: the share of right answers per skill, and how much of its stories it recites.

    .venv/bin/python -m weights.training.evaluate [MODEL ...] [--show] [--stories 40]

Two hundred prompts (``examination.py``), answered at temperature 0, by each model given; without any, by
``weights/demo-hf`` unquantized and by ``weights/demo``. Then stories at temperature 0.8: the longest stretch that
each has in common with the corpus, and whether any two are the same.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import tinychat
from tinychat.conversation.conversation import Chat
from tinychat.generate.model import Model

from .examination import Question, is_right, questions
from .recitation import Corpus

WEIGHTS = Path(__file__).resolve().parents[1]
LONGEST_REPLY = 300


def answer(model: Model, question: Question) -> str:
    """Return the reply to the last message of a conversation, greedily."""
    chat = Chat(model, max_tokens=LONGEST_REPLY, temperature=0.0)
    return [chat.say(message) for message in question.messages][-1]


def examine(model: Model, show: bool) -> dict[str, list[bool]]:
    """Return for each skill which answers are right; show the wrong ones if wanted."""
    results: dict[str, list[bool]] = defaultdict(list)
    for question in questions():
        reply = answer(model, question)
        results[question.skill].append(is_right(question, reply))
        if show and not results[question.skill][-1]:
            print(f"  {question.skill}: {' / '.join(question.messages)} -> {reply}")
    return results


def print_scores(scores: dict[str, dict[str, list[bool]]]) -> None:
    """Print a table: a row for each skill, a column for each model."""
    print("| skill | prompts | " + " | ".join(scores) + " |")
    print("|---|---:|" + "---:|" * len(scores))
    first = next(iter(scores.values()))
    for skill, marks in first.items():
        shares = (f"{sum(results[skill]) / len(marks):.0%}" for results in scores.values())
        print(f"| {skill} | {len(marks)} | {' | '.join(shares)} |")
    totals = [[mark for marks in results.values() for mark in marks] for results in scores.values()]
    print(f"| all | {len(totals[0])} | {' | '.join(f'{sum(marks) / len(marks):.1%}' for marks in totals)} |")


def print_recitation(model: Model, count: int) -> None:
    """Print how much the stories of one model have in common with the corpus."""
    corpus = Corpus()
    prompts = [question.messages[0] for question in questions() if "story" in question.messages[0]]
    shares, known, stories = [], 0, []
    for seed in range(count):
        chat = Chat(model, max_tokens=LONGEST_REPLY, temperature=0.8, seed=seed)
        story = chat.say(prompts[seed % len(prompts)])
        stories.append(story)
        shares.append(len(corpus.longest_common(story)) / len(story))
        known += corpus.has_line(story)
    print(f"{count} stories at temperature 0.8, {len(set(stories))} different; {known} are lines of the corpus.")
    print(f"Longest stretch in common with it: median {median(shares):.0%} of the story, most {max(shares):.0%};")
    print(f"more than half of the story: {sum(share > 0.5 for share in shares)} of {count}.")


@contextmanager
def models(paths: list[Path]) -> Iterator[dict[str, Model]]:
    """Give the models to examine, by name; those in float32 live as long as the context."""
    if paths:
        yield {path.name: tinychat.load(path) for path in paths}
        return
    with tempfile.TemporaryDirectory() as folder:
        unquantized = Path(folder) / "f32"
        tinychat.convert(WEIGHTS / "demo-hf", unquantized, quant="f32")
        yield {"f32": tinychat.load(unquantized), "int4": tinychat.load(WEIGHTS / "demo")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="model folders")
    parser.add_argument("--show", action="store_true", help="show the wrong answers")
    parser.add_argument("--stories", type=int, default=40, help="stories to compare (default: %(default)s)")
    arguments = parser.parse_args()
    with models(arguments.models) as chosen:
        print_scores({name: examine(model, arguments.show) for name, model in chosen.items()})
        if arguments.stories:
            print_recitation(list(chosen.values())[-1], arguments.stories)


if __name__ == "__main__":
    main()
