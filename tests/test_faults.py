"""Kills, full disks and missing folders: what README.md beside this file promises of every writer."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import families
import pytest
from full_disk import FULL, full_disk

from tinychat.commands.batch_results import BatchResults
from tinychat.commands.batch_tasks import read_tasks
from tinychat.conversation.messages import Message
from tinychat.conversation.session_file import SavedSession
from tinychat.conversation.store import SessionStore
from tinychat.conversion.convert import convert
from tinychat.errors import ConversionError, SessionError, TinychatError
from tinychat.generate.request import Request
from tinychat.rows.locations import Location
from tinychat.rows.sources import RowReader
from tinychat.store.local import list_models, store_folder
from tinychat.terminal.line_editor import open_history

pytestmark = pytest.mark.slow


def tinychat(*arguments, **environment):
    command = [sys.executable, "-m", "tinychat", *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment
    )


def kill_after(process, seconds):
    time.sleep(seconds)
    process.kill()
    process.communicate()


def saved(text):
    return SavedSession("m", None, [Message("user", "hi"), Message("assistant", text)], {}, [])


@pytest.fixture
def checkpoint(tmp_path):
    return families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path / "checkpoint")


def test_a_killed_conversion_is_not_a_model_and_the_next_use_converts(checkpoint):
    for _ in range(3):
        kill_after(tinychat("complete", checkpoint, "-p", "x", "--max-tokens", "1"), random.uniform(0.3, 1.2))
        for model in list_models():
            assert json.loads((model.path / "tinychat.json").read_text())["format"]
    process = tinychat("complete", checkpoint, "-p", "x", "--max-tokens", "1")
    assert process.communicate()[1].decode().count("error") == 0
    assert process.returncode == 0
    assert len(list_models()) == 1


def test_a_conversion_onto_a_full_disk_leaves_nothing(checkpoint, tmp_path):
    with full_disk(), pytest.raises(ConversionError, match=r"File too large.*free some space"):
        convert(checkpoint, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_killed_batch_goes_on_where_it_was(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Once", "max_tokens": 20}\n' * 60)
    arguments = ("batch", source, "-o", target, "--seed", "1")
    for _ in range(3):
        kill_after(tinychat(*arguments), random.uniform(0.5, 1.5))
    process = tinychat(*arguments)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [*range(1, 61)]


def test_a_batch_onto_a_full_disk_goes_on_later(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"prompt": "x"}\n' * 9)
    tasks = [*read_tasks(RowReader(Location(str(source))), Request())]
    with full_disk(), pytest.raises(OSError, match="File too large"), BatchResults(target, tasks) as results:
        for job in tasks:
            results.add([results.outcome(job, results.digest(job), "model", TinychatError("y" * 200))])
    with BatchResults(target, tasks) as results:
        assert (results.done, results.again) == (0, tasks[: len(results.again)])
        assert target.read_bytes().count(b"\n") == len(results.again)
        assert 1 <= len(results.again) < len(tasks)


def test_a_conversation_is_the_old_or_the_new_one_after_a_kill(tmp_path):
    code = """
import sys
from pathlib import Path
from tinychat.conversation.messages import Message
from tinychat.conversation.session_file import SavedSession
from tinychat.conversation.store import SessionStore
store, count = SessionStore(Path(sys.argv[1])), 0
while True:
    count += 1
    text = str(count) * 100_000
    store.write("talk", SavedSession("m", None, [Message("user", "hi"), Message("assistant", text)], {}, []))
"""
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "sessions")])
        kill_after(process, random.uniform(0.5, 1.0))
    store = SessionStore(tmp_path / "sessions")
    if store.names():
        assert len(store.read("talk").messages[1].content) % 100_000 == 0
    store.write("talk", saved("last"))
    assert store.read("talk").messages[1].content == "last"


def test_a_full_disk_costs_no_conversation_that_is_saved(tmp_path):
    store = SessionStore(tmp_path)
    store.write("talk", saved("short"))
    with full_disk(), pytest.raises(SessionError, match="cannot be written: File too large"):
        store.write("talk", saved("long" * FULL))
    assert store.read("talk").messages[1].content == "short"
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_a_full_disk_costs_the_history_only(tmp_path):
    history = open_history(tmp_path / "history")
    history.append_string("short")
    with full_disk():
        history.append_string("x" * 2 * FULL)
    history.append_string("after")
    assert history.get_strings()[-1] == "after"


@pytest.mark.parametrize("home", ["/proc/no/such", "/dev/null/x"])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that even root cannot write to")
def test_a_home_that_cannot_be_written_keeps_nobody_from_talking(home):
    completion = tinychat("complete", "-p", "Hello", "--max-tokens", "5", TINYCHAT_HOME=home)
    out, err = completion.communicate(timeout=120)
    assert (completion.returncode, bool(out.strip())) == (0, True), err
    # An empty pipe: the chat begins and ends.
    chat = tinychat("chat", TINYCHAT_HOME=home)
    _, err = chat.communicate(timeout=120)
    assert chat.returncode == 0, err
    assert b"Traceback" not in err


FIRST_START = """
from tinychat.kernels.jit import kernel

@kernel
def double(x):
    return 2 * x

print(double(3), double(0.5))
"""


def test_kernels_that_several_compile_and_some_do_not_finish(tmp_path):
    """Processes that start at once write the same files; one that is killed leaves what the next can use."""
    module = tmp_path / "kernels_of_a_test.py"
    module.write_text(FIRST_START)
    environment = os.environ | {"TINYCHAT_CACHE": str(tmp_path / "cache")}
    for _ in range(3):
        processes = [
            subprocess.Popen(
                [sys.executable, str(module)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for _ in range(3)
        ]
        kill_after(processes[0], random.uniform(0.3, 1.0))
        for process in processes[1:]:
            assert (process.communicate(timeout=120), process.returncode) == (("6 1.0\n", ""), 0)


CUT_UNDER_THE_MAP = """
import os, sys
from pathlib import Path
from tinychat.conversation.messages import Message
from tinychat.conversation.conversation import Chat
from tinychat.conversation.store import SessionStore
from tinychat.chat.workspace import Workspace
from tinychat.generate.loading import load_folder
folder, sessions = map(Path, sys.argv[1:])
workspace = Workspace(Chat(load_folder(folder), max_tokens=5, temperature=0), SessionStore(sessions))
workspace.autosave()
workspace.chat.say("hello")
print(workspace.save("talk"), flush=True)
os.truncate(folder / "model.safetensors", 100)
workspace.chat.say("again")
print("survived", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let go of a mapped file")
def test_weights_that_are_cut_under_the_map_end_the_program_and_not_the_conversation(checkpoint, tmp_path):
    """Nobody can go on without the weights: the system ends the process, and the conversation is on the disk."""
    folder = convert(checkpoint, tmp_path / "model")
    command = [sys.executable, "-c", CUT_UNDER_THE_MAP, str(folder), str(tmp_path / "sessions")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stdout) == (-signal.SIGBUS, "talk\n")
    first = SessionStore(tmp_path / "sessions").read("talk").messages[:2]
    assert [message.role for message in first] == ["user", "assistant"]
    assert first[0].content == "hello"


def test_a_store_that_vanishes_is_made_again(checkpoint):
    for _ in range(2):
        process = tinychat("complete", checkpoint, "-p", "x", "--max-tokens", "1")
        process.communicate()
        assert process.returncode == 0
        (model,) = list_models()
        for path in sorted(store_folder().rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        assert model.name


def test_the_table_of_faults_names_tests_that_exist():
    folder = Path(__file__).parent
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (folder / "README.md").read_text())
    assert len(named) > 30
    for file, test in named:
        text = (folder / file).read_text()
        assert not test or f"def {test}(" in text, f"{file} has no {test}"
