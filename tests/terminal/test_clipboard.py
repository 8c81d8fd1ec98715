import base64
import os

import pytest
from fake_loop import FakeLoop
from screen import Terminal

from tinychat.conversation.messages import Message
from tinychat.errors import SettingError
from tinychat.terminal.clipboard import write_clipboard

if os.name == "nt":
    pytest.skip("the stand-in programs are shell scripts", allow_module_level=True)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that puts a program of this name and script alone on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


def test_the_clipboard_goes_with_the_next_message(install):
    install("xclip", "printf 'copied text'")
    loop = FakeLoop("Yes.")
    assert loop.run("/paste") == "attached Clipboard (11 tokens)"
    loop.chat.say("Is it right?")
    assert loop.spoken[0] == "Clipboard:\n```\ncopied text\n```\n\nIs it right?"


def test_the_last_reply_is_copied(install, tmp_path):
    install("wl-copy", "exit 1")
    install("xclip", f'read -r line; echo "$line" > {tmp_path / "clipboard"}')
    loop = FakeLoop("Hello 😀")
    loop.chat.say("hi")
    assert loop.run("/copy") == "copied: 7 characters"
    assert (tmp_path / "clipboard").read_text(encoding="utf-8").strip() == "Hello 😀"


def test_each_system_gets_its_own_encoding(install, tmp_path, monkeypatch):
    monkeypatch.delenv("LC_CTYPE", raising=False)
    install("clip.exe", f"/bin/cat > {tmp_path / 'clip'}")
    write_clipboard("grün\n")
    assert (tmp_path / "clip").read_bytes() == "grün\n".encode("utf-16")
    (tmp_path / "bin/clip.exe").unlink()
    install("pbcopy", f'echo "$LC_CTYPE" > {tmp_path / "locale"}')
    write_clipboard("grün\n")
    assert (tmp_path / "locale").read_text() == "UTF-8\n"


def test_without_a_program_the_terminal_is_asked(install):
    loop = FakeLoop("Hi \x1b[31m😀")
    loop.renderer.terminal = Terminal()
    loop.chat.say("hi")
    assert loop.run("/copy") == "sent to the terminal, which may copy it: 9 characters"
    asked = loop.renderer.terminal.getvalue()
    assert asked.startswith("\x1b]52;c;") and asked.endswith("\x07")
    assert base64.b64decode(asked[7:-1]).decode() == "Hi \x1b[31m😀"


def test_no_terminal_is_asked_for_what_it_would_drop(install):
    loop = FakeLoop()
    loop.renderer.terminal = Terminal()
    loop.chat.messages = [Message("user", "hi"), Message("assistant", "x" * 80_000)]
    with pytest.raises(SettingError, match="use /export"):
        loop.run("/copy")
    assert loop.renderer.terminal.getvalue() == ""


def test_a_clipboard_out_of_reach_is_said(install):
    loop = FakeLoop("Hello")
    with pytest.raises(SettingError, match="no reply to copy yet"):
        loop.run("/copy")
    loop.chat.say("hi")
    with pytest.raises(SettingError, match=r"none of wl-copy, .* is installed; use /export"):
        loop.run("/copy")
    install("xsel", "exit 1")
    with pytest.raises(SettingError, match="xsel failed; paste into the prompt instead"):
        loop.run("/paste")
