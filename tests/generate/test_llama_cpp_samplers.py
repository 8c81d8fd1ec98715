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
