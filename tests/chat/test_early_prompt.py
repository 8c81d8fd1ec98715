"""In a terminal the mark of the prompt stands there before the model is loaded, and makes way for what comes next."""

import os
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

pexpect = pytest.importorskip("pexpect", reason="no terminal to drive without pexpect")
pyte = pytest.importorskip("pyte", reason="no screen to look at without pyte")

PROGRAM = """
import sys, time
from tinychat.cli import main
from tinychat.errors import ModelFolderError

def load(model, options):
    input_is_open.write("loading\\n")
    input_is_open.close()
    if sys.argv[2] == "slow":
        time.sleep(60)
    raise ModelFolderError("the folder is damaged")

input_is_open = open(sys.argv[1], "w")
sys.exit(main(["chat", "demo"], load))
"""


@pytest.fixture
def begin(tmp_path):
    """Return a function that starts a chat whose model is loaded as it says, and waits for the mark."""

    def begin(how):
        child = pexpect.spawn(
            sys.executable,
            ["-c", PROGRAM, str(tmp_path / "note"), how],
            env=os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2])},
            encoding="utf-8",
            timeout=30,
        )
        children.append(child)
        child.expect_exact(">\r")
        return child

    children = []
    yield begin
    for child in children:
        child.close(force=True)


def wait_until_it_loads(folder):
    latest = monotonic() + 30
    while not (folder / "note").is_file() or not (folder / "note").read_text():
        assert monotonic() < latest
        sleep(0.02)


def test_the_mark_comes_before_the_model_and_keys_are_not_echoed(begin, tmp_path):
    child = begin("slow")
    wait_until_it_loads(tmp_path)
    child.send("typed")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    assert "typed" not in child.before


def test_an_error_of_loading_takes_the_place_of_the_mark(begin):
    child = begin("damaged")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
    screen = pyte.Screen(80, 24)
    pyte.Stream(screen).feed(">\r" + child.before)
    assert [line.strip() for line in screen.display if line.strip()] == ["error: the folder is damaged"]
