"""Samplers that llama.cpp has too keep the candidates that it keeps.

The cases were recorded from the functions of src/llama-sampler.cpp in the source of llama-cpp-python 0.3.36. llama.cpp
applies its filters before the temperature, ours at a temperature of 1 is the same.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import reference

from tinychat.errors import ModelFolderError
from tinychat.generate.request import Request
from tinychat.generate.sampling import Sampler

GOLDENS = Path(__file__).parents[1] / "goldens/llama_cpp"
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


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
