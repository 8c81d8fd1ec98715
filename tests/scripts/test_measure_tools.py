"""The script that counts calls of tools: its tasks, and what it takes for valid and right."""

from collections import Counter

import measure_tools
import pytest
from fake_model import fake_model

from tinychat.tools.definitions import ToolCall

pytest.importorskip("llguidance")

TASKS = measure_tools.read_tasks()


def spelled(calls):
    return [ToolCall(str(number), name, measure_tools.json.dumps(got)) for number, (name, got) in enumerate(calls)]


def test_there_are_a_hundred_tasks_of_five_kinds():
    assert len({task.ask for task in TASKS}) == len(TASKS) >= 100
    assert min(Counter(task.kind for task in TASKS).values()) >= 15
    assert len({task.kind for task in TASKS}) == 5


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.ask[:30])
def test_expected_calls_are_valid_and_right(task):
    calls = spelled(task.calls)
    assert all(map(task.is_valid, calls))
    assert task.is_right(calls[::-1])
    assert not task.is_right([*calls, ToolCall("x", "other")])


def test_what_is_wrong():
    task = next(task for task in TASKS if task.calls[0][0] == "set_timer")
    for name, arguments in [("set_time", '{"minutes": 1}'), ("set_timer", '{"minutes": "1"}'), ("set_timer", "{"),
                            ("set_timer", '{"minutes": 1, "hours": 0}')]:  # fmt: skip
        assert not task.is_valid(ToolCall("x", name, arguments))
    assert not task.is_right(spelled([("set_timer", {"minutes": 11})]))


def test_the_grammar_makes_calls_valid_whatever_the_model_says():
    model = fake_model(lambda ids: None, context_size=4096, has_template=True)
    tasks = [task for task in TASKS if task.tools[0].name in ("set_timer", "switch_light")][:3]
    free, held = (measure_tools.calls_of(model, tasks, way, 400) for way in ("free", "required"))
    assert measure_tools.counted(tasks, free).called == 0
    counts = measure_tools.counted(tasks, held)
    assert (counts.needed, counts.called) == (3, 3)
    table = [*measure_tools.rows(tasks, {"free": free, "required": held})]
    assert table[-2].startswith("| free | 0 % | 0 % | 0 % |")
    assert table[-1].startswith("| required | 100 % |")
