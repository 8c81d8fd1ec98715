"""Drafts by a smaller model: replies are the same, and it runs only where that pays."""

import numpy as np
import pytest
from fake_model import ByteTokenizer, Letters
from generate.test_drafts import model_of
from generate.test_driver import CONTEXT, draw_prompts, reply_to, small_engine
from generate.test_driver import written as write_all

import tinychat
from tinychat.engine.sequence import new_sequence
from tinychat.errors import FieldError
from tinychat.generate.draft_model import MOST, WINDOW, ModelDrafts
from tinychat.generate.drafts import Drafts
from tinychat.generate.driver import Driver

VARIANTS = ("qwen3-window", "qwen3.5")
SAMPLED = {"temperature": 1.0, "seed": 3, "repeat_penalty": 1.2}


@pytest.fixture(scope="module")
def folder(folders):
    return folders("qwen3-window", "f32")


class Cheap(ModelDrafts):
    """Drafts whose measured times do not count: each row costs a little of a pass."""

    def __init__(self, engine, row=0.02, step=0.02, context=CONTEXT):
        super().__init__(*self.parts(engine, context))
        for rows in range(1, 300):
            self._costs.note(rows, 1.0 + row * rows)
        self._steps = type(self._steps)()
        self._steps.note(1, step)
        self._steps.note(300, 10 * step)
        self._costs.note = self._steps.note = lambda rows, seconds: None
        self.read = []
        self._allowance = 0.0

    def parts(self, engine, context):
        return new_sequence(engine, context), engine.vocab_size

    def note_pass(self, rows, seconds):
        super().note_pass(rows, 1.0)

    def _run(self, texts, ids):
        if hasattr(self, "read"):
            self.read.append([*map(len, ids)])
        return super()._run(texts, ids)


class Noting(Cheap):
    """The same, which keeps what it proposed first after each text."""

    def __init__(self, engine, **costs):
        super().__init__(engine, **costs)
        self.first = {}

    def share(self, texts, rows):
        for text in texts:
            if text.drafted:
                self.first[tuple(text._text.ids)] = text.drafted[0]
        return super().share(texts, rows)


def check_conversation(engine, drafts, check_first):
    """Check what is proposed first after each text of a conversation that goes on."""
    driver = Driver(new_sequence(engine, CONTEXT), drafts)
    (ids,) = draw_prompts(engine, [30])
    for more in ([3, 4, 5], [6], [7, 8]):
        reply = reply_to(ids)
        write_all(driver, [reply])
        # What follows may differ from what was written: the last ids of a reply leave.
        ids = [*ids, *reply.token_ids[:-2], *more]
        assert drafts.first and check_first(engine, drafts)
        drafts.first.clear()


def written(engine, drafts, prompt, **fields):
    stream = model_of(engine, drafts).stream(prompt, **({"max_tokens": 40, "logprobs": 1, "temperature": 0.0} | fields))
    stream.to_end()
    return stream


def check_agreement(engine, drafts):
    """Check drafts that agree with a model which always writes 17 times the last id."""
    reply = written(engine, drafts, [5, 9, 3], max_tokens=60)
    expected = [3 * 17 ** (i + 1) % engine.vocab_size for i in range(60)]
    assert reply.token_ids == expected == written(engine, None, [5, 9, 3], max_tokens=60).token_ids
    assert reply.summary.accepted_tokens >= 0.9 * reply.summary.drafted_tokens > 40


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, SAMPLED])
@pytest.mark.parametrize("smaller", VARIANTS)
@pytest.mark.parametrize("name", VARIANTS)
def test_ids_and_logprobs_are_the_same(folders, name, smaller, fields):
    engine, other = small_engine(folders(name, "f32"), 40), small_engine(folders(smaller, "f32"), 40)
    for length in (1, 9, 190):
        (prompt,) = draw_prompts(engine, [length])
        alone, drafts = written(engine, None, prompt, **fields), Cheap(other)
        reply = written(engine, drafts, prompt, **fields)
        assert reply.token_ids == alone.token_ids
        scored = [[token for delta in one.reply._deltas for token in delta.logprobs] for one in (reply, alone)]
        assert scored[0] == scored[1]
        assert drafts.read
        if name == smaller:
            # Models which agree draw the same ids with the same random numbers.
            assert reply.summary.accepted_tokens >= 0.9 * reply.summary.drafted_tokens > 20


def test_a_draft_of_which_only_a_part_is_checked(folder):
    engine, smaller = (small_engine(folder, 40) for _ in range(2))

    class Half(Cheap):
        def share(self, texts, rows):
            return [len(text.suggestion) // 2 for text in texts]

    (prompt,) = draw_prompts(engine, [9])
    reply = written(engine, Half(smaller), prompt, **SAMPLED)
    assert reply.token_ids == written(engine, None, prompt, **SAMPLED).token_ids
    assert reply.summary.accepted_tokens > 5


def test_replies_at_once_are_those_that_are_written_alone(folder):
    engine, smaller = (small_engine(folder, 100) for _ in range(2))
    prompts = draw_prompts(engine, (1, 9, 63, 64, 130, 300))
    fields = [{}, SAMPLED | {"ignore_eos": True}] * 3
    alone = [
        written(engine, None, prompt, **{"max_tokens": 12, "temperature": 0.0} | each)
        for prompt, each in zip(prompts, fields)
    ]
    drafts = Cheap(smaller)
    driver = Driver(new_sequence(engine, CONTEXT), drafts)
    replies = [reply_to(prompt, **each) for prompt, each in zip(prompts, fields)]
    write_all(driver, replies)
    assert [reply.token_ids for reply in replies] == [one.token_ids for one in alone]
    assert max(map(len, drafts.read)) > 1
    assert sum(reply.summary.accepted_tokens for reply in replies) > 20


def test_a_model_that_is_never_right_hardly_runs(folder, folders):
    engine, other = small_engine(folder, 40), small_engine(folders("qwen3.5", "f32"), 40)

    class Wrong(Cheap):
        def suggest(self, texts, limits, guesses, rows, rest):
            wrong = [lambda: lambda logits, ahead: int(np.argmin(logits))] * len(guesses)
            super().suggest(texts, limits, wrong, rows, rest)

    (prompt,) = draw_prompts(engine, [9])
    drafts = Wrong(other, row=0.1, step=0.2)
    reply = written(engine, drafts, prompt, max_tokens=300, **SAMPLED)
    assert reply.token_ids == written(engine, None, prompt, max_tokens=300, **SAMPLED).token_ids
    # Trials take a hundredth of the time of the passes, beside those before anything was known.
    assert 3 < len(drafts.read) < 30


def test_of_a_long_text_only_the_end_is_read(folder):
    engine, smaller = small_engine(folder, 40), small_engine(folder, 40)
    (prompt,) = draw_prompts(engine, [300])
    drafts = Cheap(smaller, context=128)
    reply = written(engine, drafts, prompt, max_tokens=90)
    assert reply.token_ids == written(engine, None, prompt, max_tokens=90).token_ids
    assert reply.summary.drafted_tokens > 20
    # Half of its context, then what was written, and half of its context once more.
    assert sum(drafts.read[0]) <= min(WINDOW, 64)
    assert max(sum(rows) for rows in drafts.read) <= 64
    assert drafts.new_text().sequence.context_size == 128 > MOST


def test_no_memory_for_drafts_is_no_error(folder):
    engine, smaller = small_engine(folder, 40), small_engine(folder, 7)
    prompts = draw_prompts(engine, [300, 310])
    alone = [written(engine, None, prompt, max_tokens=12) for prompt in prompts]
    driver = Driver(new_sequence(engine, CONTEXT), Cheap(smaller))
    replies = [reply_to(prompt) for prompt in prompts]
    write_all(driver, replies)
    assert [reply.token_ids for reply in replies] == [one.token_ids for one in alone]
    # Both are left: there is no room for one beside the other.
    assert sum(reply.summary.drafted_tokens for reply in replies) == 0


def test_a_loaded_model_has_the_memory_that_the_larger_one_may_take():
    with tinychat.load("demo", context=CONTEXT, threads=1, cache_memory=10_000_000, draft="demo") as model:
        pool = model.driver.drafts._sequence.engine.pool
        assert pool is not model.engine.pool
        assert (pool.is_fixed, pool.kv) == (True, model.engine.pool.kv)


def test_the_vocabularies_must_be_the_same(folder):
    class Others(Letters):
        def piece(self, token_id):
            return "other" if token_id == 77 else super().piece(token_id)

    engine = small_engine(folder, 40)
    model, smaller, same = (model_of(engine) for _ in range(3))
    smaller.tokenizer = Others()
    for one in (model, smaller, same):
        type(one.tokenizer).agrees_with = lambda self, other: all(
            self.piece(i) == other.piece(i) for i in range(ByteTokenizer.vocab_size)
        )
    with pytest.raises(FieldError, match="draft must be a model with the vocabulary of variant"):
        model.change_drafts(smaller)
    assert (model.draft, model.driver.drafts) == (False, None)
    model.change_drafts(same)
    assert model.draft == "variant" and isinstance(model.driver.drafts, ModelDrafts)
    model.change_drafts(True)
    assert model.draft is True and type(model.driver.drafts) is Drafts
