"""One-shots that a server's model writes."""

import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))

from fake_model import Replies, fake_model
from local_server import demo, serving

from tinychat.cli import main
from tinychat.client.api import Api
from tinychat.client.remote_model import RemoteModel
from tinychat.client.running_servers import announced, server_of
from tinychat.errors import ServerError

ANSWER = "Hello there! What can I do for you?"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(kernel_cache):
    with serving(demo()) as running:
        yield running


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs a command line without a terminal, and returns code, stdout and stderr."""

    def refuse(*_arguments):
        raise AssertionError("a model is loaded")

    def run(*arguments):
        # Not the terminal, or pipe, of the tests.
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        code = main(["complete", *arguments], load=refuse)
        return code, *capsys.readouterr()

    return run


def test_a_reply_of_the_server(run, server):
    for url in (server.url, f"http://localhost:{server.port}", f"http://127.0.0.1:{server.port}/"):
        assert run("--server", url, "-p", "Hello", "--temperature", "0") == (0, f"{ANSWER}\n", "")


def test_it_is_that_of_the_model_itself(run, server, capsys, monkeypatch):
    flags = [
        "-p",
        "Tell me a story.",
        "--seed",
        "7",
        "--temperature",
        "0.8",
        "--max-tokens",
        "30",
        "--repeat-penalty",
        "1",
    ]
    remote = run("--server", server.url, *flags)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert main(["complete", "-m", "demo", *flags]) == 0
    assert remote == (0, *capsys.readouterr())


def test_raw_text_system_prompts_and_stop(run, server):
    _, raw, _ = run("--server", server.url, "-p", "The sky is", "--raw", "--temperature", "0", "--max-tokens", "5")
    fields = {"prompt": "The sky is", "temperature": 0, "max_tokens": 5}
    assert raw.rstrip("\n") == server.post("/v1/completions", fields)[1]["choices"][0]["text"]
    flags = ["--system", "You are brief.", "--temperature", "0", "--stop", "you"]
    _, text, _ = run("--server", server.url, "-p", "Hello", *flags)
    messages = [{"role": "system", "content": "You are brief."}, *HELLO]
    fields = {"messages": messages, "temperature": 0, "stop": ["you"]}
    answer = server.post("/v1/chat/completions", fields)[1]["choices"][0]["message"]["content"]
    assert text.rstrip("\n") == answer


def test_json_samples_and_schema(run, server, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}', encoding="utf-8")
    code, out, _ = run(
        "--server", server.url, "-p", "Hello", "--json", "-n", "2", "--schema", str(schema), "--seed", "1"
    )
    first, second = json.loads(out)
    assert code == 0
    assert first["text"] in ('"yes"', '"no"')
    assert (first["model"], first["finish_reason"], first["truncated"]) == ("demo", "stop", False)
    assert first["prompt_tokens"] == second["prompt_tokens"] > 0 < second["new_tokens"]
    _, out, _ = run("--server", server.url, "-p", "Hello", "--jsonl", "--max-tokens", "3", "--temperature", "0")
    *deltas, last = map(json.loads, out.splitlines())
    assert "".join(delta["text"] for delta in deltas) == "Hello there!"
    assert (last["summary"]["finish_reason"], last["summary"]["new_tokens"]) == ("length", 3)
    assert run("--server", server.url, "-p", "Hello", "--max-tokens", "3", "--fail-on-cut")[0] == 3


def test_the_conversation_goes_on(run, server):
    flags = ["--server", server.url, "--temperature", "0", "--max-tokens", "20", "--log", "on"]
    assert run(*flags, "-p", "Hello")[0] == 0
    code, text, _ = run(*flags, "-c", "-p", "Why?")
    messages = [*HELLO, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Why?"}]
    expected = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 20})[1]
    assert (code, text.rstrip("\n")) == (0, expected["choices"][0]["message"]["content"])


def test_thoughts_stand_in_a_section():
    with serving(fake_model(Replies("<think>\nHm.\n</think>\n\nYes."))) as server:
        stream = RemoteModel(Api(server.url)).reply(HELLO, {})
        assert stream.to_end().text == "<think>\nHm.\n\n</think>\n\nYes."
    assert stream.reply.summary.finish_reason == "stop"


@pytest.mark.parametrize(
    "flags",
    [["--context", "100"], ["--threads", "1"], ["--logprobs", "1", "--json"], ["--think", "50"], ["--draft", "off"]],
)
def test_flags_for_a_model_of_this_process_are_refused(run, server, flags):
    code, out, err = run("--server", server.url, "-p", "Hello", *flags)
    assert (code, out) == (2, "")
    assert "--server" in err


def test_keys(run, monkeypatch):
    with serving(demo(), keys=("right",)) as server:
        flags = ["--server", server.url, "-p", "Hello", "--max-tokens", "1", "--temperature", "0"]
        code, out, err = run(*flags)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "API key" in err
        assert run(*flags, "--api-key", "right")[:2] == (0, "Hello\n")
        monkeypatch.setenv("TINYCHAT_API_KEY", "right")
        assert run(*flags)[:2] == (0, "Hello\n")
        monkeypatch.setenv("TINYCHAT_API_KEY", "wröng\n")
        assert run(*flags)[0] == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "does not answer"),
        ("nonsense", "no address"),
        ("ftp://127.0.0.1", "no address"),
        ("http://", "no address"),
        ("http://127.0.0.1:99999999", "no address"),
        ("http://[::1", "no address"),
        ("http://example.com/v1", "not encrypted"),
    ],
)
def test_addresses_that_lead_nowhere(run, url, words):
    code, out, err = run("--server", url, "-p", "Hello")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err


MODELS = b'{"data": [{"id": "m"}]}'
CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.fixture
def hostile():
    """Return a function that serves these bytes for models and for replies, and returns the address."""
    running = []

    def begin(models, reply, status=200):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, models)

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(status, reply)

            def answer(self, code, data):
                self.send_response(code)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        running.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_port}"

    yield begin
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("flags", [(), ("--verbose",)])
def test_a_server_of_others_that_counts_nothing(run, hostile, flags):
    url = hostile(MODELS, b": ping\n\nevent: x\n" + CHUNK + END)
    assert run("--server", url, "-p", "Hello", *flags) == (0, "Hi\n", "")


@pytest.mark.parametrize(
    ("models", "reply", "status"),
    [
        (b"<html>", b"", 200),
        (b"[]", b"", 200),
        (b'{"data": []}', b"", 200),
        (b'{"data": [5]}', b"", 200),
        (MODELS, b"", 200),
        (MODELS, b"data: nonsense\n\n", 200),
        (MODELS, b"data: [1]\n\n", 200),
        (MODELS, b'data: {"choices": 5}\n\n', 200),
        (MODELS, b'data: {"choices": [5]}\n\n', 200),
        (MODELS, b'data: {"choices": [], "usage": {"prompt_tokens": "x"}}\n\n', 200),
        (MODELS, b'data: {"error": "bad\\n\\u001b[31mthings"}\n\n', 200),
        (MODELS, CHUNK, 200),
        (MODELS, CHUNK + b"data: [DONE]\n\n", 200),
        (MODELS, b"data: " + b"[" * 100_000 + b"\n\n", 200),
        (MODELS, b"\xff\xfe", 500),
        (MODELS, b'{"error": {"message": "no\\nway"}}', 400),
        (MODELS, b'{"error": []}', 400),
    ],
)
def test_nonsense_is_one_line(run, hostile, models, reply, status):
    code, _, err = run("--server", hostile(models, reply, status), "-p", "Hello")
    assert code == 1
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_reader_that_stops_ends_the_request(server):
    stream = RemoteModel(Api(server.url)).reply(HELLO, {"max_tokens": 500, "unheard_of": True})
    with pytest.raises(ServerError, match="unheard_of"):
        next(stream)
    stream = RemoteModel(Api(server.url)).reply([{"role": "user", "content": "Tell a story."}], {"temperature": 1.3})
    next(stream)
    stream.close()
    deadline = time.monotonic() + 20
    while server.state.admission.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_and_no_compiler(server):
    """In a process of its own: Numba is not imported, and the first Ctrl-C ends the request and the program."""
    program = (
        "import sys; from tinychat.cli import main; code = main(); "
        "print(sorted({'numba', 'llvmlite', 'tokenizers'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-P", "-c", program, "complete", "--server", server.url, "--plain", "-p"]
    done = subprocess.run([*command, "Hello"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    long = [*command, "Tell a story.", "--loop-stop", "off", "--temperature", "2", "--jsonl"]
    with subprocess.Popen(
        long, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode in (0, 130)
    assert "Traceback" not in err


def test_a_running_server_is_found(server):
    assert server_of("demo") is None
    with announced(f"http://127.0.0.1:{server.port}", ["demo", "other"]):
        assert server_of("demo") == server_of("other") == f"http://127.0.0.1:{server.port}"
        assert server_of("third") is None
    assert server_of("demo") is None
    with announced("http://127.0.0.1:1", ["demo"]):
        assert server_of("demo") is None


def test_damaged_files_of_servers_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    folder = tmp_path / "servers"
    folder.mkdir(mode=0o700)
    for number, text in enumerate(
        ["", "[]", "{}", '{"url": 5, "models": ["demo"]}', '{"url": "x", "models": ["demo"]}']
    ):
        (folder / f"{number}.json").write_text(text, encoding="utf-8")
    assert server_of("demo") is None
