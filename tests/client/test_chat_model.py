"""Conversations that a server's model has: they are those of the model itself."""

import http.server
import io
import os
import sys
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))

from local_server import demo, serving

from tinychat.cli import main
from tinychat.client.api import Api
from tinychat.client.chat_model import RemoteChatModel
from tinychat.conversation.conversation import Chat
from tinychat.errors import ContextError, ServerError, SettingError
from tinychat.generate.request import Request, as_request

CONTEXT = 160
STORIES = ["Tell me a story.", "And then? <|im_end|>", "Why was she sad?", "What did the fox say?"]


@pytest.fixture(scope="module")
def local(kernel_cache):
    with demo(context=CONTEXT) as model:
        yield model


@pytest.fixture(scope="module")
def server(kernel_cache):
    model = demo(context=CONTEXT)
    with serving(model, as_request(**{"temperature": 0.0} | model.own_defaults)) as running:
        yield running


@pytest.fixture
def remote(server):
    return RemoteChatModel(Api(server.url))


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that chats by lines, and returns code, stdout and stderr."""

    def refuse(*_arguments):
        raise AssertionError("a model is loaded")

    def run(lines, *arguments, load=refuse):
        data = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code = main(["chat", *arguments], load=load)
        return code, *capsys.readouterr()

    return run


def test_it_tells_what_a_conversation_asks(remote, local):
    assert (remote.name, remote.context_size, remote.names) == ("demo", CONTEXT, ["demo"])
    assert remote.trained_length == local.trained_length
    assert remote.template.is_fallback == local.template.is_fallback
    for text in ("", "Hello <|im_end|>", "Grüße 🦊"):
        assert remote.encode(text) == local.encode(text)
        assert remote.decode(remote.encode(text, add_bos=False)) == text
    messages = [{"role": "user", "content": "Hello <|im_end|>"}]
    assert remote.render(messages) == local.render(messages)
    for thinking in (None, True, False):
        assert remote.chat_prompt(messages, "Be brief.", thinking) == local.chat_prompt(messages, "Be brief.", thinking)
        assert remote.opens_thinking(thinking) == local.opens_thinking(thinking)


@pytest.mark.parametrize("overflow", ["drop", "stop"])
def test_a_conversation_is_the_same(remote, local, overflow):
    settings = {"temperature": 0.9, "seed": 3, "max_tokens": 30, "overflow": overflow, "stop": ("fox",)}
    here, there = Chat(local, "You are kind.", **settings), Chat(remote, "You are kind.", **settings)
    notices = {}
    for chat in (here, there):
        notices[chat] = []
        chat.on_notice = notices[chat].append
    for text in STORIES * 2 if overflow == "drop" else STORIES[:2]:
        assert there.say(text) == here.say(text)
        assert there.summary.finish_reason == here.summary.finish_reason
        assert (there.summary.seed, there.summary.prompt_tokens, there.summary.new_tokens) == (
            here.summary.seed,
            here.summary.prompt_tokens,
            here.summary.new_tokens,
        )
        assert there.tokens_in_use() == here.tokens_in_use()
    assert notices[there] == notices[here]
    assert bool(notices[here]) == (overflow == "drop")
    for chat in (here, there):
        list(chat.regenerate())
        chat.request = Request(temperature=0.0, max_tokens=4)
        list(chat.regenerate())
        list(chat.go_on())
    assert there.messages == here.messages
    assert there.reply_ids == here.reply_ids


def test_a_full_context_goes_on_in_the_middle_of_a_reply(remote, local):
    chats = [Chat(model, temperature=0.0, overflow="drop", repeat_penalty=1.0) for model in (local, remote)]
    for chat in chats:
        chat.request = Request(temperature=0.0, max_tokens=300, loop_stop=False, ignore_eos=False)
        for text in STORIES[:3]:
            chat.say(text)
    assert [message.text for message in chats[1].messages] == [message.text for message in chats[0].messages]


def test_a_message_that_does_not_fit_is_refused(remote):
    chat = Chat(remote)
    with pytest.raises(ContextError, match="160"):
        chat.say("word " * 200)
    assert chat.messages == []


def test_what_belongs_to_the_server_is_refused(remote):
    changes = [lambda: remote.sequence, lambda: remote.resize(99), lambda: remote.next_logits([1])]
    for change in changes:
        with pytest.raises(SettingError, match="runs demo"):
            change()


def test_cancelling_ends_the_request(remote, server):
    chat, pressed = Chat(remote, temperature=1.3, loop_stop=False), threading.Event()
    deltas = chat.stream("Tell me a story.", cancelled=pressed.is_set)
    text = next(deltas).text
    pressed.set()
    text += "".join(delta.text for delta in deltas)
    assert (chat.messages[-1].content, chat.messages[-1].partial) == (text, True)
    assert chat.summary.finish_reason == "interrupted"
    deadline = time.monotonic() + 20
    while server.state.admission.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_server_is_left_as_well():
    with serving(demo(context=CONTEXT), parallel=0) as server:
        # Nobody is let in: the server sends nothing but comments.
        chat, began = Chat(RemoteChatModel(Api(server.url))), time.monotonic()
        deltas = chat.stream("Hello", cancelled=lambda: time.monotonic() > began + 0.3)
        assert list(deltas) == []
        assert time.monotonic() - began < 10
        assert chat.messages == []


def test_lines_of_a_chat(run, server, local):
    flags = ["--temperature", "0", "--max-tokens", "12", "--plain", "-m", "demo"]
    lines = ["Hello", "Why?", "/regen", "/show", "/tokens fox", "/context"]
    there = run(lines, "--server", server.url, *flags)
    here = run(lines, *flags, load=lambda *_: local)
    assert there[:2] == here[:2] == (0, here[1])
    only_here = set(here[2].splitlines()) - set(there[2].splitlines())
    assert {line.partition(" ")[0] for line in only_here} == {"kv", "threads", "share", "draft", "memory:"}


@pytest.mark.parametrize("line", ["/set kv int8", "/set context 99", "/set threads 1"])
def test_settings_of_the_server_are_not_changed(run, server, line):
    code, _, err = run(["Hello", line], "--server", server.url, "--max-tokens", "2")
    assert (code, err.count("runs demo: its context, cache and threads are set there")) == (1, 1)


def test_flags_and_servers_that_do_not_fit(run, server):
    for flag, value in (("--context", "1000"), ("--threads", "2")):
        code, _, err = run([], "--server", server.url, flag, value)
        assert (code, "cannot be used with --server" in err) == (2, True)
    code, _, err = run([], "--server", "http://127.0.0.1:1")
    assert (code, "does not answer" in err) == (1, True)


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize(
    "props",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"build_info": "b1-0c1e570", "default_generation_settings": {"params": {"n_ctx": 9}}, "model_alias": "m"}',
        b'{"build_info": "tinychat 1", "default_generation_settings": {"params": {"n_ctx": "x"}}, "model_alias": "m"}',
    ],
)
def test_servers_of_others_are_refused(props, status):
    with other_server(props, status, b"others") as url, pytest.raises(ServerError, match="no server of tinychat"):
        RemoteChatModel(Api(url))


def test_what_ours_refuses_is_in_its_own_words():
    problem = b'{"error": {"message": "there is no model m, only n"}}'
    with other_server(problem, 404, b"tinychat") as url, pytest.raises(ServerError, match="no model m, only n"):
        RemoteChatModel(Api(url), "m")


@contextmanager
def other_server(props, status, owner):
    """Answer requests for properties so, and list a model of an owner; yields the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            lists = self.path == "/v1/models"
            self.send_response(200 if lists else status)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m", "owned_by": "%b"}]}' % owner if lists else props)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{other.server_port}"
        other.shutdown()
