"""Many replies at once on a real engine: the tokens that each would have alone, whatever happens to their memory."""

import engines
import numpy as np
import pytest
from fake_model import ByteTokenizer, fake_model

from tinychat.errors import CacheFullError, ContextError, SettingError
from tinychat.generate.many import LEVELS, RowsThatPay, write_many
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request
from tinychat.generate.scheduler import Scheduler

CONTEXT = 400
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return engines.convert_variant("qwen3-window", "int4", tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def unquantized(tmp_path_factory):
    return engines.convert_variant("qwen3-window", "f32", tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def engine(folder):
    return engines.open_engine(folder, threads=2)


class Letters(ByteTokenizer):
    """Has a letter for each id."""

    def token_bytes(self, token_id):
        return bytes([65 + token_id % 26])


def small_engine(folder, blocks):
    """Return an engine whose sequences have room for so many blocks together."""
    return engines.open_engine(folder, threads=2, positions=blocks * 64)


def reply_to(ids, **fields):
    request = Request(**{"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True} | fields)
    return Reply(Prompt(list(ids)), request, Letters())


def written_alone(engine, ids, **fields):
    """Return the tokens of a reply that is the only one, on a sequence of its own, without what others left."""
    sequence, reply = engine.sequence(CONTEXT), reply_to(ids, **fields)
    for start in range(0, len(ids), sequence.chunk_size):
        logits = sequence.step(ids[start : start + sequence.chunk_size])
    while True:
        reply.accept(logits[-1])
        if reply.finish_reason is not None:
            return reply.token_ids
        logits = sequence.step(reply.token_ids[-1:])


def run(scheduler, replies):
    for reply in replies:
        scheduler.add(reply)
    steps = []
    while len(scheduler):
        steps.append(scheduler.step())
    return steps


def draw_prompts(engine, lengths):
    rng = np.random.default_rng(3)
    return [rng.integers(0, engine.vocab_size, length).tolist() for length in lengths]


LENGTHS = (1, 2, 9, 17, 40, 63, 64, 65, 130, 300, 5, 8, 200, 11, 3, 90)


@pytest.mark.parametrize("parallel", [3, 16])
def test_each_has_the_tokens_that_it_has_alone(engine, parallel):
    prompts = draw_prompts(engine, LENGTHS)
    settings = [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.7, "seed": 6, "repeat_penalty": 1.3}]
    fields = [settings[i % 3] for i in range(len(prompts))]
    alone = [written_alone(engine, ids, **each) for ids, each in zip(prompts, fields)]
    replies = [reply_to(ids, **each) for ids, each in zip(prompts, fields)]
    run(Scheduler(engine, CONTEXT, parallel), replies)
    assert [reply.token_ids for reply in replies] == alone
    assert {reply.finish_reason for reply in replies} == {"length"}
    assert [reply.summary.prompt_tokens for reply in replies] == list(LENGTHS)


def test_a_step_beside_others_gives_the_same_bits(engine, folder):
    prompts = draw_prompts(engine, (70, 9, 150))
    expected = []
    for ids in prompts:
        sequence = engine.sequence(CONTEXT)
        expected.append(sequence.step(ids, outputs=2))
    for thread_count in (1, 2):
        other = engines.open_engine(folder, threads=thread_count)
        sequences = [other.sequence(CONTEXT) for _ in prompts]
        first = [sequence.span(ids[:-3], len(ids), outputs=0) for sequence, ids in zip(sequences, prompts)]
        assert [rows.shape for rows in other.run([first[2]] + first[:1])] == [(0, 517), (0, 517)]
        other.run(first[1:2])
        spans = [sequence.span(ids[-3:], len(ids), outputs=2) for sequence, ids in zip(sequences, prompts)]
        for rows, wanted in zip(other.run(spans), expected):
            np.testing.assert_array_equal(rows, wanted)


def test_a_common_beginning_is_read_once(engine, folder):
    beginning, *ends = draw_prompts(engine, (250, *range(5, 17)))
    replies = [reply_to(beginning + end, max_tokens=4) for end in ends]
    alone = [written_alone(engine, beginning + end, max_tokens=4) for end in ends]
    fresh = engines.open_engine(folder, threads=2)
    scheduler = Scheduler(fresh, CONTEXT, len(ends))
    run(scheduler, replies)
    assert [reply.token_ids for reply in replies] == alone
    assert scheduler.rows == 250 + sum(map(len, ends)) + 3 * len(ends), "each token ran once"
    assert sorted(reply.summary.reused_tokens for reply in replies) == [0] + [250] * (len(ends) - 1)


def test_memory_that_is_full_puts_the_youngest_back(unquantized):
    engine = small_engine(unquantized, blocks=8)
    prompts = draw_prompts(engine, (100, 60, 120, 30, 62, 61))
    alone = [written_alone(engine, ids, max_tokens=40) for ids in prompts]
    replies = [reply_to(ids, max_tokens=40) for ids in prompts]
    scheduler = Scheduler(engine, CONTEXT, 6)
    steps = run(scheduler, replies)
    assert [reply.token_ids for reply in replies] == alone
    written = [[number for number, step in enumerate(steps) if reply in [p.reply for p in step]] for reply in replies]
    assert written[0] == [*range(40)], "the oldest is never put back"
    assert any(times[-1] - times[0] >= 40 for times in written), "others had to wait before they were finished"
    assert engine.pool.used == len(engine.pool.prefixes), "all memory but what is kept for later is free"


def test_a_long_prompt_holds_nobody_up(engine):
    short, long = draw_prompts(engine, (5, 300))
    scheduler = Scheduler(engine, CONTEXT, 2, prompt_budget=32)
    first = reply_to(short, max_tokens=30)
    scheduler.add(first)
    scheduler.step()
    scheduler.add(reply_to(long))
    before = scheduler.rows
    for count in range(2, 8):
        scheduler.step()
        assert len(first.token_ids) == count, "a token in every step"
        assert scheduler.rows - before == (count - 1) * 33


def test_prompts_are_read_in_the_order_in_which_they_came(engine):
    prompts = draw_prompts(engine, (200, 10, 20))
    replies = [reply_to(ids) for ids in prompts]
    steps = run(Scheduler(engine, CONTEXT, 3, prompt_budget=32), replies)
    begun = {id(progress.reply): i for i, step in reversed(list(enumerate(steps))) for progress in step}
    assert [begun[id(reply)] for reply in replies] == sorted(begun.values())


def test_a_reply_ends_where_the_context_is_full(engine):
    (ids,) = draw_prompts(engine, (CONTEXT - 3,))
    reply = reply_to(ids, max_tokens=None)
    scheduler = Scheduler(engine, CONTEXT, 2)
    run(scheduler, [reply])
    assert (reply.finish_reason, len(reply.token_ids)) == ("context", 4)
    with pytest.raises(ContextError):
        scheduler.add(reply_to([1] * (CONTEXT + 1)))
    with pytest.raises(SettingError):
        scheduler.add(reply_to([10_000]))


def test_a_reply_may_be_taken_out(engine):
    prompts = draw_prompts(engine, (9, 10, 11))
    replies = [reply_to(ids) for ids in prompts]
    scheduler = Scheduler(engine, CONTEXT, 2)
    for reply in replies:
        scheduler.add(reply)
    scheduler.step()
    scheduler.remove(replies[0])
    scheduler.remove(replies[2])
    assert len(scheduler) == 1
    run(scheduler, [])
    assert [len(reply.token_ids) for reply in replies] == [1, NEW_TOKENS, 0]


def test_memory_too_small_for_one_is_an_error(unquantized):
    engine = small_engine(unquantized, blocks=2)
    with pytest.raises(SettingError, match="too large"):
        Scheduler(engine, CONTEXT, 2).add(reply_to([1])) or engine.sequence(CONTEXT)
    hog = engine.sequence(128)
    hog.step([1] * 100)
    scheduler = Scheduler(engine, 128, 2)
    scheduler.add(reply_to([2] * 90))
    with pytest.raises(CacheFullError):
        scheduler.step()


def test_what_cannot_be_asked_ends_one_reply_only():
    model = fake_model(lambda ids: 65)
    asked = [(Prompt([token]), Request(max_tokens=2, temperature=0.0)) for token in (6, 9)]
    refused, too_long = ContextError("refused"), (Prompt([1] * 10_000), Request())
    found = list(write_many(model, iter([refused, asked[0], too_long, refused, asked[1]]), parallel=1))
    ends = {one.number: one for one in found if one.is_last}
    assert [ends[number].error is None for number in range(5)] == [False, True, False, False, True]
    assert [ends[number].reply.token_ids for number in (1, 4)] == [[65, 65], [65, 65]]


def test_more_at_once_are_tried_as_long_as_they_pay():
    pay = RowsThatPay()
    rates = dict(zip(LEVELS, (100, 130, 160, 161, 200, 300, 400)))
    for _ in range(200):
        pay.note(pay.count, pay.count / rates[pay.count], is_full=True)
    assert pay.count == LEVELS[2]
    still = RowsThatPay()
    for _ in range(200):
        still.note(8, 1.0, is_full=False)
    assert still.count == LEVELS[0], "steps with fewer say nothing"
