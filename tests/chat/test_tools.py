"""Tools in the chat: the question before each call, the line after it, /tools, and what commands do to calls."""

import io
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_loop import FakeLoop, Script
from fake_model import Replies, fake_model
from fake_tools import FakeTool, call

from tinychat.chat.repl import Repl
from tinychat.chat.tool_setup import names_of, refresh_servers, set_up_tools
from tinychat.conversation.conversation import Chat
from tinychat.conversation.state import ChatState
from tinychat.errors import McpError, SettingError, TinychatError
from tinychat.settings import ToolSettings
from tinychat.terminal.line_input import LineDiscarded
from tinychat.terminal.rendering import Renderer
from tinychat.tools.own.groups import GROUPS
from tinychat.tools.runnable import ToolResult

TIME = re.compile(r"\d+(\.\d)? m?s\b")


@pytest.fixture(autouse=True)
def unconstrained(monkeypatch):
    """Without grammars, whose compiler takes time to start: the replies are prepared."""
    monkeypatch.setattr(ChatState, "call_constraint", None)


@pytest.fixture
def group(monkeypatch):
    """Return a function that makes tools the group "fake"."""
    return lambda *tools: monkeypatch.setitem(GROUPS, "fake", lambda folder: tools)


def converse(lines, *replies, interactive=True, settings=None):
    """Run a chat with the tools of the group "fake"; return (stdout, lines of stderr, the loop)."""
    chat = Chat(fake_model(Replies(*replies), context_size=4096, chunk_size=256), temperature=0.0, loop_stop=False)
    out, err = io.StringIO(), io.StringIO()
    loop = Repl(chat, Script(lines, interactive), Renderer(out, err, {}))
    chat.on_notice = loop.notice
    set_up_tools(loop, settings or ToolSettings(tools=("fake",)), {})
    loop.run()
    return out.getvalue(), TIME.sub("1 ms", err.getvalue()).splitlines(), loop


def weather(**options):
    return FakeTool("weather", lambda given, stop: f"{given['city']}: warm\nwind: none", city="string", **options)


def test_a_message_that_tools_leave_no_room_for_names_them(group):
    group(*(FakeTool(f"tool_{number:055}") for number in range(70)))
    _, err, _ = converse(["hi", "/tools off fake", "x" * 5000], "Hello.")
    advice = [line.partition("context holds 4096: ")[2] for line in err if "context holds" in line]
    assert [text.partition(",")[0].partition(" (")[0] for text in advice] == [
        "switch tools off with /tools off NAME",
        "shorten your message",
    ]


def test_a_call_is_shown_asked_for_and_folded(group):
    group(tool := weather())
    out, err, loop = converse(["warm?", "y"], "Let me see. " + call("weather", city="Bern"), "It is warm.")
    assert out == "Let me see.\nIt is warm.\n"
    folder = Path.cwd()
    assert err == [
        "tools: weather (9 tokens); calls ask you first",
        "fake Ctrl-C stops a reply, Ctrl-D leaves, /help lists the commands",
        'the model asks for weather(city="Bern")',
        f"run it? y once, a always exactly this, t always weather in {folder}, n no, r no, with a reason for the model",
        'weather(city="Bern") · 1 ms · 2 lines, 21 bytes',
    ]
    assert tool.ran == [{"city": "Bern"}]
    assert [prompt.mark for prompt in loop._lines.prompts] == ["> ", "y/a/t/n/r> ", "> "]
    # What was typed before the question was shown is no answer to it.
    assert [prompt.is_fresh for prompt in loop._lines.prompts] == [False, True, False]


@pytest.mark.parametrize(("answer", "asked"), [("y", 3), ("a", 2), ("t", 1), ("T", 1)])
def test_always_is_for_exactly_this_or_for_the_tool(group, answer, asked):
    group(tool := weather())
    bern, bonn = call("weather", city="Bern"), call("weather", city="Bonn")
    _, err, _ = converse(["warm?", answer, "y", "y"][: asked + 1], bern, bern, bonn, "Warm.")
    assert len(tool.ran) == 3
    assert sum(line.startswith("the model asks for") for line in err) == asked


def test_a_command_is_never_allowed_as_a_whole(group):
    group(FakeTool("run", exact_only=True, writes=True, preview="$ rm -r x", command="string"))
    _, err, loop = converse(["go", "n"], call("run", command="rm -r x"), "Well.")
    assert loop._lines.prompts[1].mark == "y/a/n/r> "
    assert "  $ rm -r x" in err
    assert loop.chat.messages[2].content == "error: the user did not allow this call"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["n"], "the user did not allow this call"),
        ([""], "the user did not allow this call"),
        (["r not now"], "the user did not allow this call: not now"),
        (["r", "ask me first"], "the user did not allow this call: ask me first"),
    ],
)
def test_a_no_is_told_to_the_model_with_its_reason(group, answers, told):
    group(tool := weather())
    _, err, loop = converse(["warm?", *answers], call("weather", city="Bern"), "I see.")
    assert loop.chat.messages[2].content == f"error: {told}"
    assert f'weather(city="Bern") · did not run: {told}' in err
    assert tool.ran == []


def test_a_text_that_is_no_answer_waits_for_the_prompt_and_allows_nothing(group):
    group(tool := weather())
    _, err, loop = converse(["warm?", "yes please", "n"], call("weather", city="Bern"), "I see.")
    assert "that is no answer, and waits for the next prompt" in err
    assert loop._lines.prompts[-1].text == "yes please"
    assert tool.ran == []


@pytest.mark.parametrize("press", [KeyboardInterrupt, LineDiscarded, EOFError])
def test_ctrl_c_at_the_question_ends_the_turn(group, press):
    group(tool := weather())
    out, err, loop = converse(["warm?", press, "/regen", "and?"], call("weather", city="Bern"), "Sorry.", "Well.")
    assert "stopped: the call does not run; /regen lets the model go on" in err
    assert (out, tool.ran) == ("Sorry.\nWell.\n", [])
    assert [message.role for message in loop.chat.messages] == ["user", "assistant", "tool", "assistant"] + [
        "user",
        "assistant",
    ]


def test_hostile_words_are_shown_escaped(group):
    hostile = "\x1b[2J\x9b31m\u202eevil\u200b\x07\r"
    tool = FakeTool("weather", lambda arguments, stop: hostile, city="string", preview=hostile)
    tool.definition = tool.definition.__class__("weather", hostile, tool.definition.parameters)
    group(tool)
    _, err, _ = converse(["warm?", "y", "/tools", "/tools last"], call("weather", city=hostile), "I see.")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e]", "".join(err))
    assert sum("\\x1b[2J" in line for line in err) == 3


@pytest.mark.parametrize("line", ["warm?", "/tools"])
def test_without_a_terminal_nothing_runs(group, line):
    group(tool := weather())
    out, err, loop = converse([line], call("weather", city="Bern"), "I cannot.", interactive=False)
    assert tool.ran == []
    if line == "warm?":
        assert out == "I cannot.\n"
        assert "did not run: the user did not allow this call: nobody can be asked here" in err[0]
        assert "was not allowed by name" in loop.chat.messages[2].content


def test_allow_tool_runs_one_without_a_terminal(group):
    group(one := weather(), other := FakeTool("delete", writes=True))
    settings = ToolSettings(tools=("fake",), allow_tool=("weather",))
    replies = call("weather", city="Bern") + call("delete"), "Warm."
    out, err, _ = converse(["warm?"], *replies, interactive=False, settings=settings)
    assert (len(one.ran), other.ran, out) == (1, [], "Warm.\n")
    assert err[0] == 'weather(city="Bern") · 1 ms · 2 lines, 21 bytes'
    assert err[1].startswith("delete() · did not run: ")


def test_a_retry_asks_before_it_writes_again(group):
    group(tool := FakeTool("save", writes=True))
    replies = call("save"), "Saved.", call("save"), "Not again."
    _, err, loop = converse(["save it", "t", "/retry", "n"], *replies)
    assert sum(line.startswith("the model asks for") for line in err) == 2
    assert len(tool.ran) == 1
    assert loop.chat.messages[-1].content == "Not again."


def test_going_back_and_forth_takes_the_calls_along(group):
    group(weather())
    bern, bonn = call("weather", city="Bern"), call("weather", city="Bonn")
    lines = ["hi", "warm?", "y", "and there?", "y", "/undo 2", "/redo 1", "/edit", "where?", "/undo"]
    _, _, loop = converse(lines, "Hello.", bern, "Warm.", bonn, "Cold.", "Where?")
    before = ["hi", "Hello.", "warm?", "", "Bern: warm\nwind: none", "Warm."]
    assert loop._lines.prompts[8].text == "warm?"
    assert [message.content for message in loop.chat.messages] == before
    loop.chat.redo()
    assert [message.content for message in loop.chat.messages] == ["hi", "Hello.", "where?", "Where?"]


def test_why_explains_the_reply_behind_the_calls(group):
    group(weather())
    _, err, _ = converse(["warm?", "y", "/why 2"], call("weather", city="Bern"), "Warm.")
    chosen = [line.split(" of ")[0].strip() for line in err if " of " in line]
    assert chosen == ["'m' 100.0 %", "'.' 100.0 %"]


def test_a_session_keeps_calls_and_results_and_goes_on(group):
    group(weather())
    _, _, loop = converse(["warm?", "y", "/save talk"], call("weather", city="Bern"), "Warm.")
    again = FakeLoop("Bye.")
    again.workspace.load("talk")
    assert again.chat.messages == loop.chat.messages
    assert again.run("/tools last") == 'weather(city="Bern")\n  Bern: warm\n  wind: none'


def test_a_program_that_was_killed_in_a_call_leaves_a_valid_conversation(group):
    group(tool := weather())
    _, _, loop = converse(["warm?", "y"], call("weather", city="Bern") * 2, "Warm.")
    loop.chat.replace_messages(loop.chat.messages[:3])
    loop.workspace.save("talk")
    again = FakeLoop("Sorry.", "Bye.", context_size=4096, chunk_size=256)
    again.workspace.load("talk")
    assert [message.content for message in again.chat.messages[2:]] == [
        "Bern: warm\nwind: none",
        "error: the program ended before the result",
    ]
    again.run("/regen")
    assert again.chat.say("bye") == "Bye."
    assert len(tool.ran) == 1


def test_tools_lists_the_cost_and_switches(group):
    group(weather(), FakeTool("delete", writes=True))
    lines = ["/tools", "/tools off weather", "/tools", "/tools on fake", "/tools last"]
    _, err, loop = converse(lines)
    assert err[2:] == [
        "2 of 2 tools are on: 15 of 4096 tokens of the context",
        "on   weather      7  reads   The tool weather.",
        "on   delete       6  writes  The tool delete.",
        "tools that are on: delete (8 tokens)",
        "1 of 2 tools are on: 8 of 4096 tokens of the context",
        "off  weather      7  reads   The tool weather.",
        "on   delete       8  writes  The tool delete.",
        "tools that are on: weather, delete (15 tokens)",
        "error: no tool was called in this conversation",
    ]
    assert [tool.name for tool in loop.chat.tools.toolbox.definitions] == ["weather", "delete"]


def test_tools_adds_a_group_and_refuses_others(group):
    group(weather())
    loop = FakeLoop("Hello.")
    set_up_tools(loop, ToolSettings(), {})
    assert loop.run("/tools").startswith("no tools: /tools on NAME adds one of the groups ")
    assert loop.run("/tools on fake") == "tools that are on: weather (9 tokens)"
    assert loop.candidates("/tools ") == ["on", "off", "last"]
    assert loop.candidates("/tools off ") == ["weather"]
    assert loop.run("/tools off weather") == "tools that are on: none (0 tokens)"
    for line, complaint in (("/tools on nothing", "no tool or group 'nothing'"), ("/tools of x", "type /tools")):
        with pytest.raises(SettingError, match=complaint):
            loop.run(line)


def test_names_that_are_taken_are_refused(group):
    group(weather(), weather())
    loop = FakeLoop()
    with pytest.raises(TinychatError, match="two tools are called 'weather'"):
        set_up_tools(loop, ToolSettings(tools=("fake",)), {})
    assert len(loop.shelf.tools) == 0


def test_a_budget_chooses_by_the_list_of_allowed_tools(group):
    group(*(FakeTool(f"tool_{number}") for number in range(9)))
    loop = FakeLoop()
    settings = ToolSettings(tools=("fake",), tools_budget=20, allow_tool=("tool_5,tool_2",))
    set_up_tools(loop, settings, {})
    assert loop.shelf.on == ["tool_0", "tool_2", "tool_5"]
    assert loop.shelf.tokens() == 20
    assert loop.notices[0] == "off, as more than --tools-budget 20: tool_1, tool_3, tool_4, tool_6, tool_7, tool_8"


def test_tools_that_take_much_of_the_context_are_warned_of(group):
    group(FakeTool("x" * 60), FakeTool("y" * 60))
    loop = FakeLoop(context_size=256)
    set_up_tools(loop, ToolSettings(tools=("fake",)), {})
    assert loop.notices[-1].startswith("the tools take 122 of the 256 tokens of the context: /tools off NAME")
    loop.run("/tools off " + "x" * 60)
    assert loop.shelf.warning() is None


def test_names_are_separated_by_commas():
    assert names_of(("files,shell", " shell ,edit,")) == ["files", "shell", "edit"]


def test_a_group_that_is_not_there_is_named_and_the_chat_begins(group):
    _, err, _ = converse(["hi"], "Hello.", settings=ToolSettings(tools=("fils",), allow_tool=("weather",)))
    assert err[0].startswith("error: there are no tools called 'fils'; expected some of files")
    assert err[1] == "--allow-tool names no tool of this chat: weather"
    with pytest.raises(SettingError, match="no tools called 'fils'"):
        converse(["hi"], "Hello.", settings=ToolSettings(tools=("fils",)), interactive=False)


def test_rounds_of_the_settings_bound_the_calls(group):
    group(tool := FakeTool("again"))
    settings = ToolSettings(tools=("fake",), allow_tool=("again",), max_tool_rounds=2)
    _, err, _ = converse(["go", "/regen"], *[call("again")] * 3, "Enough.", settings=settings)
    assert len(tool.ran) == 2
    assert "these were 2 rounds of calls, the most for one message" in err
    assert "the model has not answered these results: /regen lets it go on" in err


def test_a_failure_of_a_tool_is_a_line(group):
    group(FakeTool("fly", lambda arguments, stop: ToolResult("no wind\ntoday", is_error=True)))
    _, err, _ = converse(["fly", "y"], call("fly"), "Too bad.")
    assert "fly() · 1 ms · failed: no wind today" in err


class FakeServer:
    """A server whose tools a test prepares."""

    def __init__(self, name, line="npx server --secret", tools=()):
        self.name, self.tools, self.started, self.asked = name, list(tools), 0, {}
        self.settings = SimpleNamespace(name=name, line=line, fingerprint=line)

    def start(self):
        self.started += 1
        return SimpleNamespace(name=self.name)

    def read_resource(self, uri):
        return f"the text of {uri}"

    def prompts(self):
        return [SimpleNamespace(name="greet", description="Say hi.", arguments=[SimpleNamespace(name="who")])]

    def prompt(self, name, arguments):
        self.asked = {name: arguments}
        return ("user", "Greet Ada."), ("user", "/Briefly.")


@pytest.fixture
def servers(monkeypatch):
    """Have the tools of a server be those that it was prepared with."""
    module = SimpleNamespace(mcp_tools=lambda server: list(server.tools))
    monkeypatch.setitem(__import__("sys").modules, "tinychat.mcp.tools", module)


def start_with(server, answers, interactive=True, loop=None):
    chat = Chat(fake_model(Replies(), context_size=4096), temperature=0.0)
    err = io.StringIO()
    loop = Repl(chat, Script(answers, interactive), Renderer(io.StringIO(), err, {}))
    set_up_tools(loop, ToolSettings(mcp=(server.name,)), {server.name: server})
    return err.getvalue().splitlines(), loop


def test_a_server_starts_once_its_whole_command_line_was_allowed(servers):
    server = FakeServer("git", tools=[FakeTool("git_log")])
    err, loop = start_with(server, ["y"])
    assert err[0] == "start the MCP server git? its command line:"
    assert err[1] == "  npx server --secret"
    assert err[-1] == "tools: git_log (9 tokens); calls ask you first"
    assert (server.started, [*loop.shelf.tools], [*loop.servers]) == (1, ["git_log"], ["git"])


@pytest.mark.parametrize("answer", ["n", "", "yes", KeyboardInterrupt, EOFError])
def test_a_server_that_is_not_allowed_does_not_start(servers, answer):
    server = FakeServer("git", tools=[FakeTool("git_log")])
    err, loop = start_with(server, [answer])
    assert err[-1] == "error: the MCP server git is not started"
    assert (server.started, len(loop.shelf.tools)) == (0, 0)


def test_a_server_is_allowed_for_good_until_its_command_line_changes(servers):
    server = FakeServer("git")
    start_with(server, ["a"])
    start_with(server, [], interactive=False)
    assert server.started == 2
    with pytest.raises(McpError, match="the MCP server git is not started: allow it once at a terminal"):
        start_with(FakeServer("git", line="npx other"), [], interactive=False)


def test_a_server_that_changes_its_tools_changes_those_of_the_chat(servers):
    server = FakeServer("git", tools=[FakeTool("git_log"), FakeTool("git_show")])
    _, loop = start_with(server, ["y"])
    loop.shelf.switch(["git_show"], is_on=False)
    refresh_servers(loop)
    kept = loop.shelf.tools["git_log"]
    assert kept is loop.shelf.tools["git_log"]
    server.tools = [FakeTool("git_show"), FakeTool("git_blame")]
    refresh_servers(loop)
    assert {name: each.is_on for name, each in loop.shelf.tools.items()} == {"git_show": False, "git_blame": True}


def test_the_error_of_a_server_that_fails_is_shown_once(servers, monkeypatch):
    server = FakeServer("git", tools=[FakeTool("git_log")])
    _, loop = start_with(server, ["y"])
    errors, problem = [], ["it has ended"]

    def tools_of(server):
        if problem:
            raise McpError(problem[0])
        return list(server.tools)

    monkeypatch.setattr(__import__("sys").modules["tinychat.mcp.tools"], "mcp_tools", tools_of)
    monkeypatch.setattr(loop.renderer, "error", errors.append)
    for _ in range(3):
        refresh_servers(loop)
    assert errors == ["it has ended"]
    problem[0] = "it does not answer"
    refresh_servers(loop)
    # Once it has worked again, the same error is another.
    working, problem = problem, []
    refresh_servers(loop)
    problem = working
    refresh_servers(loop)
    assert errors == ["it has ended", "it does not answer", "it does not answer"]
    assert [*loop.shelf.tools] == ["git_log"]


def test_the_line_below_a_turn_counts_all_of_its_replies():
    replies = [call("weather", city="Bern"), "It is warm.", "Welcome."]
    chat = Chat(fake_model(Replies(*replies), context_size=4096), temperature=0.0, tools=[weather()])
    err = io.StringIO()
    loop = Repl(chat, Script([], False), Renderer(io.StringIO(), err, {}))
    loop.renderer.show_stats = True
    for message, written in (("warm?", replies[:2]), ("thanks", replies[2:])):
        loop.write_reply(partial(chat.stream, message))
        counts = [line.split()[0] for line in err.getvalue().splitlines() if " tokens, " in line]
        assert counts[-1] == str(sum(map(len, written)))
        assert chat.summary.new_tokens == len(written[-1])
    assert chat.turn_summary.prompt_tokens == chat.summary.prompt_tokens


def test_an_unknown_server_is_named(servers):
    chat = Chat(fake_model(Replies()), temperature=0.0)
    loop = Repl(chat, Script([], False), Renderer(io.StringIO(), io.StringIO(), {}))
    with pytest.raises(McpError, match="there is no MCP server 'got' in the configuration; there are git"):
        set_up_tools(loop, ToolSettings(mcp=("got",)), {"git": FakeServer("git")})
    with pytest.raises(McpError, match=r"there is no MCP server 'got' in the configuration, which has none$"):
        set_up_tools(loop, ToolSettings(mcp=("got",)), {})


def test_a_resource_of_a_server_is_an_attachment():
    loop = FakeLoop("Read.", context_size=4096)
    loop.servers["git"] = FakeServer("git")
    assert loop.run("/file git:file:///a.txt") == "attached git:file:///a.txt (25 tokens)"
    assert loop.chat.attachments[0].text == "the text of file:///a.txt"
    with pytest.raises(SettingError):
        loop.run("/file got:file:///a.txt")


def test_a_prompt_of_a_server_comes_into_the_line():
    loop = FakeLoop()
    loop._lines = SimpleNamespace(interactive=True)
    server = loop.servers["git"] = FakeServer("git")
    loop.run('/prompt git:greet who="Ada Lovelace" how=well')
    assert server.asked == {"greet": {"who": "Ada Lovelace", "how": "well"}}
    assert loop.prefilled == "Greet Ada.\n\n/Briefly."
    assert loop.candidates("/prompt gi") == ["git:greet"]
    for line in ("/prompt got:greet", "/prompt git", "/prompt git:greet who", "/prompt git:greet who='a"):
        with pytest.raises(SettingError, match="type /prompt SERVER:NAME KEY=VALUE"):
            loop.run(line)


def test_context_and_show_name_the_tools(group):
    group(weather(), FakeTool("delete", writes=True))
    _, err, _ = converse(["hi", "/context", "/show"], "Hello.")
    begin = err.index("    15  tools      weather, delete")
    counts = [int(line.split()[0]) for line in err[begin : begin + 5] if line.split()[0].isdecimal()]
    # The question, the reply, and three control tokens.
    assert sum(counts) == 15 + 2 + 6 + 3
    assert any(line.startswith("tools") and line.endswith("weather, delete (15 tokens)") for line in err)


def test_what_a_function_prints_stands_beside_the_reply(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('def greet() -> str:\n    """Greet."""\n    print("Hi \\x1b[31m", 1)\n    return "done"\n')
    settings = ToolSettings(functions=(str(path),), allow_tool=("greet",))
    out, err, _ = converse(["greet"], call("greet"), "Done.", settings=settings)
    assert out == "Done.\n"
    assert "greet: Hi \\x1b[31m 1" in err
