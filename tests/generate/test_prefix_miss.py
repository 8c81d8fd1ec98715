"""Why a prompt shares less with the cache than its conversation would suggest."""

import pytest
from fake_model import ByteTokenizer, MarkerTemplate, Replies, fake_model
from fake_tools import FakeTool

import tinychat
from tinychat.conversation.chat_tools import ChatTools, as_toolbox
from tinychat.conversation.messages import Message
from tinychat.generate.prefix_miss import explain_miss


def explained(prompt, previous, cached):
    return explain_miss(list(prompt.encode()), list(previous.encode()), cached, ByteTokenizer().decode)


@pytest.mark.parametrize(
    ("prompt", "previous", "cached"),
    [
        ("a prompt", "", 0),
        ("abc more", "abc", 3),
        ("abc more", "abc", 2),  # the last token of a reply never ran
        ("abc", "abc and a reply", 2),  # asked again; the last token of a prompt always runs
    ],
)
def test_nothing_is_missing(prompt, previous, cached):
    assert explained(prompt, previous, cached) is None


def test_a_template_that_writes_an_earlier_turn_otherwise():
    miss = explained("user: hi  bot: hello. user: why", "user: hi bot: hello.", 9)
    assert (miss.position, miss.previous) == (9, 20)
    assert str(miss).startswith("the prompt leaves the cache at token 9 of 20: the template writes an earlier turn in")


def test_thinking_that_is_left_out():
    miss = explained("user: hi bot: yes. user: why", "user: hi bot: <think>hm</think>yes.", 14)
    assert (miss.position, miss.reason) == (14, "the template leaves out earlier thinking")


def test_a_reply_that_is_read_in_other_tokens():
    texts = {(1, 2): "a curious witch", (3, 4, 5): "a curious witch lived"}
    miss = explain_miss(
        [9, 3, 4, 5], [9, 1, 2, 7], 1, lambda ids: texts.get(tuple(ids[:3]), texts.get(tuple(ids[:2]), ""))
    )
    assert "'a curious witch lived' has other tokens when it is read than those that the model wrote" in miss.reason


def test_what_was_evicted():
    miss = explained("user: hi bot: hello. user: why", "user: hi bot: hello.", 5)
    assert (miss.position, miss.reason) == (5, "its memory was needed, or the cache has other settings now")


class Shortening(MarkerTemplate):
    """Leaves the thinking of earlier replies out, as the templates of many models do."""

    def render_ids(self, messages, add_generation_prompt=True, **variables):
        kept = [dict(message) for message in messages]
        for message in kept:
            message["content"] = message["content"].rpartition("</think>")[2]
        return super().render_ids(kept, add_generation_prompt, **variables)


def test_a_conversation_knows_and_its_changes_are_no_misses():
    model = fake_model(Replies("<think>hm</think>Yes.", "No.", "Anew.", "Other."))
    model.template = Shortening()
    chat = tinychat.Chat(model, temperature=0.0)
    chat.say("hi")
    assert chat.miss is None
    chat.say("why")
    assert chat.miss.reason == "the template leaves out earlier thinking"
    for _ in chat.regenerate():
        pass
    assert chat.miss is None
    for _ in chat.stream("what", replaced=1):
        pass
    assert chat.miss is None


@pytest.mark.parametrize("change", ["clear", "undo", "system", "load", "tools", "nothing"])
def test_what_somebody_has_changed_is_not_laid_to_the_template(change):
    model = fake_model(Replies("Yes.", "<think>hm</think>No.", "Anew."))
    model.template = Shortening()
    chat = tinychat.Chat(model, "Be kind.", temperature=0.0)
    chat.say("hi")
    chat.say("why")
    match change:
        case "clear":
            chat.clear()
        case "undo":
            chat.undo()
        case "system":
            chat.system = "Be brief."
        case "load":
            chat.replace_messages([Message("user", "hello"), Message("assistant", "<think>?</think>Hi.")])
        case "tools":
            chat.tools = ChatTools(as_toolbox([FakeTool("look")]))
    chat.say("what")
    assert (chat.miss is None) == (change != "nothing")
