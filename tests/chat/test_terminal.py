"""The whole program in a real terminal: how replies are drawn, and how they are stopped."""

import os
import signal
from pathlib import Path

import pytest
from terminal_app import CTRL_C, CTRL_D, CTRL_U, saved

SUMMARY = "tokens, .*first token after"


def test_a_reply_streams_and_is_summed_up(start):
    terminal = start("chat", "chatty")
    terminal.expect("Ctrl-D leaves")
    terminal.say("hi")
    terminal.expect("Hello 😀!")
    terminal.expect(f"11 {SUMMARY}")
    terminal.say("think")
    # Drawn while the model is still writing: it waits for Ctrl-C.
    terminal.expect("I think that wait")
    terminal.send(CTRL_C)
    terminal.leave()


def test_ctrl_c_stops_the_reply_and_the_conversation_goes_on(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("think")
    terminal.expect("I think that wait")
    terminal.send(CTRL_C)
    terminal.expect(", stopped")
    terminal.say("/stats")
    terminal.expect("messages: 4")
    terminal.say("and?")
    terminal.expect("Good.")
    terminal.leave()


def test_ctrl_c_stops_the_reading_of_the_prompt(start):
    terminal = start("chat", "reader")
    terminal.say("a message of several chunks, so long that the terminal shows how much of it is read")
    terminal.expect("reading the prompt [1-9]")
    terminal.send(CTRL_C)
    terminal.expect("stopped before the reply began")
    # The message is back in the prompt.
    terminal.say(CTRL_U + "short")
    terminal.expect("1 lines, last: short")
    terminal.leave()


def test_ctrl_d_leaves(start):
    terminal = start("chat", "chatty")
    terminal.type(CTRL_D)
    terminal.ends_with(0)
    assert not Path(os.environ["TINYCHAT_HOME"], "sessions").exists(), "nothing was said that could be saved"


def test_keys_pressed_during_a_reply_wait_for_the_prompt(start):
    terminal = start("chat", "chatty")
    terminal.say("hi")
    terminal.say("think")
    terminal.expect("I think that wait")
    terminal.send("typed ahead\r")
    # Not by key: the terminal throws away what was typed before Ctrl-C.
    terminal.child.kill(signal.SIGINT)
    terminal.expect(", stopped")
    terminal.expect("Good.")
    terminal.leave()


def test_markdown_is_drawn_and_plain_leaves_it_alone(start):
    drawn = start("chat", "markdown")
    drawn.say("hi")
    drawn.expect(SUMMARY)
    assert "# Title" not in drawn.child.before
    assert "**bold**" not in drawn.child.before.rpartition("Some")[2]
    assert "\x1b[1mbold\x1b[0m" in drawn.child.before
    assert "• \x1b[0mone" in drawn.child.before
    drawn.leave()
    plain = start("chat", "markdown", "--plain")
    plain.say("hi")
    plain.expect_exact("# Title\r\n\r\nSome **bold** text.\r\n\r\n- one\r\n- two\r\n\r\n| a | b |\r\n")
    plain.leave()


def test_a_wide_table_loses_no_word(start):
    terminal = start("chat", "wide")
    terminal.say("hi")
    terminal.sees(" " + "  ".join(f"alpha{n}" for n in range(10)))
    shown = " ".join(terminal.lines())
    assert all(f"{word}{n}" in shown for word in ("alpha", "beta") for n in range(10))
    assert "…" not in shown
    terminal.leave()
    narrow = start("chat", "wide", columns=30)
    narrow.say("hi")
    narrow.sees("name 0: alpha0 beta0", "  name 1: alpha1 beta1", "  name 2: alpha2 beta2")
    narrow.leave()


def test_formulas_stay_as_they_are_written(start):
    terminal = start("chat", "mathematical")
    terminal.say("hi")
    terminal.sees(r"So \(a_1 * b_1\) is it.", "", r"\[", r"x = \{ a_1 * b_1 * c \}", r"\]", "", r"$$\int_0^1 f$$")
    terminal.leave()


def test_characters_split_over_tokens_arrive_whole(start):
    for arguments in ([], ["--plain"]):
        terminal = start("chat", "polyglot", *arguments)
        terminal.say("hi")
        terminal.expect_exact("漢字 и emoji 👩\u200d🚀 e\u0301 😀")
        assert "\ufffd" not in terminal.child.before
        terminal.leave()


def test_escape_codes_of_the_model_are_shown_not_obeyed(start):
    for arguments in ([], ["--plain"]):
        terminal = start("chat", "colourful", *arguments)
        terminal.say("hi")
        terminal.expect_exact("Red ␛[31malert␛[0m.")
        terminal.leave()


def test_a_setting_is_answered_by_its_line_and_few_tokens_have_no_rate(start):
    terminal = start("chat", "chatty", PROMPT_TOOLKIT_NO_CPR="")
    terminal.say("/set stop 😀")
    terminal.sees("> /set stop 😀", "stop: '😀' (was none)", ">")
    terminal.say("/set colour red")
    terminal.sees("error: unknown setting 'colour'; expected one of temperature, top_k")
    terminal.say("hi")
    terminal.sees("> hi", "Hello", "10 tokens, first token after")
    assert "tok/s" not in "".join(terminal.lines())
    terminal.leave()


def test_thinking_is_dimmed(start):
    terminal = start("chat", "pensive")
    terminal.say("hi")
    terminal.expect_exact("\x1b[2mLet\x1b[0m")
    terminal.expect("Yes.")
    assert "<think>" not in terminal.child.before
    terminal.leave()


def test_thinking_and_notices_are_broken_between_words(start):
    terminal = start("chat", "brooding", columns=30)
    terminal.say("hi")
    terminal.sees("Considering considerations", "considerably, consider", "consideration.", "", "Yes.")
    terminal.say("/set colour red")
    terminal.sees("error: unknown setting", "'colour'; expected one of", "temperature, top_k, top_p,")
    terminal.leave()


def test_thinking_can_be_folded(start):
    terminal = start("chat", "pensive")
    terminal.say("/set think hide")
    terminal.say("hi")
    terminal.expect("thought 12 characters")
    terminal.expect("Yes.")
    terminal.leave()


def test_a_resize_in_mid_reply_loses_nothing(start):
    terminal = start("chat", "wordy")
    terminal.say("hi")
    terminal.expect("wait")
    terminal.child.setwinsize(24, 50)
    terminal.send(CTRL_C)
    terminal.expect("stopped")
    # Drawn anew at the new width: all words of the reply, in lines that fit.
    again = terminal.child.before.rpartition("\x1b[J")[2].partition("\x1b[2m")[0]
    assert again.count("word") == 40
    assert max(len(line) for line in again.split("\r\n")) <= 50
    terminal.leave()


def test_a_resize_at_the_prompt(start):
    terminal = start("chat", "counting")
    terminal.type("a message that was begun")
    terminal.expect("begun")
    terminal.child.setwinsize(10, 30)
    terminal.send(" and ended\r")
    terminal.expect("1 lines, last: a message")
    terminal.leave()


def test_a_dumb_terminal_gets_no_escape_codes(start):
    terminal = start("chat", "chatty", TERM="dumb")
    terminal.say("hi")
    terminal.expect(r"Hello 😀!\r\n11 tokens, ")
    assert "\x1b" not in terminal.child.before + terminal.child.after
    terminal.say("think")
    terminal.expect("wait")
    terminal.send(CTRL_C)
    terminal.expect("stopped")
    terminal.type("half a li" + CTRL_C)
    terminal.expect("Ctrl-D leaves")
    terminal.leave()


def test_no_color_leaves_the_styles_out(start):
    terminal = start("chat", "markdown", NO_COLOR="1")
    terminal.expect_exact("markdown Ctrl-C stops a reply")
    terminal.say("hi")
    terminal.expect(SUMMARY)
    reply = terminal.child.before.rpartition("Title")[2]
    assert "• one" in reply
    assert "\x1b[1m" not in reply
    assert "\x1b[3" not in reply
    terminal.leave()


def test_forty_columns_are_enough(start):
    terminal = start("chat", "wordy", columns=40)
    terminal.say("hi")
    terminal.expect("wait")
    lines = terminal.child.before.rpartition("\x1b[?2004l")[2].split("\r\n")
    assert max(len(line) for line in lines[-4:]) <= 40
    terminal.send(CTRL_C)
    terminal.expect("stopped")
    terminal.leave()


@pytest.mark.parametrize("columns", [1, 2, 7])
def test_the_narrowest_terminal_does_not_end_the_chat(start, columns):
    terminal = start("chat", "markdown", columns=columns)
    terminal.say("hi")
    terminal.say("/exit")
    terminal.ends_with(0)
    message, reply = saved()
    assert (message, reply[:7]) == ("hi", "# Title")


def test_ctrl_c_in_a_one_shot_completion_is_130(start):
    terminal = start("complete", "slow", "-p", "hi")
    terminal.expect("Please wait")
    terminal.send(CTRL_C)
    terminal.ends_with(130)
