import pytest
from fake_loop import FakeLoop, loop_after
from fake_model import EOS

from tinychat.errors import SettingError, TextError

TWO_TURNS = (("one", "1"), ("two", "2"))


def test_context_counts_what_the_model_sees():
    loop = loop_after(*TWO_TURNS, system="Be kind.")
    lines = loop.run("/context").splitlines()
    assert lines[0].startswith("23 of 256 tokens in use, 233 left; when full: stop")
    assert lines[1:] == [
        "     2  template   <bos><system>",
        "     8  system     Be kind.",
        "     3  user       one",
        "     1  assistant  1",
        "     3  user       two",
        "     1  assistant  2",
        "     5  template   the chat template between messages",
        "memory: keys and values 1.2 MB",
    ]


def tokens_in_rows(loop):
    """Return what the rows of /context add up to, and what its first line says is in use."""
    first, *rows, _memory = [line.split() for line in loop.run("/context").splitlines()]
    return sum(int(row[0]) for row in rows), int(first[0])


def test_the_rows_add_up_with_a_system_prompt_of_the_templates_own():
    loop = loop_after(*TWO_TURNS)
    render_ids = loop.chat.model.template.render_ids
    own = [{"role": "system", "content": "You are a helpful assistant."}]
    loop.chat.model.template.render_ids = lambda messages, *rest, **flags: render_ids([*own, *messages], *rest, **flags)
    loop.chat.undo()
    assert loop.run("/context").splitlines()[1] == "    31  template   <bos><system>You are a helpful assistant.<user>"
    rows, used = tokens_in_rows(loop)
    assert rows == used


def test_the_rows_add_up_where_the_template_leaves_something_out():
    loop = loop_after(("one", "<think>a long thought of some length</think>1"))
    render_ids = loop.chat.model.template.render_ids

    def without_thinking(messages, *rest, **flags):
        return render_ids([{**m, "content": m["content"].rpartition("</think>")[2]} for m in messages], *rest, **flags)

    loop.chat.model.template.render_ids = without_thinking
    loop.chat.replace_messages([*loop.chat.messages])
    assert "dropped by the chat template, such as thinking" in loop.run("/context")
    rows, used = tokens_in_rows(loop)
    assert rows == used


def test_context_of_an_empty_conversation():
    assert FakeLoop().run("/context").startswith("0 of 256 tokens in use")


def test_tokens_of_a_text():
    # The two bytes of a character, which are none alone.
    assert FakeLoop().run("/tokens hé") == r"3 tokens: 'h' 104  '\xc3' 195  '\xa9' 169"


def test_tokens_are_shown_as_text_and_not_as_a_vocabulary_writes_them():
    loop = FakeLoop()
    words = {1: b" two", 2: "é\n".encode(), 3: "漢".encode()[:2]}
    loop.chat.model.tokenizer.encode = lambda text, add_bos: [1, 2, 3, EOS]
    loop.chat.model.tokenizer.token_bytes = words.__getitem__
    loop.chat.model.tokenizer.piece = {1: "Ġtwo", 2: "Ã©Ċ", 3: "æ¼", EOS: "<eos>"}.__getitem__
    assert loop.run("/tokens x") == rf"4 tokens: ' two' 1  'é\n' 2  '\xe6\xbc' 3  '<eos>' {EOS}"


def test_why_shows_the_candidates_of_the_last_tokens():
    loop = loop_after(("spell", "abc"))
    # Of a token and its share no line holds a part: its spaces are no-break spaces.
    lines = loop.run("/why 2").splitlines()
    assert [line.split("  of  ")[0] for line in lines] == ["'b'\u00a0100.0\u00a0%", "'c'\u00a0100.0\u00a0%"]
    assert lines[0].split("  of  ")[1].startswith("'b'\u00a0100.0\u00a0%  ")


def test_why_breaks_no_line_within_a_token():
    loop = loop_after(("spell", "abc"))
    loop.chat.model.tokenizer.token_bytes = lambda token_id: b" a token"
    shares = loop.run("/why 1").split("  ")
    assert all(share == "of" or " " not in share for share in shares)
    assert shares[0] == "'\u00a0a\u00a0token'\u00a0100.0\u00a0%"


def test_why_runs_no_more_than_it_shows():
    loop = loop_after(("a question of some length", "abcdefgh"))
    loop.chat.model.sequence.steps.clear()
    loop.run("/why 3")
    assert [len(step) for step in loop.chat.model.sequence.steps] == [1, 1, 1]


def test_why_without_a_reply_and_with_a_wrong_number():
    with pytest.raises(SettingError, match="no reply to explain yet"):
        FakeLoop().run("/why")
    with pytest.raises(SettingError, match="is not a whole number of 1 or more"):
        loop_after(*TWO_TURNS).run("/why often")


def test_a_template_that_refuses_a_lone_system_prompt_is_counted_all_the_same():
    def refuse(messages):
        raise TextError("a message must come first")

    loop = FakeLoop(system="Be kind.")
    loop.chat.prompt = refuse
    assert "context: 8 of 256 tokens" in loop.run("/stats")
