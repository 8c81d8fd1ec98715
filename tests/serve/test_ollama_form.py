"""Ollama's API without its client: what bodies become, how long models stay, and models that are pulled."""

import json
import threading
import time
from dataclasses import replace
from math import inf

import pytest
from fake_model import EOS, ByteTokenizer, Continuation, fake_model
from local_server import in_process, listening, new_server

from tinychat.conversation.messages import as_messages
from tinychat.errors import FieldError, HubError
from tinychat.generate.request import Request
from tinychat.serve.model_pool import ModelPool, ServedModel, plain_name
from tinychat.serve.ollama_body import read_generate, read_ollama_chat, take_keep_alive
from tinychat.serve.ollama_messages import read_ollama_messages
from tinychat.serve.server import ServerOptions

HELLO = [{"role": "user", "content": "Hello"}]
MODEL = fake_model(lambda _ids: 97, context_size=400)
SERVED = ServedModel("fake", MODEL, Request(temperature=0.0, max_tokens=9))


def call(name, number=None):
    return {"function": {"name": name, "arguments": {}}} | ({} if number is None else {"id": number})


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0),
        (90, 90),
        (1.5, 1.5),
        (-1, inf),
        (1e300, inf),
        ("0", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("100ms", 0.1),
        ("-1s", inf),
    ],
)
def test_keep_alive(given, seconds):
    assert take_keep_alive({} if given is None else {"keep_alive": given}) == seconds


@pytest.mark.parametrize("given", ["", "5", "soon", "5 m", "m", "1.s.", True, [], {}, "9" * 50 + "s"])
def test_what_is_no_duration(given):
    with pytest.raises(FieldError, match="keep_alive"):
        take_keep_alive({"keep_alive": given})


def request_of(**options):
    return read_ollama_chat({"messages": HELLO, "options": options}, SERVED).chat.requests[0]


def test_options_are_settings():
    found = request_of(temperature=0.5, top_k=-1, seed=7, repeat_last_n=-1, num_predict=3, stop=["a"], num_gpu=99)
    assert (found.temperature, found.top_k, found.seed, found.repeat_last_n) == (0.5, 0, 7, 400)
    assert (found.max_tokens, found.stop) == (3, ("a",))
    assert request_of(seed=-1).seed is None
    assert request_of(dry_multiplier=0.5).dry_multiplier == 0.5
    assert [request_of(num_predict=count).max_tokens for count in (-2, -1, 0)] == [None] * 3
    assert request_of().max_tokens == 9


@pytest.mark.parametrize("name", ["n", "tools", "messages", "stream", "response_format", "mirostat_seed"])
def test_options_are_no_way_to_other_fields(name):
    with pytest.raises(FieldError) as error:
        request_of(**{name: 1})
    assert error.value.field == f"options.{name}"


def test_the_stream_is_the_default():
    for read, fields in ((read_ollama_chat, {"messages": HELLO}), (read_generate, {"prompt": "a"})):
        assert read(fields, SERVED).is_streamed
        assert not read({**fields, "stream": False}, SERVED).is_streamed


def test_results_find_their_calls():
    messages = [
        {"role": "assistant", "tool_calls": [call("a"), call("b"), call("b"), call("c", "mine")]},
        {"role": "tool", "content": "1", "tool_name": "b"},
        {"role": "tool", "content": "2", "tool_call_id": "mine", "name": "c"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4", "tool_name": "b"},
    ]
    asked, *results = read_ollama_messages(messages)
    ids = [one["id"] for one in asked["tool_calls"]]
    assert len({*ids}) == 4 and ids[3] == "mine"
    assert [one["tool_call_id"] for one in results] == [ids[1], "mine", ids[0], ids[2]]


def test_cut_histories_are_made_whole():
    """Clients cut theirs anywhere, and users leave before a result is there."""
    lost, said = {"role": "tool", "content": "1"}, {"role": "user", "content": "2"}
    cut = [
        lost,
        said,
        {"role": "assistant", "tool_calls": [call("a"), call("b")]},
        lost | {"tool_name": "b"},
        said,
        lost,
    ]
    first, asked, *results, last = read_ollama_messages(cut)
    ids = [one["id"] for one in asked["tool_calls"]]
    assert (first, last) == (said, said)
    assert [(one["tool_call_id"], one["content"]) for one in results] == [(ids[1], "1"), (ids[0], "")]
    assert len(as_messages(read_ollama_messages(cut))) == 5


def test_numbers_of_other_servers_do_not_lose_results():
    """Clients number calls that came without one, and say more between a call and its result."""
    foreign, note = {"role": "tool", "content": "1", "tool_call_id": "x"}, {"role": "system", "content": "Short."}
    asked, note, result = read_ollama_messages([{"role": "assistant", "tool_calls": [call("a")]}, note, foreign])
    assert (result["tool_call_id"], result["content"]) == (asked["tool_calls"][0]["id"], "1")


def test_thoughts_and_indices_are_translated():
    given = {"role": "assistant", "content": "Yes.", "thinking": "Hm.", "images": [], "tool_calls": None}
    assert read_ollama_messages([given]) == [{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]
    numbered = {"function": {"index": 0, "name": "a", "arguments": {"b": 1}}}
    (found,) = read_ollama_messages([{"role": "assistant", "tool_calls": [numbered], "thinking": ""}])
    assert found["tool_calls"][0]["function"] == {"name": "a", "arguments": {"b": 1}}
    assert found["content"] == "" and "reasoning_content" not in found


def test_a_text_of_a_chat_spells_no_control_token_but_a_raw_one_does():
    model = fake_model(lambda _ids: 97)
    raw = read_generate({"prompt": "<user>a", "raw": True}, ServedModel("fake", model, Request()))
    assert raw.chat.prompt.ids == [*model.encode(""), *model.tokenizer.encode_rendered("<user>a")]
    assert raw.is_raw and not raw.returns_context


class HoleTokenizer(ByteTokenizer):
    """Has the tokens around a hole that models for code have."""

    def token_id(self, text):
        return {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}.get(text)


def test_a_suffix_is_reached_from_the_prompt(serve):
    server, client = serve("code")
    model = fake_model(Continuation({"\1a\2b\3": "mid"}))
    model.tokenizer = HoleTokenizer()
    server.load = lambda _name: (model, Request(temperature=0.0))
    answer = ask(client, "/api/generate", prompt="a", suffix="b", think=True)
    assert (answer["response"], answer["done_reason"], "context" in answer) == ("mid", "stop", False)
    assert ask(client, "/api/show", model="code")["capabilities"] == ["completion", "tools", "insert"]


@pytest.mark.parametrize("name", ["demo", "demo:latest", "library/demo", "registry.ollama.ai/library/demo:latest"])
def test_names(name):
    assert plain_name(name) == "demo"


@pytest.fixture
def serve():
    """Return a function that serves models by their names; each load makes a new one."""
    clients = []

    def begin(*names, most=4, idle=None, **options):
        server = new_server(**options)
        server.loads = []

        def load(name):
            server.loads.append(name)
            model = fake_model(Continuation({"Hello": " there"}) if name == "raw" else lambda _ids: EOS, name=name)
            return model, Request(temperature=0.0)

        server.load = load
        server.pool = ModelPool({name: lambda name=name: server.load(name) for name in names}, most, idle)
        client = in_process(server)
        client.__enter__()
        clients.append(client)
        return server, client

    yield begin
    for client in clients:
        client.__exit__(None, None, None)


def ask(client, path="/api/chat", status=200, **fields):
    answer = client.post(path, json={"stream": False, **({"messages": HELLO} if path == "/api/chat" else {}), **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


def in_memory(client):
    return [one["name"] for one in client.get("/api/ps").json()["models"]]


def test_zero_unloads_behind_the_reply(serve):
    server, client = serve("one", "two")
    assert ask(client, model="one", keep_alive=0)["done_reason"] == "stop"
    assert in_memory(client) == []
    ask(client, model="two:latest")
    assert in_memory(client) == ["two"]
    assert ask(client, model="library/two", messages=[], keep_alive="0s")["done_reason"] == "unload"
    assert in_memory(client) == []
    assert ask(client, "/api/generate", model="two")["done_reason"] == "load"
    assert (in_memory(client), server.loads) == (["two"], ["one", "two", "two"])
    assert "'three'" in ask(client, model="three", status=404)["error"]


def test_a_stream_is_written_before_the_model_goes(serve):
    _, client = serve("raw")
    lines = client.post("/api/generate", json={"prompt": "Hello", "raw": True, "keep_alive": 0}).text.splitlines()
    assert "".join(json.loads(line)["response"] for line in lines) == " there"
    assert json.loads(lines[-1])["done_reason"] == "stop"
    assert in_memory(client) == []


def test_a_model_stays_as_long_as_it_was_asked_to(serve):
    server, client = serve("one", idle=1000.0)

    def expiry():
        return client.get("/api/ps").json()["models"][0]["expires_at"]

    ask(client)
    (served,) = server.pool.loaded
    assert served.idle_seconds == 1000.0
    ask(client, keep_alive="10m")
    assert served.idle_seconds == 600 and expiry() < "9999"
    ask(client)
    assert served.idle_seconds == 600
    ask(client, keep_alive=-1)
    assert served.idle_seconds == inf and expiry().startswith("9999-12-31T")
    ask(client, keep_alive=0.001)
    end = time.monotonic() + 30
    while server.pool.loaded:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_nobody_pulls_unless_that_is_allowed(serve):
    _, client = serve("one")
    assert "--allow-pull" in ask(client, "/api/pull", model="qwen3-0.6b", status=403)["error"]


def pulled(server, client, pull, **fields):
    """Return the lines of a pull."""
    server.options = replace(server.options, pull=pull)
    answer = client.post("/api/pull", json={"model": "qwen3-0.6b:latest", **fields})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_pulled_model_is_served(serve, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    server, client = serve("one")

    def pull(name, progress):
        for done in range(4):
            progress(done, 3)
        return (lambda: server.load(name)), tmp_path

    lines = pulled(server, client, pull)
    assert lines[0] == {"status": "pulling manifest"} and lines[-1] == {"status": "success"}
    assert lines[1:-1] == [{"status": "pulling qwen3-0.6b", "completed": done, "total": 3} for done in range(4)]
    assert [one["size"] for one in client.get("/api/tags").json()["models"]] == [0, 3]
    assert ask(client, model="qwen3-0.6b")["model"] == "qwen3-0.6b"
    assert [one["name"] for one in client.get("/api/tags").json()["models"]] == ["one", "qwen3-0.6b"]
    assert pulled(server, client, pull, stream=False) == [{"status": "success"}]
    # What is served goes on being that.
    assert [one.name for one in server.pool.loaded] == ["qwen3-0.6b"]


def test_pulls_that_fail(serve):
    server, client = serve("one")

    def pull(_name, _progress):
        raise HubError("the hub is gone")

    assert pulled(server, client, pull)[1:] == [{"error": "the hub is gone"}]
    assert ask(client, "/api/pull", model="qwen3-0.6b", status=500)["error"] == "the hub is gone"
    for name in ("qwen3-0.6b/../x", "owner/model", "../qwen3-0.6b", "", 5, None):
        assert "in the catalog" in ask(client, "/api/pull", model=name, status=404)["error"]
    assert server.pool.names == ["one"] and not server.is_pulling


def test_a_pull_whose_client_leaves_is_stopped():
    reached, ended = threading.Event(), threading.Event()

    def pull(_name, progress):
        try:
            while True:
                progress(0, 1)
                reached.set()
                time.sleep(0.001)
        finally:
            ended.set()

    with listening(new_server(fake_model(lambda _ids: EOS), options=ServerOptions(pull=pull))) as server:
        for stream in (True, False):
            connection = server.open("POST", "/api/pull", json.dumps({"model": "qwen3-0.6b", "stream": stream}))
            assert reached.wait(30)
            assert server.post("/api/pull", {"model": "smollm2-360m"})[0] == 503
            connection.close()
            assert ended.wait(30)
            reached.clear(), ended.clear()
            end = time.monotonic() + 30
            while server.state.is_pulling:
                assert time.monotonic() < end
                time.sleep(0.001)
        assert server.state.pool.names == ["fake"]
