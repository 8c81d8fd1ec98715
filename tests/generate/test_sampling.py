from dataclasses import replace

import numpy as np
import pytest

from tinychat.errors import FieldError, ModelFolderError
from tinychat.generate.request import Request
from tinychat.generate.sampling import Sampler, most_likely

OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits_of(*probabilities):
    return np.log(np.array(probabilities, dtype=np.float32))


def frequencies(settings, logits, draws=4000, previous=()):
    sampler = Sampler(settings)
    ids = [sampler.sample(logits, previous) for _ in range(draws)]
    return np.bincount(ids, minlength=len(logits)) / draws


def softmax(values):
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def test_temperature_zero_takes_the_best_and_the_lowest_id_on_ties():
    sampler = Sampler(Request(temperature=0.0))
    assert sampler.sample(np.array([1.0, 3.0, 2.0, 3.0], dtype=np.float32), []) == 1


@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 127, 1000, 5003])
@pytest.mark.parametrize(("reach", "count"), [(1.0, 0), (100.0, 0), (0.0, 3), (1.5, 1), (3.0, 7), (100.0, 40)])
def test_the_most_likely_ids_are_those_of_a_full_sort(size, reach, count, rng):
    # Of few different values, so that many are equal.
    logits = rng.integers(-12, 12, size).astype(np.float32) / 4
    order = sorted(range(size), key=lambda i: (-logits[i], i))
    within = [i for i in order if logits[i] >= logits.max() - reach]
    assert most_likely(logits, reach, count).tolist() == within[: count or None]


def test_draws_follow_the_softmax(rng):
    logits = rng.standard_normal(8).astype(np.float32)
    for temperature in (0.5, 1.0, 2.0):
        settings = Request(temperature=temperature, seed=7, **OPEN)
        expected = softmax(logits.astype(np.float64) / temperature)
        # Five standard deviations of a frequency over 4000 draws.
        assert np.abs(frequencies(settings, logits) - expected).max() < 5 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"min_p": 0.5}, {0, 1}),
        ({"min_p": 0.76}, {0}),
        ({"top_k": 3, "top_p": 0.5}, {0, 1}),
        # top-p counts what top-k left: 0.4 of 0.7 is enough for 0.55.
        ({"top_k": 2, "top_p": 0.55}, {0}),
    ],
)
def test_filters_keep_exactly_these(option, kept):
    settings = Request(temperature=1.0, seed=1, **(OPEN | option))
    found = frequencies(settings, logits_of(0.401, 0.3, 0.2, 0.099), draws=1000)
    assert set(np.flatnonzero(found)) == kept


def test_top_k_breaks_ties_by_the_lower_id():
    settings = Request(temperature=1.0, seed=1, **(OPEN | {"top_k": 2}))
    found = frequencies(settings, np.zeros(6, dtype=np.float32), draws=200)
    assert set(np.flatnonzero(found)) == {0, 1}


def test_the_same_seed_gives_the_same_ids(rng):
    rows = rng.standard_normal((50, 100)).astype(np.float32)

    def draw(seed):
        sampler = Sampler(Request(temperature=1.0, seed=seed, **OPEN))
        return [sampler.sample(row, []) for row in rows]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_an_unseeded_run_can_be_repeated_with_the_seed_it_tells(rng):
    rows = rng.standard_normal((20, 100)).astype(np.float32)
    first = Sampler(Request(temperature=1.0))
    again = Sampler(Request(temperature=1.0, seed=first.seed))
    assert [first.sample(row, []) for row in rows] == [again.sample(row, []) for row in rows]


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits():
    logits = np.array([2.0, 1.5, -1.0, -1.2], dtype=np.float32)
    settings = Request(temperature=0.0, repeat_penalty=2.0)
    assert Sampler(settings).sample(logits, [0]) == 1
    # 2/2, 1.5/2 = 0.75, -1*2 = -2: id 0 leads again; repeats count once.
    assert Sampler(settings).sample(logits, [0, 0, 1, 2]) == 0
    assert Sampler(settings).sample(-np.abs(logits), [2]) == 3
    assert list(logits) == pytest.approx([2.0, 1.5, -1.0, -1.2])


@pytest.mark.parametrize("frequency, presence", [(0.5, 0.0), (0.0, 1.5), (0.7, 0.4), (-1.0, -0.5)])
def test_counts_lower_logits_by_frequency_and_presence(frequency, presence, rng):
    logits, recent = rng.standard_normal(50).astype(np.float32), rng.integers(0, 50, 30).tolist()
    counts = np.bincount(recent[-20:], minlength=50)
    expected = logits - counts * frequency - (counts > 0) * presence
    request = Request(
        temperature=1.0, seed=3, frequency_penalty=frequency, presence_penalty=presence, repeat_last_n=20, **OPEN
    )
    same = Request(temperature=1.0, seed=3, **OPEN)
    found, wanted = Sampler(request), Sampler(same)
    for _ in range(50):
        assert found.sample(logits, recent) == wanted.sample(expected.astype(np.float32), [])


def test_biases_are_added_to_the_logits_of_their_tokens():
    logits = np.array([2.0, 1.5, 0.0], dtype=np.float32)
    assert Sampler(Request(temperature=0.0, logit_bias={"2": 100, 0: -1})).sample(logits, []) == 2
    assert Sampler(Request(temperature=0.0, logit_bias={0: -1.0})).sample(logits, []) == 1
    assert Sampler(Request(temperature=0.0)).sample(logits, []) == 0
    assert list(logits) == [2.0, 1.5, 0.0]


@pytest.mark.parametrize("biases", [{"a": 1}, {0: 101}, {0: float("nan")}, {-1: 1}, [1, 2], {1 << 40: 1}])
def test_biases_are_numbers_of_token_ids(biases):
    with pytest.raises(FieldError, match="logit_bias"):
        Request(logit_bias=biases)


def test_repeat_penalty_may_leave_code_alone():
    logits = np.array([1.0, 2.0, 0.0], dtype=np.float32)
    settings = Request(temperature=0.0, repeat_penalty=3.0, repeat_in_code=False)
    assert Sampler(settings).sample(logits, [1]) == 0
    assert Sampler(settings).sample(logits, [1], is_structured=True) == 1
    assert Sampler(replace(settings, repeat_in_code=True)).sample(logits, [1], is_structured=True) == 0


def test_repeat_penalty_looks_only_at_the_last_tokens():
    logits = np.array([2.0, 1.5, 0.0], dtype=np.float32)
    settings = Request(temperature=0.0, repeat_penalty=2.0, repeat_last_n=2)
    assert Sampler(settings).sample(logits, [0, 2, 2]) == 0
    assert Sampler(settings).sample(logits, [2, 0, 2]) == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0, 100.0])
def test_hard_logits_are_harmless(temperature):
    logits = np.array([-np.inf, 1e30, -np.inf, -1e30], dtype=np.float32)
    assert Sampler(Request(temperature=temperature, **OPEN)).sample(logits, []) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_are_an_error(value):
    logits = np.array([0.0, value], dtype=np.float32)
    with pytest.raises(ModelFolderError, match="not a number"):
        Sampler(Request()).sample(logits, [])
