"""No word of a person gets lost in a terminal, and nothing happens that nobody asked for."""

import os
import signal
from pathlib import Path
from time import sleep

import pytest
from terminal_app import ALT_ENTER, CTRL_C, CTRL_D, CTRL_U, ENTER, UP, saved

BAR = {"PROMPT_TOOLKIT_NO_CPR": ""}


def test_an_edit_that_is_given_up_changes_nothing(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("/save talk")
    whole = ["hi", "Hello 😀!"]
    for give_up in (CTRL_C, CTRL_U + ENTER):
        terminal.say("/edit")
        terminal.sees("change the message and send it again; Ctrl-C cancels", "> hi")
        assert saved("talk") == whole
        terminal.send(give_up)
        terminal.expect("not edited")
        terminal.say("/context")
        terminal.expect("user +hi")
        assert saved("talk") == whole
    terminal.leave()
    assert saved("talk") == whole


def test_a_sent_edit_replaces_and_undo_brings_the_old_turns_back(start):
    terminal = start("chat", "counting")
    terminal.say("one")
    terminal.say("two")
    terminal.say("/edit 2")
    terminal.sees("sent, it replaces the last 2 turns; Ctrl-C cancels", "> one")
    terminal.type(" and a half" + ENTER)
    terminal.expect("last: one and a half")
    terminal.say("/save talk")
    terminal.expect("saved as talk")
    edited = ["one and a half", "1 lines, last: one and a half"]
    before = ["one", "1 lines, last: one", "two", "1 lines, last: two"]
    assert saved("talk") == edited
    for command, said in (("/undo", before), ("/redo", edited), ("/undo 2", before[:2]), ("/redo", before)):
        terminal.say(command)
        terminal.expect("restored|undone")
        terminal.expect(terminal.prompt)
        assert saved("talk") == said
        terminal.send("/stats" + ENTER)
    terminal.leave()


def test_a_reply_that_was_being_written_again_leaves_the_old_one(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("/regen")
    terminal.expect("I think that wait")
    terminal.send(CTRL_C)
    terminal.expect(", stopped")
    terminal.leave()
    assert saved() == ["hi", "I think that wait.."]
    again = start("chat", "chatty", "--continue")
    again.say("/undo")
    again.expect("restored: Hello 😀!")
    again.expect(again.prompt)
    assert saved() == ["hi", "Hello 😀!"]
    again.send("/redo" + ENTER)
    again.expect("restored: I think that wait")
    again.leave()
    assert saved() == ["hi", "I think that wait.."]


def test_a_paste_during_a_reply_is_one_message_and_unsent(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("think")
    terminal.expect("I think that wait")
    terminal.paste("one\n/exit\n" + "\n".join(f"{number} {'x' * 70}" for number in range(200)) + "\nlast")
    sleep(0.3)
    terminal.child.kill(signal.SIGINT)
    terminal.expect(", stopped")
    terminal.sees("> [pasted 203 lines]")
    assert saved() == ["hi", "Hello 😀!", "think", "I think that wait.."]
    terminal.send(ENTER)
    terminal.expect("Good.")
    terminal.leave()
    message = saved()[4]
    assert message.startswith("one\n/exit\n0 x") and message.endswith("x\nlast") and message.count("\n") == 202


def test_a_paste_of_several_lines_is_no_command(start):
    terminal = start("chat", "counting")
    terminal.expect(terminal.prompt)
    terminal.lines()
    terminal.paste("/exit\nsecond")
    terminal.sees(">  /exit", "  second")
    terminal.send(ENTER)
    terminal.expect("2 lines, last: second")
    terminal.leave()
    assert saved()[0] == " /exit\nsecond"


def test_pastes_are_marked_from_the_start_to_the_end(start):
    terminal = start("chat", "counting")
    terminal.say("one")
    terminal.say("/set temperature 0")
    terminal.leave()
    assert terminal.output.count("\x1b[?2004l") == 1
    assert terminal.output.endswith("\x1b[?2004l")


def test_keys_before_the_first_prompt_are_lines(start):
    early = start("chat", "counting")
    # Before the program could say anything.
    early.child.delaybeforesend = 0
    early.send("zero\r")
    early.expect("1 lines, last: zero")
    early.leave()
    terminal = start("chat", "heavy")
    terminal.expect("loading")
    terminal.send("first\rsecond\r")
    assert "first" not in "".join(terminal.lines())
    terminal.sees("> first")
    terminal.expect("1 lines, last: first")
    terminal.expect("1 lines, last: second")
    terminal.leave()


def test_after_a_stop_by_the_shell_keys_are_unseen_again(start):
    terminal = start("chat", "heavy")
    terminal.expect("loading")
    assert not terminal.child.getecho()
    terminal.child.kill(signal.SIGSTOP)
    terminal.child.setecho(True)
    terminal.child.kill(signal.SIGCONT)
    assert terminal.child.waitnoecho(5)
    terminal.say("hi")
    terminal.expect("1 lines, last: hi")
    terminal.leave()
    assert terminal.child.before.endswith("\x1b[?2004l")


def test_a_prompt_is_drawn_anew_and_edited_after_a_stop_by_the_shell(start):
    terminal = start("chat", "counting", **BAR)
    terminal.type("typed")
    terminal.sees("> typed")
    terminal.sees("counting · context 0")
    own = terminal.attributes()
    terminal.child.kill(signal.SIGSTOP)
    terminal.is_used_by_a_shell()
    terminal.child.kill(signal.SIGCONT)
    terminal.sees("> typed")
    terminal.sees("counting · context 0")
    assert terminal.attributes() == own
    terminal.send("\x1b[D!" + ENTER)
    terminal.expect("1 lines, last: type!d")
    terminal.leave()


def test_a_prompt_stays_in_its_place_after_a_stop_that_no_shell_saw(start):
    terminal = start("chat", "counting")
    terminal.type("one" + ALT_ENTER + "two")
    terminal.sees("> one", "  two")
    before = terminal.lines()
    terminal.child.kill(signal.SIGSTOP)
    terminal.child.kill(signal.SIGCONT)
    terminal.expect("two")
    assert terminal.lines() == before
    terminal.send(ENTER)
    terminal.expect("2 lines, last: two")
    terminal.leave()


@pytest.mark.parametrize("command", ["/model heavy", "/set context 9999"])
def test_keys_during_a_slow_command_are_lines(start, command):
    terminal = start("chat", "heavy")
    terminal.say(command)
    terminal.expect(r"context" if "context" in command else "loading")
    terminal.send("first\rsecond\r")
    assert not any(line.endswith("first") for line in terminal.lines())
    terminal.expect("1 lines, last: first")
    terminal.expect("1 lines, last: second")
    terminal.leave()
    assert saved() == ["first", "1 lines, last: first", "second", "1 lines, last: second"]


def test_escape_during_a_reply_changes_no_key_after_it(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("think")
    terminal.expect("I think that wait")
    terminal.send("\x1b")
    sleep(1)
    terminal.send("typed\r")
    terminal.child.kill(signal.SIGINT)
    terminal.expect("Good.")
    terminal.leave()
    assert saved()[4:] == ["typed", "Good."]


def test_ctrl_c_keeps_what_was_typed_ahead(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("think")
    terminal.expect("I think that wait")
    terminal.send("typed ahead")
    terminal.send(CTRL_C)
    terminal.expect(", stopped")
    terminal.sees("> typed ahead")
    terminal.send(ENTER)
    terminal.expect("Good.")
    terminal.leave()


def test_an_interrupted_message_returns_and_its_attachment_stays(start, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Buy milk.")
    terminal = start("chat", "reader", **BAR)
    for _ in range(2):
        terminal.type(f"/file {path}{ENTER}")
    terminal.expect("notes.txt is attached already")
    terminal.sees("reader · context 0/1048576 ▱▱▱▱▱▱▱▱▱▱ · attached: notes.txt")
    question = "a question that is so long that the terminal shows how much of it is read"
    terminal.send(question + ENTER)
    terminal.expect("reading the prompt [1-9]")
    terminal.send("typed ahead" + ENTER)
    terminal.send(CTRL_C)
    terminal.expect("your message is back in the prompt")
    terminal.expect("still attached to your next message: notes.txt")
    terminal.sees(f"> {question}", "  typed ahead")
    terminal.sees("reader · context 0/1048576 ▱▱▱▱▱▱▱▱▱▱ · attached: notes.txt")
    terminal.send(ENTER)
    terminal.expect("last: typed ahead")
    terminal.say("next")
    terminal.expect("1 lines, last: next")
    terminal.leave()
    texts = saved()
    assert texts[0] == f"notes.txt:\n```\nBuy milk.\n```\n\n{question}\ntyped ahead"
    assert texts[2] == "next"


def test_attachments_are_listed_and_taken_back_one_by_one(start, tmp_path):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    terminal = start("chat", "counting")
    for name in ("a.txt", "b.txt", "c.txt"):
        terminal.say(f"/file {tmp_path / name}")
    terminal.say("/show")
    terminal.expect("attached +a.txt, b.txt, c.txt")
    terminal.say("/detach b.txt")
    terminal.say("/detach 2")
    terminal.expect("removed c.txt")
    terminal.say("/file")
    terminal.expect(r"1  a.txt \(13 tokens\)")
    terminal.say("What?")
    terminal.expect("last: What?")
    terminal.say("/file")
    terminal.expect("nothing is attached")
    terminal.leave()
    assert saved()[0] == "a.txt:\n```\ntext of a.txt\n```\n\nWhat?"


def test_only_two_quick_presses_on_an_empty_line_leave(start):
    terminal = start("chat", "counting")
    terminal.type("half a line" + CTRL_C)
    terminal.type(CTRL_C)
    terminal.expect("Ctrl-C again")
    sleep(2.2)
    terminal.type(CTRL_C)
    terminal.expect("Ctrl-C again")
    terminal.type("and" + CTRL_C)
    terminal.type(CTRL_C)
    terminal.expect("Ctrl-C again")
    # Nothing that was cleared is gone.
    terminal.type(UP + UP + ENTER)
    terminal.expect("1 lines, last: half a line")
    terminal.type(CTRL_C)
    terminal.expect("Ctrl-C again")
    terminal.type(CTRL_C)
    terminal.ends_with(0)


def test_damaged_conversations_are_passed_over(start):
    first = start("chat", "counting")
    first.say("hi")
    first.say("/save good")
    first.leave()
    folder = Path(os.environ["TINYCHAT_HOME"], "sessions")
    for path in folder.iterdir():
        os.utime(path, (2, 2) if path.stem == "good" else (1, 1))
    for place, text in enumerate(["{", '{"format": 1, "messages": [], "settings": {"temperature": -3}}']):
        (folder / f"broken{place}.json").write_text(text)
    os.mkfifo(folder / "pipe.json")
    terminal = start("chat", "--continue", columns=200)
    terminal.sees("good: 2 messages")
    for name in ("broken0", "broken1", "pipe"):
        assert any(f"{name}.json" in line for line in terminal.lines(0))
    terminal.say("/sessions")
    terminal.expect("damaged")
    terminal.expect("good .*2 messages  hi")
    terminal.leave()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_while_the_prompt_is_read_keeps_the_message(start, name):
    number = getattr(signal, name)
    terminal = start("chat", "reader")
    question = "a question that is so long that the terminal shows how much of it is read"
    terminal.say(question)
    terminal.expect("reading the prompt [1-9]")
    terminal.child.kill(number)
    terminal.ends_with(128 + number)
    assert saved() == [question, ""]
    again = start("chat", "--continue")
    again.sees(f"> {question}")
    again.type(CTRL_U + CTRL_D)
    again.ends_with(0)
