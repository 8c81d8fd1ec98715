"""What complete takes and writes beyond the plain prompt, which test_cli covers."""

import io
import json
import math
import os
import sys
from pathlib import Path

import pytest
from console import Console
from fake_model import ASSISTANT, BOS, USER, Continuation, Replies, fake_model
from screen import Screen

STORY = Continuation({"Once": " upon a time", "a\nb\nc\nd": " e"})
CODE = "Sure:\n```sh\nls\n```\nDone."


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(STORY, has_template=False), monkeypatch, capsys)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_file


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("first", "second"), [(b"a", b"b"), (b"a\n", b"b\n")])
def test_files_come_first_then_stdin_then_the_flag(console, write, first, second):
    files = ["--file", write("1", first), "--file", write("2", second)]
    assert console.run("complete", *files, "-p", "d", stdin=b"c") == (0, " e\n", "")


def test_a_file_alone_is_a_prompt(console, write):
    assert console.run("complete", "--file", write("1", b"Once\n")) == (0, " upon a time\n", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9", "is not a text in UTF-8"),
        (b"a\0b", "holds NUL bytes, so it is not text: convert it first"),
        (None, "cannot be read: No such file or directory; check the path"),
    ],
)
def test_a_file_that_is_no_text_is_named(console, write, tmp_path, content, message):
    path = tmp_path / "missing" if content is None else write("1", content)
    code, out, err = console.run("complete", "--file", path, "-p", "x")
    assert (code, out, err.count("\n"), console.loaded) == (1, "", 1, [])
    assert err.startswith(f"error: {path} {message}")


def test_jsonl_is_a_line_for_each_piece_and_one_for_the_end(console):
    code, out, err = console.run("complete", "-p", "Once", "--jsonl", "--seed", "5")
    *pieces, last = lines_of(out)
    assert (code, err) == (0, "")
    assert "".join(piece["text"] for piece in pieces) == " upon a time"
    assert [token_id for piece in pieces for token_id in piece["token_ids"]] == list(b" upon a time")
    assert all(set(piece) == {"sample", "text", "token_ids"} for piece in pieces)
    assert (last["sample"], last["model"]) == (0, "fake")
    summary = last["summary"]
    assert (summary["finish_reason"], summary["truncated"]) == ("stop", False)
    assert (summary["prompt_tokens"], summary["new_tokens"], summary["seed"]) == (5, 12, 5)


def test_jsonl_comes_while_the_reply_is_written(console):
    seen = []

    def look(_count):
        seen.append(console._capsys.readouterr().out)

    console.model = fake_model(STORY, has_template=False, before_step=look)
    console.run("complete", "-p", "Once", "--jsonl")
    assert [json.loads(text)["text"] for text in seen if text][:3] == [" ", "u", "p"]


def test_logprobs_go_with_the_tokens(console):
    code, out, _ = console.run("complete", "-p", "Once", "--json", "--logprobs", "2", "--max-tokens", "3")
    report = json.loads(out)
    assert code == 0
    assert [token["id"] for token in report["logprobs"]] == report["token_ids"] == list(b" up")
    for token in report["logprobs"]:
        assert token["text"] == chr(token["id"])
        assert token["logprob"] == pytest.approx(0.0, abs=1e-9)
        assert token["best"][0] == {name: token[name] for name in ("id", "text", "bytes", "logprob")}
        assert token["best"][1]["logprob"] == pytest.approx(-110.0)
        assert len(token["best"]) == 2
    _, out, _ = console.run("complete", "-p", "Once", "--jsonl", "--logprobs", "0", "--max-tokens", "2")
    *pieces, _last = lines_of(out)
    assert [[token["best"] for token in piece["logprobs"]] for piece in pieces] == [[[]], [[]]]


def test_logprobs_are_of_the_model_and_not_of_the_sampler(console):
    console.model = fake_model(lambda ids: None, has_template=False)
    flags = ["--temperature", "0.1", "--top-k", "3", "--repeat-penalty", "9", "--max-tokens", "4", "--logprobs", "1"]
    _, out, _ = console.run("complete", "-p", "x", "--json", *flags)
    logprobs = [token["logprob"] for token in json.loads(out)["logprobs"]]
    assert logprobs == pytest.approx([-math.log(console.model.sequence.vocab_size)] * 4)


def test_samples_grow_the_seed(console):
    console.model = fake_model(lambda ids: None, has_template=False)
    flags = ["--raw", "--max-tokens", "8", "--top-k", "0"]
    _, out, _ = console.run("complete", "-p", "Once", "-n", "3", "--json", "--seed", "5", *flags)
    samples = json.loads(out)
    assert [sample["seed"] for sample in samples] == [5, 6, 7]
    assert len({tuple(sample["token_ids"]) for sample in samples}) == 3
    _, out, _ = console.run("complete", "-p", "Once", "--json", "--seed", "6", *flags)
    assert json.loads(out)["token_ids"] == samples[1]["token_ids"]


def test_the_last_seed_is_followed_by_the_first(console):
    last = (1 << 64) - 1
    _, out, _ = console.run("complete", "-p", "Once", "-n", "2", "--json", "--seed", str(last))
    assert [sample["seed"] for sample in json.loads(out)] == [last, 0]


def test_samples_without_a_seed_have_one_each(console):
    _, out, _ = console.run("complete", "-p", "Once", "-n", "2", "--json")
    first, second = json.loads(out)
    assert first["seed"] != second["seed"]


def test_samples_of_text_have_a_line_between_them_on_stderr(console):
    assert console.run("complete", "-p", "Once", "-n", "2") == (0, " upon a time\n upon a time\n", "---\n")


def test_the_line_between_samples_stands_between_them_on_a_terminal(console, monkeypatch):
    both = io.StringIO()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, both)
    console.run("complete", "-p", "Once", "-n", "2")
    assert both.getvalue() == " upon a time\n---\n upon a time\n"


@pytest.mark.parametrize(
    ("flags", "context", "out", "err"),
    [
        (["--max-tokens", "5"], 256, " upon\n", "the reply is cut at the token limit: raise --max-tokens\n"),
        ([], 8, " upo\n", "the reply is cut, the context is full: raise --context\n"),
        (["--json"], 8, None, ""),
    ],
)
def test_a_text_that_was_cut_is_said_to_be(console, flags, context, out, err):
    console.model = fake_model(STORY, has_template=False, context_size=context)
    code, written, said = console.run("complete", "-p", "Once", *flags)
    assert (code, out or written, said) == (0, written, err)


@pytest.mark.parametrize(
    ("flags", "times"), [(["--chat"], 1), (["--system", "s", "--json"], 1), (["--chat", "-n", "2"], 1), ([], 0)]
)
def test_a_conversation_without_template_is_said_once(console, flags, times):
    _, _, err = console.run("complete", "-p", "Once", *flags)
    assert err.count("this model has no chat template: it continues a plain dialogue instead\n") == times


@pytest.fixture
def on_terminal(console, monkeypatch):
    """Return a function that runs a command that must succeed, and returns what a terminal of 80 columns gets."""
    monkeypatch.setenv("TERM", "xterm")

    def run(*arguments):
        stream = io.StringIO()
        stream.isatty = lambda: True
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            assert console.run("complete", "-p", "hi", *arguments)[0] == 0
        return stream.getvalue()

    return run


@pytest.mark.parametrize(("flags", "times"), [(["--plain"], 1), (["--plain", "-n", "2"], 2), (["--raw"], 1)])
def test_a_terminal_gets_what_is_no_markdown_as_it_is_but_for_escape_codes(console, on_terminal, flags, times):
    text = "# a *b*\x1b[2J"
    console.model = fake_model(Continuation({"hi": text}) if "--raw" in flags else Replies(text, text))
    assert on_terminal(*flags) == "# a *b*␛[2J\n" * times


def test_a_terminal_shows_a_reply_drawn_and_wrapped_as_the_chat_does(console, on_terminal):
    console.model = fake_model(Replies("# a *b*\x1b[2J\n\n" + "word " * 20, "- c"))
    drawn = on_terminal()
    screen = Screen()
    screen.write(drawn)
    assert screen.lines == ["a b␛[2J", "", " ".join(["word"] * 16), " ".join(["word"] * 4), ""]


def test_code_alone_and_a_configuration_that_says_so_are_not_drawn(console, on_terminal):
    console.model = fake_model(Replies("```\n*a* # b\n```", "*c*"))
    assert on_terminal("-x") == "*a* # b\n"
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text("plain = true")
    assert on_terminal() == "*c*\n"


def test_a_template_that_opens_a_think_section_has_it_drawn_as_one(console, on_terminal, monkeypatch):
    console.model = fake_model(Replies("so it is</think>*yes*"))
    monkeypatch.setattr(console.model.template, "opens_thinking", True)
    drawn = on_terminal()
    screen = Screen()
    screen.write(drawn)
    assert screen.lines == ["so it is", "", "yes", ""]
    assert "\x1b[2mso" in drawn


@pytest.mark.parametrize(
    "arguments", [["complete", "-p", ""], [""], [" \n "], ["-p", " "], ["-"], ["--raw", "-p", "\n"]]
)
def test_nothing_to_answer(console, arguments):
    code, out, err = console.run(*arguments, stdin=b" \n\n")
    assert (code, out, console.loaded, err.count("\n")) == (2, "", [], 1)
    assert err.startswith("error: the prompt is empty: give one with -p TEXT")


def test_samples_of_jsonl_are_numbered(console):
    _, out, _ = console.run("complete", "-p", "Once", "-n", "2", "--jsonl", "--max-tokens", "1")
    assert [line["sample"] for line in lines_of(out)] == [0, 0, 1, 1]


def test_code_is_the_first_block_and_ends_the_reply(console):
    console.model = fake_model(Replies(CODE))
    assert console.run("complete", "-p", "hi", "-x") == (0, "ls\n", "")
    assert b"Done" not in bytes(i for i in console.model.sequence.ids if i < 256)


def test_code_in_json_stands_beside_the_text(console):
    console.model = fake_model(Replies(CODE, "No code."))
    _, out, _ = console.run("complete", "-p", "hi", "--code", "--json", "-n", "2")
    assert [(report["text"], report["code"]) for report in json.loads(out)] == [(CODE, "ls\n"), ("No code.", None)]


@pytest.mark.parametrize(
    ("reply", "out", "message"),
    [
        ("No code.", "", "No code.\nerror: the reply holds no code block"),
        ("```\nls\n", "ls\n", "error: the reply ends inside its code block"),
    ],
)
def test_a_reply_without_code_is_an_error(console, reply, out, message):
    console.model = fake_model(Replies(reply))
    code, written, err = console.run("complete", "-p", "hi", "-x")
    assert (code, written, err.count("error: ")) == (1, out, 1)
    assert err.startswith(message)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "--jsonl"], "--json and --jsonl exclude each other"),
        (["--logprobs", "2"], "--logprobs needs JSON output"),
        (["--json", "--logprobs", "-1"], "--logprobs must be between 0 and 1000"),
        (["--jsonl", "-x"], "--code needs the whole reply"),
        (["-n", "0"], "Invalid value for '-n'"),
    ],
)
def test_flags_that_do_not_go_together_are_wrong_usage(console, arguments, message):
    code, out, err = console.run("complete", "-p", "x", *arguments)
    assert (code, out, err.count("\n"), console.loaded) == (2, "", 1, [])
    assert message in err


def test_the_template_gets_the_whole_text_as_one_message(console, write):
    console.model = fake_model(Replies("ok"))
    assert console.run("complete", "--file", write("1", b"a"), "-p", "b") == (0, "ok\n", "")
    assert console.model.sequence.ids[:6] == [BOS, USER, *b"a\nb", ASSISTANT][:6]


def test_a_schema_makes_the_reply_json(console, write):
    pytest.importorskip("llguidance")
    console.model = fake_model(lambda ids: None, has_template=False)
    schema = write("schema.json", b'{"enum": ["yes", "no"]}')
    code, out, err = console.run("complete", "-p", "x", "--schema", schema, "-n", "4", "--seed", "1", "--top-k", "0")
    assert (code, err) == (0, "---\n" * 3)
    assert set(out.splitlines()) <= {'"yes"', '"no"'}


def test_a_grammar_goes_with_json_and_logprobs_of_the_bare_model(console, write):
    pytest.importorskip("llguidance")
    grammar = write("g.lark", b'start: "no" | "yes"')
    _, out, _ = console.run("complete", "-p", "Once", "--grammar", grammar, "--json", "--logprobs", "1")
    report = json.loads(out)
    assert report["text"] in ("no", "yes")
    assert (report["finish_reason"], report["truncated"]) == ("stop", False)
    # The model wants to say " upon": what the grammar took away still counts.
    assert report["logprobs"][0]["logprob"] < -100
    assert report["logprobs"][0]["best"][0]["text"] == " "


def test_a_reply_cut_inside_its_schema_is_marked(console, write):
    pytest.importorskip("llguidance")
    schema = write("schema.json", b'{"const": "a long text"}')
    _, out, _ = console.run("complete", "-p", "x", "--schema", schema, "--json", "--max-tokens", "4")
    report = json.loads(out)
    assert (report["text"], report["finish_reason"], report["truncated"]) == ('"a l', "length", True)


@pytest.mark.parametrize(
    ("flag", "content", "message"),
    [
        ("--schema", b"{", "schema is no JSON: "),
        ("--schema", b'{"type": "nothing"}', "schema cannot be used: Invalid type: nothing"),
        ("--grammar", b"start: foo", "schema cannot be used: at 1(8): unknown name"),
        ("--grammar", b"\xff", "schema is not a text in UTF-8"),
    ],
)
def test_a_bad_schema_is_told_before_the_model_loads(console, write, flag, content, message):
    pytest.importorskip("llguidance")
    code, out, err = console.run("complete", "-p", "x", flag, write("schema", content))
    assert (code, out, err.count("\n"), console.loaded) == (1, "", 1, [])
    assert message in err


def test_a_schema_and_a_grammar_exclude_each_other(console):
    code, _, err = console.run("complete", "-p", "x", "--schema", "a", "--grammar", "b")
    assert code == 2
    assert "--schema and --grammar exclude each other" in err
