import pytest
from fake_model import ASSISTANT, BOS, EOS, SYSTEM, USER, Continuation, Replies, fake_model

from tinychat.conversation.conversation import Chat, Message
from tinychat.errors import ContextError, SettingError, TextError
from tinychat.generate.request import Request


def chat_with(*replies, system=None, **sequence):
    return Chat(fake_model(Replies(*replies), **sequence), system, temperature=0.0)


def spoken(chat):
    return [(message.role, message.content) for message in chat.messages]


def test_the_conversation_is_remembered():
    chat = chat_with("Hello!", "Fine.", system="Be nice.")
    assert chat.say("hi") == "Hello!"
    assert chat.say("how?") == "Fine."
    assert spoken(chat) == [("user", "hi"), ("assistant", "Hello!"), ("user", "how?"), ("assistant", "Fine.")]
    expected = [
        BOS,
        SYSTEM,
        *b"Be nice.",
        USER,
        *b"hi",
        ASSISTANT,
        *b"Hello!",
        EOS,
        USER,
        *b"how?",
        ASSISTANT,
    ]
    assert chat.model.sequence.ids == [*expected, *b"Fine."]


def test_a_second_turn_runs_only_what_is_new():
    chat = chat_with("A long first answer.", "Yes.")
    chat.say("a long first question")
    chat.say("so?")
    # The new message and the marks around it; question and answer are in the cache.
    summary = chat.summary
    assert summary.prompt_tokens - summary.reused_tokens == len([EOS, USER, *b"so?", ASSISTANT])


def test_a_stopped_reply_stays_as_partial():
    chat = chat_with("Hello there", "Again")
    list(chat.stream("hi", cancelled=lambda: spoken(chat)[1:] == [("assistant", "Hello")]))
    assert chat.messages[-1] == Message("assistant", "Hello", partial=True)
    assert chat.say("go on") == "Again"
    assert not chat.messages[-1].partial


def test_leaving_the_iteration_keeps_what_was_said():
    chat = chat_with("Hello there")
    deltas = chat.stream("hi")
    next(deltas)
    assert chat.messages[-1].partial
    deltas.close()
    assert spoken(chat) == [("user", "hi"), ("assistant", "H")]
    assert chat.messages[-1].partial


def test_a_reply_stopped_before_its_first_text_withdraws_the_message():
    chat = chat_with("One", "Two")
    chat.say("first")
    assert list(chat.stream("second", cancelled=lambda: True)) == []
    assert spoken(chat) == [("user", "first"), ("assistant", "One")]


def test_an_empty_reply_is_a_reply():
    chat = chat_with("", "Yes")
    assert chat.say("hm") == ""
    assert spoken(chat) == [("user", "hm"), ("assistant", "")]
    assert chat.say("well?") == "Yes"


def test_a_message_too_long_for_the_context_is_withdrawn():
    chat = chat_with("One", "Two", context_size=40)
    chat.say("first")
    with pytest.raises(ContextError, match="context holds 40"):
        chat.say("x" * 50)
    assert spoken(chat) == [("user", "first"), ("assistant", "One")]
    assert chat.say("second") == "Two"


def test_a_conversation_that_the_template_refuses_is_withdrawn():
    chat = chat_with("One")

    def refuse(messages, add_generation_prompt=True):
        raise TextError("the chat template says no")

    chat.model.template.render_ids = refuse
    with pytest.raises(TextError, match="says no"):
        chat.say("hi")
    assert chat.messages == []


def test_regenerate_answers_the_last_message_again():
    chat = chat_with("One", "Two", "Three")
    chat.say("a")
    chat.say("b")
    assert "".join(delta.text for delta in chat.regenerate()) == "Three"
    assert spoken(chat) == [("user", "a"), ("assistant", "One"), ("user", "b"), ("assistant", "Three")]


def test_regenerating_nothing_brings_the_old_reply_back():
    chat = chat_with("One", "Two")
    chat.say("a")
    assert list(chat.regenerate(cancelled=lambda: True)) == []
    assert spoken(chat) == [("user", "a"), ("assistant", "One")]


def test_undo_takes_back_one_turn():
    chat = chat_with("One", "Two")
    chat.say("a")
    chat.say("b")
    assert chat.undo() == "b"
    assert spoken(chat) == [("user", "a"), ("assistant", "One")]
    assert chat.undo() == "a"
    with pytest.raises(SettingError, match="nothing to take back"):
        chat.undo()
    with pytest.raises(SettingError, match="no reply yet"):
        next(chat.regenerate())


def test_clear_keeps_the_system_prompt():
    chat = chat_with("One", "Two", system="Be brief.")
    chat.say("a")
    chat.clear()
    assert chat.say("b") == "Two"
    assert spoken(chat) == [("user", "b"), ("assistant", "Two")]
    assert bytes(i for i in chat.model.sequence.ids if i < 256).startswith(b"Be brief.")
    assert chat.summary.reused_tokens == len("<sBe brief.u")


def test_limits_reach_the_model():
    model = fake_model(Replies("one, two, three", "one, two, three"))
    assert Chat(model, temperature=0.0, max_tokens=5).say("count") == "one, "
    assert Chat(model, temperature=0.0, stop=", ").say("count") == "one"


def test_a_model_without_template_stops_where_it_would_speak_for_the_user():
    model = fake_model(Replies("Yes.\nUser: and you?"), has_template=False)
    assert Chat(model, temperature=0.0).say("Do you?") == "Yes."


def test_a_seeded_conversation_repeats_but_regenerates_differently():
    def replies(seed):
        chat = Chat(fake_model(lambda ids: None), seed=seed, top_k=0, max_tokens=10)
        first = chat.say("a")
        return first, "".join(delta.text for delta in chat.regenerate())

    assert replies(3) == replies(3)
    first, again = replies(3)
    assert first != again
    assert replies(4)[0] == again
    assert replies((1 << 64) - 1)[1] == replies(0)[0]


def test_out_of_range_sampling_is_refused_at_once():
    with pytest.raises(SettingError, match=r"^top_p must be between"):
        Chat(fake_model(Continuation({})), top_p=3.0)


def test_the_tokens_in_use_are_those_of_prompt_and_reply_until_something_changes():
    chat = chat_with("Hello!", "Fine.")
    assert chat.tokens_in_use() == 0
    chat.say("hi")
    assert chat.tokens_in_use() == len(chat.model.sequence.ids) == len([BOS, USER, *b"hi", ASSISTANT, *b"Hello!"])
    chat.system = "Be nice."
    rendered = len([BOS, SYSTEM, *b"Be nice.", USER, *b"hi", ASSISTANT, *b"Hello!", EOS, ASSISTANT])
    assert chat.tokens_in_use() == rendered
    chat.system = None
    chat.say("how?")
    chat.undo()
    assert chat.tokens_in_use() == len([BOS, USER, *b"hi", ASSISTANT, *b"Hello!", EOS, ASSISTANT])


def test_a_cut_reply_goes_on_where_its_tokens_end():
    whole = Chat(fake_model(Replies("Hello there, how are you?")), temperature=0.0).say("hi")
    chat = Chat(fake_model(Replies("Hello there, how are you?")), temperature=0.0, max_tokens=8)
    assert chat.say("hi") == "Hello th"
    assert chat.messages[-1].partial
    assert "".join(delta.text for delta in chat.go_on()) == "ere, how"
    assert chat.summary.reused_tokens == chat.summary.prompt_tokens - 1
    for _ in chat.go_on():
        pass
    assert [message.content for message in chat.messages] == ["hi", "Hello there, how are you"]
    chat.request = Request(temperature=0.0)
    list(chat.go_on())
    assert (chat.messages[-1].content, chat.messages[-1].partial) == (whole, False)
    assert bytes(chat.reply_ids).decode() == whole
    with pytest.raises(SettingError, match="no stopped or cut reply"):
        next(chat.go_on())
    chat.undo(3)
    assert chat.messages[-1].content == "Hello th"


def test_a_character_that_a_limit_has_cut_is_whole_once_the_reply_goes_on():
    chat = Chat(fake_model(Replies("A 😀 smile")), temperature=0.0, max_tokens=4)
    chat.say("hi")
    chat.request = Request(temperature=0.0)
    list(chat.go_on())
    assert chat.messages[-1].content.replace("\ufffd", "") == "A 😀 smile"


def test_a_loaded_reply_goes_on_from_its_text():
    chat = Chat(fake_model(Replies("Hello there")), temperature=0.0)
    chat.model.sequence._next_id = Replies("Hello there")
    chat.model.sequence._next_id._reply = b"Hello there"
    chat.replace_messages([Message("user", "hi"), Message("assistant", "Hello", partial=True)])
    assert "".join(delta.text for delta in chat.go_on()) == " there"


def test_a_reply_that_is_stopped_at_once_again_stays_as_it_was():
    chat = Chat(fake_model(Replies("Hello there")), temperature=0.0, max_tokens=5)
    chat.say("hi")
    before = chat.messages
    assert list(chat.go_on(cancelled=lambda: True)) == []
    assert chat.messages is before


def test_a_long_reply_goes_on_and_the_oldest_turn_stays():
    replies = ["One " * 20, "Two " * 30]
    chat = Chat(fake_model(Replies(*replies), context_size=200), temperature=0.0, overflow="drop", max_tokens=80)
    chat.say("a")
    chat.say("b")
    chat.request = Request(temperature=0.0)
    list(chat.go_on())
    # A reply that fills the context ends there, and goes on behind its own end.
    assert chat.summary.finish_reason == "context"
    begun = chat.messages[-1].content
    assert begun == ("Two " * 30)[: len(begun)] and 100 < len(begun) < 120
    list(chat.go_on())
    assert chat.messages[-1].content.startswith(begun)
    assert len(chat.messages[-1].content) > len(begun) + 20
    assert chat.dropped == 0
