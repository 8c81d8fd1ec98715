"""Many replies at once on a real engine: the tokens that each would have alone, whatever happens to their memory."""

import signal
from itertools import chain

import engines
import numpy as np
import pytest
from fake_model import Letters, fake_model

from tinychat.engine.sequence import new_sequence
from tinychat.errors import CacheFullError, ContextError, ModelFolderError
from tinychat.generate import batched
from tinychat.generate.batched import LEVELS, BatchSizeTuner, whole_replies, write_many
from tinychat.generate.drafts import Drafts
from tinychat.generate.driver import Driver
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, Reply
from tinychat.generate.request import Request
from tinychat.generate.run import Prefill, Run

CONTEXT = 400
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def folder(folders):
    return folders("qwen3-window")


@pytest.fixture(scope="module")
def unquantized(folders):
    return folders("qwen3-window", "f32")


@pytest.fixture
def engine(folder):
    return engines.open_engine(folder, threads=2)


def small_engine(folder, blocks):
    """Return an engine whose sequences have room for so many blocks together."""
    return engines.open_engine(folder, threads=2, positions=blocks * 64)


def reply_to(ids, **fields):
    request = Request(**{"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True} | fields)
    return Reply(Prompt(list(ids)), request, Letters())


def written_alone(engine, ids, **fields):
    """Return the tokens of a reply that is the only one, on a sequence of its own, without what others left."""
    sequence, reply = new_sequence(engine, CONTEXT), reply_to(ids, **fields)
    for start in range(0, len(ids), sequence.chunk_size):
        logits = sequence.step(ids[start : start + sequence.chunk_size])
    while True:
        reply.accept(logits[-1])
        if reply.finish_reason is not None:
            return reply.token_ids
        logits = sequence.step(reply.token_ids[-1:])


def submitted(driver, replies):
    runs = [Run(reply, ahead=None) for reply in replies]
    for run in runs:
        driver.submit(run)
    return runs


def written(driver, replies):
    """Write replies to their end; return for each step that chose tokens which replies got some."""
    runs, steps = submitted(driver, replies), []
    while len(driver):
        driver.step()
        got = [run.reply for run in runs if any(isinstance(event, Delta) for event in run.events)]
        failed = [event for run in runs for event in run.events if isinstance(event, Exception)]
        if failed:
            raise failed[0]
        for run in runs:
            run.events.clear()
        steps.append(got)
    return [step for step in steps if step]


def draw_prompts(engine, lengths):
    rng = np.random.default_rng(3)
    return [rng.integers(0, engine.vocab_size, length).tolist() for length in lengths]


LENGTHS = (1, 2, 9, 17, 40, 63, 64, 65, 130, 300, 5, 8, 200, 11, 3, 90)


@pytest.mark.parametrize("drafts", [None, Drafts()])
def test_each_has_the_tokens_that_it_has_alone(engine, drafts):
    prompts = draw_prompts(engine, LENGTHS)
    settings = [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.7, "seed": 6, "repeat_penalty": 1.3}]
    fields = [settings[i % 3] for i in range(len(prompts))]
    alone = [written_alone(engine, ids, **each) for ids, each in zip(prompts, fields)]
    replies = [reply_to(ids, **each) for ids, each in zip(prompts, fields)]
    written(Driver(new_sequence(engine, CONTEXT), drafts), replies)
    assert [reply.token_ids for reply in replies] == alone
    assert {reply.finish_reason for reply in replies} == {"length"}
    assert [reply.summary.prompt_tokens for reply in replies] == list(LENGTHS)


def test_a_step_beside_others_gives_the_same_bits(engine, folder):
    prompts = draw_prompts(engine, (70, 9, 150))
    expected = []
    for ids in prompts:
        sequence = new_sequence(engine, CONTEXT)
        expected.append(sequence.step(ids, outputs=2))
    for thread_count in (1, 2):
        other = engines.open_engine(folder, threads=thread_count)
        sequences = [new_sequence(other, CONTEXT) for _ in prompts]
        first = [sequence.chunk(ids[:-3], len(ids), outputs=0) for sequence, ids in zip(sequences, prompts)]
        assert [rows.shape for rows in other.run([first[2]] + first[:1])] == [(0, 517), (0, 517)]
        other.run(first[1:2])
        chunks = [sequence.chunk(ids[-3:], len(ids), outputs=2) for sequence, ids in zip(sequences, prompts)]
        for rows, wanted in zip(other.run(chunks), expected):
            np.testing.assert_array_equal(rows, wanted)


def test_a_common_beginning_is_read_once(engine, folder):
    beginning, *ends = draw_prompts(engine, (250, *range(5, 17)))
    replies = [reply_to(beginning + end, max_tokens=4) for end in ends]
    alone = [written_alone(engine, beginning + end, max_tokens=4) for end in ends]
    fresh = engines.open_engine(folder, threads=2)
    driver = Driver(new_sequence(fresh, CONTEXT))
    written(driver, replies)
    assert [reply.token_ids for reply in replies] == alone
    assert driver.rows == 250 + sum(map(len, ends)) + 3 * len(ends), "each token ran once"
    assert sorted(reply.summary.reused_tokens for reply in replies) == [0] + [250] * (len(ends) - 1)


def test_memory_that_is_full_puts_the_youngest_back(unquantized):
    engine = small_engine(unquantized, blocks=8)
    prompts = draw_prompts(engine, (100, 60, 120, 30, 62, 61))
    alone = [written_alone(engine, ids, max_tokens=40) for ids in prompts]
    replies = [reply_to(ids, max_tokens=40) for ids in prompts]
    driver = Driver(new_sequence(engine, CONTEXT))
    steps = written(driver, replies)
    assert [reply.token_ids for reply in replies] == alone
    times = [[number for number, step in enumerate(steps) if reply in step] for reply in replies]
    assert times[0] == [*range(40)], "the oldest is never put back"
    assert any(each[-1] - each[0] >= 40 for each in times), "others had to wait before they were finished"
    driver.close()
    assert engine.pool.used == len(engine.pool.prefixes), "all memory but what is kept for later is free"


def test_a_long_prompt_holds_nobody_up(engine):
    short, long = draw_prompts(engine, (5, 300))
    driver = Driver(new_sequence(engine, CONTEXT), prompt_budget=32)
    first = reply_to(short, max_tokens=30)
    submitted(driver, [first])
    while not first.token_ids:
        driver.step()
    submitted(driver, [reply_to(long)])
    before = driver.rows
    for count in range(2, 8):
        driver.step()
        assert len(first.token_ids) == count, "a token in every step"
        assert driver.rows - before == (count - 1) * 33


def test_a_long_prompt_holds_up_no_short_one(engine):
    """Half of the budget is the oldest prompt's, the rest goes to those that have the least left."""
    first, *prompts = (reply_to(ids, max_tokens=40) for ids in draw_prompts(engine, (5, 160, 50, 20, 30)))
    driver = Driver(new_sequence(engine, CONTEXT), prompt_budget=32)
    submitted(driver, [first])
    while not first.token_ids:
        driver.step()
    submitted(driver, prompts)
    begun = {}
    for number in range(1, 30):
        driver.step()
        for reply in prompts:
            if reply.token_ids:
                begun.setdefault(len(reply.prompt.ids), number)
    # Of 260 tokens 32 are read in a step; the shortest comes first, and the oldest has 16 in each.
    assert begun == {20: 2, 30: 4, 50: 7, 160: 9}
    assert len(first.token_ids) == 30


def test_a_reply_ends_where_the_context_is_full(engine):
    (ids,) = draw_prompts(engine, (CONTEXT - 3,))
    reply = reply_to(ids, max_tokens=None)
    written(Driver(new_sequence(engine, CONTEXT)), [reply])
    assert (reply.finish_reason, len(reply.token_ids)) == ("context", 4)


def test_a_reply_may_be_taken_out(engine):
    prompts = draw_prompts(engine, (9, 10, 11))
    replies = [reply_to(ids) for ids in prompts]
    driver = Driver(new_sequence(engine, CONTEXT))
    runs = submitted(driver, replies)
    while not replies[0].token_ids:
        driver.step()
    for run in (runs[0], runs[2], runs[2]):
        driver.cancel(run)
    assert (len(driver), [run.is_over for run in runs]) == (1, [True, False, True])
    assert replies[0].finish_reason == "interrupted"
    while len(driver):
        driver.step()
    assert len(replies[1].token_ids) == NEW_TOKENS


def test_an_error_of_a_reader_costs_others_nothing(engine):
    prompts = draw_prompts(engine, (30, 40))
    alone = [written_alone(engine, ids) for ids in prompts]
    driver = Driver(new_sequence(engine, CONTEXT))
    replies = [reply_to(ids) for ids in prompts]
    runs = submitted(driver, replies)
    deliver, left = runs[0].deliver, [None] * 5

    def fail_once(event):
        deliver(event)
        if left and left.pop() is None and not left:
            raise OSError

    runs[0].deliver = fail_once
    with pytest.raises(OSError):
        while len(driver):
            driver.step()
    while len(driver):
        driver.step()
    assert [reply.token_ids for reply in replies] == alone


def test_memory_too_small_for_one_is_an_error(unquantized):
    engine = small_engine(unquantized, blocks=2)
    hog = new_sequence(engine, 128)
    hog.step([1] * 100)
    driver = Driver(new_sequence(engine, 128))
    with pytest.raises(CacheFullError):
        written(driver, [reply_to([2] * 90)])
    assert len(driver) == 0
    hog.release()
    written(driver, [reply := reply_to([2] * 90)])
    assert len(reply.token_ids) == NEW_TOKENS


def test_an_idle_sequence_gives_its_memory_to_a_run(unquantized):
    engine = small_engine(unquantized, blocks=4)
    driver = Driver(new_sequence(engine, 256))
    prompts = draw_prompts(engine, (100, 150, 60))
    alone = [written_alone(small_engine(unquantized, blocks=8), ids) for ids in prompts]
    for ids, wanted in zip(prompts, alone):
        written(driver, [reply := reply_to(ids)])
        assert reply.token_ids == wanted


def test_progress_of_a_prompt_tells_what_is_cached_and_what_is_left(engine):
    (ids,) = draw_prompts(engine, (390,))
    driver = Driver(new_sequence(engine, CONTEXT))
    for cached in (0, 389):
        (run,) = submitted(driver, [reply_to(ids, max_tokens=1)])
        while len(driver):
            driver.step()
        progress = [event for event in run.events if isinstance(event, Prefill)]
        assert {event.cached for event in progress} == {cached}
        assert {event.total for event in progress} == {390 - cached}
        done = [event.done for event in progress]
        assert done == ([0, 256, 390] if cached == 0 else [0, 1])


def test_a_run_stands_still_while_nobody_reads_it(engine):
    prompts = draw_prompts(engine, (9, 12))
    driver = Driver(new_sequence(engine, CONTEXT))
    still, read = (Run(reply_to(ids), ahead=2 if i == 0 else None) for i, ids in enumerate(prompts))
    for run in (still, read):
        driver.submit(run)
    while not read.is_over:
        driver.step()
    assert sum(isinstance(event, Delta) for event in still.events) <= 2
    assert len(read.reply.token_ids) == NEW_TOKENS
    while not still.is_over:
        still.events.clear()
        driver.step()
    assert [run.reply.token_ids for run in (still, read)] == [written_alone(engine, ids) for ids in prompts]


def test_a_run_that_stands_still_gives_its_memory_to_one_that_is_read(unquantized):
    engine = small_engine(unquantized, blocks=4)
    prompts = draw_prompts(engine, (100, 150))
    alone = [written_alone(small_engine(unquantized, blocks=8), ids) for ids in prompts]
    driver = Driver(new_sequence(engine, 256))
    still, read = (Run(reply_to(ids), ahead=1 if i == 0 else None) for i, ids in enumerate(prompts))
    driver.submit(still)
    while not still.reply.token_ids:
        still.events.clear()
        driver.step()
    driver.submit(read)
    while not read.is_over:
        driver.step()
    while not still.is_over:
        still.events.clear()
        driver.step()
    assert [still.reply.token_ids, read.reply.token_ids] == alone


def test_what_cannot_be_asked_ends_one_reply_only():
    model = fake_model(lambda ids: 65)
    asked = [(Prompt([token]), Request(max_tokens=2, temperature=0.0)) for token in (6, 9)]
    refused, too_long = ContextError("refused"), (Prompt([1] * 10_000), Request())
    found = model.write_many(iter([refused, asked[0], too_long, refused, asked[1]]), parallel=1)
    ends = {number: got for number, got in found if not isinstance(got, Delta)}
    assert [isinstance(ends[number], Reply) for number in range(5)] == [False, True, False, False, True]
    assert [ends[number].token_ids for number in (1, 4)] == [[65, 65], [65, 65]]


def test_a_reply_that_another_ends_in_the_middle_of_a_step():
    model = fake_model(lambda ids: 65, context_size=8)
    driver = model.driver
    ended = Run(Reply(Prompt([7]), Request(temperature=0.0), model.tokenizer), ahead=None)

    def end_the_other(_reply_ids):
        driver.cancel(ended)

    full = Run(Reply(Prompt([6] * 6), Request(temperature=0.0), model.tokenizer), end_the_other, ahead=None)
    driver.submit(full)
    driver.submit(ended)
    while len(driver):
        driver.step()
    assert full.reply.finish_reason == "context"
    assert ended.reply.finish_reason == "interrupted"
    assert ended.is_over


def test_more_at_once_are_tried_as_long_as_they_pay():
    pay = BatchSizeTuner()
    rates = dict(zip(LEVELS, (100, 130, 160, 161, 200, 300, 400)))
    for _ in range(200):
        pay.note(pay.count, pay.count / rates[pay.count], is_full=True)
    assert pay.count == LEVELS[2]
    still = BatchSizeTuner()
    for _ in range(200):
        still.note(8, 1.0, is_full=False)
    assert still.count == LEVELS[0], "steps with fewer say nothing"


def test_replies_that_change_their_angles_beside_others_are_as_alone(folders):
    """Where longrope's angles change in mid-reply, earlier keys are computed anew: each reply for itself."""
    folder = folders("phi3-longrope", "f32")
    engine = engines.open_engine(folder, threads=2)
    prompts = draw_prompts(engine, (56, 60, 20))
    alone = [written_alone(engines.open_engine(folder, threads=2), ids, max_tokens=20) for ids in prompts]
    driver = Driver(new_sequence(engine, CONTEXT))
    replies = [reply_to(ids, max_tokens=20) for ids in prompts]
    written(driver, replies)
    assert [reply.token_ids for reply in replies] == alone


def test_each_reply_ends_once_though_others_step_meanwhile():
    """JournaledWriter that another reader's steps have brought come together: only the last one is the end."""
    model = fake_model(lambda ids: 65)
    request = Request(max_tokens=5, temperature=0.0)
    coming = model.write_many([(Prompt([6]), request)], parallel=1)
    found = [next(coming)]
    for _ in range(8):
        model.driver.step()
    found += coming
    assert [number for number, _ in found] == [0] * 6
    assert [got.ids for _, got in found[:-1]] == [(65,)] * 5
    assert found[-1][1].token_ids == [65] * 5


def last_plus_one(ids):
    return ids[-1] + 1


def test_whole_replies_are_those_that_deltas_make():
    asked = [(Prompt([number]), Request(max_tokens=3 + number, temperature=0.0)) for number in range(6)]
    expected = {number: got for number, got in fake_model(last_plus_one).write_many(asked, 4) if isinstance(got, Reply)}
    model = fake_model(last_plus_one)
    found = dict(chain.from_iterable(whole_replies(model.driver, map(model.run_or_error, asked), 4)))
    assert {number: got.token_ids for number, got in found.items()} == {
        number: got.token_ids for number, got in expected.items()
    }
    assert len(found) == 6


def test_an_error_in_mid_reply_comes_instead_of_it(monkeypatch):
    accept = Reply.accept_draft

    def damaged(reply, *given):
        if reply.prompt.ids == [7] and len(reply.token_ids) == 2:
            raise ModelFolderError("damaged")
        return accept(reply, *given)

    monkeypatch.setattr(Reply, "accept_draft", damaged)
    model = fake_model(last_plus_one)
    asked = [(Prompt([number]), Request(max_tokens=5, temperature=0.0)) for number in (6, 7, 8)]
    found = dict(chain.from_iterable(whole_replies(model.driver, map(model.run_or_error, asked), 3)))
    assert str(found.pop(1)) == "damaged"
    assert {number: got.token_ids for number, got in found.items()} == {0: [*range(7, 12)], 2: [*range(9, 14)]}


def test_an_error_is_the_end_though_the_run_is_not_over_yet():
    """Another thread's step delivers the error before it ends the run."""
    model, error = fake_model(last_plus_one), ModelFolderError("damaged")
    run = model.run_or_error((Prompt([6]), Request(max_tokens=5, temperature=0.0)))
    coming = write_many(model.driver, [run], parallel=1)
    assert next(coming)[1].ids == (7,)
    run.events.append(error)
    assert [*coming] == [(0, error)]


def test_ctrl_c_ends_replies_between_two_passes():
    def pressed(ids):
        if len(ids) == 4:
            signal.raise_signal(signal.SIGINT)
        return 65

    model, request = fake_model(pressed), Request(max_tokens=100, temperature=0.0)
    with pytest.raises(KeyboardInterrupt):
        list(whole_replies(model.driver, [model.run_or_error((Prompt([6]), request))], parallel=1))
    assert 4 <= model.driver.rows < 10
    assert not len(model.driver)


def test_replies_begin_a_window_ahead_of_the_oldest(monkeypatch):
    monkeypatch.setattr(batched, "WINDOW", 4)
    model, begun, over = fake_model(lambda ids: 65), [], []

    def asked():
        for number in range(20):
            begun.append(number)
            yield Prompt([number]), Request(max_tokens=1 if number else 30, temperature=0.0, ignore_eos=True)

    for number, got in model.write_many(asked(), parallel=8):
        if isinstance(got, Reply):
            over.append(number)
            assert max(begun) < min({*range(21)} - {*over}) + 4
    assert over[:4] == [1, 2, 3, 0]
    assert sorted(over) == [*range(20)]
