import pickle
import subprocess
import sys

import numpy as np
import pytest

import tinychat
from tinychat import RowAnswerer
from tinychat.errors import FieldError, SettingError
from tinychat.rows.result_columns import COLUMNS

GREEDY = {"temperature": 0.0, "max_tokens": 6}


@pytest.fixture(scope="module")
def model():
    with tinychat.load("demo") as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def one_model(model, monkeypatch):
    monkeypatch.setattr("tinychat.rows.answerer._loaded", lambda name, loading: model)


def alone(prompt, **settings):
    (row,) = RowAnswerer("demo", **{**GREEDY, **settings}).answer([{"prompt": prompt}])
    return row["reply"]


def test_rows_keep_their_columns_and_have_the_answers_of_each_alone():
    prompts = ["Hello", "Tell me a story.", [{"role": "user", "content": "Hello"}]]
    found = RowAnswerer("demo", **GREEDY).answer({"id": i, "prompt": prompt} for i, prompt in enumerate(prompts))
    assert [[*row] for row in found] == [["id", "prompt", *COLUMNS]] * 3
    assert [row["reply"] for row in found] == [alone("Hello"), alone("Tell me a story."), alone("Hello")]
    assert [type(found[0][name]) for name in COLUMNS] == [str, str, int, int, type(None)]


def test_settings_are_all_that_another_process_gets():
    answerer = RowAnswerer("demo", **GREEDY, threads=2, template="Say {word}.")
    assert answerer.answer([{"word": "hello"}]) == pickle.loads(pickle.dumps(answerer)).answer([{"word": "hello"}])


def test_a_row_that_cannot_be_answered_has_its_error_and_the_others_go_on():
    rows = [{"prompt": None}, {"prompt": "Hello"}, {"prompt": "x" * 5000}, {"prompt": "Hello", "seed": -1}]
    found = RowAnswerer("demo", setting_columns=["seed"], **GREEDY).answer(rows)
    assert [row["reply"] for row in found] == [None, alone("Hello"), None, None]
    assert found[0]["error"] == "prompt must be a text or a list of messages, not None"
    assert "tokens but the context holds" in found[2]["error"]
    assert found[3]["error"].startswith("seed must be 0 or more")


def test_a_template_takes_columns_and_looks_at_no_text_twice():
    answerer = RowAnswerer("demo", template="{a} {b}", as_chat=False, **GREEDY)
    first, missing = answerer.answer([{"a": "Once {b}", "b": 1}, {"a": "Once"}])
    assert first["reply"] == alone("Once {b} 1", as_chat=False)
    assert missing["error"] == "b has no value"


def test_a_system_prompt_is_for_texts_as_in_a_batch():
    rows = [{"prompt": "Hello"}, {"prompt": [{"role": "user", "content": "Hello"}]}]
    text, messages = RowAnswerer("demo", system="You are a cat.", **GREEDY).answer(rows)
    assert text["prompt_tokens"] > messages["prompt_tokens"]
    assert messages["reply"] == alone("Hello")


def test_values_of_numpy_and_pandas():
    rows = [
        {"prompt": "Hello", "max_tokens": 2.0},
        {"prompt": np.array([{"role": "user", "content": "Hello"}], object), "max_tokens": np.int64(2)},
        {"prompt": "Hello", "max_tokens": float("nan")},
    ]
    found = RowAnswerer("demo", setting_columns=["max_tokens"], **GREEDY).answer(rows)
    assert [row["new_tokens"] for row in found] == [2, 2, 6]


def test_no_column_is_written_over():
    with pytest.raises(FieldError, match="have a column 'reply' already: rename it"):
        RowAnswerer("demo").answer([{"prompt": "Hello", "reply": "mine"}])


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"temperature": "hot"}, SettingError, "temperature must be a number"),
        ({"temperatur": 0.0}, TypeError, "did you mean temperature"),
        ({"threads": 0}, SettingError, "threads must be"),
        ({"think": "maybe"}, SettingError, "think must be"),
        ({"parallel": 0}, FieldError, "parallel must be 1 or more, not 0"),
        ({"cores": 0}, FieldError, "cores must be 1 or more, not 0"),
        ({"setting_columns": ["prompt"]}, FieldError, "setting_columns has 'prompt'; expected some of temperature"),
    ],
)
def test_settings_are_checked_where_they_are_given(arguments, error, problem):
    with pytest.raises(error, match=problem):
        RowAnswerer("demo", **arguments)


@pytest.mark.skipif(sys.platform != "linux", reason="binds threads")
def test_processes_have_cores_of_their_own_until_they_end():
    program = (
        "import os; from tinychat.rows.own_cores import bind_to_own_cores as bind;"
        "print(bind(1), *os.sched_getaffinity(0), len(bind(1000)), flush=True); input()"
    )

    def begin():
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return process, process.stdout.readline()

    first, told = begin()
    core = int(told.split()[1])
    assert told == f"({core},) {core} 0\n"
    second, other = begin()
    assert not other.startswith(f"({core},)")
    first.kill()
    first.communicate()
    third, again = begin()
    assert again == told
    for process in (second, third):
        process.communicate("\n")
