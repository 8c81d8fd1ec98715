"""Noticing that a reply goes round in a loop, and ending it there."""

import random
import re

import pytest
from fake_model import EOS, Replies, fake_model

from tinychat.conversation.conversation import Chat
from tinychat.generate.constraint_state import Region
from tinychat.generate.loops import LITERAL, PROSE, STRUCTURED, LoopDetector
from tinychat.generate.request import Request

ROUND = "The sea is calm and the boat is slow. "
LOOP = ROUND * 40
"""Far longer than any bound, in bytes that are tokens."""


def words_as_tokens(text):
    """Return the ids of a text whose tokens are words, numbers and signs, and what spells them."""
    spelled = re.findall(r" ?[a-z]+|\d|[^\w]", text, flags=re.IGNORECASE)
    vocabulary = sorted({*spelled})
    return [vocabulary.index(one) for one in spelled], [one.encode() for one in vocabulary]


def found_at(text, region=Region.PROSE):
    """Return after how many tokens a loop is found."""
    ids, vocabulary = words_as_tokens(text)
    detector = LoopDetector(vocabulary.__getitem__)
    return next((count for count, token_id in enumerate(ids, 1) if detector.add(token_id, region)), None)


def length(text):
    return len(words_as_tokens(text)[0])


@pytest.mark.parametrize(
    "once",
    [
        "again ",
        "A tapestry of wonders,\n",
        ROUND,
        # Hundreds of tokens, none of them twice.
        "".join(f"{chr(97 + a)}{chr(97 + b)}x " for a in range(15) for b in range(20)),
    ],
)
def test_a_loop_is_found_soon_whatever_its_length(once):
    begin = "Once upon a time there lived an old fisherman by himself. "
    at = found_at(begin + once * (1 + 2000 // length(once)))
    start = length(begin + once)
    assert start + PROSE <= at <= start + PROSE + 10


@pytest.mark.parametrize(
    "item",
    [
        "{}. Toaster\n",
        "{}. Be yourself and avoid clichés.\n",
        "**{}) A sunrise** over the hills of the north\n",
        # Items that differ in a word that was said before.
        "{}. The sea is {} and the boat is slow.\n",
    ],
)
def test_a_list_whose_numbers_go_on_is_a_loop(item):
    colours = ("red", "green", "blue")
    text = "".join(item.format(row, colours[row % 3]) for row in range(1, 120))
    start = length("".join(item.format(row, colours[row]) for row in range(3)))
    assert found_at(text) - start <= 200


def test_a_loop_may_go_round_in_another_order():
    lines = ("In this house there is no room.\n", "In this house no one has lived.\n", "There is no light at night.\n")
    order = [0, 1, 2, 0, 2, 1, 1, 0, 2, 2, 0, 1] * 6
    assert found_at("".join(lines[n] for n in order)) <= 230


def test_numbers_that_change_at_random_do_not_hide_a_loop():
    digits = random.Random(1)
    lines = [f"A feast of wine in {digits.randint(1, 9)}-{digits.randint(1, 9)}, by the sea\n" for _ in range(99)]
    assert found_at("".join(lines)) <= 400


def test_texts_that_say_something_new_are_no_loops():
    assert found_at("".join(f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)} is a word. " for n in range(600))) is None


def test_code_and_tables_may_repeat_themselves_for_longer():
    row = "    {0, 0, 0, 0, 0, 0},\n"
    assert LITERAL < found_at(f"```c\n{row * 100}") < LITERAL + 40
    table = "".join(f"| {n} June | unknown | unknown |\n" for n in range(400))
    assert found_at(table) is None or found_at(table) > STRUCTURED
    assert found_at(ROUND * 40, Region.STRING) > found_at(ROUND * 40)
    # Text below a block of code begins anew.
    code = "x = [1, 2, 3]\nprint(x)\n" * 9
    assert found_at(f"```\n{code}```\nThat prints three numbers, nine times over, and then it ends.\n") is None


def looping_model():
    """Return a model that says the same from the first token of its reply on, and how it is asked."""
    ids = fake_model(None).render_ids([{"role": "user", "content": "hi"}])
    letters = [*LOOP.encode(), EOS]
    return fake_model(lambda seen: letters[len(seen) - len(ids)], context_size=4096), ids


def test_a_reply_ends_in_a_loop():
    model, ids = looping_model()
    run = model.stream(ids, temperature=0.0)
    text = "".join(delta.text for delta in run)
    assert (run.summary.finish_reason, run.summary.is_cut) == ("loop", True)
    assert LOOP.startswith(text) and len(ROUND) + PROSE <= len(text) <= len(ROUND) + 200


def test_many_replies_end_in_a_loop_as_one_does():
    model, ids = looping_model()
    alone = model.stream(ids, temperature=0.0).to_end()
    many = model.generate_many([ids] * 3, parallel=3, temperature=0.0)
    assert [(reply.token_ids, reply.finish_reason) for reply in many] == [(alone.token_ids, "loop")] * 3


@pytest.mark.parametrize("fields", [{"loop_stop": False}, {"ignore_eos": True, "max_tokens": len(LOOP)}])
def test_a_loop_goes_on_where_that_is_wanted(fields):
    model, ids = looping_model()
    assert len(model.stream(ids, temperature=0.0, **fields).to_end().token_ids) == len(LOOP)


def test_a_loop_goes_on_by_request():
    chat = Chat(fake_model(Replies(LOOP, LOOP), context_size=4096), temperature=0.0)
    first = chat.say("hi")
    assert (chat.messages[-1].partial, chat.summary.finish_reason) == (True, "loop")
    list(chat.go_on())
    assert LOOP.startswith(chat.messages[-1].content)
    assert len(chat.messages[-1].content) >= len(first) + PROSE


def test_the_setting_is_a_field_of_the_request():
    assert Request().loop_stop
    assert "loop_stop" not in Request().values()
    assert Request(loop_stop=False).values()["loop_stop"] is False
