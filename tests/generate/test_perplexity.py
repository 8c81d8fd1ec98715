import math
from pathlib import Path

import numpy as np
import pytest
from fake_model import BOS, VOCAB_SIZE, ByteTokenizer, FakeSequence, MarkerTemplate

from tinychat.errors import ModelFolderError, SettingError
from tinychat.generate.model import Model
from tinychat.generate.perplexity import Window, measure, windows

TEXT = "Once upon a time there was a cat."


class RandomSequence(FakeSequence):
    """Logits that hang on all ids before them, drawn from a seed."""

    def __init__(self, seed, context_size=256):
        super().__init__(None, context_size)
        self.seed = seed

    def _row(self, ids):
        return np.random.default_rng([self.seed, *ids]).normal(0, 3, VOCAB_SIZE).astype(np.float32)


class PlainTokenizer(ByteTokenizer):
    """Has no beginning-of-text token."""

    def encode(self, text, add_bos=True):
        return super().encode(text, add_bos=False)


def make_model(sequence, tokenizer=None):
    return Model(sequence, tokenizer or ByteTokenizer(), MarkerTemplate(), frozenset(), Path("fake"))


def log_probability(logits):
    """Return log-softmax of one row by its formula."""
    values = [float(v) for v in logits]
    total = math.fsum(math.exp(v) for v in values)
    return [v - math.log(total) for v in values]


def direct(sequence, prefix, ids, context, stride):
    """Return the log-probabilities, one row for each token that is scored, one token at a time."""
    rows, size = {}, context - len(prefix)
    for window in windows(len(ids), size, stride, 0 if prefix else 1):
        for i in range(window.first, window.stop):
            rows[i] = log_probability(sequence._row(prefix + ids[window.start : i]))
    return rows


@pytest.mark.parametrize(("context", "stride"), [(256, None), (12, None), (12, 3), (12, 11), (2, 1)])
def test_equals_the_direct_computation(context, stride):
    sequence, ids = RandomSequence(1, context), list(TEXT.encode())
    report = measure(make_model(sequence), TEXT, stride=stride)
    rows = direct(sequence, [BOS], ids, context, report.stride)
    loss = -math.fsum(rows[i][ids[i]] for i in range(len(ids)))
    assert report.tokens == len(ids) == len(rows)
    assert report.stride == (stride or context // 2)
    assert math.isclose(report.perplexity, math.exp(loss / len(ids)), rel_tol=1e-12)
    assert math.isclose(report.bits_per_byte, loss / math.log(2) / len(TEXT), rel_tol=1e-12)
    assert report.against is None


def test_without_a_beginning_token_the_first_one_is_not_scored():
    sequence, ids = RandomSequence(1, 12), list(TEXT.encode())
    report = measure(make_model(sequence, PlainTokenizer()), TEXT, stride=4)
    rows = direct(sequence, [], ids, 12, 4)
    loss = -math.fsum(row[ids[i]] for i, row in rows.items())
    assert report.tokens == len(ids) - 1 == len(rows)
    assert math.isclose(report.perplexity, math.exp(loss / report.tokens), rel_tol=1e-12)


def test_comparison_equals_the_direct_computation():
    sequence, other, ids = RandomSequence(1, 12), RandomSequence(2, 12), list(TEXT.encode())
    compared = measure(make_model(sequence), TEXT, against=make_model(other)).against
    P, Q = (direct(e, [BOS], ids, 12, 6) for e in (sequence, other))
    divergence = math.fsum(math.exp(q) * (q - p) for i in P for p, q in zip(P[i], Q[i], strict=True))
    agreements = sum(np.argmax(P[i]) == np.argmax(Q[i]) for i in P)
    assert math.isclose(compared.kl_divergence, divergence / len(ids), rel_tol=1e-12)
    assert compared.top1_agreement == agreements / len(ids)
    assert math.isclose(compared.perplexity, measure(make_model(other), TEXT).perplexity, rel_tol=1e-12)


def test_a_model_agrees_with_itself():
    report = measure(make_model(RandomSequence(1)), TEXT, against=make_model(RandomSequence(1)))
    assert (report.against.kl_divergence, report.against.top1_agreement) == (0.0, 1.0)
    assert report.against.perplexity == report.perplexity


def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity():
    model = make_model(FakeSequence(lambda ids: None))
    assert math.isclose(measure(model, TEXT).perplexity, VOCAB_SIZE, rel_tol=1e-12)


def test_windows_score_each_token_once_after_enough_others():
    assert list(windows(10, 4, 2, 0)) == [
        Window(0, 0, 4),
        Window(2, 4, 6),
        Window(4, 6, 8),
        Window(6, 8, 10),
    ]
    assert list(windows(5, 4, 3, 1)) == [Window(0, 1, 4), Window(1, 4, 5)]
    assert list(windows(3, 4, 2, 1)) == [Window(0, 1, 3)]


def test_progress_ends_where_the_text_ends():
    calls = []
    measure(make_model(RandomSequence(1, 12)), TEXT, progress=lambda *call: calls.append(call))
    assert calls[0] == (0, len(TEXT))
    assert calls[-1] == (len(TEXT), len(TEXT))
    assert sorted(calls) == calls


def test_what_cannot_be_measured():
    model = make_model(RandomSequence(1, 12))
    with pytest.raises(SettingError, match="too short"):
        measure(model, "")
    with pytest.raises(SettingError, match=r"^stride must be 1 to 11 in a context of 12, not 12$"):
        measure(model, TEXT, stride=12)
    with pytest.raises(SettingError, match="do not share a vocabulary"):
        measure(model, TEXT, against=make_model(RandomSequence(1, 12), PlainTokenizer()))
    with pytest.raises(SettingError, match="compare in a context of 9 or less"):
        measure(model, TEXT, against=make_model(RandomSequence(1, 9)))


def test_logits_that_are_no_numbers_are_told():
    class Broken(RandomSequence):
        def _row(self, ids):
            return np.full(VOCAB_SIZE, np.nan, np.float32)

    with pytest.raises(ModelFolderError, match="not finite"):
        measure(make_model(Broken(1)), TEXT)
