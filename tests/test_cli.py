import json
import subprocess
import sys

import pytest
from console import Console
from fake_model import Continuation, Replies, fake_model

from tinychat.settings import LoadSettings

STORY = Continuation({"Once": " upon a time", "Twice\nOnce": " more", "a\nb": " c"})


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(STORY, has_template=False), monkeypatch, capsys)


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_code_of_a_shell(console, shell):
    code, out, _ = console.run("completion", shell)
    assert code == 0
    assert f"_TINYCHAT_COMPLETE={shell}_complete" in out


def test_the_list_of_commands_has_whole_sentences(console):
    commands = " ".join(console.run("--help")[1].partition("Commands:")[2].split())
    assert "..." not in commands
    assert "size, context and recommended sampling." in commands


def test_a_group_without_a_command_is_an_error_of_one_line(console):
    assert console.run("mcp") == (2, "", "error: Missing command. (see 'tinychat mcp --help')\n")


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
