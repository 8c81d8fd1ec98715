"""Every supported family and variant through the public API in f32, against transformers.

``live`` tests read checkpoints that transformers saved (its own config keys, ``.bin`` files); the others read
checkpoints written here and compare with the committed goldens, so that they need no torch.
"""

import engines
import families
import numpy as np
import pytest

import tinychat
from tinychat.generate.sequence import logits_of_all

# Kinds of layers: with what a cache of keys and values holds, and windows, as Llama's; normed before and after, capped;
# normed after only, queries and keys over all heads; layer norms, without gates, beside attention. Of the others each
# compiles a forward pass of its own: they run where transformers is.
INT4 = ("granite", "ministral3", "glm", "gemma2", "olmo2", "phi")
TOLERANCE = 1e-3  # of the logits' standard deviation

variants = pytest.mark.parametrize("variant", families.VARIANTS, ids=lambda variant: variant.name)


def convert_and_load(checkpoint, folder):
    tinychat.convert(checkpoint, folder, quant="f32")
    return tinychat.load(folder, context=families.CONTEXT_SIZE)


def assert_close(logits, expected):
    worst = np.max(np.abs(logits - expected)) / np.std(expected)
    assert worst < TOLERANCE, f"off by {worst:.2e} standard deviations"


def greedy(model, ids):
    return model.generate(ids, max_tokens=families.NEW_TOKENS, temperature=0.0, ignore_eos=True)


@variants
def test_f32_equals_goldens(variant, tmp_path):
    golden = families.read_golden(variant, families.make_weights(variant))
    model = convert_and_load(families.write_checkpoint(variant, tmp_path / "checkpoint"), tmp_path / "model")
    ids = families.make_ids(variant)
    short, long = model.logits(ids[: families.SHORT]), model.logits(ids)
    assert short.shape == (families.SHORT, variant.config["vocab_size"])
    assert short.dtype == np.float32
    assert_close(short[families.SHORT_ROWS], golden["short"])
    assert_close(long[families.LONG_ROWS], golden["long"])
    assert list(greedy(model, ids[: families.SHORT])) == golden["greedy"].tolist()


def in_int4(names):
    """Return the names as parameters, those that few machines run marked so."""
    return [pytest.param(name, marks=() if name in INT4 else pytest.mark.live) for name in names]


@pytest.mark.parametrize("name", in_int4(name for name in families.BY_NAME if name not in families.OLDER))
def test_int4_gives_each_token_the_same_bits_alone_and_among_others(name, tmp_path):
    sequence = engines.open_sequence(engines.convert_variant(name, "int4", tmp_path / "model"), threads=2)
    ids = families.make_ids(families.BY_NAME[name])[:70]
    together = logits_of_all(sequence, ids)
    sequence.rewind(0)
    alone = np.concatenate([sequence.step([token]) for token in ids])
    assert np.isfinite(together).all()
    assert alone.tobytes() == together.tobytes()


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@variants
def test_f32_equals_transformers(variant, tmp_path):
    pytest.importorskip("transformers")
    import transformers_models

    theirs = transformers_models.build(variant)
    ids = families.make_ids(variant)
    # In this order: dynamic RoPE in transformers remembers the longest sequence it has seen.
    expected_greedy = transformers_models.greedy(theirs, ids[: families.SHORT], families.NEW_TOKENS)
    expected_short = transformers_models.logits(theirs, ids[: families.SHORT])
    expected_long = transformers_models.logits(theirs, ids)
    checkpoint = transformers_models.save_checkpoint(variant, theirs, tmp_path / "checkpoint")
    model = convert_and_load(checkpoint, tmp_path / "model")
    assert_close(model.logits(ids[: families.SHORT]), expected_short)
    assert_close(model.logits(ids), expected_long)
    assert list(greedy(model, ids[: families.SHORT])) == expected_greedy
