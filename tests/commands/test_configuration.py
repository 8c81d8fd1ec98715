"""The user's configuration file: what it may say, what comes before what, and how it is wrong."""

import os
import re
import time
from pathlib import Path

import pytest
from console import Console
from fake_model import Replies, fake_model

from tinychat.configuration import (
    STARTER,
    Configuration,
    parse_configuration,
    read_configuration,
    resolve_alias,
)
from tinychat.errors import ConfigurationError
from tinychat.generate.precedence import LOOP_DEFAULTS, Preferences
from tinychat.generate.thinking import Thinking
from tinychat.settings import LoadSettings

FILE = Path("config.toml")
WHOLE = """
model = "small"
system = "Be brief."
temperature = 0.1
top_k = 1
context = 100
think = "off"

[models.fake]
temperature = 0.3
top_k = 3
stop = ["END"]

[roles.reviewer]
model = "big"
system = "Review."
temperature = 0.2
max_tokens = 7

[aliases]
small = "story"
"""


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(Replies("Hello!", "Fine.")), monkeypatch, capsys)


@pytest.fixture
def write():
    """Return a function that writes the configuration file."""

    def write_file(text):
        path = Path(os.environ["TINYCHAT_HOME"]) / "config.toml"
        path.write_text(text)
        return path

    return write_file


def parsed(text):
    return parse_configuration(text.encode(), FILE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperatur = 1", "config.toml, line 1: unknown key 'temperatur': did you mean temperature?"),
        ("\n\nnonsense = 1", "config.toml, line 3: unknown key 'nonsense'; expected one of temperature, "),
        ("temperature = -1", "config.toml, line 1: temperature must be between 0 and 100, not -1"),
        ('context = "many"', "config.toml, line 1: context must be a whole number of tokens, not 'many'"),
        ('kv = "f64"', "line 1: kv must be "),
        ("stats = 1", "line 1: stats must be true or false"),
        ("think = true", "line 1: think must be "),
        ("system = 3", "line 1: system must be a text"),
        ('[models."a/b.c"]\ntop_k = -1', "line 2: top_k must be 0"),
        ('[models.a]\n[models.b]\nmodel = "x"', "line 3: unknown key 'model'"),
        ("[roles.a]\ntop_q = 1", "line 2: unknown key 'top_q': did you mean top_"),
        ("[roles]\na = 3", "line 2: a must be a section, as [roles.a]"),
        ("roles = 3", "line 1: roles must be a section"),
        ('[aliases]\na = ["b"]', "line 2: a must be the name of a model"),
        ("model = 3", "line 1: model must be the name of a model"),
        ("a = ", "config.toml is not TOML: Invalid value (at end of document)"),
        ("top_k = 1\ntop_k = 2", "config.toml is not TOML: Cannot overwrite a value ("),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message):
    with pytest.raises(ConfigurationError) as raised:
        parsed(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_bytes_that_are_no_text():
    with pytest.raises(ConfigurationError, match=r"config\.toml is not text in UTF-8"):
        parse_configuration(b"\xff\xfe", FILE)


def test_the_starter_says_nothing_until_it_is_uncommented():
    assert parsed(STARTER) == Configuration(FILE)
    told = parsed(re.sub(r"(?m)^# (?=\w+ = |\[)", "", STARTER))
    assert (told.model, told.general["think"], told.aliases) == ("qwen3-0.6b", "off", {"small": "smollm2-135m"})
    assert told.role("reviewer")["temperature"] == 0.2
    assert told.of_model("qwen3-0.6b")["top_k"] == 20


def test_who_comes_before_whom():
    file, advice = parsed(WHOLE), {"temperature": 0.6, "min_p": 0.4, "top_p": 0.5}
    found = Preferences(file, "reviewer", {"top_k": 9}).resolve("fake", advice=advice)
    request = found.request
    assert (request.top_k, request.temperature, request.stop) == (9, 0.3, ("END",))
    assert (request.max_tokens, request.min_p, request.repeat_penalty) == (7, 0.4, LOOP_DEFAULTS["repeat_penalty"])
    assert found.origins == {
        "top_k": "the command line",
        "temperature": "config.toml, of this model",
        "stop": "config.toml, of this model",
        "max_tokens": "role reviewer",
        "model": "role reviewer",
        "system": "role reviewer",
        "context": "config.toml",
        "think": "config.toml",
        "min_p": "the model's own",
        "top_p": "the model's own",
        **dict.fromkeys(LOOP_DEFAULTS, "against loops"),
    }
    plain = Preferences(file).resolve("other").request
    assert (plain.top_k, plain.temperature) == (1, 0.1)
    assert Preferences(file, "reviewer").resolve().chat.system == "Review."
    assert Preferences(file, "reviewer", {"system": "Mine."}).resolve().chat.system == "Mine."
    assert Preferences(file).resolve().thinking == Thinking(False, 0)


def test_which_model_answers(monkeypatch):
    file = parsed(WHOLE)
    assert Preferences(file).model(None) is None, "the environment comes before the file"
    monkeypatch.delenv("TINYCHAT_MODEL")
    assert Preferences(file).model(None) == "story"
    assert Preferences(file, "reviewer").model(None) == "big"
    assert Preferences(file, "reviewer").model("small") == "story"
    assert Preferences(Configuration()).model(None) is None


def test_a_role_that_is_missing_names_those_that_are_there():
    for role, message in (("reviewr", "did you mean reviewer"), ("x", "there are reviewer")):
        with pytest.raises(ConfigurationError, match=f"no role '{role}'.*{message}"):
            Preferences(parsed(WHOLE), role)


def test_without_a_file_nothing_is_said():
    assert read_configuration().general == {}
    assert resolve_alias("small") == "small"


def test_commands_follow_the_file(console, write):
    write(WHOLE.replace("temperature = 0.3", "temperature = 0.0"))
    console.model = fake_model(Replies("Hello END there", "Fine."))
    assert console.run("complete", "small", "How are you?") == (0, "Hello \n", "")
    assert console.loaded == [("story", LoadSettings(context=100))]
    assert b"Be brief.How are you?" in bytes(i for i in console.model.sequence.ids if i < 256)
    assert console.run("chat", "-r", "reviewer", "--context", "50", stdin=b"hi\n") == (0, "Fine.\n", "")
    assert console.loaded[1] == ("big", LoadSettings(context=50))


def test_a_chat_shows_where_its_settings_are_from(console, write):
    write("top_k = 7\n[models.fake]\ntop_p = 0.5")
    console.model.own_defaults = {"temperature": 0.6}
    _, _, err = console.run("chat", "--min-p", "0.2", stdin=b"/show\n")
    assert "temperature     0.6  (the model's own)\n" in err
    assert "top_k           7  (config.toml)\n" in err
    assert "top_p           0.5  (config.toml, of this model)\n" in err
    assert "min_p           0.2  (the command line)\n" in err
    assert "repeat_penalty  1.1  (against loops)\n" in err


def test_a_flag_of_none_comes_before_the_file(console, write):
    write("max_tokens = 1\nseed = 5")
    _, _, err = console.run("chat", "--max-tokens", "none", stdin=b"/show\n")
    assert "max_tokens      none  (the command line)\n" in err
    assert "seed            5  (config.toml)\n" in err


def test_drafts_are_for_the_file_to_turn_off(console, write):
    write("draft = false")
    assert console.run("complete", "How are you?")[0] == 0
    assert console.run("complete", "How are you?", "--draft", "on")[0] == 0
    assert [settings.draft for _, settings in console.loaded] == [False, True]


def test_another_model_brings_its_own_section(console, write):
    write('[models.other]\nsystem = "Of other."\nthink = "off"\noverflow = "shift"\nstats = false')
    console.load = lambda name, options: fake_model(Replies("Hi."), name=str(name))
    _, _, err = console.run("chat", "fake", stdin=b"/model other\n/show\n")
    assert "system          Of other.  (config.toml, of this model)\n" in err
    assert "think           off  (config.toml, of this model)\n" in err
    assert "overflow        shift  (config.toml, of this model)\n" in err
    _, _, err = console.run(
        "chat", "fake", stdin=b"/system Mine.\n/set think on\n/set overflow stop\n/model other\n/show\n"
    )
    assert "system          Mine.  (/system)\n" in err
    assert "think           on  (/set)\n" in err
    assert "overflow        stop  (/set)\n" in err


def test_another_model_brings_its_own_advice(console):
    console.model.own_defaults = {"temperature": 0.6, "top_k": 20}

    def load(name, options):
        model = fake_model(Replies("Hi."), name=str(name))
        model.own_defaults = {"top_k": 30, "min_p": 0.3} if name == "other" else {"temperature": 0.6, "top_k": 20}
        return model

    console.load = load
    _, _, err = console.run("chat", stdin=b"/set top_k 5\n/model other\n/show\n")
    shown = err.rpartition("model           other")[2]
    assert "temperature     0.8\n" in shown
    assert "top_k           5  (/set)\n" in shown
    assert "min_p           0.3  (the model's own)\n" in shown


def test_a_file_that_is_wrong_ends_in_one_line(console, write):
    path = write("temperatur = 1")
    expected = f"error: {path}, line 1: unknown key 'temperatur': did you mean temperature?\n"
    assert console.run("complete", "How are you?") == (1, "", expected)
    assert console.run("--help")[0] == 0


def test_config_shows_the_file_and_makes_one(console, write):
    path = Path(os.environ["TINYCHAT_HOME"]) / "config.toml"
    code, out, err = console.run("config")
    assert (code, out) == (0, f"{path}\n")
    assert "tinychat config --init" in err
    assert console.run("config", "--path") == (0, f"{path}\n", "")
    assert console.run("config", "--init")[:2] == (0, f"{path}\n")
    assert path.read_text() == STARTER
    assert console.run("config", "--init") == (1, "", f"error: {path} exists already: edit it\n")
    write(WHOLE)
    _, out, _ = console.run("config")
    assert out.splitlines()[:2] == [str(path), "model        'small'"]
    assert "[roles.reviewer]\n  model        'big'\n" in out


def test_what_a_reply_took_is_said_where_it_is_wanted(console, write):
    assert "first token after" in console.run("complete", "How are you?", "--verbose")[2]
    write("stats = true")
    assert "first token after" in console.run("complete", "How are you?")[2]
    console.model = fake_model(Replies("One", "Two"))
    _, _, err = console.run("chat", stdin=b"hi\n/set stats off\nand?\n")
    assert err.count("first token after") == 1


def test_thinking_is_asked_for(console):
    assert console.run("complete", "Why is it so?", "--think", "hard")[0] == 2
    from fake_model import MarkerTemplate

    console.model.template = MarkerTemplate(thinking_switch="thinking")
    assert console.run("complete", "Why is it so?", "--think", "off")[0] == 0
    assert b"Why is it so?<think>\n\n</think>\n\n" in bytes(i for i in console.model.sequence.ids if i < 256)


HUGE = {
    "digits": b"temperature = 0x" + b"f" * 5000,
    "digits of a word": b"kv = 0x" + b"f" * 5000,
    "bits": b"seed = 0b" + b"1" * 60_000,
    "dots": b"a." * 100_000 + b"a = 1",
    "dots of quoted words": b'"a".' * 50_000 + b"a = 1",
    "dots of a header": b"[" + b"a." * 100_000 + b"a]\nb = 1",
    "dots in a table": b"kv = {" + b"a . " * 50_000 + b"a = 1}",
    "long name": b"x" * 200_000 + b" = 1",
    "long section": b'[roles."' + b"x" * 200_000 + b'"]\nz = 1',
    "long text": b'kv = "' + b"x" * 200_000 + b'"',
    "deep list": b"kv = " + b"[" * 900 + b"]" * 900,
    "long alias": b'[aliases]\n"' + b"y" * 200_000 + b'" = 1',
    "escape": b'"\\u001b[31m\\u202e" = 1',
    "large file": b"#" * 300_000,
}


@pytest.mark.parametrize("name", HUGE)
def test_what_is_huge_ends_in_a_short_line_at_once(write, name):
    path = write("")
    path.write_bytes(HUGE[name])
    started = time.monotonic()
    with pytest.raises(ConfigurationError) as error:
        read_configuration()
    assert time.monotonic() - started < 2
    message = str(error.value).removeprefix(str(path))
    assert len(message) < 1000 and message.isprintable()


def test_dots_in_texts_are_no_keys():
    text = 'system = """' + "1. one\n" * 50 + 'a.b.c ... d."""\n'
    assert parse_configuration(text.encode(), FILE).general["system"].endswith("d.")
