import json

import pytest
from fake_loop import FakeLoop, loop_after

from tinychat.chat.commands import complete_command
from tinychat.chat.workspace import Models
from tinychat.conversation.attachments import Attachment
from tinychat.errors import ContextError, SettingError


def test_a_file_goes_with_the_next_message_once(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("first\n```\nsecond\n")
    loop = FakeLoop("Read.", "Yes.")
    assert loop.run(f"/file {path}") == "attached notes.txt (17 tokens)"
    loop.chat.say("Summarise.")
    assert loop.spoken[0] == "notes.txt:\n````\nfirst\n```\nsecond\n````\n\nSummarise."
    loop.chat.say("Sure?")
    assert loop.spoken[2] == "Sure?"


def test_a_text_is_attached_once_and_anew_when_it_has_changed(tmp_path):
    path = tmp_path / "notes.txt"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("old")
    loop = FakeLoop()
    assert loop.run("/file") == "nothing is attached"
    path.write_text("old")
    loop.run(f"/file {path}")
    assert loop.run(f"/file {path}") == "notes.txt is attached already"
    path.write_text("newer")
    loop.run(f"/file {path}")
    loop.run(f"/file {tmp_path / 'other' / 'notes.txt'}")
    assert loop.run("/file").splitlines() == ["1  notes.txt (5 tokens)", "2  notes.txt (3 tokens)"]
    assert "type /detach with a name" in loop.run("/detach")
    assert loop.candidates("/detach no") == ["notes.txt", "notes.txt"]
    for wrong in ("/detach 3", "/detach 0", "/detach else"):
        with pytest.raises(SettingError, match="is not attached"):
            loop.run(wrong)
    assert loop.run("/detach 2") == "removed notes.txt"
    assert [attachment.text for attachment in loop.chat.attachments] == ["newer"]
    loop.run("/detach")
    with pytest.raises(SettingError, match="nothing is attached"):
        loop.run("/detach")


def test_a_withdrawn_message_leaves_its_attachments():
    loop = FakeLoop("One")
    loop.chat.attachments = [Attachment("notes", "text")]
    list(loop.chat.stream("hi", cancelled=lambda: True))
    assert loop.chat.attachments == [Attachment("notes", "text")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "is not a file"), (b"\xff\xfe", "is not UTF-8 text"), (b"a\0b", "holds NUL bytes"), (b"  \n", "is empty")],
)
def test_a_file_that_cannot_be_sent(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    loop = FakeLoop()
    with pytest.raises(SettingError, match=complaint):
        loop.run(f"/file {tmp_path / 'file'}")
    assert loop.chat.attachments == []


def test_export_as_markdown_and_json(tmp_path):
    loop = loop_after(("Hi 😀", "Hello"), system="Be kind.")
    loop.chat.messages[-1].partial = True
    loop.run(f"/export {tmp_path / 'talk.md'}")
    assert (tmp_path / "talk.md").read_text(encoding="utf-8") == (
        "# Conversation with fake\n\n## System\n\nBe kind.\n\n## You\n\nHi 😀\n\n## Model (stopped)\n\nHello\n"
    )
    loop.run(f"/export {tmp_path / 'talk.json'}")
    document = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert document["model"] == "fake"
    assert document["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi 😀"},
        {"role": "assistant", "content": "Hello"},
    ]


def test_an_export_that_fails_leaves_no_file(tmp_path):
    loop = FakeLoop("a reply")
    loop.chat.say("hello")
    loop.chat.messages[0].content = "x" * 100_000
    from full_disk import full_disk

    with full_disk(), pytest.raises(SettingError, match=r"talk\.md cannot be written: File too large"):
        loop.run(f"/export {tmp_path / 'talk.md'}")
    assert list(tmp_path.iterdir()) == []


def test_export_overwrites_nothing_and_knows_two_formats(tmp_path):
    loop = loop_after(("Hi", "Hello"))
    path = tmp_path / "talk.md"
    path.write_text("precious")
    with pytest.raises(SettingError, match="exists already: choose another name, or add -f to overwrite it"):
        loop.run(f"/export {path}")
    assert path.read_text() == "precious"
    with pytest.raises(SettingError, match=r"use the extension \.md or \.json"):
        loop.run(f"/export {tmp_path / 'talk.pdf'}")
    with pytest.raises(SettingError, match="cannot be written"):
        loop.run(f"/export {tmp_path / 'no' / 'folder' / 'talk.md'}")


@pytest.mark.parametrize("written", ["{} -f", "-f {}"])
def test_export_overwrites_where_it_is_told_to(written, tmp_path):
    loop = loop_after(("Hi", "Hello"))
    path = tmp_path / "my talk.md"
    path.write_text("worthless")
    assert loop.run(f"/export {written.format(path)}") == f"written: {path}"
    assert "## Model\n\nHello\n" in path.read_text()
    path.unlink()
    loop.run(f"/export {written.format(path)}")
    assert [file.name for file in tmp_path.iterdir()] == ["my talk.md"]


def test_an_overwriting_export_that_fails_leaves_what_was_there(tmp_path):
    loop = loop_after(("Hi", "Hello"))
    loop.chat.messages[0].content = "x" * 100_000
    (tmp_path / "talk.md").write_text("precious")
    from full_disk import full_disk

    with full_disk(), pytest.raises(SettingError, match=r"talk\.md cannot be written: File too large"):
        loop.run(f"/export {tmp_path / 'talk.md'} -f")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"talk.md": "precious"}


def test_paths_are_completed(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "notes" / "two words").touch()
    (tmp_path / ".hidden").touch()
    loop, start = FakeLoop(), f"{tmp_path}/"
    assert loop.candidates(f"/file {start}") == [f"{start}notes/", f"{start}notes.txt"]
    assert loop.candidates(f"/file {start}.h") == [f"{start}.hidden"]
    assert loop.candidates(f"/file {start}notes/two w") == ["words"]
    assert loop.candidates(f"/file {start}none/x") == []


def test_paths_of_models_are_completed_beside_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("other", "own"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own" / "config.json").touch()
    for name in ("one.gguf", "only.txt"):
        (tmp_path / name).touch()
    loop = FakeLoop()
    loop.workspace.models = Models(names=lambda: ["opt-125m"])
    assert complete_command(loop, "/model o") == [
        ("opt-125m", ""),
        ("one.gguf", "GGUF file"),
        ("own/", "model"),
    ]
    assert loop.candidates("/model ./o") == ["./one.gguf", "./other/", "./own/"]


@pytest.mark.parametrize("typed", ["two words.txt", "'two words.txt'", '"two words.txt"', r"two\ words.txt"])
def test_a_path_may_be_quoted_or_escaped(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.txt").write_text("text")
    loop = loop_after(("Hi", "Hello"))
    assert loop.run(f"/file {typed}") == "attached two words.txt (4 tokens)"
    loop.run(f"/export {typed.replace('.txt', '.md')}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two words.md", "two words.txt"]


def test_a_path_that_looks_quoted_and_is_there_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "'it's'").write_text("text")
    assert FakeLoop().run("/file 'it's'").startswith("attached 'it's' (4 tokens)")
    with pytest.raises(SettingError, match="is not a file"):
        FakeLoop().run("/file 'open")


def test_a_file_that_cannot_fit_is_refused_at_once(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * 500)
    loop = FakeLoop("Yes.", context_size=200)
    with pytest.raises(SettingError) as caught:
        loop.run(f"/file {path}")
    assert str(caught.value) == (
        "long.txt has 500 tokens, which do not fit into the context of 200: "
        "attach a part of it, or make the context larger with /set context 1024"
    )
    assert loop.run("/file") == "nothing is attached"
    loop.run("/set context 1024")
    assert loop.run(f"/file {path}") == "attached long.txt (500 tokens)"


@pytest.mark.parametrize("overflow", ["drop", "stop"])
def test_a_file_that_fits_without_the_oldest_turns(overflow, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * 100)
    loop = loop_after(("y" * 80, "Yes."), context_size=200, trained_length=200, overflow=overflow)
    if overflow == "stop":
        with pytest.raises(SettingError, match=r"attach a part of it \(the model was trained on 200 tokens at most\)$"):
            loop.run(f"/file {path}")
    else:
        said = "attached long.txt (100 tokens); the oldest turns will be dropped"
        assert loop.run(f"/file {path}") == said


def test_an_attachment_can_be_taken_back(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * 150)
    loop = FakeLoop("Yes.", context_size=200)
    loop.run(f"/file {path}")
    with pytest.raises(ContextError):
        loop.chat.say("Is it long? " * 4)
    assert loop.run("/file none") == "removed all attachments"
    assert loop.chat.say("hi") == "Yes."


def test_a_home_that_nobody_has_is_an_error_in_one_line():
    loop = FakeLoop("Hello")
    loop.chat.say("hi")
    for command in ("/file ~nobody-has-this/x", "/export ~nobody-has-this/x.md"):
        with pytest.raises(SettingError, match="~nobody-has-this"):
            loop.run(command)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / ".git").mkdir()
    for name in ("src/a.py", "src/b.py", "src/deep/c.txt", "src/.git/config", "src/.hidden", "my notes.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "src" / "image.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "src" / "empty.py").write_text("")
    return tmp_path


def attached_by(line):
    loop = FakeLoop(context_size=4000)
    said = loop.run(line)
    return [attachment.name for attachment in loop.chat.attachments], said


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("/file src/a.py src/b.py", ["a.py", "b.py"]),
        ("/file src/*.py", ["src/a.py", "src/b.py"]),
        ("/file src/**/*.txt", ["src/deep/c.txt"]),
        ("/file src", ["src/a.py", "src/b.py", "src/deep/c.txt"]),
        ("/file my notes.txt", ["my notes.txt"]),
        ("/file 'my notes.txt' src/a.py src/a.py", ["my notes.txt", "a.py"]),
        ("/file src/.hidden", [".hidden"]),
    ],
)
def test_several_files_patterns_and_folders(tree, line, names):
    assert attached_by(line)[0] == names


def test_what_is_no_text_in_a_folder_is_left_out_and_said(tree):
    assert attached_by("/file src")[1] == ("attached 3 files (54 tokens); 2 skipped, which hold no text")
    assert attached_by("/file src/a.py src/b.py")[1] == "attached 2 files (32 tokens)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/file src/*.md", r"no file matches src/\*\.md"),
        ("/file src/a.py missing", "missing is not a file"),
        ("/file https://example.org/x", "is a URL: download it"),
        ("/file src/image.png", "is not UTF-8 text"),
        ("/file many", "many has more than 50 text files"),
    ],
)
def test_files_that_cannot_go_are_refused_together(tree, line, message):
    (tree / "many").mkdir()
    for number in range(51):
        (tree / "many" / f"{number}.txt").write_text("x")
    loop = FakeLoop(context_size=4000)
    with pytest.raises(SettingError, match=message):
        loop.run(line)
    assert loop.chat.attachments == []


def test_files_that_do_not_fit_together_leave_all_as_it_was(tree):
    loop = FakeLoop(context_size=120)
    loop.run("/file src/a.py")
    (tree / "src" / "b.py").write_text("b" * 100)
    with pytest.raises(SettingError, match="do not fit"):
        loop.run("/file src")
    assert [attachment.name for attachment in loop.chat.attachments] == ["a.py"]
