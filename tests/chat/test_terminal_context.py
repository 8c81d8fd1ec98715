"""What a person is told in a terminal about the context: what is in it, what does not fit, what can be done."""

import pytest
from terminal_app import CTRL_C, saved


def small_chat(start, *arguments):
    """Start a chat in a context of 256 tokens, with a model that was trained on 512."""
    return start("chat", "small", "--context", "256", *arguments, columns=160)


def test_a_message_that_is_too_long_costs_no_turn(start):
    terminal = small_chat(start)
    terminal.say("hi")
    terminal.say("x" * 300)
    terminal.sees(
        "error: the prompt has 303 tokens but the context holds 256: shorten your message, or make the context "
        "larger with /set context 512"
    )
    assert "no longer sees" not in terminal.output
    terminal.say("\x15/context")
    terminal.sees("22 of 256 tokens in use, 234 left; when full: drop")
    terminal.leave()
    assert saved() == ["hi", "1 lines, last: hi"]


def test_a_file_that_cannot_fit_is_refused_at_once(start, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("word " * 200)
    terminal = small_chat(start)
    terminal.say(f"/file {path}")
    terminal.sees("error: long.txt has 1000 tokens, which do not fit into the context of 256: attach a part of it (the")
    terminal.say("hi")
    terminal.expect("1 lines, last: hi")
    terminal.leave()


def test_a_context_beyond_the_training_is_warned_of_once(start):
    terminal = small_chat(start)
    terminal.say("/set context 1048576")
    terminal.sees("the model was trained on 512 tokens at most: in a context of 1048576 its replies may lose")
    terminal.say("/set context 2000")
    terminal.expect("2000")
    terminal.leave()
    assert terminal.output.count("trained on") == 1


def test_a_reply_that_fills_the_context_leaves_nothing(start):
    terminal = start("chat", "wordy", "--context", "128", columns=160)
    terminal.say("hi")
    terminal.expect("the context is full: drop turns with .undo or .clear, or make the context larger with")
    terminal.expect("/set context 1024, then .continue")
    terminal.say("/context")
    terminal.sees("128 of 128 tokens in use, 0 left; when full: drop")
    terminal.leave()


@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["drawn", "plain"])
def test_the_notice_that_turns_are_gone_waits_for_the_end_of_the_sentence(start, plain):
    flags = ["--context", "256", "--overflow", "shift", "--loop-stop", "off", *plain]
    terminal = start("chat", "essay", *flags, columns=200)
    terminal.say("hi")
    terminal.say("and?")
    terminal.sees(
        "The sentence goes on " * 8 + "to its end.",
        "",
        'the context is full: the model no longer sees the oldest turn ("hi"); ',
        "",
        "The last words.",
    )
    terminal.leave()


def test_a_summary_is_shown_and_can_be_stopped_and_taken_back(start):
    terminal = start("chat", "summing", columns=160)
    terminal.say("x" * 300)
    terminal.expect("One")
    terminal.say("and?")
    terminal.expect("Two")
    terminal.say("/compact")
    # The model waits for Ctrl-C.
    terminal.expect("summarising, [0-9]+ characters")
    terminal.send(CTRL_C)
    terminal.expect("stopped: the conversation is unchanged")
    terminal.say("/compact")
    terminal.sees("a summary replaces 1 turn: ", "In sum, we spoke.")
    terminal.say("/undo")
    terminal.sees("restored: the turns of the summary")
    terminal.say("/redo")
    terminal.sees("restored: the summary")
    terminal.leave()
    assert saved()[1:] == ["In sum, we spoke.", "and?", "Two."]
