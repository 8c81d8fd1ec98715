"""A conversation with calls of tools and their results: saved, loaded, taken back, brought back, copied, forgotten."""

import json

import pytest
from fake_loop import FakeLoop
from fake_model import Replies, fake_model

from tinychat.conversation.conversation import Chat
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message, ToolCall, as_messages, exchanges, open_calls
from tinychat.conversation.session_file import SavedSession
from tinychat.errors import ContextError, FieldError, SettingError

CALLS = (ToolCall("a1", "weather", '{"city": "Bern"}'), ToolCall("b2", "time"))
RESULTS = [Message("tool", "12 degrees", tool_call_id="a1", name="weather"), Message("tool", "noon", tool_call_id="b2")]
WHOLE = [
    Message("user", "hi"),
    Message("assistant", "Hello"),
    Message("user", "is it warm?"),
    Message("assistant", "Let me see.", tool_calls=CALLS, reasoning="I cannot know."),
    *RESULTS,
    Message("assistant", "It is warm."),
    Message("user", "thanks"),
    Message("assistant", "Bye"),
]


def call(chat):
    """Let the last reply ask for the calls, as whoever reads its text would."""
    chat.messages[-1].tool_calls = CALLS
    chat.messages[-1].reasoning = "I cannot know."


def loop_with_tools(overflow="stop", **settings):
    """Return a loop after the exchanges of WHOLE, with a spare reply "again" behind them."""
    loop = FakeLoop("Hello", "Let me see.", "It is warm.", "Bye", "again", overflow=overflow, **settings)
    loop.workspace.autosave()
    loop.chat.say("hi")
    loop.chat.say("is it warm?")
    call(loop.chat)
    list(loop.chat.extend(RESULTS))
    loop.chat.say("thanks")
    return loop


def text_of(chat):
    return bytes(token_id for token_id in chat.model.sequence.ids if token_id < 256).decode()


def test_the_model_reads_the_results():
    chat = loop_with_tools().chat
    assert chat.messages == WHOLE
    assert text_of(chat) == "hiHellois it warm?Let me see.weathertime12 degreesnoonIt is warm.thanksBye"


def test_an_exchange_is_taken_back_and_brought_back_as_a_whole():
    loop = loop_with_tools()
    assert loop.run("/undo") == "undone: thanks"
    assert loop.run("/undo") == "undone: is it warm?"
    assert loop.chat.messages == WHOLE[:2]
    assert loop.run("/redo") == "restored: It is warm."
    assert loop.chat.messages == WHOLE[:7]
    loop.run("/redo")
    assert loop.chat.messages == WHOLE
    assert loop.run("/undo 3") == "undone: hi"
    loop.run("/redo 3")
    assert loop.chat.messages == WHOLE
    with pytest.raises(SettingError, match="there are not 4 turns"):
        loop.chat.message_of(4)
    assert [loop.chat.message_of(turns) for turns in (1, 2, 3)] == ["thanks", "is it warm?", "hi"]


@pytest.mark.parametrize("taken_back", [0, 1, 2, 3])
def test_a_file_brings_all_of_it_back(taken_back):
    loop = loop_with_tools()
    if taken_back:
        loop.run(f"/undo {taken_back}")
    again = FakeLoop()
    again.workspace.load(loop.workspace.name)
    assert (again.chat.messages, again.chat.history) == (loop.chat.messages, loop.chat.history)
    if taken_back:
        again.run(f"/redo {taken_back}")
    assert again.chat.messages == WHOLE
    again.run("/undo 3")
    assert again.chat.messages == []


def test_a_copy_has_all_of_it_and_its_history():
    loop = loop_with_tools()
    loop.run("/save talk")
    loop.run("/fork")
    loop.run("/undo 2")
    again = FakeLoop()
    again.workspace.load("talk")
    assert again.chat.messages == WHOLE
    again.workspace.load("talk-fork")
    assert again.chat.messages == WHOLE[:2]
    again.run("/redo 2")
    assert again.chat.messages == WHOLE


@pytest.mark.parametrize("overflow", ["drop", "shift"])
def test_a_full_context_forgets_calls_with_their_results(overflow):
    loop = loop_with_tools(overflow=overflow, context_size=140)
    chat = loop.chat
    chat.say("x" * 48)
    assert chat.dropped == 7
    assert text_of(chat) == f"thanksBye{'x' * 48}again"
    assert 'the oldest 2 turns ("hi", "is it warm?")' in loop.notices[-1]
    assert bool(chat.model.sequence.drops) == (overflow == "shift")
    chat.undo()
    assert (chat.messages, chat.dropped) == (WHOLE, 7)
    chat.undo(2)
    assert (chat.messages, chat.dropped) == (WHOLE[:2], 2)


@pytest.mark.parametrize("overflow", ["drop", "shift"])
def test_room_in_the_middle_of_an_exchange_is_made_before_it(overflow):
    """The question, its calls and their results stay, however full the context is."""
    model = fake_model(Replies("Hello", "I look.", "w" * 40), context_size=120, chunk_size=256)
    chat = Chat(model, overflow=overflow, temperature=0.0)
    chat.say("h" * 30)
    chat.say("is it warm?")
    call(chat)
    list(chat.extend(RESULTS))
    assert chat.dropped == 2
    assert text_of(chat) == f"is it warm?I look.weathertime12 degreesnoon{'w' * 40}"


def test_where_nothing_may_be_forgotten_the_results_are_taken_back():
    chat = Chat(fake_model(Replies("Hello", "I look."), context_size=50, chunk_size=256), temperature=0.0)
    chat.say("hi")
    chat.say("is it warm?")
    call(chat)
    before = chat.messages
    with pytest.raises(ContextError, match="context holds 50"):
        list(chat.extend(RESULTS))
    assert (chat.messages, chat.dropped) == (before, 0)
    assert [call.id for call in open_calls(before)] == ["a1", "b2"]


def test_a_reply_that_is_stopped_before_it_begins_takes_the_results_back():
    chat = loop_with_tools().chat
    chat.undo(2)
    chat.say("is it cold?")
    call(chat)
    before, history = chat.messages, chat.history
    assert list(chat.extend(RESULTS, cancelled=lambda: True)) == []
    assert (chat.messages, chat.history) == (before, history)


def test_a_question_waits_until_every_call_has_its_result():
    chat = Chat(fake_model(Replies("I look.", "Never")), temperature=0.0)
    chat.say("is it warm?")
    call(chat)
    before = chat.messages
    with pytest.raises(SettingError, match="the call 'a1' of the last reply has no result yet"):
        chat.say("well?")
    with pytest.raises(SettingError, match="the call 'b2'"):
        list(chat.extend(RESULTS[:1]))
    assert chat.messages is before


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([Message("tool", "x", tool_call_id="zz")], r"^messages\[2\]\.tool_call_id must be that of a call"),
        ([*RESULTS, Message("user", "and?")], "a user message begins another"),
        ([Message("assistant", "No.")], r"^messages\[2\]\.role must be tool"),
    ],
)
def test_what_does_not_go_on_with_the_exchange_is_refused(messages, complaint):
    chat = Chat(fake_model(Replies("I look.")), temperature=0.0)
    chat.say("is it warm?")
    call(chat)
    with pytest.raises(FieldError, match=complaint):
        list(chat.extend(messages))
    with pytest.raises(FieldError, match="must be user"):
        chat.replace_messages(RESULTS)
    assert len(chat.messages) == 2


def test_there_is_nothing_to_extend_at_first():
    with pytest.raises(SettingError, match="no exchange yet"):
        list(Chat(fake_model(Replies())).extend([]))


def test_a_reply_to_results_can_be_written_again():
    loop = loop_with_tools()
    loop.chat.undo()
    loop.run("/regen")
    assert loop.chat.messages == [*WHOLE[:6], Message("assistant", "again")]
    assert loop.run("/undo") == "restored: It is warm."
    assert loop.chat.messages == WHOLE[:7]


def test_an_edited_question_takes_the_place_of_its_calls_too():
    loop = loop_with_tools()
    loop.run("/edit 2")
    assert (loop.prefilled, loop.draft.replaced) == ("is it warm?", 2)
    list(loop.chat.stream("is it cold?", replaced=2))
    assert loop.spoken == ["hi", "Hello", "is it cold?", "again"]
    loop.run("/undo")
    assert loop.chat.messages == WHOLE


def loop_after_a_kill(messages, *changes):
    """Return a loop that goes on with what a program has saved that was killed before the first word of a reply."""
    messages = [*messages, Message("assistant", "", partial=True)]
    loop = FakeLoop("Warm.", chunk_size=256)
    history = History(changes or History.of_exchanges(messages).past)
    loop.workspace.store.write("talk", SavedSession(messages=messages, history=history))
    loop.run("/load talk")
    return loop


def test_results_without_a_reply_are_still_there():
    loop = loop_after_a_kill(WHOLE[:6])
    assert (loop.chat.messages, loop.prefilled) == (WHOLE[:6], "")
    loop.run("/regen")
    assert loop.chat.messages == [*WHOLE[:6], Message("assistant", "Warm.")]
    loop.run("/undo")
    assert loop.chat.messages == WHOLE[:2]


def test_a_reply_to_results_that_was_being_written_again_leaves_the_old_one():
    loop = loop_after_a_kill(WHOLE[:6], Change(0), Change(2), Change(6, (WHOLE[6],)))
    assert (loop.chat.messages, loop.prefilled) == (WHOLE[:7], "")


def test_a_question_without_a_reply_waits_with_the_number_of_exchanges_that_it_replaced():
    loop = loop_after_a_kill(WHOLE[:3])
    assert (loop.chat.messages, loop.prefilled, loop.draft.replaced) == (WHOLE[:2], "is it warm?", 0)
    loop = loop_after_a_kill([Message("user", "hm")], Change(0, tuple(WHOLE)))
    assert (loop.chat.messages, loop.prefilled, loop.draft.replaced) == (WHOLE, "hm", len(exchanges(WHOLE)))


def test_the_commands_show_calls_and_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = loop_with_tools()
    loop.run("/export talk.md")
    text = (tmp_path / "talk.md").read_text()
    assert '## Model\n\nI cannot know.\n\nLet me see.\n\nweather({"city": "Bern"})\n\ntime({})\n\n## Tool' in text
    assert "## Tool\n\n12 degrees\n\n## Tool\n\nnoon\n\n## Model\n\nIt is warm." in text
    assert "tool       12 degrees" in loop.run("/context")
    loop.run("/export talk.json")
    assert as_messages(json.loads((tmp_path / "talk.json").read_text())["messages"]) == WHOLE
    loop.run("/save talk")
    assert loop.run("/sessions noon").endswith("noon")
    loop.chat.replace_messages(WHOLE[:6])
    for line in ("/copy", "/why"):
        with pytest.raises(SettingError, match=r"no reply to .* yet"):
            loop.run(line)
