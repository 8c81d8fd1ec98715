"""Tools that write files: shown before, in one step, within their folder."""

import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.errors import ToolError
from tinychat.tools.own.diff import diff_of
from tinychat.tools.own.groups import GROUPS
from tinychat.tools.runnable import Toolbox

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX modes and links")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path / "home"))
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    return folder


def run(root, name, **arguments):
    box = Toolbox(GROUPS["edits"](root))
    return box.run(name, box.check(name, arguments)).text


def preview(root, name, **arguments):
    box = Toolbox(GROUPS["edits"](root))
    return box.preview(name, box.check(name, arguments))


def test_a_passage_is_replaced(root):
    change = {"path": "a.txt", "old_text": "two\n", "new_text": "2\n2\n"}
    assert preview(root, "edit_file", **change) == (
        "--- a.txt\n+++ a.txt\n@@ -1,4 +1,5 @@\n one\n-two\n+2\n+2\n three\n "
    )
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert run(root, "edit_file", **change) == "changed a.txt: it has 4 lines now"
    assert (root / "a.txt").read_bytes() == b"one\n2\n2\nthree\n"
    assert os.listdir(root) == ["a.txt"]


def test_ends_of_lines_stay(root):
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree")
    run(root, "edit_file", path="dos.txt", old_text="one\ntwo", new_text="1\n2")
    assert (root / "dos.txt").read_bytes() == b"1\r\n2\r\nthree"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("edit_file", {"old_text": "four"}, "old_text must occur once, and occurs 0 times: read the file again"),
        ("edit_file", {"old_text": "t"}, "old_text must occur once, and occurs 2 times: give more of the lines around"),
        ("edit_file", {"old_text": "one", "new_text": "one"}, "a.txt already has this text"),
        ("edit_file", {"path": "b", "old_text": "one"}, "there is no such file: write_file makes one"),
        ("edit_file", {"old_text": "one", "new_text": "\udc80"}, "half a character"),
        ("edit_file", {"path": ".", "old_text": "one"}, ". is a folder"),
        ("write_file", {"content": "x" * (5 << 20)}, "the text is longer than 4 MiB"),
        ("write_file", {"path": "../b", "content": "x"}, "../b is outside of"),
        ("write_file", {"path": "a.txt/b", "content": "x"}, "Not a directory|File exists|there is no file"),
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(root, name, change, problem):
    arguments = {"path": "a.txt", **({"new_text": "x"} if name == "edit_file" else {}), **change}
    if arguments["path"] != "a.txt/b":
        with pytest.raises(ToolError, match=problem):
            preview(root, name, **arguments)
    run(root, name, **arguments)
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert os.listdir(root) == ["a.txt"] and sorted(os.listdir(root.parent)) == ["root"]


@posix
def test_a_file_is_made_with_its_folders(root):
    assert preview(root, "write_file", path="new/b.txt", content="x\n") == (
        "--- /dev/null\n+++ new/b.txt\n@@ -0,0 +1,2 @@\n+x\n+"
    )
    assert not (root / "new").exists()
    assert run(root, "write_file", path="new/b.txt", content="x\n") == "made new/b.txt: it has 1 lines now"
    assert stat.S_IMODE((root / "new/b.txt").stat().st_mode) == 0o644


@posix
def test_a_mode_stays_and_a_link_too(root):
    (root / "a.txt").chmod(0o750)
    (root / "link").symlink_to("a.txt")
    run(root, "write_file", path="link", content="new")
    assert (root / "link").is_symlink() and (root / "a.txt").read_text() == "new"
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o750


@posix
def test_nothing_outside_is_written(root):
    (root.parent / "b.txt").write_text("old")
    (root / "link").symlink_to("../b.txt")
    (root / "up").symlink_to("..")
    # The file that is written first, by its name: somebody may have put a link there.
    (root / f".a.txt.{os.getpid()}.tmp").symlink_to("../b.txt")
    for path in ("link", "up/b.txt", "up/new.txt", "../b.txt", str(root.parent / "b.txt"), "a.txt"):
        run(root, "write_file", path=path, content="x")
    assert (root.parent / "b.txt").read_text() == "old"
    assert sorted(os.listdir(root.parent)) == ["b.txt", "root"]


def test_consent_to_a_diff_is_for_that_diff(root):
    box = Toolbox(GROUPS["edits"](root))
    change = {"path": "a.txt", "content": "mine"}
    box.preview("write_file", change)
    (root / "a.txt").write_text("somebody else's")
    assert box.run("write_file", change).text == "a.txt has changed since the diff was shown: read it again"
    assert (root / "a.txt").read_text() == "somebody else's"
    box.preview("write_file", change)
    assert not box.run("write_file", change).is_error


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", ["home", "link", "HOME"])
def test_what_is_allowed_is_out_of_reach(root, monkeypatch, is_there, name):
    """Who could make or change that file could allow calls."""
    monkeypatch.setenv("TINYCHAT_HOME", str(root / "home"))
    if is_there:
        (root / "home").mkdir()
    (root / "link").symlink_to("home")
    text = run(root, "write_file", path=f"{name}/allowed-tools.json", content="{}")
    assert text.endswith("/allowed-tools.json is of tinychat itself, or of the system: no tool reaches it")
    assert sorted(os.listdir(root)) == ["a.txt", *(["home"] if is_there else []), "link"]
    assert not is_there or os.listdir(root / "home") == []


LINES = st.lists(st.sampled_from(["a", "b", "", " c", "-d"]), max_size=12).map("\n".join)


@pytest.mark.parametrize("most", [500, 1])
def test_a_diff_is_what_patch_applies(most, tmp_path, monkeypatch):
    monkeypatch.setattr("tinychat.tools.own.diff._MOST_COMPARED", most)
    pytest.importorskip("shutil").which("patch") or pytest.skip("needs patch")

    @settings(max_examples=15, deadline=None)
    @given(before=LINES, after=LINES)
    def check(before, after):
        if before == after:
            return
        (tmp_path / "f").write_text(before + "\n")
        diff = diff_of("f", before, after) + "\n"
        subprocess.run(["patch", "-s", tmp_path / "f"], input=diff, text=True, check=True, capture_output=True)
        assert (tmp_path / "f").read_text() == after + "\n"

    check()


def test_a_long_diff_takes_no_time():
    before = "\n".join(str(number) for number in range(50_000))
    after = "\n".join(str(number) for number in reversed(range(50_000)))
    assert diff_of("f", before, after).count("\n-") == 50_000
