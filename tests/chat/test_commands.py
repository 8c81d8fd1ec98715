import pytest
from fake_loop import FakeLoop, loop_after

from tinychat.chat.commands import COMMANDS, complete_command
from tinychat.errors import SettingError

TWO_TURNS = (("one", "1"), ("two", "2"))


def test_the_table_is_complete():
    wanted = (
        "help exit clear compact run regen undo redo edit retry system set show save load sessions fork model role "
        "continue rename delete file image tools prompt paste detach copy export stats context tokens why multiline"
    )
    assert set(COMMANDS) == set(wanted.split())


def test_every_command_is_explained_in_a_line():
    for command in COMMANDS.values():
        assert command.help[0].isupper() and not command.help.endswith(".")
        assert len(f"{command.usage:<18}{command.help}") <= 80


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.needs_argument])
def test_a_missing_argument_is_asked_for(name):
    with pytest.raises(SettingError, match=f"/{name} needs an argument: type /{name} "):
        FakeLoop().run(f"/{name} ")


def test_exit_leaves():
    loop = FakeLoop()
    loop.run("/exit")
    assert loop.is_leaving


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("/re", ["/regen", "/retry", "/redo", "/rename"]),
        ("/set te", ["temperature"]),
        ("/set overflow s", ["stop", "shift", "summarise"]),
        ("/set think ", ["on", "off", "auto", "show", "hide"]),
        ("/retry top_k=3 mi", ["min_p="]),
        ("/retry te", ["temperature="]),
        ("/load ", ["first"]),
        ("/clear a", []),
        ("/nonsense ", []),
    ],
)
def test_completion(line, candidates):
    loop = loop_after(*TWO_TURNS)
    loop.run("/save first")
    assert loop.candidates(line) == candidates


@pytest.mark.parametrize(
    ("line", "word", "description"),
    [
        ("/cl", "/clear", COMMANDS["clear"].help),
        ("/set te", "temperature", "now 0.0"),
        ("/retry te", "temperature=", "now 0.0"),
        ("/load f", "first", "saved 20"),
    ],
)
def test_candidates_are_described(line, word, description):
    loop = loop_after(*TWO_TURNS)
    loop.run("/save first")
    found = dict(complete_command(loop, line))[word]
    assert found.startswith(description)
