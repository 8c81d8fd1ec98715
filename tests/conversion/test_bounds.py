"""Linears with bounds in NumPy: inputs and outputs are brought between them as by compiled code."""

from types import SimpleNamespace

import numpy as np
import reference

from tinychat.conversion.float_stages import Cell, FloatStages
from tinychat.conversion.source import Source
from tinychat.engine.patch_parts import ClippedLinear
from tinychat.kernels.variants import ClippedActivation, ClippedNorm, GeluTanh, NoNorm

BOUNDS = np.array([-0.5, 1.25, -0.25, 0.75], np.float32)


class Numbers(Source):
    """Parameters that are their own numbers."""

    def __init__(self, config):
        self.config = config

    def vector(self, vector):
        return vector


def test_inputs_and_outputs_stay_between_bounds(rng):
    config = SimpleNamespace(gated=True, hidden_act="gelu_tanh", swiglu_limit=None, swiglu_caps=None)
    stages, s = FloatStages(Numbers(config), lambda *parts: None), SimpleNamespace(x=Cell())
    rows, hidden = rng.standard_normal((17, 80)).astype(np.float32) * 2, Cell()
    hidden.value = rows
    stages.quantize_normed(17, hidden, ClippedNorm(NoNorm(), BOUNDS), None, None, s)
    assert np.array_equal(s.x.take(), rows.clip(-0.5, 1.25))
    hidden.value = rows
    stages.quantize_activated(17, hidden, ClippedActivation(GeluTanh(), BOUNDS), 40, None, s)
    expected = (reference.gelu_tanh(rows[:, :40]) * rows[:, 40:]).clip(-0.5, 1.25)
    np.testing.assert_allclose(s.x.take(), expected, atol=1e-5)
    out = Cell()
    for first in (0, 80):
        hidden.value = rows
        stages.clip_columns(17, hidden, ClippedLinear(None, BOUNDS, first, 80), out)
    assert np.array_equal(out.value, np.tile(rows.clip(-0.25, 0.75), 2))
