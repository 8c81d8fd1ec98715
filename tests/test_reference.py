"""The oracle itself: against what transformers computed, and its parts against examples done by hand."""

import dataclasses

import families
import numpy as np
import pytest
import reference

from tinychat.models.architectures import parse_config

TOLERANCE = 1e-4  # of the logits' standard deviation; float32 in transformers stays within 3e-5
# Gemma 3n and 4 do not divide scores by the size of heads, so the rounding of transformers' angles counts for more; in
# Inkling 2's mixtures, small vectors are as long as large ones.
SHARP = 5e-4

variants = pytest.mark.parametrize("variant", families.VARIANTS, ids=lambda variant: variant.name)


def config_of(variant):
    return parse_config(variant.config, variant.name)


# Of some the scaling is another base.
scaled_names = [
    variant.name
    for variant in families.VARIANTS
    if variant.config.get("rope_scaling") and config_of(variant).rope_scaling
]


def tolerance_of(variant):
    config = config_of(variant)
    return SHARP if config.varied or config.mixtures else TOLERANCE


def assert_close(logits, expected, tolerance=TOLERANCE):
    assert logits.shape == expected.shape
    worst = np.max(np.abs(logits - expected)) / np.std(expected)
    assert worst < tolerance, f"off by {worst:.2e} standard deviations"


@variants
def test_decoder_equals_goldens(variant):
    weights = families.make_weights(variant)
    golden = families.read_golden(variant, weights)
    config, ids = config_of(variant), families.make_ids(variant)
    assert_close(
        reference.decoder_logits(config, weights, ids)[families.LONG_ROWS], golden["long"], tolerance_of(variant)
    )
    greedy = golden["greedy"].tolist()
    logits = reference.decoder_logits(config, weights, ids[: families.SHORT] + greedy[:-1])
    assert_close(logits[families.SHORT_ROWS], golden["short"], tolerance_of(variant))
    assert np.argmax(logits[families.SHORT - 1 :], axis=1).tolist() == greedy


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@variants
def test_decoder_equals_transformers(variant):
    pytest.importorskip("transformers")
    import transformers_models

    model, weights = transformers_models.build(variant), families.make_weights(variant)
    for length in (families.SHORT, families.LONG):
        ids = families.make_ids(variant)[:length]
        logits = reference.decoder_logits(config_of(variant), weights, ids)
        assert_close(logits, transformers_models.logits(model, ids), tolerance_of(variant))


@pytest.mark.parametrize("name", ["llama-all-biases", "qwen3", "qwen2-window"])
def test_every_tensor_matters(name):
    """A decoder that forgot a bias, a norm or a projection could not pass the comparisons of this folder."""
    variant = families.BY_NAME[name]
    config, weights = config_of(variant), families.make_weights(variant)
    ids = families.make_ids(variant)[: families.SHORT]
    expected = reference.decoder_logits(config, weights, ids)
    for tensor in weights:
        neutral = np.ones_like if "norm" in tensor else np.zeros_like
        logits = reference.decoder_logits(config, weights | {tensor: neutral(weights[tensor])}, ids)
        assert np.max(np.abs(logits - expected)) > 0.01 * np.std(expected), tensor


@pytest.mark.parametrize("name", scaled_names)
def test_rope_scaling_matters(name):
    variant = families.BY_NAME[name]
    config, weights, ids = config_of(variant), families.make_weights(variant), families.make_ids(variant)
    scaled = reference.decoder_logits(config, weights, ids)
    plain = reference.decoder_logits(dataclasses.replace(config, rope_scaling=None), weights, ids)
    assert np.max(np.abs(scaled - plain)) > 0.1 * np.std(plain)


def test_rope_rotates_halves_by_hand():
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])  # pairs (1, 3) and (2, 4)
    rotated = reference.rope(x, np.array([[np.pi / 2, np.pi]]))
    np.testing.assert_allclose(rotated, [[[-3.0, -2.0, 1.0, -4.0]]], atol=1e-15)


def test_rope_scores_depend_on_distance_alone(rng):
    q, k = rng.standard_normal((2, 1, 1, 24))
    config = config_of(families.BY_NAME["llama3.1"])

    def score(query_position, key_position):
        angles = [reference.rope_angles(config, [p], 1)[0] for p in (query_position, key_position)]
        return np.sum(reference.rope(q, angles[0]) * reference.rope(k, angles[1]))

    assert score(131, 104) == pytest.approx(score(27, 0))
    assert score(131, 104) != pytest.approx(score(26, 0))


@pytest.mark.parametrize("window", [0, 1, 5, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_attention_equals_masked_softmax(rng, window, kv_heads):
    q = rng.standard_normal((4, 6, 8))
    k, v = rng.standard_normal((2, 11, kv_heads, 8))
    distance = np.arange(7, 11)[:, None] - np.arange(11)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    repeated_k, repeated_v = (np.repeat(a, 6 // kv_heads, axis=1) for a in (k, v))
    scores = np.einsum("thd,shd->hts", q, repeated_k) / np.sqrt(8)
    expected = np.einsum("hts,shd->thd", reference.softmax(np.where(hidden, -np.inf, scores)), repeated_v)
    np.testing.assert_allclose(reference.attention(q, k, v, window), expected, rtol=1e-12)


def test_silu_survives_large_inputs():
    np.testing.assert_allclose(reference.silu([-1e4, -1.0, 0.0, 1.0, 1e4]), [0, -0.26894142, 0, 0.73105858, 1e4])


def test_activation_codes_round_half_to_even():
    x = np.array([[127.0, 0.5, 1.5, -2.5, 0.0, 0.0, -254.0, 1.0, 3.0, 5.0]])
    codes, scales = reference.quantize_activations(x, 4)
    np.testing.assert_array_equal(codes, [[127, 0, 2, -2, 0, 0, -127, 0, 76, 127]])
    np.testing.assert_allclose(scales, [[1.0, 2.0, 5 / 127]])


def test_int4_layout_by_hand():
    packed = np.zeros((2, 4, 16, 4), np.uint8)
    packed[1, 2, 3, 1] = 0xA5  # row 16 + 3; low nibble: column 8*2 + 1, high nibble: column 8*2 + 4 + 1
    codes = reference.unpack_int4(packed)
    assert codes.shape == (32, 32)
    assert (codes[19, 17], codes[19, 21], np.count_nonzero(codes)) == (5, 10, 2)
    scales, row_scales = np.zeros((2, 2, 16), np.int8), np.zeros((2, 16), np.float32)
    scales[1, 1, 3], row_scales[1, 3] = -2, 0.25
    table = np.arange(-8, 8) * 3
    weight = reference.dequantize_int4(packed, scales, row_scales, table, (20, 30))
    assert weight.shape == (20, 30)
    assert (weight[19, 17], weight[19, 21], weight[19, 16]) == (4.5, -3.0, 12.0)
    assert np.count_nonzero(weight[:, :16]) == 0


def test_int8_and_f32_layouts_by_hand():
    packed = np.full((2, 8, 16, 4), 128, np.uint8)
    packed[1, 5, 2, 3] = 0
    weight = reference.dequantize_int8(packed, np.full((2, 1, 16), 3, np.int8), np.full((2, 16), 0.25), (19, 32))
    assert weight[18, 23] == -96.0
    assert np.count_nonzero(weight) == 1
    plain = np.zeros((2, 5, 16), np.float32)
    plain[1, 4, 7] = 3
    assert reference.unpack_f32(plain)[23, 4] == 3


def test_best_scale_finds_an_exact_grid():
    codes = np.array([-8, 7, 3, -1, 0, 5, 5, -6])
    scale, error = reference.best_scale(codes * 0.375)
    assert (scale, error) == (np.float16(0.375), 0.0)
    scale, error = reference.best_scale(codes * -0.375)
    assert (scale, error) == (np.float16(-0.375), 0.0)
    assert reference.best_scale(codes * -0.375, negative=False)[1] > 0
    assert reference.best_scale(np.zeros(8)) == (0, 0.0)
