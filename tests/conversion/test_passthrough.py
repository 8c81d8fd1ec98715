"""Codes of a checkpoint in a model folder give the same weights as in the checkpoint, bit by bit."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import engines
import gguf
import gguf_files
import numpy as np
import pytest
import reference
from kernels.test_affine import codes_of
from memory_tensors import coded_tensor

import tinychat
from tinychat.checkpoint.gguf_codes import FORMS
from tinychat.checkpoint.gguf_file import GgufFile
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.tensors import Tensors
from tinychat.conversion import passthrough
from tinychat.conversion.passthrough import ROUNDED, layers_of, passthrough_linear, rounded
from tinychat.engine.passthrough_parameters import block_indices
from tinychat.errors import ConversionError
from tinychat.generate.sequence import logits_of_all
from tinychat.models.layout import Quantization, passthrough_specs
from tinychat.models.passthrough import Form, joined
from tinychat.models.tensors import Linear

LAYERS = 2
PARTS = ("q", "k", "v")


def random_blocks(rng, kind, rows, columns):
    """Return bytes of any codes, with scales and minima of all signs but no infinities."""
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    blocks = rng.integers(0, 256, (rows * columns // block, size), np.uint8)
    halves = {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q6_K": (208,), "MXFP4": (), "NVFP4": (), "IQ1_M": ()}
    halves |= {"Q2_K": (80, 82), "Q3_K": (108,), "TQ1_0": (52,), "TQ2_0": (64,)}
    halves = halves.get(kind, (0,) if kind.startswith("IQ") else (0, 2))
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(1, 250, len(blocks))
        blocks[rng.random(len(blocks)) < 0.1] = 0
    if kind == "NVFP4":
        blocks[:, :4] &= 127
    if kind == "IQ1_M":
        # Four bits of a float16 in each of four words.
        scale = rng.standard_normal(len(blocks)).astype("<f2").view("<u2").astype(int)
        for word in range(4):
            byte = 49 + 2 * word
            blocks[:, byte] = blocks[:, byte] & 15 | (scale >> 4 * word & 15) << 4
    smallest = -6 if kind in FORMS else -2
    for start in halves:
        scales = (rng.standard_normal(len(blocks)) * 10.0 ** rng.integers(smallest, 2, len(blocks))).astype("<f2")
        blocks[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def write_file(path, rng, kinds, rows, columns):
    """Write layers of tensors of some types as a file; plain numbers by their dtype's name."""
    writer = gguf.GGUFWriter(path, "llama")
    for layer, types in enumerate(kinds):
        for part, kind, count in zip(PARTS, types, rows):
            name = f"{layer}.{part}.weight"
            if kind in gguf.GGMLQuantizationType.__members__ and kind not in ("F16", "F32"):
                blocks = random_blocks(rng, kind, count, columns)
                writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
            else:
                dtype = {"F16": np.float16, "F32": np.float32}[kind]
                writer.add_tensor(name, rng.standard_normal((count, columns)).astype(dtype))
    gguf_files.write(writer)
    return Tensors(path.parent, dict(GgufFile(path).tensors))


def native_rows(tensors, linear):
    """Store a linear; return what the stored codes stand for, float64 [layers, N, K], padding included."""
    stored = passthrough_linear(tensors, linear)
    specs = dict(passthrough_specs(linear, stored, -(-linear.columns // 32) * 32))
    arrays = {name: np.zeros(spec.shape, dtype_of(spec)) for name, spec in specs.items()}
    for name, start, data in chain.from_iterable(layers_of(tensors, linear, stored)):
        arrays[name].view(np.uint8).reshape(-1)[start : start + data.nbytes] = data.reshape(-1).view(np.uint8)
    blocks = {}
    for form in stored.forms:
        packed, scales, factors = (arrays[f"x.{part}{form.bits}"] for part in ("packed", "scales", "factors"))
        offsets = arrays.get(f"x.offsets{form.bits}", np.zeros((len(packed), 0, 16), scales.dtype))
        codes = codes_of(packed, form.bits, form.offsets, arrays.get(f"x.table{form.bits}"))
        w = reference.dequantize_affine(codes.astype(np.float64), scales, offsets, factors)
        blocks[form.bits] = w.reshape(len(packed), 16, -1)
    if len(blocks) == 1:
        ((_, rows),) = blocks.items()
    else:
        places = block_indices(stored.blocks(linear.rows))
        rows = np.stack([blocks[4][place] if place >= 0 else blocks[8][-1 - place] for place in places.reshape(-1)])
    return rows.reshape(LAYERS, -1, blocks[stored.forms[0].bits].shape[2]), stored


def dtype_of(spec):
    return {"U8": np.uint8, "I8": np.int8, "F16": np.uint16, "F32": np.float32}[spec.dtype]


def read_rows(tensors, linear):
    return np.stack(
        [
            np.concatenate([tensors.read(f"{source.format(layer)}.weight") for source in linear.sources])
            for layer in range(LAYERS)
        ]
    )


def linear_of(rows, columns):
    return Linear("x", tuple(f"{{}}.{part}" for part in PARTS[: len(rows)]), rows, columns, LAYERS)


# Types that the package does not write are in checkpoint/test_gguf_types.py.
@pytest.mark.parametrize("kind", [kind for kind in FORMS if kind not in ("Q1_0", "Q2_0", "I2_S")])
def test_every_type_that_has_a_form_is_kept_exactly(kind, tmp_path, rng):
    tensors = write_file(tmp_path / "x.gguf", rng, [(kind, kind)] * LAYERS, (32, 24), 512)
    linear = linear_of((32, 24), 512)
    got, stored = native_rows(tensors, linear)
    assert stored.forms == (FORMS[kind],)
    np.testing.assert_array_equal(got[:, :56].astype(np.float32), read_rows(tensors, linear))
    assert not got[:, 56:].any()


# Sizes of codes differ between and within layers; offsets are there and not; groups of 16, 32 and 256.
MIXTURES = [
    [("Q4_K", "Q4_K", "Q6_K"), ("Q4_K", "Q4_K", "Q4_K")],
    [("Q6_K", "Q4_0", "Q8_0"), ("Q4_1", "Q5_K", "Q4_K")],
    [("Q5_1", "Q5_0", "Q8_0"), ("Q6_K", "Q5_K", "Q8_0")],
    # Codes of two bits, of all parts and beside others.
    [("TQ2_0", "Q2_K", "TQ1_0"), ("TQ1_0", "Q2_K", "TQ2_0")],
    [("TQ2_0", "TQ2_0", "TQ1_0"), ("TQ1_0", "TQ2_0", "TQ2_0")],
    [("TQ2_0", "Q2_K", "Q4_K"), ("Q2_K", "Q8_0", "TQ1_0")],
    # Codes in tables: of several, beside codes with minima and without, beside eight bits, under powers of two.
    [("IQ4_XS", "IQ4_XS", "IQ3_S"), ("IQ2_XXS", "IQ3_XXS", "IQ1_M")],
    [("IQ4_XS", "Q4_K", "Q6_K"), ("IQ4_NL", "Q4_0", "Q5_K")],
    [("IQ4_NL", "Q4_0", "TQ2_0"), ("Q4_0", "IQ4_NL", "IQ2_S")],
    [("MXFP4", "MXFP4", "Q8_0"), ("Q8_0", "MXFP4", "MXFP4")],
    [("MXFP4", "MXFP4", "IQ4_NL"), ("MXFP4", "IQ2_XS", "IQ1_S")],
    [("Q4_0", "Q4_0", "Q8_0"), ("Q4_0", "Q8_0", "Q4_0")],
]


@pytest.mark.parametrize("kinds", MIXTURES, ids=str)
@pytest.mark.parametrize("rows", [(48, 16, 24), (40, 8, 24)], ids=["blocks", "shared blocks"])
def test_mixtures_of_types_are_stored_exactly(kinds, rows, tmp_path, rng):
    tensors = write_file(tmp_path / "x.gguf", rng, kinds, rows, 256)
    linear = linear_of(rows, 256)
    got, _ = native_rows(tensors, linear)
    np.testing.assert_array_equal(got[:, : sum(rows)].astype(np.float32), read_rows(tensors, linear))
    assert not got[:, sum(rows) :].any()


def test_other_types_are_rounded_by_half_a_step(tmp_path, rng):
    kinds = [("F32", "F16", "Q4_1"), ("F32", "Q4_0", "F16")]
    tensors = write_file(tmp_path / "x.gguf", rng, kinds, (32, 16, 16), 96)
    linear = linear_of((32, 16, 16), 96)
    got, stored = native_rows(tensors, linear)
    expected = read_rows(tensors, linear).astype(np.float64)
    step = np.repeat(np.abs(expected).reshape(LAYERS, 64, 3, 32).max(axis=3), 32, axis=2) / 127
    assert stored.bits == ((8, 8, 4), (8, 4, 8))
    for layer, bits_of in enumerate(stored.bits):
        for rows, bits in zip((slice(0, 32), slice(32, 48), slice(48, 64)), bits_of):
            error = np.abs(got[layer, rows].astype(np.float32) - expected[layer, rows])
            assert (error <= (step[layer, rows] * 0.51 if bits == 8 else 0)).all()


def test_rounding_serves_short_groups_zeros_and_any_size(rng):
    rows = rng.standard_normal((5, 72)).astype(np.float32)
    rows[1], rows[2], rows[3, :32] = 0, rows[2] * 1e-30, rows[3, :32] * 1e-3
    codes = rounded(rows)
    got = reference.values_of_codes(codes)
    assert got.shape == (5, 96)
    assert not got[:, 72:].any()
    peaks = np.abs(np.pad(rows, ((0, 0), (0, 24)))).reshape(5, 3, 32).max(axis=2)
    assert (np.abs(got[:, :72] - rows) <= np.repeat(peaks, 32, axis=1)[:, :72] / 127 * 0.55).all()


def tensors_of(linear, codes, form):
    """Return a checkpoint whose weights of a linear are all some codes."""
    names = [f"{source}.weight" for shard in range(linear.shards) for source in linear.names(shard)]
    return Tensors(Path("memory"), dict.fromkeys(names, coded_tensor(codes, form)))


GROUP = 64
HUB = {
    "gptq": (Form(4, "I8", GROUP, GROUP, offsets=True), True),
    "gptq symmetric": (Form(4, "F16", GROUP), False),
    "mlx": (Form(4, "F16", GROUP, offsets=True), False),
    "mlx in bfloat16": (Form(4, "F32", GROUP, offsets=True), False),
}


@pytest.mark.parametrize("name", HUB)
def test_forms_of_other_checkpoints_are_stored_exactly(name, rng):
    form, has_zeros = HUB[name]
    N, groups = 48, 4
    codes = rng.integers(0, 16, (N, groups * GROUP), np.uint8)
    scales = rng.standard_normal((N, groups)).astype(np.float16).astype(np.float32)
    if has_zeros:
        zeros = rng.integers(0, 17, (N, groups)).astype(np.float32)
        rows = GroupCodes(codes, np.ones_like(scales), -zeros, np.stack([scales, scales], axis=2))
        expected = np.repeat(scales, GROUP, axis=1).astype(np.float64) * (codes - np.repeat(zeros, GROUP, axis=1))
    elif form.offsets:
        wide = 1e-20 if form.numbers == "F32" else 1
        offsets = rng.standard_normal((N, groups)).astype(np.float16).astype(np.float32) * np.float32(wide)
        rows = GroupCodes(codes, scales, offsets)
        expected = np.repeat(scales.astype(np.float64), GROUP, axis=1) * codes + np.repeat(offsets, GROUP, axis=1)
    else:
        rows = GroupCodes(codes, scales, zero=8)
        expected = np.repeat(scales.astype(np.float64), GROUP, axis=1) * (codes.astype(int) - 8)
    linear = linear_of((N,), groups * GROUP)
    got, stored = native_rows(tensors_of(linear, rows, form), linear)
    assert stored.forms == (form,)
    np.testing.assert_array_equal(got, np.stack([expected, expected]))
    np.testing.assert_array_equal(reference.values_of_codes(rows), expected.astype(np.float32))


@pytest.mark.parametrize("columns", [48, 80, 112])
def test_groups_of_16_need_not_make_whole_ones_of_32(columns, rng):
    N, groups = 40, columns // 16
    codes, scales = rng.integers(0, 16, (N, columns), np.uint8), rng.integers(1, 99, (N, groups)).astype(np.float32)
    table = np.arange(-8, 8, dtype=np.int8)
    by_row = np.full((N, 1, 2), np.float32(0.25))
    for rows, form in (
        (GroupCodes(codes, scales, None, by_row, table=table), Form(4, "F16", 16, table=True)),
        (GroupCodes(codes, scales, -scales), Form(4, "F16", 16, offsets=True)),
        (GroupCodes(codes, np.ones_like(scales), -scales, np.stack([scales] * 2, axis=2)), Form(4, "I8", 16, 16, True)),
        (GroupCodes(codes, scales, zero=8), Form(4, "F16", 16)),
    ):
        linear = linear_of((N,), columns)
        got, stored = native_rows(tensors_of(linear, rows, form), linear)
        assert stored.forms == (form,)
        np.testing.assert_array_equal(got[:, :N, :columns].astype(np.float32), [reference.values_of_codes(rows)] * 2)


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e-3, 70000.0])
def test_scales_that_their_form_does_not_hold_are_refused(number):
    scales = np.full((16, 2), number, np.float32)
    linear = linear_of((16,), 64)
    tensors = tensors_of(linear, GroupCodes(np.zeros((16, 64), np.uint8), scales, zero=8), Form(4))
    with pytest.raises(ConversionError, match=r"0\.q\.weight"):
        list(chain.from_iterable(layers_of(tensors, linear, passthrough_linear(tensors, linear))))


def test_joined_forms_hold_what_each_does():
    assert joined([Form(4, "I8", 32, 256, True), Form(4, "F16", 64, 0, True)]) == Form(4, "F16", 32, 256, True)
    assert joined([Form(8, "I8", 16, 256), Form(8, "I8", 32, 256, True)]) == Form(8, "F16", 16, 256, True)
    assert joined([ROUNDED]) == ROUNDED
    assert joined([Form(4, "I8", 16, 256, table=True), Form(4, "I8", 32, 256, True)]) == Form(
        4, "I8", 16, 256, True, True
    )
    assert joined([Form(4), Form(4, "I8", 32, 256, True)]) == Form(4, "F16", 32, 256, True)
    powers = Form(4, "E8M0", table=True)
    assert (joined([powers, powers]), joined([powers, Form(4)])) == (powers, Form(4, "F32", table=True))
    assert Quantization("native", passthrough=(("lm_head", None),)).dtype_of("lm_head") == "native"


def test_a_native_model_computes_what_its_file_says(tmp_path):
    """Against the same file in float32: what differs are activations of eight bits."""
    stored = engines.open_sequence(engines.convert_variant("tinyllama", "native", tmp_path / "native"))
    plain = tinychat.convert(tmp_path / "native.gguf", tmp_path / "f32", quant="f32")
    ids = engines.draw_ids(stored, 40)
    expected = logits_of_all(engines.open_sequence(plain, kv="f32"), ids)
    error = logits_of_all(stored, ids) - expected
    assert error.std() < 0.04 * expected.std()
    manifest = json.loads((tmp_path / "native" / "tinychat.json").read_text())
    assert manifest["format"] == 4
    layers = 3
    # Rows of down_proj, 172 columns, make no blocks of 32.
    counts = {"Q8_0": 1 + layers, "Q5_0": 1, "Q4_1": 3 * layers, "Q4_0": 2 * layers}
    assert manifest["codes"] == {"kept": counts, "rounded": {"F32": layers}}


def test_a_folder_of_format_3_computes_the_same(tmp_path, monkeypatch):
    """There, codes of four bits had offsets whatever the description said, and tables were unknown."""

    def as_before(forms):
        form = joined(forms)
        return replace(form, offsets=form.offsets or form.bits == 4)

    monkeypatch.setattr(passthrough, "joined", as_before)
    file = gguf_files.write_variant(gguf_files.like("tinyllama"), tmp_path / "model.gguf", gguf_files.mixture)
    folder = tinychat.convert(file, tmp_path / "native", "native", check=False)
    ids = engines.draw_ids(engines.open_sequence(folder), 12)
    expected = logits_of_all(engines.open_sequence(folder), ids)
    description = json.loads((folder / "tinychat.json").read_text())
    description["format"] = 3
    forms = [form for linear in description["quantization"]["kept"].values() for form in linear["forms"]]
    for form in forms:
        assert form.pop("table") is False
        form["offsets"] = form["offsets"] and form["bits"] != 4
    assert {form["bits"] for form in forms} == {4, 8}
    (folder / "tinychat.json").write_text(json.dumps(description))
    np.testing.assert_array_equal(logits_of_all(engines.open_sequence(folder), ids), expected)


@pytest.mark.parametrize("form", [Form(8, "F16", GROUP, GROUP, offsets=True), Form(8, "F32", GROUP, offsets=True)])
def test_codes_of_eight_bits_that_count_from_zero_are_stored(form, rng):
    codes = rng.integers(0, 256, (32, 2 * GROUP), np.uint8)
    scales = (rng.integers(1, 2048, (32, 2)) / 2**16).astype(np.float32)
    zeros = rng.integers(0, 256, (32, 2)).astype(np.float32)
    rows = GroupCodes(codes, scales, -zeros * scales)
    if form.span:
        rows = GroupCodes(codes, np.ones_like(scales), -zeros, np.stack([scales, scales], axis=2))
    linear = linear_of((32,), 2 * GROUP)
    got, _ = native_rows(tensors_of(linear, rows, form), linear)
    expected = np.repeat(scales.astype(np.float64), GROUP, axis=1) * (codes - np.repeat(zeros, GROUP, axis=1))
    np.testing.assert_array_equal(got, np.stack([expected, expected]))


@pytest.mark.live
def test_native_experts_compute_what_their_file_says(tmp_path):
    """Here for its compilation: eleven seconds, for experts of types that no other test has."""

    def kind_of(name):
        by_part = {"gate_proj": "Q4_0", "up_proj": "Q8_0", "down_proj": "Q4_0" if ".1." in name else "Q8_0"}
        found = (kind for part, kind in by_part.items() if "experts" in name and part in name)
        return next(found, gguf_files.mixture(name))

    variant = gguf_files.like("qwen3-moe", moe_intermediate_size=64)
    file = gguf_files.write_variant(variant, tmp_path / "model.gguf", kind_of)
    stored = tinychat.convert(file, tmp_path / "native", "native", check=False)
    codes = json.loads((stored / "tinychat.json").read_text())["codes"]
    experts, layers = variant.config["num_experts"], 3
    assert (codes["kept"]["Q8_0"], codes["kept"]["Q4_0"]) == (1 + layers + 5 * experts, 2 * layers + 4 * experts)
    sequence = engines.open_sequence(stored)
    ids = engines.draw_ids(sequence, 40)
    plain = engines.open_sequence(tinychat.convert(file, tmp_path / "f32", quant="f32"), kv="f32")
    expected = logits_of_all(plain, ids)
    error = logits_of_all(sequence, ids) - expected
    assert error.std() < 0.01 * expected.std()
