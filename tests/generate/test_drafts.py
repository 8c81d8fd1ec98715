"""Drafts: what is proposed, when it pays, and that replies are the same with them."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from fake_model import EOS, ByteTokenizer, Continuation, FakeSequence, Letters
from generate.test_driver import CONTEXT, draw_prompts, small_engine
from hypothesis import HealthCheck, given, settings

from tinychat.engine.sequence import new_sequence
from tinychat.generate.drafts import (
    LONGEST,
    LOOKED_AT,
    MANY,
    POSITIONS,
    RESTING,
    Drafts,
    DraftText,
    Occurrences,
    RowCosts,
)
from tinychat.generate.model import Model
from tinychat.generate.run import Room

TEXT = "one two three, one two four"
STORY = Continuation({TEXT: ", one two three, one two four, one two three"})


class Scripted(DraftText):
    """Suggests what its proposals say."""

    def __init__(self, proposals):
        super().__init__()
        self._proposals = proposals

    def suggest(self, most):
        self.suggestion = self._proposals.next_draft(most)


class Proposals(Drafts):
    """Proposes what it is given, one draft in each pass."""

    def __init__(self, *drafts):
        super().__init__()
        self.left = [list(draft) for draft in drafts]

    def new_text(self):
        return Scripted(self)

    def next_draft(self, most):
        return (self.left.pop(0) if self.left else [])[: max(most, 0)]

    def share(self, texts, rows):
        return [len(text.suggestion) for text in texts]


def start(sequence, drafts, prompt=TEXT, **options):
    model = Model(sequence, ByteTokenizer(), None, frozenset({EOS}), Path("fake"), drafts)
    return model.stream(prompt, **({"temperature": 0.0} | options))


# What is proposed.


@given(st.lists(st.integers(0, 3), max_size=POSITIONS))
def test_the_place_found_is_that_where_most_ids_agree(ids):
    text = Occurrences()
    text.extend(ids)
    position, matched = text.find()

    def agreeing(position):
        return next((n for n in range(position) if ids[position - 1 - n] != ids[-1 - n]), position)

    found = [(agreeing(position), position) for position in range(1, len(ids)) if agreeing(position) >= 2]
    assert (matched, position) == max(found, default=(0, 0))


def test_a_place_goes_on_with_the_text_however_often_its_ids_stand_elsewhere():
    text = Occurrences()
    text.extend([1, 2, 3, 4, 5, 6, *[9, 5] * (2 * POSITIONS), 1, 2])
    assert text.find() == (2, 2)
    text.extend([3, 4, 5])
    assert text.find() == (5, 5)


def test_what_is_proposed_repeats_itself_as_the_text_does():
    text = Occurrences()
    text.extend([7, 1, 2, 1, 2])
    position, _ = text.find()
    assert text.after(position, 5) == [1, 2, 1, 2, 1]


class Alone:
    """Drafts of a single reply."""

    def __init__(self, ids=(), costs=None):
        self.drafts, self.text = Drafts(), DraftText()
        self.text.begin(ids)
        for rows, seconds in 30 * list((costs or {}).items()):
            self.drafts.note_pass(rows, seconds)

    def propose(self, most):
        self.text.suggest(most)
        (self.count,) = self.drafts.share([self.text], 1)
        return self.text.suggestion[: self.count]

    def note(self, chosen, seconds):
        self.drafts.note_pass(1 + self.count, seconds)
        self.drafts.learn(self.text, self.count, chosen)


COSTS = {1: 1.0, 8: 2.0, 32: 8.0}


def test_nothing_is_proposed_before_a_pass_was_measured():
    alone = Alone([1, 2, 3, 4, 5] * 10)
    assert alone.propose(10) == []
    alone.note([1], 1.0)
    found = alone.propose(10)
    assert found == [2, 3, 4, 5, 1, 2, 3, 4, 5, 1][: len(found)] != []


def test_a_longer_agreement_gives_a_longer_draft_up_to_what_is_wanted():
    ids = list(range(100))
    some = Alone([*ids, *ids[:3]], COSTS).propose(LONGEST)
    more = Alone([*ids, *ids[:30]], COSTS).propose(LONGEST)
    assert some == ids[3 : 3 + len(some)]
    assert len(some) < len(more)
    assert Alone([*ids, *ids[:30]], COSTS).propose(2) == ids[30:32]
    assert Alone([*ids, *ids[:30]], COSTS).propose(0) == []
    assert Alone(ids, COSTS).propose(LONGEST) == []


def test_rows_that_cost_as_much_as_passes_are_never_proposed():
    ids = list(range(100))
    costs = {rows: float(rows) for rows in range(1, LONGEST + 2)}
    assert Alone([*ids, *ids[:30]], costs).propose(LONGEST) == []


def texts_of(*agreeing):
    """Return texts whose last ids, so many, stood there before."""
    texts = []
    for count in agreeing:
        text = DraftText()
        text.begin([*range(100), *range(count)])
        text.suggest(LONGEST)
        texts.append(text)
    return texts


def test_replies_written_at_once_share_the_rows_that_pay():
    drafts = Drafts()
    for _ in range(30):
        for rows in range(1, 200):
            drafts.note_pass(rows, 1.0 + 0.02 * rows)
    sure, unsure, none = texts_of(30, 2, 0)
    counts = drafts.share([sure, unsure, none], 3)
    assert counts[0] > counts[1] > 0 == counts[2]
    assert drafts.share([none, none], 2) == [0, 0]
    # Where each row costs as much as another, none pays.
    dear = Drafts()
    for rows in range(1, 200):
        dear.note_pass(rows, float(rows))
    assert dear.share([sure, unsure, none], 3) == [0, 0, 0]


def test_costs_of_a_few_rows_are_known_from_passes_over_more():
    costs = RowCosts()
    costs.note(8, 2.0)
    seconds = costs.expected(8, 12)
    assert seconds[0] == 2.0
    assert np.all(np.diff(seconds) > 0)


def test_what_is_never_chosen_is_proposed_no_more_until_it_would_have_been_chosen():
    rng = np.random.default_rng(1)
    alone, ids = Alone([], COSTS), []

    def step(repeats):
        # Each text of three is followed by something else each time, or by what followed it before.
        ids.extend([1, 2, 3])
        alone.text.begin(ids)
        count = len(alone.propose(8))
        chosen = 50 if repeats else int(rng.integers(100, 10_000))
        alone.note([chosen], 1.0 + 0.15 * count)
        ids.append(chosen)
        return count

    for _ in range(100):
        step(repeats=False)
    assert sum(step(repeats=False) for _ in range(20)) == 0
    for _ in range(100):
        step(repeats=True)
    assert all(step(repeats=True) for _ in range(20))


def test_a_text_that_goes_on_is_not_taken_in_anew():
    draft = DraftText()
    draft.begin([1, 2, 3])
    text = draft._text
    draft.begin([1, 2, 3, 4])
    assert draft._text is text
    draft.begin([1, 2, 4])
    assert draft._text is not text
    assert draft._text.ids == [1, 2, 4]


def test_costs_lie_on_lines_between_what_was_measured_and_a_pass_that_was_held_up_hardly_counts():
    costs = RowCosts()
    assert len(costs.expected(1, 5)) == 0
    for _ in range(20):
        costs.note(1, 1.0)
        costs.note(5, 2.0)
    np.testing.assert_allclose(costs.expected(1, 5), [1.0, 1.25, 1.5, 1.75, 2.0], rtol=0.01)
    assert np.all(np.diff(costs.expected(1, 40)) > 0)
    costs.note(5, 100.0)
    assert costs.expected(5, 5) < 2.5
    costs.note(9, 100.0)
    assert costs.expected(9, 9) < 6.0


# What becomes of it: the same reply.


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 9}, {"stop": ["two f"]}, {"logprobs": 2}])
@pytest.mark.parametrize(
    "drafts",
    [
        [b" one"],
        [b"xx", b"one"],
        [b" one two three, one two four, one two three and more"],
        [b" on", b"xwo", b"o three"],
        [b" one two three, one two four, one two three" + bytes([1]) * 5],
    ],
)
def test_a_reply_is_the_same_with_any_proposals(drafts, fields):
    plain, sequence, proposals = FakeSequence(STORY, chunk_size=64), FakeSequence(STORY, chunk_size=64), Proposals()
    proposals.left = [list(draft) for draft in drafts]
    wanted, run = start(plain, None, **fields), start(sequence, proposals, **fields)
    deltas = list(run)
    assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in wanted)
    assert run.token_ids == wanted.token_ids == [token_id for delta in deltas for token_id in delta.ids]
    assert [t for delta in deltas for t in delta.logprobs] == [t for p in wanted.reply._deltas for t in p.logprobs]
    assert run.summary.finish_reason == wanted.summary.finish_reason
    assert run.summary.decode_steps == wanted.summary.decode_steps
    # What has run is a beginning of prompt and reply; no token is lost by a draft that was wrong.
    whole = [*run.reply.prompt.ids, *run.token_ids]
    assert sequence.ids == whole[: len(sequence.ids)]
    assert len(whole) - len(sequence.ids) <= 1
    assert len(sequence.steps) < len(plain.steps)


def test_a_reply_that_repeats_the_prompt_takes_fewer_passes():
    drafts, sequence = Drafts(), FakeSequence(STORY, chunk_size=64)
    for rows in range(1, LONGEST + 2):
        drafts.note_pass(rows, 1.0 + 0.01 * rows)
    drafts.note_pass = lambda rows, seconds: None
    run = start(sequence, drafts)
    assert run.to_end().text == STORY._table[TEXT]
    assert len(sequence.steps) < 0.5 * len(run.token_ids)
    assert run.summary.accepted_tokens == run.summary.decode_steps - (len(sequence.steps) - 1)


def test_the_summary_counts_what_was_proposed_and_what_was_right():
    run = start(FakeSequence(STORY, chunk_size=64), Proposals(b" one", b"xx", b"wo thr"))
    run.to_end()
    assert (run.summary.drafted_tokens, run.summary.accepted_tokens) == (12, 10)
    assert run.summary.as_json()["accepted_tokens"] == 10


def test_one_pass_gives_one_piece():
    deltas = list(start(FakeSequence(STORY, chunk_size=64), Proposals(b" one")))
    assert [delta.text for delta in deltas[:3]] == [",", " one ", "t"]


def test_drafts_never_outgrow_context_and_limit():
    room = []

    class Rooms(Proposals):
        def next_draft(self, most):
            room.append(most)
            return []

    prompt = len(TEXT) + 1
    start(FakeSequence(STORY, context_size=prompt + 4, chunk_size=64), Rooms()).to_end()
    assert room == [3, 2, 1, 0]
    room.clear()
    start(FakeSequence(STORY, chunk_size=64), Rooms(), max_tokens=4).to_end()
    assert room == [2, 1, 0]


def test_room_is_made_after_a_draft_that_fills_the_context():
    sequence = FakeSequence(STORY, context_size=len(TEXT) + 1 + 6, chunk_size=64)

    def make_room(written):
        assert sequence.ids == [*run.reply.prompt.ids, *written[:-1]]
        sequence.context_size += 100
        return Room([*run.reply.prompt.ids])

    model = Model(sequence, ByteTokenizer(), None, frozenset({EOS}), Path("fake"), Proposals(b" one two three"))
    run = model.stream(TEXT, temperature=0.0, make_room=make_room)
    assert run.to_end().text == STORY._table[TEXT]


# On a real engine.


# The first one's cache has two positions in a word: a draft may be refused between them. The other has a state.
@pytest.fixture(
    scope="module",
    params=[
        "qwen3-window",
        "qwen3.5",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("granite-hybrid", "kimi-linear", "youtu", "zaya", "inkling2-loop")
        ),
    ],
)
def folder(folders, request):
    return folders(request.param, "f32")


def model_of(engine, drafts=None):
    return Model(new_sequence(engine, CONTEXT), Letters(), None, frozenset(), Path("variant"), drafts)


@given(st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_and_logits_are_those_of_a_fresh_run_after_any_drafts(folder, data):
    """Whatever is proposed and refused, near the borders of blocks and beyond windows."""
    engine, fresh = small_engine(folder, 40), small_engine(folder, 40)
    length = data.draw(st.sampled_from([1, 9, 58, 120, 190]))
    (prompt,) = draw_prompts(engine, [length])
    fields = data.draw(
        st.sampled_from([{"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "repeat_penalty": 1.2}]), label="fields"
    )
    fields |= {"max_tokens": 40, "logprobs": 1}
    wanted = model_of(fresh).stream(prompt, **fields).to_end()
    right = wanted.token_ids

    class Guesses(Proposals):
        """Proposes some of what will be chosen, and something else after that."""

        proposed = 0

        def next_draft(self, most):
            done = len(run.token_ids)
            good = data.draw(st.integers(0, 12))
            bad = data.draw(st.integers(1, 12))
            found = [*right[done : done + good], *[data.draw(st.integers(0, 516))] * bad][: max(most, 0)]
            self.proposed += len(found)
            return found

    guesses = Guesses()
    model = model_of(engine, guesses)
    run = model.stream(prompt, **fields)
    run.to_end()
    assert run.token_ids == right and guesses.proposed
    assert [p.logprobs for p in wanted._deltas] == [(t,) for p in run.reply._deltas for t in p.logprobs]
    after = new_sequence(fresh, CONTEXT)
    ids = [*prompt, *right]
    for start in range(0, len(ids), 200):
        logits = after.step(ids[start : start + 200])
    rest = ids[len(model.sequence.ids) :]
    np.testing.assert_array_equal(model.sequence.step(rest or ids[-1:]), logits if rest else after.step(ids[-1:]))


def test_drafts_that_bring_nothing_rest_where_many_replies_are_written():
    drafts = Drafts()
    texts = [drafts.new_text() for _ in range(MANY)]
    for _ in range(LOOKED_AT):
        assert not drafts.begin_step(MANY)
        drafts.share(texts, MANY)
    assert not drafts.begin_step(MANY - 1), "a few replies go on with them"

    def rested():
        return sum(1 for _ in iter(lambda: drafts.begin_step(MANY), False))

    assert rested() == RESTING - 2
    for longer in (2, 4, 4):
        for _ in range(LOOKED_AT):
            drafts.share(texts, MANY)
        assert rested() == longer * RESTING - 1, "each rest is twice as long, up to the longest"
    for _ in range(LOOKED_AT):
        drafts.share(texts, MANY)
        for text in texts:
            drafts.learn(text, 1, [1, 2])
    assert not drafts.begin_step(MANY)
    for _ in range(LOOKED_AT):
        drafts.share(texts, MANY)
    assert rested() == RESTING - 1
