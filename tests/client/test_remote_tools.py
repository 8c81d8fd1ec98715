"""Tools of a chat whose model a server has: they run here, and the conversation is that of the model itself."""

import io
import json
import os
import sys

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))

from fake_model import VOCAB_SIZE, Replies, fake_model
from fake_tools import FakeTool, asking, call
from local_server import serving

from tinychat.cli import main
from tinychat.client.api import Api
from tinychat.client.chat_model import RemoteChatModel
from tinychat.client.remote_completion import RemoteCalls
from tinychat.conversation.conversation import Chat
from tinychat.errors import ServerError, SettingError
from tinychat.generate.constraints import Constraints
from tinychat.tools.consent import ConsentAnswer, Decision
from tinychat.tools.definitions import ToolChoice
from tinychat.tools.formats import known
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.form_fields import fields_of_form, form_of_fields

pytest.importorskip("llguidance")

ROUNDS = ("Let me see. " + call("weather", city="Bern"), "It is warm.", call("weather", city="Rome"), "Hot.")
ANSWERS = [ConsentAnswer(Decision.ONCE), ConsentAnswer(Decision.NO, "too far")]
FORMS = [form for form in vars(known).values() if isinstance(form, CallFormat)]


def model_of(*replies):
    return fake_model(Replies(*replies), context_size=2048, chunk_size=256)


def weather():
    return FakeTool("weather", lambda given, stop: f"{given['city']}: warm", city="string")


@pytest.fixture
def remote():
    """Return a function that gives the model of a server which writes the replies."""
    servers = []

    def remote(*replies):
        servers.append(serving(model_of(*replies)))
        return RemoteChatModel(Api(servers[-1].__enter__().url))

    yield remote
    for server in servers:
        server.__exit__(None, None, None)


def conversed(model):
    """Return a conversation with two calls, of which one is refused, its text and the questions."""
    questions, tool = [], weather()
    chat = Chat(model, temperature=0.0, tools=[tool], consent=asking(ANSWERS, questions))
    chat.on_notice = pytest.fail
    said = [chat.say(text) for text in ("Is it warm?", "And in Rome?")]
    return chat, said, [question.arguments for question in questions], tool.ran


def test_a_conversation_with_tools_is_the_same(remote):
    there, *others = conversed(remote(*ROUNDS))
    here, *expected = conversed(model_of(*ROUNDS))
    assert others == expected
    assert expected == [["Let me see.It is warm.", "Hot."], [{"city": "Bern"}, {"city": "Rome"}], [{"city": "Bern"}]]
    assert there.messages == here.messages
    assert [message.role for message in there.messages] == ["user", "assistant", "tool", "assistant"] * 2
    assert there.tokens_in_use() == here.tokens_in_use()
    assert there.turn_summary.new_tokens == here.turn_summary.new_tokens


def test_prompts_and_forms_are_those_of_the_model(remote):
    there, here = remote(), model_of()
    tools = [weather().definition.as_dict()]
    asked = [{"role": "user", "content": "?"}]
    assert there.chat_prompt(asked, tools=tools) == here.chat_prompt(asked, tools=tools)
    assert there.chat_prompt(asked, tools=tools).ids != there.chat_prompt(asked).ids
    assert there.tool_template.form == here.tool_template.form


def test_the_server_holds_calls_to_their_schemas(remote):
    wrong = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bern", "city": "Rome"}}\n</tool_call>'
    chat = Chat(remote(wrong + "!" * 200), temperature=0.0, max_tokens=90, tools=[tool := weather()])
    list(chat.stream("Is it warm?"))
    assert all(ran.keys() == {"city"} for ran in tool.ran)
    assert '"town"' not in json.dumps([message.as_dict() for message in chat.messages])


def test_schemas_that_cannot_be_held_are_told_of_once(remote, monkeypatch):
    def refuse(self, form, choice):
        raise SettingError("a schema needs llguidance")

    monkeypatch.setattr(Constraints, "of_calls", refuse)
    chat = Chat(remote(*ROUNDS), temperature=0.0, tools=[tool := weather()])
    notices = []
    chat.on_notice = notices.append
    assert chat.say("Is it warm?") == "Let me see.It is warm."
    assert (notices, tool.ran) == (["calls may be malformed: a schema needs llguidance"], [{"city": "Bern"}])


def test_functions_of_a_file_run_beside_a_server(tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.py"
    path.write_text('def double(n: int) -> int:\n    """Double."""\n    return 2 * n\n')
    with serving(model_of(call("double", n=21), "It is 42.")) as server:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Double 21\n"), encoding="utf-8"))
        flags = ["--server", server.url, "--functions", str(path), "--allow-tool", "double", "--temperature", "0"]
        code = main(["chat", *flags, "--repeat-penalty", "1"], load=None)
    out, err = capsys.readouterr()
    assert (code, out) == (0, "It is 42.\n")
    assert "double(n=21)" in err


def test_fields_of_requests(remote):
    with serving(model_of("x")) as server:
        body = {"prompt": [1], "tools": [weather().definition.as_dict()], "n_predict": 2}
        assert server.post("/completion", body | {"shown": [3]})[0] == 200
        assert server.post("/completion", body | {"begun": 1})[0] == 200
        assert server.post("/completion", body | {"begun": -1})[1]["error"]["param"] == "begun"
        wrong = {"shown": [VOCAB_SIZE]}, {"shown": "x"}, {"tools": [1]}, {"grammar": 'root ::= "a"'}
        for change, field in zip(wrong, ("shown", "shown", "tools[0]", "tools"), strict=True):
            status, answer = server.post("/completion", body | change)
            assert (status, answer["error"]["param"]) == (400, field)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_comes_back(form):
    assert form_of_fields(json.loads(json.dumps(fields_of_form(form)))) == form


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"kind": []},
        {"call_begin": 1},
        {"is_bare": "yes"},
        {"id_rule": "mine"},
        {"call_begin": ""},
        {"call_begin": "x" * 999},
        {"another": ""},
    ],
)
def test_a_form_that_is_none_is_refused(change):
    with pytest.raises(ValueError, match="calls"):
        form_of_fields(fields_of_form(known.HERMES) | change)
    for odd in (None, [], {}, {"kind": "tags"}):
        with pytest.raises(ValueError, match="form of calls"):
            form_of_fields(odd)


def test_a_server_that_tells_no_form_is_an_error(remote, monkeypatch):
    model = remote("x")
    monkeypatch.setattr(model, "_ask", lambda *asked, **body: {"form": {"kind": "tags"}, "markers": []})
    with pytest.raises(ServerError, match="is it an older tinychat"):
        _ = model.tool_template


def test_what_is_held_is_sent_in_openai_form(remote):
    choice = ToolChoice((weather().definition,), constrains=True)
    assert remote().call_constraint(choice) == RemoteCalls((weather().definition.as_dict(),))
