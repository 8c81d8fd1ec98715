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

# One model of each kind of layer that is compiled for the tests: each compiles a forward pass of its own. The others,
# whose parts are in these, run where transformers is. Normed before and after, capped; the same, and queries; normed
# after only, all heads together; layer norms, side by side, with gates and without; learned positions; norms of the
# residual stream; slopes; experts, one of them shared; short convolutions; states; layers of one part each; latents;
# states and latents. Gemma 4 has heads and MLPs of two sizes, and keys of other layers; Gemma 3n has these, and four
# residual streams; Hunyuan norms queries and keys behind the rotation; Apertus has numbers in its activations; AFMoE
# gates of attention, and norms behind experts; Command A+ experts beside attention; LFM3 has a gate for each head, and
# Laguna more query heads in some layers besides; Dory runs layers in loops, with vectors of length 1, and Inkling 2
# reads mixtures of blocks in loops that tell each other; SmallThinker chooses experts before attention; Ling 3.0 has
# bounded decays, and a gate for each head of latent attention.
KINDS = (
    "llama3",
    "gemma2",
    "hyperclovax",
    "granite-swa",
    "gemma3",
    "gemma4",
    "gemma3n",
    "olmo2",
    "stablelm-parallel",
    "phi",
    "gpt2",
    "opt-350m",
    "bloom",
    "qwen2-moe",
    "lfm2",
    "lfm3",
    "laguna",
    "qwen3.5",
    "granite-hybrid",
    "nemotron-h",
    "youtu",
    "deepseek-v2",
    "deepseek-v3",
    "kimi-linear",
    "hunyuan",
    "apertus",
    "afmoe",
    "cohere2-moe",
    "zaya",
    "flint",
    "kolibri1",
    "bitnet",
    "dory",
    "inkling2-loop",
    "smallthinker",
    "ling-3.0-flash",
)
# What writes codes for a linear runs for each norm and activation in kernels/test_inputs.py, experts of codes in
# kernels/test_experts.py, and what does not know how weights are quantized in f32 for every family. These put them
# together: norms before and after, layer norms side by side, experts in some layers, short convolutions, latents, gates
# that are linears of few numbers, linears of heads and routers beside int4.
INT4_KINDS = ("llama3", "olmo2", "phi", "qwen3-moe-some", "lfm2", "lfm3", "youtu", "kimi-linear", "nemotron-h", "zaya")
INT4_KINDS += ("inkling2-loop",)
TOLERANCE = 1e-3  # of the logits' standard deviation

variants = pytest.mark.parametrize("variant", families.VARIANTS, ids=lambda variant: variant.name)


def is_of(variant, names):
    """Return whether a variant is of the same kind as one of those."""
    return families.kind_of(variant) in {families.kind_of(families.BY_NAME[name]) for name in names}


GOLDEN = [variant for variant in families.VARIANTS if is_of(variant, KINDS)]
IN_INT4 = [variant for variant in families.NEWER if is_of(variant, INT4_KINDS)]


def convert_and_load(checkpoint, folder):
    tinychat.convert(checkpoint, folder, quant="f32")
    return tinychat.load(folder, context=families.CONTEXT_SIZE)


def assert_close(logits, expected):
    worst = np.max(np.abs(logits - expected)) / np.std(expected)
    assert worst < TOLERANCE, f"off by {worst:.2e} standard deviations"


def assert_same_alone(sequence, ids):
    """Assert that each token has the same bits alone and among others."""
    together = logits_of_all(sequence, ids)
    sequence.rewind(0)
    alone = np.concatenate([sequence.step([token]) for token in ids])
    assert np.isfinite(together).all()
    assert alone.tobytes() == together.tobytes()


def greedy(model, ids):
    return model.generate(ids, max_tokens=families.NEW_TOKENS, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("variant", GOLDEN, ids=lambda variant: variant.name)
def test_f32_equals_goldens(variant, tmp_path):
    golden = families.read_golden(variant, families.make_weights(variant))
    model = convert_and_load(families.write_checkpoint(variant, tmp_path / "checkpoint"), tmp_path / "model")
    ids = families.make_ids(variant)
    short, long = model.logits(ids[: families.SHORT]), model.logits(ids)
    assert short.shape == (families.SHORT, families.vocab_size_of(variant))
    assert short.dtype == np.float32
    assert_close(short[families.SHORT_ROWS], golden["short"])
    assert_close(long[families.LONG_ROWS], golden["long"])
    assert list(greedy(model, ids[: families.SHORT])) == golden["greedy"].tolist()


@pytest.mark.parametrize("variant", IN_INT4, ids=lambda variant: variant.name)
def test_int4_gives_each_token_the_same_bits_alone_and_among_others(variant, tmp_path):
    folder = engines.convert_variant(variant.name, "int4", tmp_path / "model")
    sequence = engines.open_sequence(folder, threads=2, context_size=families.CONTEXT_SIZE)
    assert_same_alone(sequence, families.make_ids(variant)[:70])


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
    if variant in families.NEWER:
        assert_same_alone(model.sequence, ids[:70])
