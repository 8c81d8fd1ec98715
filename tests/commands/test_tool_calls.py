"""Calls of tools in one-shots and batches: they are written, and nothing is run."""

import json

import pytest
from batches import results_of
from console import Console
from fake_model import ASSISTANT, EOS, USER, fake_model

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
BONN = CALL.format("weather", '{"city": "Bonn"}')
NOON = CALL.format("clock", "{}")
SAYS = {"Bonn?": f"Let me look.\n{BONN}\n{NOON}", "Hi": "Hello.", "wrong": CALL.format("wether", "{}")}
CALLED = {"name": "weather", "arguments": '{"city": "Bonn"}'}


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(says, has_template=True, context_size=4096), monkeypatch, capsys)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    return path


def says(ids):
    """Return the next token of the answer to the last question."""
    if ASSISTANT not in ids:
        return EOS
    turn = len(ids) - 1 - [*ids][::-1].index(ASSISTANT)
    asked = bytes(ids[turn - [*ids[:turn]][::-1].index(USER) : turn]).decode()
    reply, said = SAYS[asked].encode(), bytes(ids[turn + 1 :])
    return reply[len(said)] if reply.startswith(said) and len(said) < len(reply) else EOS


def report_of(console, prompt, *arguments):
    code, out, err = console.run("complete", "-p", prompt, *arguments, "--json", "--temperature", 0)
    assert (code, err) == (0, ""), err
    return json.loads(out)


def functions_of(fields):
    return [call["function"] for call in fields["tool_calls"]]


def test_calls_are_written_and_not_run(console, file):
    report = report_of(console, "Bonn?", "--tools", file)
    assert functions_of(report) == [CALLED, {"name": "clock", "arguments": "{}"}]
    assert len({call["id"] for call in report["tool_calls"]}) == 2
    assert report["content"] == "Let me look."
    assert BONN in report["text"]
    assert report["finish_reason"] == "stop"


def test_a_reply_without_a_call(console, file):
    report = report_of(console, "Hi", "--tools", file)
    assert (report["content"], report["tool_calls"]) == ("Hello.", [])


def test_a_name_that_no_tool_has_cannot_be_called(console, file):
    (call,) = functions_of(report_of(console, "wrong", "--tools", file, "--tool-choice", "clock"))
    assert call["name"] == "clock"
    for call in functions_of(report_of(console, "wrong", "--tools", file, "--max-tokens", 200)):
        assert call["name"] in ("weather", "clock")


def test_choices(console, file):
    assert functions_of(report_of(console, "Bonn?", "--tools", file, "--no-parallel-tool-calls")) == [CALLED]
    assert (
        functions_of(report_of(console, "Bonn?", "--tools", file, "--tool-choice", "weather"))[0]["name"] == "weather"
    )
    assert "tool_calls" not in report_of(console, "Hi", "--tools", file, "--tool-choice", "none")
    assert functions_of(report_of(console, "Hi", "--tools", file, "--tool-choice", "required", "--max-tokens", 300))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tools", "FILE"], "--tools needs JSON output: add --json"),
        (["--tools", "FILE", "--json", "--raw"], "--tools needs the chat template: leave out --raw"),
        (["--tools", "FILE", "--json", "--schema", "FILE"], "--tools excludes --schema and --grammar: leave out one"),
        (["--tools", "FILE", "--json", "--tool-choice", "oven"], "--tool-choice must be auto, none, required, or the"),
        (["--tool-choice", "auto"], "--tool-choice needs tools: add --tools FILE"),
        (["--no-parallel-tool-calls"], "--no-parallel-tool-calls needs tools: add --tools FILE"),
    ],
)
def test_flags_that_do_not_fit(console, file, flags, message):
    code, out, err = console.run("complete", "-p", "Hi", *[file if flag == "FILE" else flag for flag in flags])
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", " is no JSON: "),
        ('[{"type": "function"}]', ": tools[0].function must be an object with a name"),
        ("5", ": tools must be a list of at most 512 tools"),
        ("[]", ' has no tools: write a list of them, or an object with such a list as "tools"'),
        (json.dumps(TOOLS[0]), " has no tools: "),
        ('{"tools": []}', " has no tools: "),
        ("null", " has no tools: "),
    ],
)
def test_a_file_that_has_no_tools_is_named(console, file, text, message):
    file.write_text(text)
    code, _, err = console.run("complete", "-p", "Hi", "--tools", file, "--json")
    assert code == 1
    assert f"{file}{message}" in err


def test_lines_of_a_batch_have_tools_of_their_own(console, batch_files):
    lines = [
        {"prompt": "Bonn?", "tools": TOOLS, "temperature": 0},
        {"id": "b", "messages": [{"role": "user", "content": "Bonn?"}], "tools": TOOLS, "temperature": 0}
        | {"parallel_tool_calls": False},
        {"prompt": "Hi", "temperature": 0},
        {"prompt": "Hi", "tools": TOOLS, "tool_choice": "oven"},
        {"prompt": "Hi", "tools": TOOLS, "response_format": {"type": "json_object"}},
    ]
    source, target = batch_files(lines)
    assert console.run("batch", source, "fake", "-o", target)[0] == 1
    both, single, plain, wrong, twice = results_of(target)
    assert functions_of(both) == [CALLED, {"name": "clock", "arguments": "{}"}]
    assert functions_of(single) == [CALLED]
    assert "tool_calls" not in plain
    assert wrong["error"].startswith('tool_choice must be "none", "auto"')
    assert twice["error"] == "response_format cannot be given beside tools: leave one out"


def test_lines_of_openai_are_answered_in_its_form(console, batch_files):
    body = {"model": "any", "messages": [{"role": "user", "content": "Bonn?"}], "tools": TOOLS, "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    source, target = batch_files([line, {**line, "custom_id": "b", "body": {**body, "tools": TOOLS[1:]}}])
    assert console.run("batch", source, "fake", "-o", target)[0] == 0
    first, second = (result["response"]["body"]["choices"][0] for result in results_of(target))
    assert first["finish_reason"] == "tool_calls"
    assert first["message"]["content"] == "Let me look."
    assert functions_of(first["message"])[0] == CALLED
    assert {call["name"] for call in functions_of(second["message"])} <= {"clock"}, "another choice, another grammar"
