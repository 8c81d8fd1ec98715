"""Commands that let another model or another role go on."""

import os
from pathlib import Path

import pytest
from console import Console
from fake_loop import FakeLoop, loop_after
from fake_model import Replies, fake_model

from tinychat.chat.workspace import Models
from tinychat.errors import SettingError, StoreError
from tinychat.settings import LoadSettings

TWO_TURNS = (("one", "1"), ("two", "2"))
FILE = """
temperature = 0.1
[roles.reviewer]
system = "Review."
temperature = 0.2
max_tokens = 3
[roles.poet]
system = "Rhyme."
model = "small"
seed = 7
overflow = "stop"
context = 200
[aliases]
small = "story"
"""


def test_another_model_goes_on():
    other = fake_model(Replies("I am new."), name="other")
    loop = loop_after(*TWO_TURNS, open_model={"other": other}.__getitem__)
    assert loop.run("/model other").startswith("switched to other")
    assert loop.chat.say("who?") == "I am new."
    assert loop.spoken[:2] == ["one", "1"]


def test_another_model_without_template_says_so():
    plain = fake_model(Replies(), name="plain", has_template=False)
    said = FakeLoop(open_model={"plain": plain}.__getitem__).run("/model plain")
    assert said.splitlines()[1:] == ["this model has no chat template: it continues a plain dialogue instead"]


def test_a_model_that_cannot_be_opened_leaves_the_old_one():
    def refuse(name):
        raise StoreError(f"no model {name}")

    loop = FakeLoop("Still here.", open_model=refuse)
    with pytest.raises(StoreError):
        loop.run("/model other")
    assert loop.chat.say("who?") == "Still here."


def loop_with(*names):
    loop = loop_after(*TWO_TURNS)
    opened = []

    def open_model(name):
        opened.append(name)
        return fake_model(Replies("I am new."), name=name)

    loop.workspace.models = Models(open_model, ready=lambda: [*names])
    return loop, opened


def test_without_a_name_models_are_listed_and_the_prompt_begins_to_name_one():
    loop, opened = loop_with("story", "fake")
    assert loop.run("/model").splitlines() == [
        " 1  story",
        " 2  fake  (this one)",
        "type a number or name; `tinychat models --available` lists more",
    ]
    assert (loop.draft.text, loop.draft.is_command, opened) == ("/model ", True, [])


def test_a_number_names_one_of_the_list():
    loop, opened = loop_with("story", "fake")
    assert loop.run("/model 1").startswith("switched to story")
    assert opened == ["story"]
    for number in ("0", "3"):
        with pytest.raises(SettingError, match=f"no model has the number {number}: type a number from 1 to 2"):
            loop.run(f"/model {number}")
    with pytest.raises(SettingError, match="no model has the number 1111"):
        loop.run(f"/model {'1' * 5000}")
    numbered, opened = loop_with("one", "1")
    numbered.run("/model 1")
    assert opened == ["1"], "a name comes before a number"


@pytest.fixture
def console(monkeypatch, capsys):
    (Path(os.environ["TINYCHAT_HOME"]) / "config.toml").write_text(FILE)
    return Console(fake_model(Replies(*"abcdefgh")), monkeypatch, capsys)


def shown(console, *lines, arguments=()):
    """Return the settings that /show shows after these lines, and all that was said."""
    typed = "".join(f"{line}\n" for line in (*lines, "/show"))
    code, _, err = console.run("chat", *arguments, stdin=typed.encode())
    assert code == 0
    return dict(line.split(None, 1) for line in err.splitlines() if "  " in line), err


def test_a_role_brings_its_tools_and_takes_them_along(console, tmp_path):
    config, mine = Path(os.environ["TINYCHAT_HOME"]) / "config.toml", tmp_path / "mine.py"
    mine.write_text('def double(n: int) -> int:\n    """Return twice a number."""\n    return 2 * n\n')
    config.write_text(f"""
tools = ["files"]
[roles.coder]
tools = ["edits", "files"]
max_tool_rounds = 3
[roles.mathematician]
tools = []
functions = ["{mine}"]
[roles.plain]
temperature = 0.5
""")
    lines = ("/tools on shell", "/role coder", "/tools", "/role mathematician", "/tools", "/role plain", "/tools")
    code, _, err = console.run("chat", stdin="".join(f"{line}\n" for line in lines).encode())
    assert code == 0
    names, found = ("read_file", "write_file", "run_command", "double"), []
    for listing in err.split(" tools are on: ")[1:]:
        tools = {line.split()[1] for line in listing.splitlines() if line.startswith(("on ", "off "))}
        found.append([name for name in names if name in tools])
    # What was added by hand stays.
    assert found == [
        ["read_file", "write_file", "run_command"],
        ["run_command", "double"],
        ["read_file", "run_command"],
    ]


def test_a_role_is_taken_and_left_in_mid_chat(console):
    settings, said = shown(console, "hi", "/role reviewer")
    assert "switched to the role reviewer; /show shows it" in said
    assert settings["system"] == "Review.  (role reviewer)"
    assert settings["temperature"] == "0.2  (role reviewer)"
    assert settings["max_tokens"] == "3  (role reviewer)"
    settings, said = shown(console, "/role reviewer", "hi", "/role none")
    assert "left the role" in said
    assert (settings["system"], settings["temperature"], settings["max_tokens"]) == (
        "none",
        "0.1  (config.toml)",
        "none",
    )
    assert len(console.loaded) == 2


def test_the_model_of_a_role_goes_on_with_its_settings(console):
    settings, _ = shown(console, "hi", "/role poet")
    assert console.loaded == [(None, LoadSettings()), ("story", LoadSettings())]
    assert settings["seed"] == "7  (role poet)"
    assert settings["context"] == "200  (role poet)"
    assert settings["overflow"] == "stop  (role poet)"
    console.loaded.clear()
    shown(console, "hi", "/role reviewer", "/role poet", arguments=["story"])
    assert console.loaded == [("story", LoadSettings())], "it is there already"


def test_a_role_comes_before_what_was_set_and_leaves_the_rest(console):
    settings, _ = shown(
        console, "/system Mine.", "/set top_k 3", "/role reviewer", arguments=["--temperature", "0.9", "--top-p", "0.5"]
    )
    assert settings["system"] == "Review.  (role reviewer)"
    assert settings["temperature"] == "0.2  (role reviewer)"
    assert (settings["top_k"], settings["top_p"]) == ("3  (/set)", "0.5  (the command line)")


def test_roles_are_listed_and_an_unknown_one_is_named(console):
    _, said = shown(console, "/role", "/role poet", "/role")
    assert "reviewer\npoet\n" in said
    assert "reviewer\npoet  (this one)\n" in said
    _, said = shown(console, "/role", arguments=["-r", "reviewer"])
    assert "reviewer  (this one)\npoet\n" in said
    code, _, err = console.run("chat", stdin=b"/role critic\n")
    assert (code, err) == (1, "error: unknown role 'critic'; expected one of reviewer, poet\n")
    with pytest.raises(SettingError, match=r"^unknown role 'critic': the configuration file has none$"):
        FakeLoop().run("/role critic")
    assert FakeLoop().run("/role") == "no roles: add them to the configuration file; `tinychat config` shows its path"


def test_a_role_whose_model_cannot_be_loaded_is_not_taken():
    def refuse(name):
        raise StoreError(f"no model {name}")

    loop = FakeLoop("Still here.")
    loop.workspace.models = Models(refuse, roles=lambda: {"poet": {"model": "story", "system": "Rhyme."}})
    with pytest.raises(StoreError):
        loop.run("/role poet")
    assert (loop.workspace.role, loop.chat.system, loop.chat.say("who?")) == (None, None, "Still here.")


def test_a_role_says_which_model_goes_on():
    loop, opened = loop_with("story")
    loop.workspace.models = Models(loop.workspace.models.open, roles=lambda: {"poet": {"model": "story"}})
    assert loop.run("/role poet").splitlines() == [
        "switched to the role poet; /show shows it",
        "switched to story; it reads the conversation with your next message",
    ]
    assert opened == ["story"]


def test_a_role_whose_model_has_no_template_says_so():
    plain = fake_model(Replies(), name="plain", has_template=False)
    loop = FakeLoop(open_model={"plain": plain}.__getitem__)
    loop.workspace.models = Models(loop.workspace.models.open, roles=lambda: {"poet": {"model": "plain"}})
    said = loop.run("/role poet")
    assert said.splitlines()[2:] == ["this model has no chat template: it continues a plain dialogue instead"]


def test_roles_are_completed():
    loop = FakeLoop()
    loop.workspace.models = Models(roles=lambda: {"poet": {}, "reviewer": {}})
    assert loop.candidates("/role ") == ["poet", "reviewer", "none"]
    assert loop.candidates("/role r") == ["reviewer"]
