"""The float32 forward pass that calibration looks at: the same numbers as the formulas, for every family."""

from itertools import pairwise

import encoders
import families
import numpy as np
import pytest
import reference

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.source import Source
from tinychat.models.architectures import linears


def logits_of(source, texts):
    """Return the logits of all texts, run together, [T, V], and where each begins."""
    float_pass = FloatPass(source, texts)
    hidden = float_pass.embed()
    for index in range(len(source.config.layer_runs)):
        hidden = float_pass.run_layer(index, hidden)
    return float_pass.logits(hidden), float_pass.firsts


@pytest.mark.parametrize("name", [*families.BY_NAME, *encoders.BY_NAME])
def test_logits_are_those_of_the_formulas(name, tmp_path, rng):
    variant = families.BY_NAME.get(name) or encoders.BY_NAME[name]
    checkpoint = open_checkpoint(families.write_checkpoint(variant, tmp_path / "checkpoint"))
    weights = families.make_weights(variant)
    texts = [rng.integers(0, checkpoint.config.vocab_size, length).tolist() for length in (23, 1, 40)]
    logits, cuts = logits_of(Source(checkpoint), texts)
    for ids, (start, stop) in zip(texts, pairwise(cuts)):
        expected = reference.decoder_logits(checkpoint.config, weights, ids)
        assert np.abs(logits[start:stop] - expected).max() <= 2e-4 * max(1.0, np.abs(expected).max())


def test_slabs_join_to_the_whole_matrix(tmp_path):
    variant = families.BY_NAME["smollm2"]
    source = Source(open_checkpoint(families.write_checkpoint(variant, tmp_path / "checkpoint")))
    joined = np.concatenate(list(source.slabs(source.layout("embed_tokens"), 48)))
    np.testing.assert_array_equal(joined, source.weight("embed_tokens", 0))
    assert [linear.name for linear in linears(source.config)][-1] != "lm_head"
