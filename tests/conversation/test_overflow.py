import pytest
from fake_model import ASSISTANT, BOS, EOS, SYSTEM, USER, Replies, fake_model

from tinychat.conversation.conversation import Chat
from tinychat.conversation.messages import Message
from tinychat.conversation.overflow import dropped_notice, how_full, way_out
from tinychat.errors import ContextError, PromptTooLongError, SettingError
from tinychat.generate.idle_sequences import cut_cache

# Each turn takes 19 tokens: a mark and eight letters, twice, and an end.
TURNS = [(f"message{n}", f"reply..{n}") for n in range(6)]


def full_chat(overflow, *replies, context_size=64, **settings):
    """Return a chat of a small context, and the list of what it says to the person."""
    model = fake_model(Replies(*replies), context_size=context_size)
    chat = Chat(model, temperature=0.0, overflow=overflow, **settings)
    notices = []
    chat.on_notice = notices.append
    return chat, notices


def after_turns(overflow, count, *more, **settings):
    chat, notices = full_chat(overflow, *(reply for _, reply in TURNS[:count]), *more, **settings)
    for message, _ in TURNS[:count]:
        chat.say(message)
    return chat, notices


def text_of(sequence):
    return bytes(token_id for token_id in sequence.ids if token_id < 256).decode()


@pytest.mark.parametrize("overflow", ["drop", "shift"])
def test_the_oldest_turns_go_and_it_is_said(overflow):
    chat, notices = after_turns(overflow, 3, system="Be kind.")
    assert chat.dropped == 2
    assert notices == [
        'the context is full: the model no longer sees the oldest turn ("message0"); 39 of 64 tokens in use, 25 left'
    ]
    assert text_of(chat.model.sequence) == "Be kind.message1reply..1message2reply..2"
    assert [message.content for message in chat.messages] == [text for turn in TURNS[:3] for text in turn]


@pytest.mark.parametrize("overflow", ["drop", "shift"])
def test_a_long_conversation_goes_on_and_on(overflow):
    chat, notices = after_turns(overflow, 6, system="Be kind.")
    assert chat.messages[-1].content == "reply..5"
    assert len(notices) >= 3
    assert chat.model.sequence.ids[: 1 + len("Be kind.") + 1] == [BOS, SYSTEM, *b"Be kind."]


def test_dropping_reads_the_rest_again_and_shifting_does_not():
    dropping, _ = after_turns("drop", 3, system="Be kind.")
    shifting, _ = after_turns("shift", 3, system="Be kind.")
    assert dropping.model.sequence.drops == []
    assert dropping.summary.reused_tokens == len([BOS, SYSTEM, *b"Be kind.", USER]) + len("message")
    (span,) = shifting.model.sequence.drops
    assert span[1] - span[0] == len([USER, *b"message0", ASSISTANT, *b"reply..0", EOS])
    # The new message with its marks, and the end of the reply before it.
    assert shifting.summary.prompt_tokens - shifting.summary.reused_tokens == 11
    assert shifting.model.sequence.ids == dropping.model.sequence.ids


def test_stopping_forgets_nothing():
    chat, notices = after_turns("stop", 3, system="Be kind.")
    assert chat.summary.finish_reason == "context"
    with pytest.raises(ContextError, match="context holds 64"):
        chat.say("message4")
    assert (chat.dropped, notices) == (0, [])


@pytest.mark.parametrize("overflow", ["drop", "shift", "summarise"])
def test_a_reply_that_meets_the_end_of_the_context_goes_on(overflow):
    reply = "0123456789" * 2 + "😀 and done"
    chat, notices = after_turns(overflow, 1, reply, system="Be kind.")
    assert chat.say("at length") == reply
    assert chat.summary.finish_reason == "stop"
    assert chat.summary.new_tokens == len(reply.encode())
    assert chat.dropped == 2
    assert len(notices) == 1
    assert text_of(chat.model.sequence) == f"Be kind.at length{reply}"


def test_a_reply_that_has_the_context_to_itself_ends_there():
    chat, notices = full_chat("drop", "x" * 100)
    chat.say("hi")
    assert chat.summary.finish_reason == "context"
    assert (chat.dropped, notices) == (0, [])


def test_a_message_that_never_fits_is_withdrawn_and_nothing_forgotten():
    chat, _ = after_turns("drop", 2, "Fine.")
    with pytest.raises(ContextError, match="context holds 64"):
        chat.say("x" * 70)
    assert (chat.dropped, len(chat.messages)) == (0, 4)


def test_a_message_that_never_fits_is_not_said_to_cost_turns():
    chat, notices = after_turns("drop", 2)
    with pytest.raises(PromptTooLongError, match="has 73 tokens but the context holds 64"):
        chat.say("x" * 70)
    assert notices == []


@pytest.mark.parametrize("overflow", ["drop", "shift", "stop", "summarise"])
def test_a_reply_that_fills_the_context_leaves_nothing(overflow):
    chat, _ = after_turns(overflow, 1, "x" * 100)
    chat.say("at length")
    assert chat.summary.finish_reason == "context"
    assert chat.tokens_in_use() == 64


def test_how_full_a_context_is_never_negative():
    assert how_full(60, 64) == "60 of 64 tokens in use, 4 left"
    assert how_full(100, 64) == "the conversation takes 100 tokens, 36 more than the context of 64"


@pytest.mark.parametrize(
    ("needed", "advice"),
    [
        (100, "shorten it, or make the context larger with /set context 1024"),
        (1000, "shorten it, or make the context larger with /set context 2048"),
        (2400, "shorten it, or make the context larger with /set context 2500"),
        (2501, "shorten it (the model was trained on 2500 tokens at most)"),
    ],
)
def test_no_context_beyond_what_the_model_was_trained_on_is_advised(needed, advice):
    assert way_out(needed, 2500, "shorten it") == advice


def test_a_reply_that_is_stopped_before_it_begins_forgets_nothing():
    chat, _ = after_turns("drop", 2)
    assert list(chat.stream("message2", cancelled=lambda: True)) == []
    assert (chat.dropped, len(chat.messages)) == (0, 4)


def test_undoing_past_what_was_forgotten():
    chat, _ = after_turns("drop", 3, "Anew.", system="Be kind.")
    chat.undo(3)
    assert (chat.dropped, chat.messages) == (0, [])
    assert chat.say("from the start") == "Anew."


def test_an_unknown_policy_is_refused():
    with pytest.raises(SettingError, match=r"^overflow must be one of stop, drop, shift, summarise, not 'spill'$"):
        full_chat("spill")


def test_a_cache_that_goes_on_otherwise_is_left_alone():
    sequence = fake_model(Replies()).sequence
    sequence.ids = [1, 2, 3, 4, 5, 6]
    for ids, missing in [([1, 2, 9], 2), ([1, 2, 3, 4, 5, 6], 0), ([1, 2], 2), ([1, 2, 6], 9)]:
        cut_cache(sequence, ids, missing)
        assert sequence.drops == []
    cut_cache(sequence, [1, 2, 5, 6, 7], 2)
    assert sequence.ids == [1, 2, 5, 6]


def test_the_notice_names_a_few_turns_and_counts_the_rest():
    turns = [
        (Message("user", f"question {n}\nwith a second line that is long"), Message("assistant", "a")) for n in range(5)
    ]
    notice = dropped_notice([message for turn in turns for message in turn], 30, 100)
    assert notice == (
        'the context is full: the model no longer sees the oldest 5 turns ("question 0 with a second line that is...", '
        '"question 1 with a second line that is...", "question 2 with a second line that is..." and 2 more); '
        "30 of 100 tokens in use, 70 left"
    )


def test_long_replies_are_shortened_before_a_turn_is_dropped():
    long = "It was a dark and stormy night, and it went on and on."
    chat, notices = full_chat("drop", "Hello.", long, "Fine.", context_size=128, system="Be kind.")
    for message in ("my name is Ada", "a story please"):
        chat.say(message)
    assert chat.say("and what is my name now, tell") == "Fine."
    assert (chat.dropped, [message.shortened is not None for message in chat.messages[1::2]]) == (
        0,
        [False, True, False],
    )
    seen = text_of(chat.model.sequence)
    assert "my name is Ada" in seen and "It w\n[...]\n on." in seen and long not in seen
    (notice,) = notices
    assert notice.startswith("the context is full: the model sees only the beginning and the end of a long reply; ")
    # The conversation itself has all of it, and a larger context lets the model see it again.
    assert chat.messages[3].content == long
    chat.see_all()
    assert [message.shortened for message in chat.messages] == [None] * 6


def test_shifting_shortens_no_reply():
    chat, _ = full_chat("shift", "Hello.", "x" * 60, "Fine.", context_size=128)
    for message in ("my name is Ada", "a story please", "and what is my name now, tell me that"):
        chat.say(message)
    assert chat.dropped > 0
    assert [message.shortened for message in chat.messages] == [None] * 6


def test_a_reply_that_fills_the_context_costs_no_turn():
    chat, notices = full_chat("drop", "Hello.", "abcdefghijklmnopqrstuvwxyz" * 5, context_size=128)
    chat.say("my name is Ada")
    chat.say("a story please")
    assert (chat.summary.finish_reason, chat.dropped, notices) == ("context", 0, [])
    begun = chat.messages[-1].content
    list(chat.go_on())
    assert chat.dropped == 0
    assert chat.messages[-1].content.startswith(begun) and len(chat.messages[-1].content) > len(begun)
    assert "my name is Ada" in text_of(chat.model.sequence)
