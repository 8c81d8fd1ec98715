"""The model's own summary in the place of old turns: by hand, and where the context is full."""

from contextlib import suppress

import pytest
from fake_model import ASSISTANT, BOS, EOS, SYSTEM, USER, ByteTokenizer, MarkerTemplate, Replies, fake_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import SUMMARY_REQUEST, check_conversation
from tinychat.conversation.session_file import SavedSession, from_json, title_of, to_json
from tinychat.errors import FieldError, PromptTooLongError, SettingError, TextError
from tinychat.text.think_sections import CLOSING_TEXT

LONG = "a long reply of many words that say little, " * 6
TURNS = [(f"message{n}", LONG) for n in range(6)]
TURN = 1 + 8 + 1 + len(LONG) + 1
# Four turns fill it, and half of it holds two and a message of 40 letters.
FULL = 4 * TURN + 110


class StrictTemplate(MarkerTemplate):
    """Refuses what many templates refuse: a role that does not alternate, an empty conversation."""

    def render_ids(self, messages, *arguments, **variables):
        turns = [message["role"] for message in messages if message["role"] != "system"]
        if turns != (["user", "assistant"] * len(turns))[: len(turns)] or not turns:
            raise TextError("conversation roles must alternate user/assistant/user/assistant")
        return super().render_ids(messages, *arguments, **variables)


def chat_after(count, *more, overflow="stop", context_size=4000, **settings):
    """Return a chat after turns, whose next replies are `more`, and the list of what it says to the person."""
    model = fake_model(
        Replies(*(reply for _, reply in TURNS[:count]), *more), context_size=context_size, chunk_size=4096
    )
    model.template = StrictTemplate()
    chat = Chat(model, "Be kind.", temperature=0.0, overflow=overflow, loop_stop=False, **settings)
    notices = []
    chat.on_notice = notices.append
    for message, _ in TURNS[:count]:
        chat.say(message)
    return chat, notices


def contents(chat):
    return [message.content for message in chat.messages]


def prompts(chat):
    """Return the texts that the model read of a conversation, request by request, roles as letters."""
    marks = {BOS: "", SYSTEM: "S:", USER: "U:", ASSISTANT: "A:", EOS: ""}
    return "".join(marks.get(one) if one in marks else chr(one) for one in chat.model.sequence.ids)


def test_a_summary_replaces_all_but_the_last_turn():
    chat, _ = chat_after(3, "We spoke.", "Yes.")
    assert chat.compact() == "We spoke."
    assert contents(chat) == [SUMMARY_REQUEST, "We spoke.", "message2", LONG]
    check_conversation(chat.messages)
    chat.say("And?")
    assert prompts(chat) == f"S:Be kind.U:{SUMMARY_REQUEST}A:We spoke.U:message2A:{LONG}U:And?A:Yes."


def test_the_model_reads_the_turns_and_is_asked_for_a_summary():
    chat, _ = chat_after(3, "We spoke.")
    chat.compact(2)
    assert prompts(chat) == f"S:Be kind.U:message0A:{LONG}U:{SUMMARY_REQUEST}A:We spoke."
    assert contents(chat)[2:] == ["message1", LONG, "message2", LONG]


def test_undo_brings_the_turns_back_and_redo_the_summary():
    chat, _ = chat_after(3, "We spoke.", "Yes.")
    whole = contents(chat)
    chat.compact()
    short = contents(chat)
    chat.say("And?")
    chat.undo()
    assert contents(chat) == short
    assert chat.undo() == SUMMARY_REQUEST
    assert contents(chat) == whole
    assert chat.redo() == SUMMARY_REQUEST
    assert contents(chat) == short
    chat.redo()
    assert contents(chat) == [*short, "And?", "Yes."]
    chat.undo(2)
    chat.undo()
    assert contents(chat) == whole[:4]


def test_a_saved_conversation_keeps_the_summary_and_what_it_replaced():
    chat, _ = chat_after(3, "We spoke of much.")
    whole = contents(chat)
    chat.compact()
    data = to_json(SavedSession(messages=chat.messages, history=chat.history)).encode()
    saved = from_json(data, "file")
    again, _ = chat_after(0)
    again.replace_messages(saved.messages, saved.history)
    assert contents(again) == contents(chat)
    again.undo()
    assert contents(again) == whole
    again.redo()
    assert contents(again) == contents(chat)
    assert title_of(chat.messages, 50) == "We spoke of much."


def test_a_summary_of_a_summary():
    chat, _ = chat_after(3, "We spoke.", "Yes.", "We spoke again.")
    chat.compact()
    chat.say("And?")
    chat.compact()
    assert contents(chat) == [SUMMARY_REQUEST, "We spoke again.", "And?", "Yes."]
    chat.undo(3)
    assert contents(chat) == [text for turn in TURNS[:3] for text in turn]


def test_what_does_not_fit_is_summarised_in_rounds():
    chat, _ = chat_after(5, "Two turns.", "A third.", "Four turns.")
    # With the request and a quarter for the summary the context holds two turns, or a summary and one.
    chat.model.sequence.rewind(0)
    chat.model.resize(900)
    steps = len(chat.model.sequence.steps)
    assert chat.compact() == "Four turns."
    assert contents(chat) == [SUMMARY_REQUEST, "Four turns.", *TURNS[4]]
    read = bytes(one for ids in chat.model.sequence.steps[steps:] for one in ids if one < 256).decode()
    assert [f"Two turns.{text}" in read for text in ("message2", "message3")] == [True, False]
    assert "A third.message3" in read


def test_a_turn_that_is_too_long_is_named():
    chat, _ = chat_after(2)
    chat.model.sequence.rewind(0)
    chat.model.resize(500)
    with pytest.raises(SettingError, match='the turn "message0" is too long to be summarised in a context of 500'):
        chat.compact()


@pytest.mark.parametrize(
    ("summary", "complaint"),
    [
        (" \n", "the model's summary is empty"),
        ("x" * 260, r"the model's summary does not end within 200 tokens"),
        ("x" * 190, r"is no shorter than the turns: \d+ tokens instead of \d+"),
        ("<think>" + "x" * len(CLOSING_TEXT), "the model's summary is empty"),
    ],
)
def test_a_summary_that_helps_nobody_is_refused(summary, complaint):
    chat, _ = chat_after(2, summary, "Yes.", context_size=800)
    before, history = chat.messages, chat.history
    with pytest.raises(SettingError, match=complaint):
        chat.compact()
    assert (chat.messages, chat.history) == (before, history)
    assert chat.say("And?") == "Yes."


def test_thoughts_are_no_part_of_a_summary():
    # The end of the thoughts takes the place of what the model would think.
    chat, _ = chat_after(3, "<think>" + "x" * len(CLOSING_TEXT) + "We spoke.")
    assert chat.compact() == "We spoke."


def test_a_summary_that_is_stopped_changes_nothing():
    chat, _ = chat_after(3, "We spoke.", "Yes.")
    before, history, ids = chat.messages, chat.history, chat.reply_ids
    asked = iter([False] * 4 + [True] * 9)
    assert chat.compact(cancelled=lambda: next(asked)) == ""
    assert chat.messages is before
    assert (chat.history, chat.reply_ids) == (history, ids)


def test_there_must_be_something_to_summarise():
    chat, _ = chat_after(2)
    with pytest.raises(SettingError, match="nothing to summarise before the last 2 of 2 turns"):
        chat.compact(2)
    with pytest.raises(FieldError, match="turns must be 1 or more"):
        chat.compact(0)


def test_a_stopped_reply_goes_on_after_a_summary():
    chat, _ = chat_after(3, "Half of", "We spoke.", " it.")
    reply = chat.stream("tell")
    while chat.messages[-1].content != "Half":
        next(reply)
    reply.close()
    ids = chat.reply_ids
    chat.compact()
    assert chat.reply_ids == ids
    assert chat.messages[-1].partial


def test_where_the_context_is_full_a_summary_replaces_the_oldest_turns():
    chat, notices = chat_after(4, "Summary.", "Yes.", overflow="summarise", context_size=FULL)
    whole = contents(chat)
    assert chat.say("x" * 40) == "Yes."
    assert contents(chat) == [SUMMARY_REQUEST, "Summary.", *TURNS[2], *TURNS[3], "x" * 40, "Yes."]
    assert chat.dropped == 0
    (notice,) = notices
    assert notice.startswith(
        'the context is full: a summary by the model replaces the oldest 2 turns ("message0", "message1"); '
    )
    chat.undo()
    assert contents(chat) == [SUMMARY_REQUEST, "Summary.", *TURNS[2], *TURNS[3]]
    chat.undo()
    assert contents(chat) == whole
    chat.redo(2)
    assert contents(chat)[-2:] == ["x" * 40, "Yes."]
    chat.undo(3)
    assert contents(chat) == whole[:-2]


def test_an_edit_that_is_summarised_leads_back():
    chat, _ = chat_after(5, "Summary.", "Yes.", overflow="summarise", context_size=FULL + TURN)
    whole = contents(chat)
    message = "y" * (TURN + 50)
    list(chat.stream(message, replaced=1))
    assert contents(chat) == [SUMMARY_REQUEST, "Summary.", *TURNS[3], message, "Yes."]
    chat.undo()
    assert contents(chat) == [SUMMARY_REQUEST, "Summary.", *TURNS[3], *TURNS[4]]
    chat.undo()
    assert contents(chat) == whole


@pytest.mark.parametrize("summary", ["x" * 400, ""])
def test_without_a_summary_the_oldest_turns_are_dropped(summary):
    chat, notices = chat_after(4, summary, "Yes.", overflow="summarise", context_size=FULL)
    assert chat.say("x" * 40) == "Yes."
    assert contents(chat)[0] == "message0"
    assert chat.dropped > 0
    refused, dropped = notices
    assert refused.startswith("the model's summary ")
    assert refused.endswith(": the oldest turns are dropped instead")
    assert dropped.startswith("the context is full: the model no longer sees the oldest ")


def test_a_summary_on_the_way_to_a_reply_that_is_stopped_changes_nothing():
    chat, notices = chat_after(4, "Summary.", "Yes.", overflow="summarise", context_size=FULL)
    before, history = chat.messages, chat.history
    for steps in (1, 3):
        asked = iter([False] * steps + [True] * 9)
        assert list(chat.stream("x" * 40, cancelled=lambda left=asked: next(left))) == []
        assert chat.messages is before
        assert (chat.history, chat.dropped, notices) == (history, 0, [])


def test_in_the_middle_of_a_reply_turns_are_dropped_and_summarised_later():
    chat, notices = chat_after(
        3, "y" * 2 * TURN, "One.", "Two.", "All of it.", "Yes.", overflow="summarise", context_size=64 + 4 * TURN
    )
    chat.say("at length")
    assert chat.dropped > 0
    assert chat.summary.finish_reason == "stop"
    chat.say("x" * TURN)
    assert contents(chat) == [SUMMARY_REQUEST, "All of it.", "x" * TURN, "Yes."]
    assert "no longer sees" in notices[0]
    assert "a summary by the model replaces the oldest 4 turns" in notices[-1]


def test_a_message_that_never_fits_costs_no_summary():
    chat, notices = chat_after(3, overflow="summarise", context_size=64 + 4 * TURN)
    before, steps = chat.messages, len(chat.model.sequence.steps)
    with pytest.raises(PromptTooLongError):
        chat.say("x" * 1200)
    assert (chat.messages, notices, len(chat.model.sequence.steps)) == (before, [], steps)


def test_the_first_message_has_nothing_before_it():
    chat, notices = chat_after(0, "x" * 300, overflow="summarise", context_size=200)
    chat.say("hi")
    assert chat.summary.finish_reason == "context"
    assert notices == []


def test_progress_is_told():
    chat, _ = chat_after(2, "We spoke.")
    seen = []
    chat.on_summarising = seen.append
    chat.compact()
    assert seen[0] == 1
    assert seen[-1] == len("We spoke.")


def test_a_closed_conversation_writes_no_summary():
    chat, _ = chat_after(2, "We spoke.")
    chat.close()
    with pytest.raises(SettingError, match="closed"):
        chat.compact()


def test_closing_ends_a_summary():
    chat, _ = chat_after(3, "We spoke.")
    before = chat.messages
    chat.on_summarising = lambda characters: chat.close() if characters == 4 else None
    assert chat.compact() == ""
    assert chat.messages is before


STEPS = st.one_of(
    st.tuples(st.sampled_from(["say", "regenerate", "stop"])),
    st.tuples(st.sampled_from(["compact", "edit", "undo", "redo"]), st.integers(1, 3)),
)


def take_step(chat, name, number=1):
    """Do what is named, if it can be done."""
    with suppress(SettingError):
        if name == "say":
            chat.say("q" * 200)
        elif name == "regenerate":
            list(chat.regenerate())
        elif name == "stop":
            list(chat.stream("s" * 300, cancelled=lambda: bool(chat.messages and chat.messages[-1].content == "r")))
        elif name == "edit":
            list(chat.stream("e" * 400, replaced=number))
        else:
            getattr(chat, name)(number)


@settings(max_examples=80, deadline=None, database=None)
@given(st.lists(STEPS, max_size=14))
def test_any_conversation_with_summaries_leads_back_to_its_beginning(steps):
    model = fake_model(Replies(*(f"reply {number}" for number in range(200))), context_size=1200, chunk_size=4096)
    model.template = StrictTemplate()
    chat = Chat(model, "Be kind.", temperature=0.0, overflow="summarise")
    for step in steps:
        take_step(chat, *step)
        check_conversation(chat.messages)
        chat.history.check(chat.messages)
        roles = [message.role for message in chat.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
    states = [contents(chat)]
    while chat.history.past:
        chat.undo()
        states.append(contents(chat))
    assert chat.messages == []
    for state in reversed(states):
        assert contents(chat) == state
        if chat.history.future:
            chat.redo()


def test_the_request_takes_few_tokens():
    assert len(ByteTokenizer().encode(SUMMARY_REQUEST)) < 128
