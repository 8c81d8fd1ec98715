import pytest
from fake_model import VOCAB_SIZE, ByteTokenizer, FakeSequence

from tinychat.errors import ContextError, PromptTooLongError, SettingError
from tinychat.generate.driver import Driver
from tinychat.generate.prompt import Prompt, check_prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request
from tinychat.generate.run import Run
from tinychat.generate.stream import Stream


def next_byte(ids):
    return (ids[-1] + 1) % 256


ENGINE = FakeSequence(next_byte, trained_length=12).engine


def first_token(sequence, ids, **hooks):
    """Read a prompt on a sequence, and one token; return the stream."""
    reply = Reply(Prompt(ids), Request(max_tokens=1, temperature=0.0), ByteTokenizer())
    stream = Stream(Driver(sequence), Run(reply), **hooks)
    stream.to_end()
    return stream


def test_runs_all_ids_in_chunks():
    sequence = FakeSequence(next_byte, chunk_size=4)
    stream = first_token(sequence, list(range(10)))
    assert sequence.steps == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert stream.summary.reused_tokens == 0
    assert stream.token_ids == [10]


def test_reuses_the_common_prefix():
    sequence = FakeSequence(next_byte)
    first_token(sequence, [1, 2, 3, 4, 5])
    sequence.steps.clear()
    stream = first_token(sequence, [1, 2, 3, 9, 9, 9])
    assert stream.summary.reused_tokens == 3
    assert sequence.steps == [[9, 9, 9]]
    assert sequence.ids == [1, 2, 3, 9, 9, 9]


@pytest.mark.parametrize("ids", [[1, 2, 3], [1, 2]], ids=["same prompt", "beginning of the last"])
def test_always_runs_the_last_id_for_its_logits(ids):
    sequence = FakeSequence(next_byte)
    first_token(sequence, [1, 2, 3])
    sequence.steps.clear()
    stream = first_token(sequence, ids)
    assert (stream.summary.reused_tokens, sequence.steps) == (len(ids) - 1, [ids[-1:]])
    assert stream.token_ids == [ids[-1] + 1]


def test_reports_progress_without_the_reused_ids():
    sequence = FakeSequence(next_byte, chunk_size=4)
    first_token(sequence, [0, 1])
    calls = []
    first_token(sequence, list(range(10)), on_prefill=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 8), (4, 8), (8, 8)]


def test_cancelling_keeps_the_chunks_that_ran():
    sequence = FakeSequence(next_byte, chunk_size=4)
    stream = first_token(sequence, list(range(10)), cancelled=lambda: len(sequence.steps) == 2)
    assert (stream.token_ids, stream.summary.finish_reason) == ([], "interrupted")
    assert sequence.ids == list(range(8))
    assert first_token(sequence, list(range(10))).summary.reused_tokens == 8


def test_an_interrupt_between_chunks_leaves_a_usable_cache():
    def interrupt(count):
        if count == 1:
            raise KeyboardInterrupt

    sequence = FakeSequence(next_byte, chunk_size=4, before_step=interrupt)
    with pytest.raises(KeyboardInterrupt):
        first_token(sequence, list(range(10)))
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
