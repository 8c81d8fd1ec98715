import pytest
from fake_model import Replies, fake_model

from tinychat.chat.message import Attachment
from tinychat.chat.session import Chat
from tinychat.chat.status_bar import status_bar


@pytest.fixture
def chat():
    chat = Chat(fake_model(Replies("Hello!"), name="some-model", context_size=22))
    assert chat.say("hi")
    return chat


def test_before_the_first_reply_there_is_no_rate():
    assert status_bar(Chat(fake_model(Replies())), 0, 80) == "fake · context 0/256 ▱▱▱▱▱▱▱▱▱▱"


def test_the_bar_tells_model_context_and_rate(chat):
    name, context, rate = status_bar(chat, 11, 80).split(" · ")
    assert (name, context) == ("some-model", "context 11/22 ▰▰▰▰▰▱▱▱▱▱")
    assert rate.endswith(" tok/s")


@pytest.mark.parametrize("width", [80, 50, 40, 30, 20, 10])
def test_the_bar_fits_and_keeps_the_context_longest(chat, width):
    bar = status_bar(chat, 11, width)
    assert len(bar) < width
    assert "11/22" in bar
    chat.attachments = [Attachment("notes.txt", "x"), Attachment("a very long name.txt", "y")]
    attached = status_bar(chat, 11, width)
    assert len(attached) < width
    assert "11/22" in attached
    assert any(mark in attached for mark in ("attached: notes.txt, a very long name.txt", "attached: 2", "+2"))
