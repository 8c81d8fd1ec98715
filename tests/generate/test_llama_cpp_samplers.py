"""Samplers that llama.cpp has too keep the candidates that it keeps.

The cases were recorded from the functions of src/llama-sampler.cpp in the source of llama-cpp-python 0.3.36. llama.cpp
applies its filters before the temperature, ours at a temperature of 1 is the same.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import reference

import tinychat
from tinychat.errors import ModelFolderError
from tinychat.generate.request import Request
from tinychat.generate.sampling import Sampler

GOLDENS = Path(__file__).parents[1] / "goldens/llama_cpp"
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


class Spelling:
    """Tokenizer of the few tokens of DRY's cases; the breaker "ef" is one token or two."""

    texts = ("a", "b", "c", "d", "e", "f", "g", "\n", "x:", '"*', "bc", "ef")

    def token_bytes(self, token_id):
        return self.texts[token_id].encode()

    def encode(self, text, add_bos):
        assert not add_bos
        return [self.texts.index(letter) for letter in text]


def cases_of(name):
    return json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))["cases"]


def kept(logits, **settings):
    """Return the ids that may be drawn."""
    ids, _ = Sampler(Request(**OPEN | settings))._candidates(np.array(logits, np.float32))
    return sorted(ids.tolist())


@pytest.mark.parametrize("case", cases_of("top_n_sigma"))
def test_top_n_sigma(case):
    logits, n = case["logits"], case["top_n_sigma"]
    assert kept(logits, top_n_sigma=n) == case["kept"] == reference.top_n_sigma(logits, n)


def test_top_n_sigma_is_of_the_tokens_that_a_constraint_allows():
    masked = np.array([3.0, -np.inf, 1.0, 2.9, -np.inf])
    possible = np.flatnonzero(np.isfinite(masked))
    expected = possible[reference.top_n_sigma(masked[possible], 1.0)]
    assert kept(masked, top_n_sigma=1.0) == expected.tolist() == [0, 3]


def test_top_n_sigma_keeps_the_same_at_any_temperature():
    logits = [3.0, 2.5, 1.0, 0.0]
    for temperature in (0.5, 5.0):
        assert kept(logits, top_n_sigma=1.0, temperature=temperature) == [0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_broken_logits_are_an_error_as_without(value):
    with pytest.raises(ModelFolderError, match="not a number"):
        kept([value, value], top_n_sigma=1.0)


@pytest.mark.parametrize("case", cases_of("xtc"))
def test_xtc(case):
    logits, threshold = case["logits"], case["xtc_threshold"]
    assert kept(logits, xtc_probability=1.0, xtc_threshold=threshold) == case["kept"]
    assert reference.xtc(logits, threshold) == case["kept"]
    assert kept(logits, xtc_threshold=threshold) == [*range(len(logits))]


def test_xtc_excludes_in_its_share_of_the_choices():
    sampler = Sampler(Request(**OPEN, xtc_probability=0.25))
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    counts = [len(sampler._candidates(logits)[0]) for _ in range(4000)]
    assert {*counts} == {1, 3}
    # Five standard deviations of a share of 4000.
    assert counts.count(1) / 4000 == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 4000) ** 0.5)


def test_xtc_counts_what_the_filters_before_it_have_left():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    # Of the two that top-k leaves, the second has 0.3 / 0.8.
    assert kept(logits, top_k=2, xtc_probability=1.0, xtc_threshold=0.35) == [1]
    assert kept(logits, xtc_probability=1.0, xtc_threshold=0.35) == [0, 1, 2, 3]


def test_the_most_likely_token_is_taken_at_temperature_zero_whatever_xtc_says():
    request = Request(temperature=0.0, xtc_probability=1.0)
    assert Sampler(request).sample(np.array([1.0, 1.1, 1.05], np.float32), []) == 1


def penalties(previous, tokenizer=None, logits=None, **settings):
    """Return how much DRY lowers the logit of each token."""
    before = np.zeros(len(Spelling.texts), np.float32) if logits is None else np.array(logits, np.float32)
    request = Request(**settings)
    return (before - Sampler(request, tokenizer or Spelling())._dried(before, previous)).tolist()


@pytest.mark.parametrize("case", cases_of("dry"))
def test_dry(case):
    settings = {name: value for name, value in case.items() if name.startswith("dry_")}
    assert penalties(case["previous"], **settings) == pytest.approx(case["penalties"])
    breakers = settings.pop("dry_sequence_breakers")
    if "ef" not in breakers and len(case["previous"]) < 100:
        values = settings.values()
        expected = reference.dry_penalties(Spelling.texts, case["previous"], *values, breakers)
        assert expected == pytest.approx(case["penalties"])


def test_dry_is_that_of_the_formula_for_many_texts(rng):
    for _ in range(300):
        ids = rng.integers(0, rng.integers(2, 12), rng.integers(0, 60)).tolist()
        settings = {
            "dry_multiplier": 0.5,
            "dry_base": float(rng.choice([1.0, 1.5, 3.0])),
            "dry_allowed_length": int(rng.integers(1, 4)),
            "dry_penalty_last_n": int(rng.integers(1, 70)),
        }
        breakers = [text for text in ("\n", ":", "*", "g") if rng.random() < 0.2]
        expected = reference.dry_penalties(Spelling.texts, ids, *settings.values(), breakers)
        assert penalties(ids, **settings, dry_sequence_breakers=breakers) == pytest.approx(expected)


def test_dry_changes_the_reply_and_not_the_logits():
    logits = np.array([1.0, 1.2, 0.9] + [0.0] * 9, np.float32)
    request = Request(temperature=0.0, dry_multiplier=1.0)
    before = logits.copy()
    assert Sampler(request, Spelling()).sample(logits, [0, 2, 1, 0, 2]) == 0
    assert Sampler(Request(temperature=0.0), Spelling()).sample(logits, [0, 2, 1, 0, 2]) == 1
    assert (logits == before).all()


def test_a_token_that_a_constraint_demands_comes_however_often_it_came():
    logits = np.full(len(Spelling.texts), -np.inf, np.float32)
    logits[0] = 3.0
    for temperature in (0.0, 1.0):
        request = Request(temperature=temperature, dry_multiplier=100.0, dry_penalty_last_n=10_000)
        assert Sampler(request, Spelling()).sample(logits, [0] * 1000) == 0


def test_a_breaker_that_is_cut_within_a_character_begins_nowhere():
    class Bytes(Spelling):
        def token_bytes(self, token_id):
            return "é".encode()[token_id : token_id + 1] or b"a"

    settings = {"dry_multiplier": 1.0, "dry_sequence_breakers": "é"}
    assert penalties([2, 3, 0, 4, 2, 3, 0], Bytes(), **settings)[4] == 1.75


def test_breakers_of_real_tokenizers_are_found_in_their_tokens():
    model = tinychat.load("demo")
    colon, end = (model.encode(text, add_bos=False) for text in ("one: two", ".\n"))
    said = model.encode("The cat sat on the mat", add_bos=False)
    request = Request(temperature=0.0, dry_multiplier=1.0, dry_penalty_last_n=500)
    logits = np.zeros(model.vocab_size, np.float32)

    def lowered(ids):
        return np.flatnonzero(Sampler(request, model.tokenizer)._dried(logits, ids)).tolist()

    assert lowered([*said, said[0], said[1], said[2]]) == [said[3]]
    assert lowered([*said, *colon, *said[:3]]) == [said[3]]
    assert lowered([*said, *said[:2], *end, said[2]]) == []
