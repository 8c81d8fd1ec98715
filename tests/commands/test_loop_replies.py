"""Replies that go round in a loop, as the commands tell of them: lines, exit codes, fields, settings."""

import io
import json
import os
from pathlib import Path

import pytest
from batches import results_of
from fake_model import EOS, Replies, fake_model

from tinychat.chat.repl import Repl
from tinychat.conversation.conversation import Chat
from tinychat.generate.generation_config import Advice
from tinychat.generate.precedence import LOOP_DEFAULTS, Preferences
from tinychat.terminal.rendering import Renderer

LOOP = "The sea is calm and the boat is slow. " * 40
CUT = "the reply is cut, it repeats itself: "


@pytest.fixture
def looping(console):
    """A console whose model continues any prompt that ends in a question mark with a loop."""
    letters = [*LOOP.encode(), EOS]

    def next_id(ids):
        # Several at once: logits of the middle of a prompt are nobody's.
        return letters[len(ids) - ids.index(ord("?")) - 1] if ord("?") in ids else EOS

    console.model = fake_model(next_id, context_size=4096, has_template=False)
    return console


# The fake's tokens are letters, which the penalty would change.
ASKED = ("complete", "-p", "well?", "--temperature", "0", "--repeat-penalty", "1")


def test_a_line_tells_that_a_reply_was_ended(looping):
    code, out, err = looping.run(*ASKED)
    assert (code, err) == (0, f"{CUT}--loop-stop off allows that\n")
    assert out.endswith("\n") and LOOP.startswith(out[:-1]) and len(out) < 300


def test_it_is_cut_for_programs(looping):
    assert looping.run(*ASKED, "--fail-on-cut")[0] == 3
    report = json.loads(looping.run(*ASKED, "--json")[1])
    assert (report["finish_reason"], report["truncated"]) == ("loop", True)
    code, _, err = looping.run(*ASKED, "--verbose")
    assert code == 0 and err.endswith(", cut: it repeats itself\n")


def test_it_goes_on_where_that_is_wanted(looping):
    assert looping.run(*ASKED, "--loop-stop", "off") == (0, LOOP + "\n", "")
    assert json.loads(looping.run(*ASKED, "--loop-stop", "off", "--json")[1])["finish_reason"] == "stop"


def test_the_configuration_may_let_replies_repeat_themselves(looping):
    (Path(os.environ["TINYCHAT_HOME"]) / "config.toml").write_text("loop_stop = false\n")
    assert looping.run(*ASKED)[1] == LOOP + "\n"


def test_lines_of_a_batch_end_in_a_loop(looping, batch_files):
    plain = {"temperature": 0, "repeat_penalty": 1}
    body = {"model": "any", "prompt": "well?", **plain}
    source, target = batch_files(
        [
            {"prompt": "well?", **plain},
            {"prompt": "well?", **plain, "loop_stop": False},
            {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body},
        ]
    )
    code, _, err = looping.run("batch", source, "fake", "-o", target, "--fail-on-cut")
    assert (code, "2 of them cut" in err) == (3, True)
    first, second, third = results_of(target)
    assert (first["finish_reason"], first["truncated"]) == ("loop", True)
    assert (second["finish_reason"], second["text"]) == ("stop", LOOP)
    # Other programs know no loop.
    assert third["response"]["body"]["choices"][0]["finish_reason"] == "length"


class Lines:
    def __init__(self, interactive, *lines):
        self.interactive, self._lines = interactive, list(lines)

    def read(self, _prompt):
        if not self._lines:
            raise EOFError
        return self._lines.pop(0)


def converse(interactive, *lines):
    chat = Chat(fake_model(Replies(*[LOOP] * 3), context_size=4096), temperature=0.0)
    out, err = io.StringIO(), io.StringIO()
    Repl(chat, Lines(interactive, *lines), Renderer(out, err, {})).run()
    return out.getvalue(), err.getvalue(), chat


def test_a_chat_tells_how_to_go_on():
    out, err, chat = converse(True, "hi", "/continue")
    assert err.count("the reply repeats itself: /retry writes another, /continue continues it\n") == 2
    written = chat.messages[-1].content
    assert out.replace("\n", "") == written and LOOP.startswith(written)
    assert chat.messages[-1].partial


def test_a_pipe_is_told_in_one_line_below_the_reply():
    out, err, _ = converse(False, "hi")
    assert (out[-1], err) == ("\n", f"{CUT}/set loop_stop off allows that\n")


def test_a_chat_may_let_it_repeat_itself():
    out, err, chat = converse(False, "/set loop_stop off", "hi")
    assert (out, chat.summary.finish_reason) == (LOOP + "\n", "stop")
    assert CUT not in err


def test_the_default_against_repetition_gives_way_to_all_others():
    preferences = Preferences()
    assert preferences.resolve().values == LOOP_DEFAULTS
    assert set(preferences.resolve().origins.values()) == {"against loops"}
    # Not where the makers have an opinion, where the user has one, or where it would do harm.
    assert preferences.resolve(advice={"repeat_penalty": 1.05}).values == {"repeat_penalty": 1.05}
    assert Preferences(flags={"repeat_penalty": 1.0}).resolve().values == {"repeat_penalty": 1.0}
    assert preferences.resolve(is_text=False).values == {}
    found = preferences.resolve(advice=Advice(temperature=0.2))
    assert found.values == {"temperature": 0.2, **LOOP_DEFAULTS}


@pytest.mark.parametrize("flags", [("--schema", "FILE"), ("--code",)])
def test_code_and_what_a_schema_describes_have_no_penalty(console, flags, tmp_path, monkeypatch):
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    console.model = fake_model(Replies("```\nyes\n```"), has_template="--code" in flags)
    asked, reply = [], console.model.reply
    monkeypatch.setattr(
        console.model, "reply", lambda prompt, request, **rest: asked.append(request) or reply(prompt, request, **rest)
    )
    assert console.run("complete", "-p", "x", *(str(schema) if flag == "FILE" else flag for flag in flags))[0] == 0
    assert [request.repeat_penalty for request in asked] == [1.0]
