"""Penalties, loops and thoughts of replies that are held to calls: free text is judged, what a grammar wants is not."""

import json

import numpy as np
import pytest
from fake_model import BOS, EOS, VOCAB_SIZE, ByteTokenizer

from tinychat.generate.constraint_state import Region, _is_cut
from tinychat.generate.constraints import Constraints
from tinychat.generate.grammar import Grammar
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request
from tinychat.tools.definitions import Tool, ToolChoice
from tinychat.tools.formats.known import HERMES

pytest.importorskip("llguidance")

TEXT, ROWS = {"type": "string"}, {"type": "array"}
TOOL = Tool("f", "", {"type": "object", "properties": {"old": TEXT, "new": TEXT, "rows": ROWS}})
HELD = {
    "prose before": ToolChoice((TOOL,), constrains=True),
    "a call": ToolChoice((TOOL,), required=True, is_parallel=False),
}
ANY_CHOICE = pytest.mark.parametrize("choice", HELD.values(), ids=HELD)
THINK, THOUGHT = VOCAB_SIZE, VOCAB_SIZE + 1


class ThinkingTokenizer(ByteTokenizer):
    """Bytes, and two tokens that begin and end a think section, which are text."""

    spelled = {THINK: b"<think>", THOUGHT: b"</think>"}  # noqa: RUF012

    def encode_rendered(self, text):
        parts = text.replace("<think>", "\0").replace("</think>", "\1").encode()
        return [{0: THINK, 1: THOUGHT}.get(byte, byte) for byte in parts]

    def token_bytes(self, token_id):
        return self.spelled.get(token_id) or super().token_bytes(token_id)

    def decode(self, ids, skip_special=True):
        return b"".join(self.token_bytes(one) for one in ids).decode(errors="replace")


def call(**arguments):
    body = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def constraint_of(choice, tokenizer=None, size=VOCAB_SIZE):
    return Constraints(tokenizer or ByteTokenizer(), size, [EOS]).of_calls(HERMES, choice)


def reply_to(choice, tokenizer=None, prompt=(BOS,), opens_thinking=False, size=VOCAB_SIZE, **fields):
    tokenizer = tokenizer or ByteTokenizer()
    constraint = None if choice is None else constraint_of(choice, tokenizer, size)
    request = Request(**({"temperature": 0.0, "constraint": constraint} | fields))
    return Reply(Prompt([*prompt], opens_thinking=opens_thinking), request, tokenizer, frozenset({EOS}))


def row_of(*favourites, size=VOCAB_SIZE):
    """Return logits that prefer the first id a little to the second, and both to any other by far."""
    row = np.full(size, -100.0, dtype=np.float32)
    for rank, token_id in enumerate(favourites):
        row[token_id] = 10.0 - rank
    return row


def say(reply, ids, size=VOCAB_SIZE):
    for token_id in ids:
        if reply.finish_reason is None:
            reply.accept(row_of(token_id, size=size))
    return reply


def asked_in(choice, text):
    """Return a reply with penalties that has written `text`."""
    return say(reply_to(choice, repeat_penalty=1.5, repeat_in_code=False, frequency_penalty=2.0), text.encode())


@ANY_CHOICE
def test_a_string_that_repeats_itself_ends_the_reply(choice):
    reply = say(reply_to(choice), call(old="all is well and " * 99).encode())
    assert (reply.finish_reason, len(reply.token_ids) < 350) == ("loop", True)


@ANY_CHOICE
def test_data_and_copies_are_no_loops(choice):
    passage = "".join(f"line {number} of a file\n" for number in range(20))
    rows = [{"x": number * 37 % 101, "y": number * 53 % 97} for number in range(40)]
    for text in (call(rows=rows), call(old=passage, new=f"{passage}the end"), call(rows=[[0] * 8] * 4)):
        reply = say(reply_to(choice), [*text.encode(), EOS])
        assert (reply.text, reply.finish_reason) == (text, "stop")


def test_calls_that_are_written_again_and_again_are_a_loop():
    choice = ToolChoice((TOOL,), required=True)
    reply = say(reply_to(choice), "\n".join([call(old="x")] * 40).encode())
    assert (reply.finish_reason, len(reply.token_ids) < 350) == ("loop", True)


@ANY_CHOICE
def test_penalties_hold_in_strings(choice):
    reply = asked_in(choice, '<tool_call>\n{"name": "f", "arguments": {"old": "')
    for _ in range(8):
        reply.accept(row_of(ord("a"), ord("b")))
    assert reply.text.endswith('"abababab')


@ANY_CHOICE
def test_penalties_leave_marks_and_numbers_alone(choice):
    begun = call(old="once", new="twice", rows=[1, 1, 1, 1, 1])
    at = begun.index("]")
    reply = asked_in(choice, begun[: begun.index("once") + 4])
    reply.accept(row_of(ord('"'), ord("!")))
    say(reply, begun[begun.index("once") + 5 : at].encode())
    for mark in (",", " ", "1", "]"):
        reply.accept(row_of(ord(mark), ord("2")))
    assert reply.text == begun[:at] + ", 1]"


def test_a_string_may_copy_what_was_said_before():
    reply = asked_in(HELD["a call"], '<tool_call>\n{"name": "f", "arguments": {"old": "aaaa", "new": "')
    reply.accept(row_of(ord("a"), ord("b")))
    assert reply.text.endswith('"a')


def test_prose_is_penalized_and_watched_as_without_tools(rng):
    fields = {"temperature": 0.9, "seed": 5, "repeat_penalty": 1.3, "presence_penalty": 0.5, "repeat_in_code": False}
    rows = rng.standard_normal((150, VOCAB_SIZE)).astype(np.float32) * 3
    rows[:, EOS] = -100
    found = []
    for choice in (None, HELD["prose before"]):
        reply = reply_to(choice, prompt=[BOS, *b"some words"], **fields)
        for row in rows:
            # ASCII: neither has a character that is cut.
            reply.accept(np.where(np.arange(VOCAB_SIZE) < 128, row, np.float32(-100)))
        found.append(reply.token_ids)
    assert found[0] == found[1]
    looping = [say(reply_to(choice), b"so it is " * 50).token_ids for choice in (None, HELD["prose before"])]
    assert looping[0] == looping[1] and len(looping[0]) < 180


def test_the_region_of_a_token():
    constraint = constraint_of(HELD["prose before"])
    state, text, regions = constraint.start(), f"So: {call(old='é ü', rows=[12])} Done", ""
    for byte in text.encode():
        state.allowed()
        regions += {Region.PROSE: "p", Region.STRING: "s", Region.STRUCTURE: "-"}[state.region]
        state.accept(byte)
    begin, end = text.index("\n{"), text.index("Done") - 1
    string = text.index("é")
    # The closing quotation mark is chosen in the string.
    expected = "p" * begin + "-" * (string - begin) + "s" * len("é ü".encode() + b'"')
    expected += "-" * (len(text[:end].encode()) - len(expected))
    assert regions == expected + "p" * len(" Done")


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [(b"", False), (b"a", False), ("é".encode(), False), ("é".encode()[:1], True), ("€".encode()[:2], True)]
    + [("😀".encode()[:length], length < 4) for length in range(1, 5)]
    + [(b"a\\", True), (b"a\\\\", False), (b"\\\\\\", True), (b"\x80\x80", False)],
)
def test_where_a_character_or_an_escape_goes_on(text, is_cut):
    assert _is_cut(text) is is_cut


def thinking_reply(choice, **fields):
    return reply_to(choice, ThinkingTokenizer(), size=VOCAB_SIZE + 2, **fields)


def say_thoughts(reply, *parts):
    ids = [one for part in parts for one in ([part] if isinstance(part, int) else part.encode())]
    return say(reply, ids, VOCAB_SIZE + 2)


@ANY_CHOICE
@pytest.mark.parametrize("budget", [None, 50])
def test_a_reply_that_is_held_may_think_first(choice, budget):
    reply = thinking_reply(choice, think_budget=budget)
    thoughts = "I call <tool_call>\nit"
    say_thoughts(reply, THINK, thoughts, THOUGHT, call(old="x"), EOS)
    assert reply.text == f"<think>{thoughts}</think>{call(old='x')}"
    assert reply.finish_reason == "stop"


@ANY_CHOICE
def test_thinking_that_is_off_begins_no_section(choice):
    reply = thinking_reply(choice, think_budget=0)
    reply.accept(row_of(THINK, ord("<"), size=VOCAB_SIZE + 2))
    say_thoughts(reply, call(old="<think>")[1:], EOS)
    assert (reply.text, reply.finish_reason) == (call(old="<think>"), "stop")


@ANY_CHOICE
@pytest.mark.parametrize(("opens", "budget"), [(True, 0), (True, 4), (False, 4)])
def test_a_call_begins_behind_a_section_that_its_budget_ends(choice, opens, budget):
    reply = thinking_reply(choice, opens_thinking=opens, think_budget=budget)
    # Behind it come two line ends where text is free.
    written = (0 if opens else 1) + budget + len("\n") + 1 + 2 * (not choice.required)
    say_thoughts(reply, *([] if opens else [THINK]), *"a" * (written - (not opens)))
    assert reply.token_ids.count(THOUGHT) == 1
    say_thoughts(reply, call(old="x"), EOS)
    assert reply.finish_reason == "stop"
    assert reply.text.split("</think>")[1].strip() == call(old="x")


def test_a_grammar_of_the_users_own_has_no_thoughts():
    tokenizer = ThinkingTokenizer()
    constraint = Constraints(tokenizer, VOCAB_SIZE + 2, [EOS]).of(Grammar.from_text('start: "ab"'))
    request = Request(temperature=0.0, constraint=constraint)
    reply = Reply(Prompt([BOS]), request, tokenizer, frozenset({EOS}))
    for letter in "ab":
        reply.accept(row_of(THINK, ord(letter), size=VOCAB_SIZE + 2))
    assert (reply.text, reply.finish_reason) == ("ab", "stop")
