import pytest
from fake_model import VOCAB_SIZE, FakeSequence

from tinychat.errors import ContextError, PromptTooLongError, SettingError
from tinychat.generate.loop import prefill
from tinychat.generate.prompt import check_prompt


def next_byte(ids):
    return (ids[-1] + 1) % 256


ENGINE = FakeSequence(next_byte, trained_length=12).engine


def test_runs_all_ids_in_chunks():
    sequence = FakeSequence(next_byte, chunk_size=4)
    logits, reused = prefill(sequence, list(range(10)))
    assert sequence.steps == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert reused == 0
    assert logits.argmax() == 10


def test_reuses_the_common_prefix():
    sequence = FakeSequence(next_byte)
    prefill(sequence, [1, 2, 3, 4, 5])
    sequence.steps.clear()
    _, reused = prefill(sequence, [1, 2, 3, 9, 9, 9])
    assert reused == 3
    assert sequence.steps == [[9, 9, 9]]
    assert sequence.ids == [1, 2, 3, 9, 9, 9]


@pytest.mark.parametrize("ids", [[1, 2, 3], [1, 2]], ids=["same prompt", "beginning of the last"])
def test_always_runs_the_last_id_for_its_logits(ids):
    sequence = FakeSequence(next_byte)
    prefill(sequence, [1, 2, 3])
    sequence.steps.clear()
    logits, reused = prefill(sequence, ids)
    assert (reused, sequence.steps) == (len(ids) - 1, [ids[-1:]])
    assert logits.argmax() == ids[-1] + 1


def test_reports_progress_without_the_reused_ids():
    sequence = FakeSequence(next_byte, chunk_size=4)
    prefill(sequence, [0, 1])
    calls = []
    prefill(sequence, list(range(10)), lambda done, total: calls.append((done, total)))
    assert calls == [(0, 8), (4, 8), (8, 8)]


def test_cancelling_keeps_the_chunks_that_ran():
    sequence = FakeSequence(next_byte, chunk_size=4)
    logits, _ = prefill(sequence, list(range(10)), cancelled=lambda: len(sequence.steps) == 2)
    assert logits is None
    assert sequence.ids == list(range(8))
    _, reused = prefill(sequence, list(range(10)))
    assert reused == 8


def test_an_interrupt_between_chunks_leaves_a_usable_cache():
    def interrupt(count):
        if count == 1:
            raise KeyboardInterrupt

    sequence = FakeSequence(next_byte, chunk_size=4, before_step=interrupt)
    with pytest.raises(KeyboardInterrupt):
        prefill(sequence, list(range(10)))
    assert sequence.ids == [0, 1, 2, 3]


def test_a_prompt_may_fill_the_context():
    check_prompt([1] * 8, ENGINE, context_size=8)
    with pytest.raises(ContextError, match="9 tokens but the context holds 8"):
        check_prompt([1] * 9, ENGINE, context_size=8)


def test_a_larger_context_is_advised_only_as_far_as_the_model_was_trained():
    with pytest.raises(PromptTooLongError, match=r"shorten it, or use a larger context$"):
        check_prompt([1] * 11, ENGINE, context_size=8)
    with pytest.raises(PromptTooLongError, match=r"shorten it \(the model was trained on 12 tokens at most\)$"):
        check_prompt([1] * 12, ENGINE, context_size=8)


@pytest.mark.parametrize("ids", [[], [VOCAB_SIZE], [-1], [1, 2, 999]])
def test_ids_outside_the_vocabulary_never_reach_the_engine(ids):
    with pytest.raises(SettingError):
        check_prompt(ids, ENGINE, context_size=8)
