"""Log-probabilities of the tokens of a prompt."""

import numpy as np
import pytest
from local_server import demo, log_softmax

from tinychat.errors import ContextError, SettingError
from tinychat.generate.prompt_logprobs import prompt_logprobs


@pytest.fixture(scope="module")
def model():
    with demo(context=512) as loaded:
        yield loaded


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_they_are_those_of_the_models_logits(model, rng, length):
    ids = [int(token_id) for token_id in rng.integers(0, model.vocab_size, length)]
    found = prompt_logprobs(model, ids, 3)
    rows = model.logits(ids)
    assert [one.chosen.id for one in found] == ids[1:]
    for one, row in zip(found, rows):
        scores = log_softmax(row)
        assert one.chosen.logprob == scores[one.chosen.id]
        best = np.argsort(-row, kind="stable")[:3]
        assert [(top.id, top.logprob) for top in one.best] == [(token_id, scores[token_id]) for token_id in best]


def test_they_are_the_same_while_a_reply_is_written(model):
    ids = model.encode("The sky is blue because ")
    alone = prompt_logprobs(model, ids, 1)
    stream = model.stream("Once upon a time", max_tokens=20, temperature=0.0)
    beside = []
    for number, _ in enumerate(stream):
        if number in (3, 6):
            beside.append(prompt_logprobs(model, ids, 1))
    assert beside == [alone, alone]
    assert stream.reply.token_ids == model.generate(model.encode("Once upon a time"), max_tokens=20)


def test_errors_are_those_of_logits(model):
    for ids in ([], [model.vocab_size], [-1]):
        with pytest.raises(SettingError):
            prompt_logprobs(model, ids, 0)
    with pytest.raises(ContextError):
        prompt_logprobs(model, [1] * 513, 0)
