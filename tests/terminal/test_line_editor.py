"""The prompt of the whole program in a real terminal: keys, pastes, history, completion."""

import sys

import pytest
from prompt_toolkit.document import Document
from terminal_app import ALT_ENTER, CTRL_G, CTRL_J, CTRL_R, ENTER, TAB, UP

from tinychat.terminal.pasted_text import PastedTexts

PASTE = "\x1b[200~{}\x1b[201~"
BACKSPACE, LEFT, UNDO, CTRL_W = "\x7f", "\x1b[D", "\x1f", "\x17"


def test_a_paste_of_200_lines_is_one_message(start):
    terminal = start("chat", "counting")
    text = "\n".join(f"line {number}" for number in range(200))
    terminal.type(PASTE.format(text) + ENTER)
    terminal.expect("200 lines, last: line 199")
    terminal.leave()


def test_alt_enter_and_ctrl_j_begin_a_new_line(start):
    terminal = start("chat", "counting")
    terminal.say("one" + ALT_ENTER + "two" + CTRL_J + "three")
    terminal.expect("3 lines, last: three")
    terminal.leave()


def test_fences_hold_several_lines(start):
    terminal = start("chat", "counting")
    terminal.say('"""' + ENTER + "one" + ENTER + "two" + ENTER + '"""')
    terminal.expect("2 lines, last: two")
    terminal.leave()


def test_multiline_swaps_the_keys(start):
    terminal = start("chat", "counting")
    terminal.say("/multiline")
    terminal.type("one" + ENTER + "two" + ALT_ENTER)
    terminal.expect("2 lines, last: two")
    terminal.say("/exit")
    terminal.ends_with(0)


def test_the_history_lasts_from_run_to_run_and_can_be_searched(start, tmp_path):
    home = {"TINYCHAT_HOME": str(tmp_path)}
    first = start("chat", "counting", **home)
    first.say("the first message")
    first.say("the second message")
    first.leave()
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0
    second = start("chat", "counting", **home)
    second.type(UP + ENTER)
    second.expect("1 lines, last: the second message")
    second.type(CTRL_R + "first" + ENTER + ENTER)
    second.expect("1 lines, last: the first message")
    second.leave()


def test_a_search_that_finds_nothing_says_so(start):
    terminal = start("chat", "chatty", PROMPT_TOOLKIT_NO_CPR="")
    terminal.say("hello there")
    terminal.type(CTRL_R + "HELLO")
    terminal.sees("I-search backward: HELLO", "chatty · context")
    terminal.send("zzz")
    terminal.sees("I-search backward: HELLOzzz", "no earlier input contains 'HELLOzzz'")
    terminal.send(CTRL_G)
    terminal.sees("chatty · context")


def test_a_history_that_cannot_be_kept_does_not_disturb(start, tmp_path):
    (tmp_path / "history").mkdir()
    terminal = start("chat", "counting", TINYCHAT_HOME=str(tmp_path))
    terminal.say("hi")
    terminal.say("there")
    terminal.type(UP + UP + ENTER)
    terminal.expect("last: hi")
    terminal.leave()


def test_tab_completes_commands(start):
    terminal = start("chat", "counting")
    terminal.say("/sta" + TAB)
    terminal.expect("context: 0 of")
    terminal.leave()


def test_tab_completes_what_follows_a_command(start, tmp_path):
    (tmp_path / "notes.txt").write_text("Buy milk.")
    terminal = start("chat", "counting")
    terminal.type("/set thi" + TAB + " hi" + TAB + ENTER)
    terminal.expect("think: auto, hidden")
    terminal.type(f"/file {tmp_path}/no" + TAB + ENTER)
    terminal.expect(r"attached notes\.txt")
    terminal.leave()


def test_tab_lists_several_candidates(start):
    terminal = start("chat", "counting")
    terminal.type("/s" + TAB)
    terminal.sees("     /system ", "     /set ", "     /show ")
    terminal.send("ta" + TAB + ENTER)
    terminal.expect("context: 0 of")
    terminal.leave()


def test_a_list_leaves_nothing_on_the_screen(start):
    terminal = start("chat", "counting", PROMPT_TOOLKIT_NO_CPR="")
    for _ in range(2):
        terminal.type("/re" + TAB)
        terminal.sees("> /re", "      /regen ", "      /retry ", "      /redo ")
        terminal.send("\x15" + "/stats" + ENTER)
        terminal.expect("context: 0 of")
    lines = terminal.lines()
    assert sum("counting · context" in line for line in lines) == 1
    assert not any("/regen" in line for line in lines)
    terminal.leave()


def test_tab_chooses_from_a_list_and_enter_takes_without_sending(start):
    terminal = start("chat", "counting")
    terminal.type("/set to" + TAB)
    terminal.sees("> /set top_", "            top_k        now 40", "            top_p        now 0.95")
    terminal.send(TAB + TAB + ENTER + " 0.5" + ENTER)
    terminal.expect("top_p: 0.5")
    terminal.leave()


def test_ctrl_g_opens_the_editor(start, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text(f'#!{sys.executable}\nimport sys\nopen(sys.argv[1], "a").write("\\nfrom the editor")\n')
    editor.chmod(0o700)
    terminal = start("chat", "counting", EDITOR=str(editor), VISUAL=str(editor))
    terminal.type("typed" + CTRL_G)
    terminal.expect("from the editor")
    terminal.send(ENTER)
    terminal.expect("2 lines, last: from the editor")
    terminal.leave()


def test_bytes_that_are_no_utf8_become_replacement_characters(start):
    terminal = start("chat", "counting")
    terminal.expect(terminal.prompt)
    terminal.child.delaybeforesend = None
    terminal.child.ptyproc.write(b"caf\xe9\r")
    terminal.expect("1 lines, last: caf")
    terminal.leave()


def test_the_bar_tells_model_context_and_rate(start):
    terminal = start("chat", "counting", PROMPT_TOOLKIT_NO_CPR="")
    terminal.sees("counting · context 0/")
    terminal.send("hi" + ENTER)
    terminal.expect("1 lines, last: hi")
    terminal.expect(r"context \d\d/\d+ ▱+ · [\d.]+ tok/s")
    terminal.send("/exit" + ENTER)
    terminal.ends_with(0)


def test_a_long_paste_stands_as_a_few_words_and_is_sent_whole(start, tmp_path):
    home = {"TINYCHAT_HOME": str(tmp_path)}
    terminal = start("chat", "counting", **home)
    text = "/exit\n" + "\n".join(f"line {number}" for number in range(1499))
    terminal.type("See: " + PASTE.format(text) + PASTE.format(text.replace("9", "8")))
    terminal.sees("> See: [pasted 1500 lines][pasted 1500 lines, 2]")
    terminal.send(ENTER)
    terminal.expect("2999 lines, last: line 1488")
    terminal.type(PASTE.format(text))
    terminal.sees("> [pasted 1500 lines]")
    terminal.send(ENTER)
    terminal.expect("1500 lines, last: line 1498")
    terminal.leave()
    # The history has what was said, not what stood for it.
    assert "line 1498" in (tmp_path / "history").read_text()
    assert "[pasted" not in (tmp_path / "history").read_text()


def test_keys_remove_a_long_paste_as_a_whole_or_leave_it(start):
    terminal = start("chat", "counting")
    text = "\n".join(f"line {number}" for number in range(61))
    terminal.type("See: " + PASTE.format(text) + BACKSPACE)
    terminal.sees("> See:")
    terminal.send(UNDO + LEFT + LEFT + "x")
    terminal.sees("> See: [pasted 61 lines]x")
    terminal.send(PASTE.format(text) + CTRL_W)
    terminal.sees("> See: [pasted 61 lines]x")
    terminal.send(ENTER)
    terminal.expect("61 lines, last: line 60x")
    # A line of the history that only begins as the placeholder does.
    terminal.say("[past")
    terminal.expect("1 lines, last: \\[past")
    terminal.type(PASTE.format(text) + "\x01" + UP + ENTER)
    terminal.expect("1 lines, last: \\[past")
    terminal.leave()


@pytest.mark.parametrize(
    ("before", "typed", "after"),
    [
        ("a{}b", "a[pasted 60 lines|b", "a|b"),
        ("a{}b", "a|pasted 60 lines]b", "a|b"),
        ("a{}b", "a[pasted 60 |b", "a|b"),
        ("a{}b", "a[pas|", "a|"),
        ("a{}b", "a[xy|pasted 60 lines]b", "a{}xy|b"),
        ("a{}b", "a[pasteXY|s]b", "aXY|b"),
        ("a{}{}b", "a[pasted 60 |pasted 60 lines]b", "a|b"),
        ("a{}{}b", "a{}[pasted 60 lines|b", "a{}|b"),
        # Beside a placeholder, or of a whole one.
        ("{}", "[|{}", "[|{}"),
        ("{}]", "{}|", "{}|"),
        ("a{}b", "a|b", "a|b"),
        ("a{}b", "a{}b{}|", "a{}b{}|"),
        # Ctrl-G.
        ("a{}b", "a[1,\n{long}\n2]b|", "a[1,\n{long}\n2]b|"),
    ],
)
def test_edits_that_break_a_placeholder_are_repaired(before, typed, after):
    long, place = "\n".join("x" * 58), "[pasted 60 lines]"
    pasted = PastedTexts()
    assert pasted.fold(f"[1,\n{long}\n2]") == place
    before, typed, after = (text.replace("{}", place).replace("{long}", long) for text in (before, typed, after))
    repaired = pasted.repair(before, Document(typed.replace("|", ""), typed.index("|")))
    assert repaired == Document(after.replace("|", ""), after.index("|"))


def test_turns_stand_apart(start):
    terminal = start("chat", "counting")
    terminal.say("one")
    terminal.sees("1 lines, last: one", "18 tokens", "", ">")
    terminal.leave()
