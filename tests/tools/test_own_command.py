"""Tools that run programs: without a shell, without secrets, ended as a whole."""

import sys
import threading
import time

import pytest
from processes import is_running

from tinychat.tools.own.command import environment_of
from tinychat.tools.own.groups import GROUPS
from tinychat.tools.runnable import Toolbox, ToolResult

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")


@pytest.fixture
def box(tmp_path):
    return Toolbox([*GROUPS["shell"](tmp_path), *GROUPS["shell-syntax"](tmp_path)])


def run(box, *command, stop=None, **arguments):
    return box.run("run_command", box.check("run_command", {"command": [*command], **arguments}), stop)


def test_the_output_and_the_ending(box, tmp_path):
    assert run(box, "pwd") == ToolResult(f"{tmp_path}\n[exit code 0]")
    assert run(box, "sh", "-c", "echo no >&2; exit 3") == ToolResult("no\n[exit code 3]", is_error=True)
    assert run(box, "true") == ToolResult("[no output]\n[exit code 0]")
    assert run(box, "cat").text == "[no output]\n[exit code 0]"
    assert run(box, "printf", r"a\000b").text == "[3 bytes that are not text]\n[exit code 0]"
    assert run(box, "printf", r"a\377").text == "a\ufffd\n[exit code 0]"


def test_words_are_words(box, tmp_path):
    assert run(box, "echo", "$HOME", "; ls", "*", "`id`").text.startswith("$HOME ; ls * `id`\n")
    assert box.preview("run_command", {"command": ["rm", "-r", "a b; c"]}) == f"in {tmp_path}\n$ rm -r 'a b; c'"


def test_a_shell_is_a_tool_of_its_own(box, tmp_path):
    assert box.run("run_shell_line", {"line": "echo a | tr a b"}).text == "b\n[exit code 0]"
    assert box.preview("run_shell_line", {"line": "echo a | tr a b"}) == f"in {tmp_path}\n$ echo a | tr a b"
    assert all(tool.exact_only and tool.writes for tool in map(box.find, ("run_command", "run_shell_line")))
    assert [tool.definition.name for tool in GROUPS["shell"](tmp_path)] == ["run_command"]


@pytest.mark.parametrize("command", [["no-such-program"], ["/"], ["a\0b"], [""]])
def test_what_cannot_be_run(box, command):
    result = run(box, *command)
    assert result.is_error and result.text.startswith("the command cannot be run: ")


def test_no_secrets(box, monkeypatch):
    given = {"PATH": "/bin", "LC_ALL": "C", "OPENAI_API_KEY": "k", "HF_TOKEN": "t", "SSH_AUTH_SOCK": "s", "X": "y"}
    assert set(environment_of(given)) == {"PATH", "LC_ALL", "TERM", "NO_COLOR", "PAGER", "GIT_TERMINAL_PROMPT"}
    monkeypatch.setenv("HF_TOKEN", "hidden words")
    assert "hidden" not in run(box, "env").text


def test_time_and_output_have_limits(box):
    began = time.monotonic()
    result = run(box, "sh", "-c", "echo begun; sleep 60", seconds=1)
    assert result == ToolResult("begun\n[ended after 1 s]", is_error=True)
    assert time.monotonic() - began < 5
    result = run(box, "yes")
    assert result.is_error and result.text.endswith("[cut at 256 KiB]") and len(result.text) < 21_000


def test_stopping_ends_the_whole_group_at_once(box, tmp_path):
    file, stop = tmp_path / "pids", threading.Event()
    script = f"(trap '' TERM INT; sleep 61 & echo $! >> {file}; wait; sleep 62) & echo $! >> {file}; sleep 63"
    stopped_at = []

    def watch():
        while not file.exists() or len(file.read_text().split()) < 2:
            time.sleep(0.01)
        stopped_at.append(time.monotonic())
        stop.set()

    threading.Thread(target=watch).start()
    result = run(box, "sh", "-c", script, stop=stop)
    # Within 0.2 seconds; the machine may be busy.
    assert time.monotonic() - stopped_at[0] < 1
    assert result.is_error and result.text.startswith("the user stopped this c")
    until = time.monotonic() + 5
    while any(is_running(int(pid)) for pid in file.read_text().split()):
        assert time.monotonic() < until
        time.sleep(0.01)
