"""A reply that is given logits by hand: no engine, as a driver of many replies at once does it."""

import json

import numpy as np
import pytest
from fake_model import BOS, EOS, VOCAB_SIZE, ByteTokenizer, Continuation, fake_model

from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request

STORY = Continuation({"Once": " upon a time", "Twice": " a day"})


def reply_to(text, **fields):
    prompt = Prompt([BOS, *text.encode()])
    return Reply(prompt, Request(**({"temperature": 0.0} | fields)), ByteTokenizer(), frozenset({EOS}))


def logits_of(token_id):
    row = np.zeros(VOCAB_SIZE, dtype=np.float32)
    row[token_id] = 100.0
    return row


def accept_text(reply, text):
    return "".join(reply.accept(logits_of(byte)).text for byte in text.encode())


def test_a_reply_grows_by_what_it_is_given():
    reply = reply_to("Once")
    assert accept_text(reply, " up") == " up"
    assert (bytes(reply.token_ids), reply.finish_reason) == (b" up", None)
    last = reply.accept(logits_of(EOS))
    assert (last.text, last.ids, reply.finish_reason) == ("", (), "stop")
    assert bytes(reply.token_ids) == b" up"


@pytest.mark.parametrize(
    ("fields", "text", "passed", "reason"),
    [
        ({"max_tokens": 3}, "abc", "abc", "length"),
        ({"stop": "bc"}, "abc", "a", "stop_string"),
        ({"max_tokens": 2, "stop": "bcd"}, "ab", "ab", "length"),
        ({"stop": ["x"]}, "abc", "abc", None),
    ],
)
def test_a_reply_knows_its_end(fields, text, passed, reason):
    reply = reply_to("Once", **fields)
    assert accept_text(reply, text) == passed
    assert reply.finish_reason == reason


def test_whoever_runs_it_may_end_it_and_gets_what_was_held_back():
    reply = reply_to("Once", stop="cd")
    assert accept_text(reply, "abc") == "ab"
    assert reply.finish("context") == "c"
    assert reply.finish_reason == reply.summary.finish_reason == "context"
    assert reply.as_json()["text"] == "abc"


def test_stop_texts_of_prompt_and_request_both_end_it():
    for text, passed in (("a|b", "a"), ("a#b", "a")):
        reply = Reply(Prompt([BOS], stop=("|",)), Request(temperature=0.0, stop="#"), ByteTokenizer())
        assert accept_text(reply, text) == passed
        assert reply.finish_reason == "stop_string"


def test_the_times_that_it_is_told_are_in_the_summary():
    reply = reply_to("Once")
    assert (reply.summary.decode_steps, reply.summary.first_token_seconds) == (0, 0.0)
    reply.prompt_was_read(2, 10.0)
    reply.accept(logits_of(65))
    for seconds in (3.0, 4.0):
        reply.accept(logits_of(66), seconds)
    summary = reply.summary
    assert (summary.prompt_tokens, summary.reused_tokens, summary.new_tokens) == (5, 2, 3)
    assert (summary.decode_steps, summary.finish_reason) == (2, "interrupted")
    assert summary.prefill_seconds == 10.0
    assert 10.0 < summary.first_token_seconds < 11.0
    assert 7.0 < summary.decode_seconds < 8.0


def test_replies_in_turns_are_those_that_each_gives_alone(rng):
    rows = rng.standard_normal((3, 40, VOCAB_SIZE)).astype(np.float32)
    fields = {"temperature": 1.5, "repeat_penalty": 1.3, "stop": ["e"], "max_tokens": 30}

    def replies():
        return [reply_to("Once", seed=seed, **fields) for seed in range(3)]

    alone, together = replies(), replies()
    for reply, logits in zip(alone, rows, strict=True):
        for row in logits:
            if reply.finish_reason is None:
                reply.accept(row)
    for step in range(rows.shape[1]):
        for reply, logits in zip(together, rows, strict=True):
            if reply.finish_reason is None:
                reply.accept(logits[step])
    assert [reply.token_ids for reply in alone] == [reply.token_ids for reply in together]
    assert len({tuple(reply.token_ids) for reply in alone}) == 3
    for one, other in zip(alone, together, strict=True):
        assert (one.as_json()["text"], one.finish_reason) == (other.as_json()["text"], other.finish_reason)


def test_as_json_is_what_programs_read():
    reply = fake_model(STORY).stream("Once", temperature=0.0, max_tokens=3, logprobs=1, seed=4).to_end()
    report = json.loads(json.dumps(reply.as_json()))
    assert (report["text"], report["token_ids"]) == (" up", list(b" up"))
    assert (report["finish_reason"], report["truncated"], report["seed"]) == ("length", True, 4)
    assert (report["prompt_tokens"], report["reused_tokens"], report["new_tokens"]) == (5, 0, 3)
    assert [token["text"] for token in report["logprobs"]] == [" ", "u", "p"]
    first = report["logprobs"][0]
    assert first["best"] == [{name: first[name] for name in ("id", "text", "bytes", "logprob")}]
    assert "logprobs" not in fake_model(STORY).stream("Once", max_tokens=1).to_end().as_json()


def test_bytes_of_log_probabilities_make_up_characters_of_several_tokens():
    reply = fake_model(Continuation({"Once": "é!"})).stream("Once", temperature=0.0, logprobs=0).to_end()
    found = reply.as_json()["logprobs"]
    assert [token["text"] for token in found] == ["\ufffd", "\ufffd", "!"]
    assert bytes(number for token in found for number in token["bytes"]).decode() == "é!"


def test_a_piece_as_json_is_a_part_of_the_reply():
    run = fake_model(STORY).stream("Twice", temperature=0.0, logprobs=0)
    deltas = [run.reply.delta_as_json(delta) for delta in run]
    whole = run.reply.as_json()
    assert "".join(delta["text"] for delta in deltas) == whole["text"] == " a day"
    assert [token_id for delta in deltas for token_id in delta["token_ids"]] == whole["token_ids"]
    assert [token for delta in deltas for token in delta["logprobs"]] == whole["logprobs"]


def test_a_text_becomes_a_message_where_there_is_a_template():
    model, bare = fake_model(STORY), fake_model(STORY, has_template=False)
    as_message = model.chat_prompt([{"role": "user", "content": "x"}])
    assert model.text_prompt("x") == model.text_prompt("x", as_chat=True) == as_message
    assert not as_message.joins_reply
    assert model.text_prompt("x", as_chat=False) == bare.text_prompt("x") == Prompt([BOS, *b"x"])
    both = [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]
    assert bare.text_prompt("x", system="s") == bare.chat_prompt(both)
    assert bare.chat_prompt(both).stop == ("\nUser:",)
