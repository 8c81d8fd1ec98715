"""Thinking that is switched by the template, and ended after a number of tokens."""

import numpy as np
import pytest
from fake_model import ASSISTANT, BOS, EOS, VOCAB_SIZE, ByteTokenizer, MarkerTemplate, Replies, fake_model

from tinychat.conversation.conversation import Chat
from tinychat.errors import FieldError
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request
from tinychat.generate.thinking import Thinking, as_thinking

END = b"\n</think>\n\n"


@pytest.mark.parametrize(
    ("text", "wanted", "budget"),
    [("on", True, None), ("OFF", False, 0), ("0", False, 0), ("auto", None, None), ("200", True, 200)],
)
def test_what_can_be_asked_for(text, wanted, budget):
    thinking = as_thinking(text)
    assert thinking == Thinking(wanted, budget)
    assert as_thinking(str(thinking)) == thinking


@pytest.mark.parametrize("text", ["", "hard", "-3", "1.5"])
def test_what_cannot(text):
    with pytest.raises(FieldError, match="think must be on, off, auto or a number of tokens"):
        as_thinking(text)


def written(prompt, budget, text, begun=False):
    """Return what a reply becomes whose model would write `text`: each forced token takes the place of one of them."""
    request = Request(temperature=0.0, think_budget=budget)
    reply = Reply(Prompt(prompt, opens_thinking=begun), request, ByteTokenizer(), frozenset({EOS}))
    for byte in text:
        row = np.zeros(VOCAB_SIZE, dtype=np.float32)
        row[byte] = 100.0
        reply.accept(row)
    return bytes(reply.token_ids)


@pytest.mark.parametrize(
    ("budget", "begun", "text", "expected"),
    [
        (3, False, b"<think>abcdef" + b"x" * 8 + b"Yes.", b"<think>abc" + END + b"Yes."),
        (3, True, b"abcdef" + b"x" * 8 + b"Yes.", b"abc" + END + b"Yes."),
        (0, True, b"x" * len(END) + b"Yes.", END + b"Yes."),
        (0, False, b"<think>" + b"x" * len(END) + b"Yes.", b"<think>" + END + b"Yes."),
        (None, False, b"<think>abcdef</think>Yes.", b"<think>abcdef</think>Yes."),
        (20, False, b"<think>ab</think>Yes. And a long answer.", b"<think>ab</think>Yes. And a long answer."),
        (2, False, b"Yes, as <think> is a tag.", b"Yes, as <think> is a tag."),
    ],
)
def test_the_section_ends_where_its_budget_does(budget, begun, text, expected):
    assert written([BOS], budget, text[: len(expected)], begun) == expected


class HiddenMarker(ByteTokenizer):
    """Its end marker is a special token, which is no text."""

    def encode_rendered(self, text):
        return [EOS + 2]


def test_an_end_marker_without_text_is_written_once():
    reply = Reply(Prompt([BOS], opens_thinking=True), Request(temperature=0.0, think_budget=0), HiddenMarker())
    for byte in b"abc":
        row = np.zeros(VOCAB_SIZE, dtype=np.float32)
        row[byte] = 100.0
        reply.accept(row)
    assert reply.token_ids == [EOS + 2, *b"bc"]


def thinker(*replies, switch="enable_thinking"):
    model = fake_model(Replies(*replies))
    model.template = MarkerTemplate(thinking_switch=switch)
    return model


def test_prompts_pass_the_switch():
    model = thinker()
    asked = [{"role": "user", "content": "x"}]
    closed = [*model.chat_prompt(asked).ids, *b"<think>\n\n</think>\n\n"]
    assert model.chat_prompt(asked, thinking=False).ids == closed
    assert model.text_prompt("x", thinking=False).ids == closed
    assert model.chat_prompt(asked, thinking=True).ids == model.chat_prompt(asked).ids
    without = thinker(switch=None)
    assert without.chat_prompt(asked, thinking=False).ids == model.chat_prompt(asked).ids


def test_forced_tokens_run_through_the_model_and_are_reused():
    chat = Chat(thinker("<think>One, two, three", "Good."), temperature=0.0)
    chat.thinking = as_thinking("4")
    assert chat.say("Well?").startswith("<think>One,\n</think>\n\n")
    ids = chat.model.sequence.ids
    assert bytes(i for i in ids[ids.index(ASSISTANT) :] if i < 256).startswith(b"<think>One,\n</think>\n\n")
    # What has run is what the reply says: all of it is there for the next turn.
    first = [*chat.prompt(chat.messages[:1]).ids, *chat.reply_ids]
    assert ids[: len(first)] == first[: len(ids)]
    chat.say("And?")
    assert chat.summary.reused_tokens >= len(first) - 1


def test_the_switch_changes_the_next_prompt_of_a_chat():
    chat = Chat(thinker("Yes.", "No."), temperature=0.0)
    chat.say("Well?")
    before = chat.prompt(chat.messages).ids
    chat.thinking = as_thinking("off")
    assert chat.prompt(chat.messages).ids == [*before, *b"<think>\n\n</think>\n\n"]
