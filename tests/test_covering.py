"""The choice of cases that stands for a whole product: nothing that must meet is left out."""

import itertools

import pytest
from covering import covering

AXES = [("bf16", "f16", "int8"), (6, 8, 24, 64), ((3, 3), (5, 1)), (1, 17, 200)]


@pytest.mark.parametrize("strength", [1, 2, 3, 4])
def test_values_of_so_many_axes_meet(strength):
    cases = covering(*AXES, strength=strength)
    assert len(set(cases)) == len(cases)
    for places in itertools.combinations(range(len(AXES)), strength):
        met = {tuple(case[i] for i in places) for case in cases}
        assert met == set(itertools.product(*(AXES[i] for i in places)))


def test_there_are_few():
    sizes = [len(covering(*AXES, strength=strength)) for strength in (1, 2, 3, 4)]
    assert sizes[0] == 4
    assert 12 <= sizes[1] < 18
    assert 36 <= sizes[2] < 48
    assert sizes[3] == 72
    assert covering(*AXES) == covering(*AXES)
