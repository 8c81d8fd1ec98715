"""The script that counts replies in loops: its tasks, and what it takes for a loop."""

import measure_loops
import pytest
from fake_model import Replies, fake_model

import tinychat.api
from tinychat.generate.loops import LoopDetector
from tinychat.text.loading import load_tokenizer

right_answers = pytest.importorskip("loops.right_answers")
TASKS = [*right_answers.right_answers()]


def test_there_are_forty_tasks():
    assert len({task for task, _ in TASKS}) == len(TASKS) == 40


def test_replies_come_in_the_order_of_the_questions():
    model = fake_model(Replies("yes", "yes"), chunk_size=4096)
    replies = measure_loops.write(model, ["one", "two"], measure_loops.AFTER, 0.0, 20)
    assert [reply.text for reply in replies] == ["yes", "yes"]


@pytest.mark.parametrize(("task", "answer"), TASKS, ids=lambda text: text[:30])
def test_right_answers_that_repeat_are_no_loops(task, answer):
    tokenizer = load_tokenizer(tinychat.api.locate("demo"))
    detector = LoopDetector(tokenizer.token_bytes)
    assert not any(map(detector.add, tokenizer.encode(answer)))
