"""tinychat serve as a process: its flags, its first and its last moments."""

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fake_model import fake_model
from local_server import events_of

from tinychat.errors import SettingError
from tinychat.serve import running
from tinychat.serve.server import ServerOptions

APP = Path(__file__).parents[1] / "fake_app.py"
SECONDS = 60
SERVING = r"serving at http://127\.0\.0\.1:(\d+)/v1, and a page at http://127\.0\.0\.1:\1/\n"


@contextmanager
def started(model, *flags):
    """Start the program with a model of prepared replies; yield the process, once it serves, and its port."""
    command = [sys.executable, str(APP), "serve", model, "--port", "0", "--cache-disk", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        yield process, int(re.fullmatch(SERVING, line)[1])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@contextmanager
def streamed(port, **fields):
    """Ask for a stream, and yield the answer after its first line."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    with closing(connection), connection.getresponse() as answer:
        answer.readline()
        yield answer


def reply(port, body):
    """Return the text of the answer to a request."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        return json.load(connection.getresponse())["choices"][0]["message"]["content"]


def test_a_signal_lets_replies_end():
    with started("wordy") as (process, port), streamed(port, max_tokens=100) as answer:
        process.send_signal(signal.SIGTERM)
        *_, last, done = events_of(answer.read().decode())
        assert last["choices"][0]["finish_reason"] == "length" and done == "[DONE]"
        assert process.wait(SECONDS) == 0
        assert "Traceback" not in process.stderr.read()


def test_replies_that_take_longer_than_shutdown_end_with_an_error():
    with started("endless", "--shutdown", "0.2", "--loop-stop", "off") as (process, port), streamed(port) as answer:
        process.send_signal(signal.SIGTERM)
        *_, last, done = events_of(answer.read().decode())
        assert last["error"]["code"] == "ending" and done == "[DONE]"
        assert process.wait(SECONDS) == 0
        assert "Traceback" not in process.stderr.read()


def test_a_second_signal_ends_at_once():
    with started("endless", "--loop-stop", "off") as (process, port), streamed(port):
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        assert process.stderr.read() == "replies may end within 30 s; Ctrl-C again ends them now\n"


def test_a_signal_without_replies_ends_at_once():
    with started("usual") as (process, port):
        assert reply(port, {"messages": [{"role": "user", "content": "Hi"}]})
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == ""


def test_an_address_of_another_machine_is_said_with_a_remedy():
    with pytest.raises(SettingError, match=r"^port 80 of 192\.0\.2\.1 cannot .* \([^()]*\): give others with --host"):
        running._listening("192.0.2.1", 80)


def test_open_opens_the_page_once_it_is_served(tmp_path, monkeypatch):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import sys, urllib.request\n"
        "asked = urllib.request.Request(sys.argv[1], headers={'Accept': 'text/html,*/*'})\n"
        "title = urllib.request.urlopen(asked).read().decode().split('<title>')[1].split('<')[0]\n"
        f"open({str(opened)!r}, 'w').write(sys.argv[1] + ' ' + title)\n"
    )
    monkeypatch.setenv("BROWSER", f"{sys.executable} {browser} %s")
    with started("usual", "--open") as (_process, port):
        assert wait_for(opened) == f"http://127.0.0.1:{port}/ tinychat"


def wait_for(path):
    """Return the text of a file, once it is written."""
    for _ in range(SECONDS * 20):
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{path} is not there")


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("http://127.0.0.1:80", "http://127.0.0.1:80/"),
        ("http://0.0.0.0:8080", "http://127.0.0.1:8080/"),
        ("http://[::]:8080", "http://[::1]:8080/"),
    ],
)
def test_without_a_browser_the_address_is_said(url, page, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda _page: False)
    said = []
    running._open_page(url, said.append)
    assert said == [f"no browser can be opened: open {page}"]


@pytest.fixture
def options(monkeypatch, console):
    """Return a function that runs the command, and returns the options of the server and of its model."""
    found = []
    monkeypatch.setattr(running, "run_server", lambda loads, options, say: found.append((loads, options)))

    def parse(*flags):
        code, _, error = console.run("serve", "demo", *flags)
        if code:
            return code, error
        ((loads, options),) = found
        ((_, defaults),) = [load() for load in loads.values()]
        return options, console.loaded[0][1], defaults

    return parse


@pytest.fixture
def console(monkeypatch, capsys):
    from console import Console

    return Console(fake_model(lambda _ids: 97), monkeypatch, capsys)


def test_flags_of_llama_server_are_ours(options, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nfirst\n\n second \n")
    server, loading, defaults = options(
        *("-c", "4096", "-np", "3", "-n", "100", "-a", "gpt", "-t", "2", "--host", "0.0.0.0", "--port", "1234"),
        *("--api-key-file", keys, "--api-key", "third", "--slot-save-path", tmp_path, "--no-slots", "--metrics"),
    )
    assert (loading.context, loading.threads, defaults.max_tokens) == (4096, 2, 100)
    assert (server.parallel, server.alias, server.host, server.port) == (3, "gpt", "0.0.0.0", 1234)
    assert sorted(server.keys) == ["first", "second", "third"]
    assert (server.slot_folder, server.shows_slots, server.shows_metrics) == (tmp_path, False, True)


def test_long_spellings(options):
    server, loading, defaults = options("--ctx-size", "512", "--n-predict", "7", "--threads", "1", "--no-metrics")
    assert (loading.context, loading.threads, defaults.max_tokens) == (512, 1, 7)
    assert server == ServerOptions(shows_metrics=False, cache_disk=server.cache_disk)


def test_models_are_pulled_where_a_flag_allows_it(options):
    assert ServerOptions().pull is None and options("--allow-pull")[0].pull is not None


@pytest.mark.parametrize("flag", ["--grammar-file", "--grammar"])
def test_a_grammar_holds_for_requests_without_one(tmp_path, flag):
    (tmp_path / "abc.gbnf").write_text('root ::= "ab" "c"\n')
    with started("chatty", flag, str(tmp_path / "abc.gbnf")) as (_, port):
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        own = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 7}}}}
        assert [reply(port, body), reply(port, body | own)] == ["abc", "7"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com"])
def test_other_machines_need_a_key(options, host):
    code, error = options("--host", host)
    assert code == 2 and "--api-key-file" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slot-save-path", "/no/such/folder"], "--slot-save-path"),
        (["--api-key-file", "/no/such/file"], "/no/such/file"),
        (["--api-key", "schlüssel"], "an API key has characters"),
        (["--api-key", ""], "an API key is empty"),
        (["--host", "0.0.0.0", "--api-key", ""], "an API key is empty"),
        (["--cors", "localhost:3000"], "--cors takes origins"),
        (["--cors", "http://localhost:3000/"], "--cors takes origins"),
        (["--context", "0"], "--context must be"),
        (["-c", "0"], "--context must be"),
        (["--idle", "soon"], "--idle must be a time"),
        (["--models", "/tmp"], "give one of them"),
    ],
)
def test_wrong_flags_are_named(options, flags, message):
    code, error = options(*flags)
    assert code != 0 and message in error


def test_a_file_without_keys_is_refused(options, tmp_path):
    (tmp_path / "keys").write_text("# none yet\n")
    code, error = options("--api-key-file", tmp_path / "keys")
    assert code != 0 and "has no key" in error


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_one_line_says_what_to_install(package, options, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("tinychat.serve.", f"{package}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, error = options()
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith(f"error: a server needs {package}: ")
    assert error.endswith(" install llguidance starlette uvicorn\n")


def test_a_port_that_is_taken_is_named():
    with started("chatty") as (_, port):
        command = [sys.executable, str(APP), "serve", "chatty", "--port", str(port)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        remedy = "give another one with --port, or 0 for any"
        assert (second.returncode, second.stderr) == (1, f"error: port {port} of 127.0.0.1 is in use: {remedy}\n")


def test_a_model_that_cannot_be_loaded_is_an_error_of_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-m", "tinychat", "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'config.json'}: architectures is missing"), done.stderr
