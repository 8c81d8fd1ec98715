"""One wiring for the compiled pass, for NumPy and for counting: each knows every stage, with the same parameters."""

import inspect
from typing import NamedTuple

import numpy as np
import pytest

from tinychat.conversion.float_stages import FloatStages
from tinychat.engine import block_stages, stages, stream_stages
from tinychat.engine.wiring import Compiled, Stage, by_kind, unless
from tinychat.kernels.variants import NoNorm, RmsNorm
from tinychat.kernels.weights import PerLayer

BY_NAME = {**vars(stages), **vars(stream_stages), **vars(block_stages)}
DECLARED = {name: value for name, value in BY_NAME.items() if isinstance(value, Compiled)}
STAGES = [name for name, value in DECLARED.items() if isinstance(value, Stage)]


def parameters_of(function):
    return [*inspect.signature(function).parameters]


@pytest.mark.parametrize("name", STAGES)
def test_every_interpreter_runs_a_stage_with_the_same_arguments(name):
    _, *arguments = parameters_of(DECLARED[name].function)
    assert parameters_of(DECLARED[name].kernel().py_func) == ["team", *arguments]
    assert parameters_of(getattr(FloatStages, name)) == ["self", *arguments]


def test_the_team_runs_a_stage():
    seen = []

    class Team:
        def run(self, stage, *arguments):
            seen.append((stage.__name__, arguments))

    stages.linear(Team(), 3, "weight")
    assert seen == [("linear", (3, "weight"))]


def test_the_kind_of_an_argument_chooses_the_body():
    calls = []

    @by_kind
    def describe(norm, x):
        calls.append(("normed", x))

    @describe.where(norm=NoNorm)
    def _(norm, x):
        calls.append(("plain", x))

    describe(NoNorm(), 1)
    describe(RmsNorm(np.ones(2, np.float32)), 2)
    assert calls == [("plain", 1), ("normed", 2)]


def test_a_part_that_a_model_lacks_is_passed_over():
    calls = []

    @unless(norm=NoNorm)
    def norm_rows(x, norm):
        calls.append(x)

    norm_rows(1, NoNorm())
    norm_rows(2, RmsNorm(np.ones(2, np.float32)))
    assert calls == [2]


class Pair(NamedTuple):
    gains: np.ndarray
    parts: PerLayer


def test_one_layer_is_taken_out_of_a_stack():
    first, second = RmsNorm(np.array([10, 11])), RmsNorm(np.array([20]))
    stacked = Pair(np.arange(3), PerLayer(np.array([0, -1, 1]), first, second))
    assert [stages.layer_of(stacked, layer).gains for layer in range(3)] == [0, 1, 2]
    parts = [stages.layer_of(stacked, layer).parts for layer in range(3)]
    assert [part.first.gain if part.indices >= 0 else part.second.gain for part in parts] == [10, 20, 11]
