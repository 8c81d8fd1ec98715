"""The box of tools that can be run: names, checked arguments, results, stopping."""

import threading
import time

import pytest
from tools.plain_tool import PlainTool

from tinychat.errors import ToolError
from tinychat.tools.runnable import LONGEST_RESULT, Toolbox, ToolResult, fingerprint, shortened

COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_checked_call_runs():
    box = Toolbox([PlainTool("twice", lambda n: str(2 * n), COUNT), PlainTool("other")])
    assert [tool.name for tool in box.definitions] == ["twice", "other"]
    assert box.run("twice", box.check("twice", '{"n": 21}')) == ToolResult("42")
    assert box.check("other", "") == box.check("other", {}) == {}
    assert box.preview("twice", {"n": 1}) is None
    assert len(box) == 2


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("twice", "{", "^the arguments are not valid JSON: Expecting property name"),
        ("twice", "[1]", "^the arguments must be a JSON object$"),
        ("twice", '{"n": NaN}', "^the arguments are not valid JSON: NaN is not a number of JSON$"),
        ("twice", "[" * 100_000, "^the arguments are nested too deeply$"),
        ("twice", "{}", "^the argument n is missing$"),
        ("twice", '{"n": "x"}', "^the argument n must be integer, not string$"),
        ("thrice", "{}", "^there is no tool 'thrice': the tools are twice$"),
    ],
)
def test_a_wrong_call_is_one_line_for_the_model(name, arguments, problem):
    box = Toolbox([PlainTool("twice", parameters=COUNT)])
    with pytest.raises(ToolError, match=problem):
        box.check(name, arguments)


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "../a", "a b", "a ", "a.b", "read_f\u0456le", "a\u200b", "a\x1b[2J", "a" * 65, "a\n", "<tool_call>"],
)
def test_names_of_other_characters_are_refused(name):
    with pytest.raises(ToolError, match=r"must have a name of 1 to 64 letters") as error:
        Toolbox([PlainTool(name)])
    assert str(error.value).isprintable()


@pytest.mark.parametrize("second", ["read_file", "Read_File", "READ_FILE"])
def test_names_that_collide_are_refused(second):
    with pytest.raises(ToolError, match=f"^two tools are called '{second}': leave one of them out$"):
        Toolbox([PlainTool("read_file"), PlainTool(second)])


def test_a_fingerprint_is_of_name_description_and_schema():
    tools = [PlainTool("f"), PlainTool("g"), PlainTool("f", description="new"), PlainTool("f", parameters=COUNT)]
    assert len({fingerprint(tool.definition) for tool in tools}) == 4


def test_definitions_that_cannot_be_used():
    circle = {}
    circle["a"] = circle
    with pytest.raises(ToolError, match="has a schema that is not JSON"):
        Toolbox([PlainTool("f", parameters=circle)])
    with pytest.raises(ToolError, match="has a definition of more than 64 KiB"):
        Toolbox([PlainTool("f", description="x" * 70_000)])


def test_a_long_result_keeps_both_ends_and_a_note():
    result = Toolbox([PlainTool("f", lambda: f"begin{'x' * 10_000_000}end")]).run("f", {})
    assert result.text.startswith("beginx") and result.text.endswith("xend")
    assert "\n[9980008 characters are left out here]\n" in result.text
    assert LONGEST_RESULT < len(result.text) < LONGEST_RESULT + 100
    assert shortened("12345678", 4).startswith("123\n[4 char")
    assert shortened("abc", 3) == "abc"


def test_half_characters_do_not_reach_the_model():
    assert Toolbox([PlainTool("f", lambda: "a\udc80b")]).run("f", {}) == ToolResult("a\ufffdb")


def raising(error):
    def fail():
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no\nsuch \x1b[2J"), r"ValueError: no\x0asuch \x1b[2J"),
        (ToolError("say which"), "say which"),
        (FileNotFoundError(2, "No such file", "a.txt"), "No such file: a.txt"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_error_is_a_result(error, text):
    assert Toolbox([PlainTool("f", raising(error))]).run("f", {}) == ToolResult(text, is_error=True)


def test_a_tool_that_does_not_stop_is_left_alone():
    stop, go_on = threading.Event(), threading.Event()
    box = Toolbox([PlainTool("f", lambda: go_on.wait(60) and "late")])
    threading.Timer(0.05, stop.set).start()
    stop.wait()
    began = time.monotonic()
    result = box.run("f", {}, stop)
    # Within 0.2 seconds; the machine may be busy.
    assert time.monotonic() - began < 1
    assert result == ToolResult("the user stopped this call", is_error=True)
    go_on.set()


def test_a_tool_that_stops_by_itself_tells_how_far_it_came():
    stop = threading.Event()
    tool = PlainTool("f")
    tool.run = lambda arguments, stop: ToolResult(f"stopped: {stop.wait(60)}")
    threading.Timer(0.05, stop.set).start()
    assert Toolbox([tool]).run("f", {}, stop) == ToolResult("stopped: True")


def test_ctrl_c_stops_the_tool(monkeypatch):
    seen = threading.Event()
    tool = PlainTool("f")
    tool.run = lambda arguments, stop: ToolResult(str(stop.wait(60) and seen.set()))

    class Pressed(threading.Event):
        def is_set(self):
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().is_set()

    with pytest.raises(KeyboardInterrupt):
        Toolbox([tool]).run("f", {}, Pressed())
    assert seen.wait(5)


def test_a_preview_is_bounded_and_may_refuse():
    tool = PlainTool("f")
    tool.preview = lambda arguments: "x" * 1_000_000
    assert len(Toolbox([tool]).preview("f", {})) < 21_000
    tool.preview = lambda arguments: raising(FileNotFoundError(2, "No such file", "a"))()
    with pytest.raises(ToolError, match=r"^No such file: a$"):
        Toolbox([tool]).preview("f", {})
