"""A context that overflows in a real decoder, whose keys must be turned as they move."""

from pathlib import Path

import numpy as np
import pytest
from engines import convert_variant, open_sequence
from fake_model import ByteTokenizer

from tinychat.conversation.conversation import Chat
from tinychat.generate.model import Model
from tinychat.generate.sequence import logits_of_all

BOS, SYSTEM, USER, ASSISTANT, END = range(5)
MARKS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
FIRST_LETTER = 0x4E00


class LetterTokenizer(ByteTokenizer):
    """Every token is a letter, so that a reply's text becomes its tokens again."""

    special_ids = frozenset()

    def encode(self, text, add_bos=True):
        return [BOS] * add_bos + [(ord(letter) - FIRST_LETTER) % 500 for letter in text]

    def decode(self, ids, skip_special=True):
        return "".join(chr(FIRST_LETTER + token_id) for token_id in ids)

    def token_bytes(self, token_id):
        return self.decode([token_id]).encode()


class LetterTemplate:
    is_fallback = opens_thinking = False
    stop_strings = ()

    def thinking_variables(self, thinking):
        return {}

    def render_ids(self, messages, add_generation_prompt=True):
        ids = [BOS]
        for message in messages:
            ids += [MARKS[message["role"]], *LetterTokenizer().encode(message["content"], add_bos=False)]
            ids += [END] * (message["role"] == "assistant")
        return ids + [ASSISTANT] * add_generation_prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return convert_variant("llama2-gqa", "f32", tmp_path_factory.mktemp("overflow") / "model")


@pytest.fixture
def converse(folder):
    """Return a function that holds a conversation in a context of 96 tokens."""

    def run(overflow, turns, reply_tokens):
        sequence = open_sequence(folder, context_size=96, kv="f32")
        model = Model(sequence, LetterTokenizer(), LetterTemplate(), frozenset(), Path("letters"))
        system = LetterTokenizer().decode(range(100, 108))
        chat = Chat(model, system, overflow=overflow, max_tokens=reply_tokens, temperature=0.0)
        chat.notices = []
        chat.on_notice = chat.notices.append
        for turn in range(turns):
            chat.say(LetterTokenizer().decode(range(200 + 10 * turn, 208 + 10 * turn)))
        return chat

    return run


def test_shifting_reuses_what_stays(converse):
    chat = converse("shift", turns=4, reply_tokens=16)
    assert chat.dropped > 0
    assert len(chat.notices) == 1
    # The last reply's token that was never run, its end, the new message and its marks.
    assert chat.summary.prompt_tokens - chat.summary.reused_tokens == 12
    prompt = chat.prompt(chat.messages[chat.dropped : -1]).ids
    assert chat.model.sequence.ids == [*prompt, *chat.reply_ids[:-1]]


def first_keys(cache):
    """Return the keys of the first layer, those of its last, partly filled lanes left out."""
    keys = cache.pool.buffers.keys[cache.table, 0].swapaxes(0, 1)
    return keys.reshape(keys.shape[0], -1, *keys.shape[3:])[:, : cache.length // 16]


def test_shifted_keys_stand_where_the_ids_say(converse, folder):
    """The first layer's keys depend on token and position alone: they must be those of a fresh run."""
    sequence = converse("shift", turns=4, reply_tokens=16).model.sequence
    fresh = open_sequence(folder, context_size=96, kv="f32")
    fresh.step(sequence.ids)
    shifted_keys, fresh_keys = (first_keys(each.cache) for each in (sequence, fresh))
    np.testing.assert_allclose(shifted_keys, fresh_keys, atol=2e-5)


def test_dropping_gives_what_a_fresh_start_gives(converse, folder):
    chat = converse("drop", turns=4, reply_tokens=16)
    assert chat.dropped > 0
    prompt = chat.prompt(chat.messages[chat.dropped : -1]).ids
    fresh = open_sequence(folder, context_size=96, kv="f32")
    rows = logits_of_all(fresh, [*prompt, *chat.reply_ids[:-1]])
    assert rows[len(prompt) - 1 :].argmax(axis=1).tolist() == chat.reply_ids


@pytest.mark.parametrize("overflow", ["drop", "shift"])
def test_a_reply_goes_on_past_the_end_of_the_context(converse, overflow):
    chat = converse(overflow, turns=2, reply_tokens=40)
    assert len(chat.messages[-1].content) == 40
    assert chat.summary.finish_reason == "length"
    assert chat.dropped == (2 if overflow == "shift" else 0)
    assert (chat.messages[1].shortened is None) == (overflow == "shift")
