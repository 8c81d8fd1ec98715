"""Commands of the shell whose output goes with a message: asked for, bounded, ended as a whole."""

import os
import sys
from time import monotonic, sleep

import pytest
from fake_loop import FakeLoop
from processes import is_running

from tinychat.chat.command_run import output_of
from tinychat.errors import SettingError
from tinychat.tools.own.bounded_command import Stopped

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")


@pytest.fixture(autouse=True)
def posix_shell(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/sh")


def never():
    return False


def wait_until(holds):
    until = monotonic() + 10
    while not holds():
        assert monotonic() < until
        sleep(0.01)


def test_the_output_goes_with_the_next_message_once():
    loop = FakeLoop("Three.", "Yes.", context_size=1000)
    said = loop.run("/run printf 'a\\nb\\nc\\n' | wc -l | tr -d ' '; echo done >&2")
    question, shown, attached = loop.notices
    assert question.splitlines() == [
        "run this command and attach its output?",
        "  printf 'a\\nb\\nc\\n' | wc -l | tr -d ' '; echo done >&2",
    ]
    assert shown == "3\ndone"
    assert attached.endswith(">&2 (7 tokens)")
    assert said
    loop.chat.say("How many?")
    name = "$ printf 'a\\nb\\nc\\n' | wc -l | tr -d ' '; echo done >&2"
    assert loop.spoken[0] == f"{name}:\n```\n3\ndone\n```\n\nHow many?"
    loop.chat.say("Sure?")
    assert loop.spoken[2] == "Sure?"


def test_nothing_runs_without_a_yes(tmp_path):
    loop = FakeLoop()
    loop.agrees = False
    assert loop.run(f"/run touch {tmp_path / 'file'}").endswith("\nnot run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", "no output: nothing is attached"),
        ("exit 3", "no output (exit code 3): nothing is attached"),
        ("kill -9 $$", "no output (ended by SIGKILL): nothing is attached"),
    ],
)
def test_a_command_that_writes_nothing(command, said):
    loop = FakeLoop()
    assert loop.run(f"/run {command}").splitlines()[-1] == said
    assert loop.chat.attachments == []


def test_how_a_command_failed_goes_with_its_output():
    loop = FakeLoop(context_size=1000)
    loop.run("/run echo no; exit 2")
    (attachment,) = loop.chat.attachments
    assert (attachment.name, attachment.text) == ("$ echo no; exit 2 (exit code 2)", "no\n")


def test_long_output_is_shown_in_part_and_goes_whole():
    loop = FakeLoop(context_size=10_000)
    loop.run("/run seq 1 100; printf '%0500d' 0")
    shown = loop.notices[1].split("\n")
    assert shown[:2] == ["1", "2"]
    assert shown[-1] == "... and 61 more lines"
    assert loop.chat.attachments[0].text.splitlines()[-1] == "0" * 500


def test_output_that_does_not_fit_is_told():
    with pytest.raises(SettingError, match="do not fit into the context of 256"):
        FakeLoop().run("/run seq 1 1000")


@pytest.mark.parametrize("command", ["printf '\\377\\376'", "printf 'a\\000b'"])
def test_what_is_no_text_is_refused(command):
    with pytest.raises(SettingError, match="the output is not UTF-8 text"):
        output_of(command, never)


def test_a_command_has_neither_a_terminal_nor_input():
    assert output_of("cat; test -t 0 || test -t 1 || echo none; (: < /dev/tty) 2>/dev/null || echo no tty", never) == (
        "none\nno tty\n",
        "",
    )


def test_a_command_that_takes_too_long_is_ended():
    started = monotonic()
    assert output_of("echo begun; sleep 60", never, max_seconds=0.5) == ("begun\n", "ended after 0.5 s")
    assert monotonic() - started < 10


def test_a_command_without_output_that_takes_too_long_is_ended():
    started = monotonic()
    assert output_of("exec >&- 2>&-; sleep 60", never, max_seconds=0.5) == ("", "ended after 0.5 s")
    assert monotonic() - started < 10


def test_a_command_that_writes_too_much_is_ended():
    text, ending = output_of("yes 漢", never, max_bytes=2050)
    assert (text, ending) == ("漢\n" * 512, "cut at 2 KiB")


def test_what_a_command_has_started_ends_with_it(tmp_path):
    file = tmp_path / "pids"
    command = f"(trap '' TERM INT; sleep 61 & echo $! >> {file}; wait; sleep 62) & echo $! >> {file}; sleep 63"
    with pytest.raises(Stopped):
        output_of(command, lambda: file.exists() and len(file.read_text().split()) == 2)
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: not is_running(pid))


def test_an_error_while_it_is_read_ends_the_command(tmp_path):
    file = tmp_path / "pid"

    def fail():
        if file.exists() and file.read_text().strip():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        output_of(f"echo $$ > {file}; sleep 64", fail)
    wait_until(lambda: not is_running(int(file.read_text())))


def test_a_server_in_the_background_stays(tmp_path):
    text, ending = output_of("sleep 65 > /dev/null 2>&1 & echo $!", never)
    pid = int(text)
    assert (is_running(pid), ending) == (True, "")
    os.kill(pid, 9)


@pytest.mark.parametrize("shell", ["/no/such/shell", "/"])
def test_a_shell_that_is_not_there(monkeypatch, shell):
    monkeypatch.setenv("SHELL", shell)
    with pytest.raises(SettingError, match=rf"^{shell} cannot run the command: .*\$SHELL names another shell$"):
        output_of("true", never)


def test_a_command_with_a_null_character():
    with pytest.raises(SettingError, match="cannot run the command: embedded null byte"):
        output_of("echo \0", never)


def test_paths_are_completed(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert FakeLoop().candidates(f"/run cat {tmp_path}/no") == [f"{tmp_path}/notes.txt"]
