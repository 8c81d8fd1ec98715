"""The last norm of hidden states: by the reference, and the same bits for a row in any company."""

import numpy as np
import pytest
import reference

from tinychat.engine.hidden_states import normed_states
from tinychat.kernels.variants import LayerNorm, NoNorm, RmsNorm

EPS = 1e-5


@pytest.fixture
def rows(rng):
    """Return rows of the residual stream, whose arrays are wider than they are."""
    return (7 * rng.standard_normal((5, 48)) + 1).astype(np.float32)[:, :37]


def gains_and_biases(rng):
    return rng.standard_normal((2, 48)).astype(np.float32)


def test_norms_are_those_of_the_reference(rows, rng):
    gain, bias = gains_and_biases(rng)
    rms = normed_states(RmsNorm(gain), EPS, rows)
    np.testing.assert_allclose(rms, reference.rms_norm(rows, gain[:37], EPS), rtol=1e-12)
    layer = normed_states(LayerNorm(gain, bias), EPS, rows)
    np.testing.assert_allclose(layer, reference.layer_norm(rows, gain[:37], bias[:37], EPS), rtol=1e-12)
    assert normed_states(NoNorm(), EPS, rows).tolist() == rows.tolist()


def test_a_row_has_the_same_bits_alone(rows, rng):
    gain, bias = gains_and_biases(rng)
    for norm in (RmsNorm(gain), LayerNorm(gain, bias)):
        together = normed_states(norm, EPS, rows)
        assert together.dtype == np.float64
        assert together.tobytes() == b"".join(normed_states(norm, EPS, row[None]).tobytes() for row in rows)
