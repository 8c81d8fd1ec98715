"""Tools that read files: within their folder, within their limits."""

import os
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from tinychat.errors import ToolError
from tinychat.tools.own.files import line_of
from tinychat.tools.own.groups import GROUPS
from tinychat.tools.runnable import Toolbox

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes of POSIX")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path / "home"))
    folder = tmp_path / "root"
    (folder / "src").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("the secret")
    (folder / "notes.txt").write_text("one\ntwo\nthree\n")
    (folder / "src/main.py").write_text("print('two')\n")
    return folder


def run(root, name, **arguments):
    """Return the text of a result, checked as a call of a model is."""
    box = Toolbox(GROUPS["files"](root))
    return box.run(name, box.check(name, arguments)).text


def test_a_file_and_its_lines(root):
    assert run(root, "read_file", path="notes.txt") == "one\ntwo\nthree"
    assert run(root, "read_file", path="notes.txt", start_line=2, end_line=2) == "two"
    assert run(root, "read_file", path="./src/../notes.txt", start_line=3, end_line=9) == "three"
    assert run(root, "read_file", path=str(root / "notes.txt"), start_line=3) == "three"
    assert run(root, "read_file", path="notes.txt", start_line=4) == "there are no lines 4 to 3: the file has 3"
    (root / "empty").touch()
    assert run(root, "read_file", path="empty") == "[the file is empty]"


def test_a_long_file_is_read_part_by_part(root):
    lines = [f"line {number}" for number in range(1, 10_001)]
    (root / "long.txt").write_text("\n".join(lines))
    found, start = [], 1
    while start:
        *part, note = run(root, "read_file", path="long.txt", start_line=start).split("\n")
        start = int(note.rpartition(" ")[2].rstrip("]")) if note.startswith("[lines") else 0
        found += part if start else [*part, note]
    assert found == lines
    (root / "wide.txt").write_text("x" * 100_000 + "\nend")
    text = run(root, "read_file", path="wide.txt")
    assert len(text) < 21_000 and "characters are left out" in text


@posix
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("none.txt", "there is no file none.txt"),
        ("src", "src is a folder: list_files lists it"),
        ("binary", "binary is not text: it has 5 bytes of other data"),
        ("utf16", "utf16 is not text: it has 6 bytes of other data"),
        ("huge", "huge cannot be read: it is larger than 4 MiB"),
        ("pipe", "pipe cannot be read: it is not a regular file"),
        ("notes.txt/x", "notes.txt/x cannot be read: Not a directory"),
        ("a\0b", "a path has no NUL character"),
        ("x" * 4000, "File name too long"),
        ("loop", "loop cannot be read: Too many levels of symbolic links"),
    ],
)
def test_what_is_no_text_file_is_told_as_such(root, path, problem):
    (root / "binary").write_bytes(b"\x7fELF\xff")
    (root / "utf16").write_bytes("abc".encode("utf-16-le"))
    with open(root / "huge", "wb") as file:
        file.truncate(5 << 20)
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    assert problem in run(root, "read_file", path=path)


@posix
@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "/etc/passwd",
        "link",
        "up/secret.txt",
        "src/../../secret.txt",
        "/dev/zero",
        "~/../../etc/passwd",
    ],
)
@pytest.mark.parametrize("name", ["read_file", "list_files", "search_files"])
def test_nothing_outside_is_reached(root, path, name):
    (root / "link").symlink_to("../secret.txt")
    (root / "up").symlink_to("..")
    text = run(root, name, path=path, **({"text": "s"} if name == "search_files" else {}))
    assert "is outside of" in text or "there is no f" in text
    assert "the secret" not in text


@posix
def test_a_link_within_is_followed(root):
    (root / "link").symlink_to("src")
    assert run(root, "read_file", path="link/main.py") == "print('two')"


@posix
def test_a_folder_that_becomes_a_link_is_not_followed(root):
    """A path is resolved, then opened: what is put in its place between the two must not count."""
    from tinychat.tools.own.root import Root

    bound = Root(root)
    path = bound.resolve("src/secret.txt")
    (root / "src").rename(root / "moved")
    (root / "src").symlink_to("..")
    with pytest.raises(ToolError, match="cannot be read"):
        bound.read(path)
    leaf = bound.resolve("leaf")
    (root / "leaf").symlink_to("../secret.txt")
    with pytest.raises(ToolError, match="cannot be read"):
        bound.read(leaf)


def test_own_folders_are_out_of_reach(root, tmp_path, monkeypatch):
    """Who writes there allows calls, or changes the code of kernels."""
    own = root / "own"
    own.mkdir()
    (own / "allowed-tools.json").write_text("{}")
    monkeypatch.setenv("TINYCHAT_HOME", str(own))
    monkeypatch.setenv("TINYCHAT_CACHE", str(tmp_path / "cache"))
    assert "is of tinychat itself" in run(root, "read_file", path="own/allowed-tools.json")
    assert "own" not in run(root, "list_files", recursive=True)
    assert run(root, "search_files", text="{}") == "no line has it"


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs the processes of Linux as files")
def test_the_environment_of_processes_is_out_of_reach(monkeypatch):
    monkeypatch.chdir("/")
    for path in ("proc/self/environ", "/proc", "dev/fd"):
        assert "is of tinychat itself, or of the system" in run(Path("/"), "list_files", path=path)


def test_a_list_has_sizes_and_times(root):
    now = time.time()
    for name, age in [("notes.txt", 86_400 * 3), ("src/main.py", 60), ("src", 7200)]:
        os.utime(root / name, (now - age, now - age))
    head, *lines = run(root, "list_files").split("\n")
    today = datetime.now().astimezone()
    assert head.startswith(".: 2 entries; the time now is ") and f"{today:%A, %Y-%m-%d}" in head
    changed = datetime.fromtimestamp(now - 86_400 * 3).astimezone()
    assert lines[0] == f"{changed:%Y-%m-%d %H:%M}  14 bytes  notes.txt"
    assert lines[1].endswith("  folder  src")
    newest = run(root, "list_files", newest_first=True, recursive=True).split("\n")[1:]
    assert [line.rpartition(" ")[2] for line in newest] == ["src/main.py", "src", "notes.txt"]
    assert run(root, "list_files", path="src").endswith("src/main.py")
    assert run(root, "list_files", path="notes.txt") == "there is no folder notes.txt"


def test_a_list_is_bounded_and_each_entry_is_one_line(root, monkeypatch):
    for number in range(300):
        (root / f"file{number:03}").touch()
    (root / "a\nb\x1b[2J\u202e").touch()
    text = run(root, "list_files")
    assert "[103 more are not listed: name a folder or a pattern]" in text
    assert "a\\x0ab\\x1b[2J\\x202e" in text
    never = os.stat_result((0o100644, 0, 0, 1, 0, 0, 5, 0, 10**18, 0))
    assert line_of("odd", never) == "at no known time  5 bytes  odd"
    assert run(root, "list_files", pattern="file00[1-3]").count("\n") == 3
    monkeypatch.setattr("tinychat.tools.own.root._MOST_ENTRIES", 10)
    assert "[the folder is too large: this is a part of it" in run(root, "list_files")
    assert "[the folder is too large: this is a part of it" in run(root, "search_files", text="zz")


def test_lines_are_found(root):
    (root / "binary").write_bytes(b"two\xff")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("two")
    assert run(root, "search_files", text="two") == "notes.txt:2: two\nsrc/main.py:1: print('two')"
    assert run(root, "search_files", text="TWO") == "no line has it"
    assert run(root, "search_files", text="TWO", ignore_case=True, pattern="*.txt") == "notes.txt:2: two"
    assert run(root, "search_files", text="two", path="src").startswith("src/main.py:1")
    assert run(root, "search_files", text="two", pattern="src/**/*.py").startswith("src/main.py:1")
    assert run(root, "search_files", text="two", pattern="lib/*.py") == "no line has it"
    assert run(root, "search_files", text="t.o") == "no line has it"
    assert run(root, "search_files", text="e$", path="notes.txt") == "no line has it"
    (root / "many").write_text("zz" * 999 + "\n" + "z\n" * 500)
    many = run(root, "search_files", text="z").split("\n")
    assert many[-1].startswith("[only the first 100 lines") and len(many) == 101 and len(many[0]) < 400


def test_regular_expressions_have_a_time_limit(root):
    assert run(root, "search_files", text="^t.*e$", is_regex=True) == "notes.txt:3: three"
    assert run(root, "search_files", text="^T", is_regex=True, ignore_case=True).count("\n") == 1
    assert run(root, "search_files", text="(", is_regex=True).startswith(
        "the regular expression cannot be used: missing )"
    )
    (root / "hard").write_text("a" * 40 + "b")
    began = time.monotonic()
    text = run(root, "search_files", text="(a+)+$", is_regex=True)
    assert text == "the regular expression takes too long: make it simpler"
    assert time.monotonic() - began < 15


def test_a_search_stops(root):
    (root / "hard").write_text("a" * 40 + "b")
    box, stop = Toolbox(GROUPS["files"](root)), threading.Event()
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    result = box.run("search_files", {"text": "(a+)+$", "is_regex": True}, stop)
    assert result.text == "the user stopped this call"
    # Within 0.2 seconds; the machine may be busy.
    assert time.monotonic() - began < 0.9
