"""Errors, signals and their exit codes: one line on stderr, and nothing half-written."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from batches import STORY
from fake_model import fake_model, interrupt_at

from tinychat.errors import ModelFolderError

APP = Path(__file__).parents[1] / "fake_app.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["complete"], "the prompt is empty: give one with -p TEXT"),
        (["complete", "-p", "x", "--raw", "--system", "y"], "--system needs the chat template"),
        (["complete", "-p", "x", "--temperature", "-1"], "error: --temperature must be between"),
        (["complete", "-p", "x", "--max-tokens", "0"], "error: --max-tokens must be 1 or more"),
        (["complete", "-p", "x", "--stop", ""], "error: --stop must not be empty"),
        (["complete", "-p", "x", "--top-k", "many"], "error: --top-k must be a whole number, not 'many'"),
        (["chat", "--threads", "0"], "error: --threads must be between 1 and 1024, not 0"),
        (["chat", "--frobnicate"], "unknown flag"),
        (["modles"], "unknown command 'modles': did you mean `tinychat models`?"),
        (["convert", "only-one"], "Missing argument 'DST'"),
        (["convert", "a", "b", "--group-size", "48"], "Invalid value for '--group-size'"),
        (["rm"], "Missing argument 'NAME...'"),
    ],
)
def test_wrong_usage_is_one_line_and_2(console, arguments, message):
    code, out, err = console.run(*arguments)
    assert (code, out, console.loaded) == (2, "", [])
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["complete", "-p", "x" * 300], b"", "the prompt has 301 tokens but the context holds 256"),
        (["complete", "-p", "x" * 300], b"", "shorten it, or use a larger context (--context)"),
        (["chat"], b"y" * 300, "tokens but the context holds 256"),
        (["chat"], b"/sett x\n", "unknown command /sett: did you mean /set?"),
        (["chat"], b"/set top_k -1\n", "error: top_k must be 0 (all tokens) or more, not -1"),
        (["perplexity", "m", __file__, "--stride", "400"], b"", "error: --stride must be 1 to "),
        (["complete"], b"caf\xe9", "stdin is not valid UTF-8 at byte 3"),
        (["complete"], b"a\0b", "stdin holds NUL bytes, so it is not text"),
        (["chat"], b"a\0b\n", "the input holds NUL bytes, so it is not text"),
        (["complete", "-p", "caf\udce9"], b"", "--prompt is not valid UTF-8"),
        (["rm", "nothing"], b"", "the store holds no model 'nothing'"),
        (["pull", "nothing"], b"", "nothing is not a repo id"),
        (["convert", "no-such-folder", "x"], b"", "'no-such-folder' is not a folder"),
    ],
)
def test_an_error_is_one_line_and_1(console, arguments, stdin, message):
    console.model = fake_model(STORY, has_template=arguments == ["chat"])
    code, out, err = console.run(*arguments, stdin=stdin)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_an_error_in_mid_reply_keeps_the_text_before_it(console):
    def fail(count):
        if count == 3:
            raise ModelFolderError("the model's output is not a number")

    console.model = fake_model(STORY, has_template=False, before_step=fail)
    expected = (1, " up\n", "error: the model's output is not a number\n")
    assert console.run("complete", "-p", "Once") == expected


def test_a_missing_file_names_itself(console, monkeypatch):
    def load(name, options):
        Path("no-such-file").read_text()

    monkeypatch.setattr(console, "load", load)
    assert console.run("chat", "m") == (1, "", "error: No such file or directory: no-such-file; check the path\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "x"), "Permission denied: x; check the path and its permissions"),
        (OSError(28, "No space left on device"), "No space left on device; free some disk space"),
        (
            OSError(5, "Input/output error"),
            "Input/output error; check the source of the input and the target of the output",
        ),
    ],
)
def test_what_the_system_refuses_comes_with_advice(error, line, console, monkeypatch):
    def load(name, options):
        raise error

    monkeypatch.setattr(console, "load", load)
    assert console.run("chat", "m") == (1, "", f"error: {line}\n")


def test_an_error_cannot_send_escape_codes(console, monkeypatch):
    def load(name, options):
        raise ModelFolderError("config.json: unknown key '\x1b[2J'")

    monkeypatch.setattr(console, "load", load)
    assert console.run("chat", "m") == (1, "", "error: config.json: unknown key '␛[2J'\n")


def test_an_error_line_has_an_end(console, monkeypatch):
    def load(name, options):
        raise ModelFolderError("config.json: unknown key " + "x" * 5_000_000 + ": convert the model again")

    monkeypatch.setattr(console, "load", load)
    code, _, err = console.run("chat", "m")
    assert code == 1
    assert len(err) < 1100
    assert err.startswith("error: config.json: unknown key xx")
    assert err.endswith("xx: convert the model again\n")


def test_a_bug_is_one_line_too_unless_a_traceback_is_wanted(console, monkeypatch):
    def load(name, options):
        raise KeyError("x\ny")

    monkeypatch.setattr(console, "load", load)
    code, _, err = console.run("chat", "m")
    assert code == 1
    assert err.startswith("error: internal error, KeyError: ")
    assert err.count("\n") == 1
    monkeypatch.setenv("TINYCHAT_TRACEBACK", "1")
    code, _, err = console.run("chat", "m")
    assert code == 1
    assert "Traceback (most recent call last)" in err


def test_ctrl_c_is_130_and_keeps_the_text_before_it(console):
    console.model = fake_model(STORY, has_template=False, before_step=interrupt_at(3))
    assert console.run("complete", "-p", "Once") == (130, " up\n", "")


ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@pytest.fixture
def default_signals():
    """Take the signals that end a program as usual, also where the tests run under nohup."""
    previous = [signal.signal(number, signal.SIG_DFL) for number in ENDING]
    yield
    for number, handler in zip(ENDING, previous, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_ends_the_program_unwinds_it(number, console, default_signals):
    def end(count):
        if count == 3:
            signal.raise_signal(number)

    console.model = fake_model(STORY, has_template=False, before_step=end)
    assert console.run("complete", "-p", "Once") == (128 + number, " up\n", "")
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_comes_twice_is_taken_once(console, default_signals, monkeypatch):
    unwound = []

    def load(name, options):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            unwound.append(True)

    monkeypatch.setattr(console, "load", load)
    assert console.run("complete", "-p", "Once") == (143, "", "")
    assert unwound == [True]


def test_a_terminal_that_is_gone_does_not_hide_the_signal(console, default_signals, monkeypatch):
    def load(name, options):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(console, "load", load)
    assert console.run("complete", "-p", "Once") == (143, "", "")


@pytest.mark.parametrize("number", ENDING)
def test_an_ignored_signal_stays_ignored(number, console, default_signals):
    signal.signal(number, signal.SIG_IGN)

    def end(count):
        if count == 3:
            signal.raise_signal(number)

    console.model = fake_model(STORY, has_template=False, before_step=end)
    assert console.run("complete", "-p", "Once") == (0, " upon a time\n", "")
    assert signal.getsignal(number) is signal.SIG_IGN


def test_closing_stdout_early_is_no_error():
    # More text than a pipe holds, so that writing fails while the program runs.
    process = subprocess.Popen(
        [sys.executable, APP, "complete", "endless", "-p", "go"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.read(5) == b"flood"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) == 0


def test_a_cut_reply_fails_where_that_is_wanted(console):
    expected = (3, " upon\n", "the reply is cut at the token limit: raise --max-tokens\n")
    assert console.run("complete", "-p", "Once", "--max-tokens", "5", "--fail-on-cut") == expected
    assert console.run("complete", "-p", "Once", "--max-tokens", "5", "--fail-on-cut", "--json")[0] == 3
    assert console.run("complete", "-p", "Once", "--fail-on-cut") == (0, " upon a time\n", "")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("--temp 1", ": did you mean --temperature or --template? (see 'tinychat --help')"),
        ("complete --temprature 1 hi", ": did you mean --temperature? (see 'tinychat complete --help')"),
        ("chat --top 1", ": did you mean --top-k or --top-p or --top-n-sigma? (see 'tinychat chat --help')"),
        ("--verison", ": did you mean tinychat --version? (see 'tinychat --help')"),
        ("chat --verison", ": did you mean tinychat --version? (see 'tinychat chat --help')"),
        ("models --jsn", ": did you mean --json? (see 'tinychat models --help')"),
        ("doctor --json", " (see 'tinychat doctor --help')"),
        ("convert --quan int8 a b", ": did you mean --quant? (see 'tinychat convert --help')"),
        ("--zzzzzz", " (see 'tinychat --help')"),
    ],
)
def test_the_flag_that_was_meant_is_named(console, arguments, advice):
    flag = next(word for word in arguments.split() if word.startswith("-"))
    assert console.run(*arguments.split()) == (2, "", f"error: unknown flag '{flag}'{advice}\n")


def test_a_small_cache_lacks_its_unit(console):
    code, _, err = console.run("complete", "hi", "--cache-memory", "10")
    assert (code, err.partition(" (")[0]) == (
        2,
        "error: --cache-memory must have a unit: did you mean 10M? 10B would be bytes",
    )
