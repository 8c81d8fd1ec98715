import numpy as np
import pytest
from fake_model import Continuation, fake_model

from tinychat.errors import SettingError
from tinychat.generate.logprobs import ScoredToken, token_logprobs


def test_logprobs_are_those_of_a_softmax(rng):
    logits = rng.normal(0, 5, 300).astype(np.float32)
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum()
    found = token_logprobs(logits, 7, 5)
    assert found.chosen.id == 7
    assert np.exp(found.chosen.logprob) == pytest.approx(probabilities[7])
    assert [candidate.id for candidate in found.best] == np.argsort(-probabilities)[:5].tolist()
    assert [np.exp(candidate.logprob) for candidate in found.best] == pytest.approx(np.sort(probabilities)[:-6:-1])


def test_ties_go_to_the_lower_id_and_no_more_tokens_come_than_there_are():
    logits = np.array([1.0, 3.0, 3.0, 3.0], dtype=np.float32)
    assert [candidate.id for candidate in token_logprobs(logits, 0, 2).best] == [1, 2]
    assert [candidate.id for candidate in token_logprobs(logits, 0, 9).best] == [1, 2, 3, 0]
    assert token_logprobs(logits, 0, 0).best == ()


def test_large_logits_do_not_overflow():
    assert token_logprobs(np.array([1e4, -1e4], dtype=np.float32), 0, 1).best == (ScoredToken(0, 0.0),)


def test_a_stream_reports_each_token_whatever_the_sampler_does():
    model = fake_model(Continuation({"Once": " up"}))
    settings = {"temperature": 5.0, "repeat_penalty": 2.0, "top_k": 1, "seed": 1, "max_tokens": 3}
    plain = list(model.stream("Once", **settings))
    assert all(delta.logprobs == () for delta in plain)
    deltas = list(model.stream("Once", **settings, logprobs=2))
    assert [delta.ids for delta in deltas] == [delta.ids for delta in plain]
    reported = [logprobs for delta in deltas for logprobs in delta.logprobs]
    assert bytes(logprobs.chosen.id for logprobs in reported) == b" up"
    for logprobs in reported:
        # The fake model puts all probability on its favourite, 110 above the others.
        assert logprobs.chosen.logprob == pytest.approx(0.0, abs=1e-9)
        assert logprobs.best[0] == logprobs.chosen
        assert logprobs.best[1].logprob == pytest.approx(-110.0)


def test_a_negative_number_of_alternatives_is_refused():
    with pytest.raises(SettingError, match=r"^logprobs must be between 0 and 1000, not -1$"):
        fake_model(Continuation({})).stream("Once", logprobs=-1)
