"""Tensors in another order, scaled and shifted as a family says, in whole and in parts."""

import dataclasses

import numpy as np
import pytest
import reference
from memory_tensors import MemoryTensor, coded_tensor, memory_tensors

from tinychat.checkpoint.adjusted import AdjustedTensor, adjusted
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.stacked import StackedTensor
from tinychat.checkpoint.tensor_part import JoinedTensor, ProductTensor, part_of
from tinychat.errors import CheckpointError
from tinychat.models import architectures
from tinychat.models.architectures import parse_config
from tinychat.models.passthrough import Form
from tinychat.models.shapes import config_of
from tinychat.models.tensors import Part, product, times_rows


def test_rows_are_reordered_then_shifted_then_scaled(rng):
    rows = rng.standard_normal((6, 5)).astype(np.float16)
    order = np.array([5, 0, 3, 1, 4, 2])
    tensor = AdjustedTensor(MemoryTensor(rows), order=order, offset=1.0, scale=0.25)
    expected = np.float32(0.25) * (1 + rows[order].astype(np.float32))
    np.testing.assert_array_equal(tensor.read(0, 6), expected)
    np.testing.assert_array_equal(tensor.read(2, 5), expected[2:5])
    assert tensor.read(0, 6).dtype == np.float32
    plain = AdjustedTensor(MemoryTensor(rows), order=order)
    assert plain.read(1, 4).dtype == np.float16
    np.testing.assert_array_equal(plain.read(1, 4), rows[order][1:4])


@pytest.mark.parametrize("factors", [False, True])
def test_codes_pass_times_a_power_of_two(factors, rng):
    codes, scales = rng.integers(0, 16, (6, 64), np.uint8), rng.standard_normal((6, 2)).astype(np.float16)
    spans = rng.standard_normal((6, 1, 2)).astype(np.float16).astype(np.float32) if factors else None
    offsets = rng.standard_normal((6, 2)).astype(np.float16).astype(np.float32)
    rows = GroupCodes(codes, scales.astype(np.float32), offsets, spans)
    stored, order = coded_tensor(rows, Form(4, offsets=True)), np.array([5, 0, 3, 1, 4, 2])
    for turned in (None, order):
        tensor = AdjustedTensor(stored, order=turned, scale=0.5)
        assert tensor.form == Form(4, offsets=True)
        found = tensor.read_codes(1, 4)
        np.testing.assert_array_equal(found.codes, (codes if turned is None else codes[order])[1:4])
        np.testing.assert_array_equal(reference.values_of_codes(found), tensor.read(1, 4))
    for changes in ({"scale": 0.3}, {"offset": 1.0}, {"scale": 0.5, "cut": 2}):
        assert AdjustedTensor(stored, **changes).form is None


@pytest.mark.parametrize(("start", "stop"), [(0, 12), (1, 2), (2, 7), (3, 6), (11, 12), (4, 4)])
def test_rows_are_cut_and_scaled(start, stop, rng):
    rows = rng.standard_normal((4, 15)).astype(np.float32)
    tensor = AdjustedTensor(MemoryTensor(rows), cut=3, scale=2.0)
    assert tensor.shape == (12, 5) and tensor.form is None
    np.testing.assert_array_equal(tensor.read(start, stop), 2 * rows.reshape(12, 5)[start:stop])


def test_a_tensor_of_another_shape_is_left_for_the_check_of_shapes():
    tensor = AdjustedTensor(MemoryTensor(np.zeros((4, 2), np.float32)), order=np.arange(6))
    assert tensor.shape == (4, 2)
    assert tensor.read(0, 4).shape == (4, 2)


@pytest.fixture
def config(monkeypatch):
    """A Llama whose attention output counts half, whose queries stand the other way round, and whose norms add 1."""
    config = parse_config(config_of("tiny"), "tiny")
    family = architectures.family_of("LlamaForCausalLM")

    def linears(config, names):
        turned = np.arange(128)[::-1]
        changes = {"o_proj": {"scale": 0.5}, "qkv_proj": {"order": (turned, None, None)}}
        return [dataclasses.replace(linear, **changes.get(linear.name, {})) for linear in family.linears(config, names)]

    def norms(config, names):
        return [dataclasses.replace(norm, offset=1.0) for norm in family.norms(config, names)]

    changed = dataclasses.replace(family, linears=linears, norms=norms)
    monkeypatch.setattr(architectures, "find_family", lambda architecture: changed)
    return config


def test_each_tensor_as_its_family_says(config, rng):
    shapes = {"q_proj": (128, 128), "k_proj": (64, 128), "o_proj": (128, 128)}
    arrays = {
        f"model.layers.1.self_attn.{name}.weight": rng.standard_normal(s, np.float32) for name, s in shapes.items()
    } | {"model.norm.weight": np.ones(128, np.float32)}
    tensors = adjusted(memory_tensors(arrays), config)
    q, k, o = (f"model.layers.1.self_attn.{name}.weight" for name in shapes)
    np.testing.assert_array_equal(tensors.read(q), arrays[q][::-1])
    np.testing.assert_array_equal(tensors.read(k), arrays[k])
    np.testing.assert_array_equal(tensors.read(o, 3, 9), arrays[o][3:9] / 2)
    np.testing.assert_array_equal(tensors.read("model.norm.weight"), np.full(128, 2, np.float32))


def test_transposed_weights_and_other_names(monkeypatch, rng):
    config = parse_config(config_of("tiny"), "tiny")
    family = architectures.family_of("LlamaForCausalLM")

    def linears(config, names):
        return [
            dataclasses.replace(linear, transposed=True) if linear.name == "o_proj" else linear
            for linear in family.linears(config, names)
        ]

    changed = dataclasses.replace(family, linears=linears, norms=lambda config, names: [])
    monkeypatch.setattr(architectures, "find_family", lambda architecture: changed)
    values = rng.standard_normal((128, 96), np.float32)
    stored = {
        "layers.0.self_attn.o_proj.weight": values,
        "language_model.model.layers.0.self_attn.q_proj.weight": values[:64],
        "model.language_model.layers.1.self_attn.q_proj.weight": values[:32],
        "embed_out.weight": values,
    }
    tensors = adjusted(memory_tensors(stored), config)
    name = "model.layers.0.self_attn.o_proj.weight"
    assert tensors[name].shape == (96, 128)
    np.testing.assert_array_equal(tensors.read(name), values.T)
    np.testing.assert_array_equal(tensors.read(name, 5, 9), values.T[5:9])
    np.testing.assert_array_equal(tensors.read("model.layers.0.self_attn.q_proj.weight"), values[:64])
    np.testing.assert_array_equal(tensors.read("model.layers.1.self_attn.q_proj.weight", 3, 5), values[3:5])
    np.testing.assert_array_equal(tensors.read("lm_head.weight"), values)


def test_rows_times_vectors(monkeypatch, rng):
    config = parse_config(config_of("tiny"), "tiny")
    family = architectures.family_of("LlamaForCausalLM")
    name = times_rows("model.a", "model.u", "model.v")

    def linears(config, _):
        (linear, *_) = family.linears(config, family.tensors)
        return [dataclasses.replace(linear, sources=(name,), bias=True, scale=0.5)]

    changed = dataclasses.replace(family, linears=linears, norms=lambda config, names: [])
    monkeypatch.setattr(architectures, "find_family", lambda architecture: changed)
    matrix, bias, u, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((9, 5), 9, 9, 9))
    stored = {"model.a.weight": matrix, "a.bias": bias, "model.u": u, "v.weight": v}
    tensors = adjusted(memory_tensors(stored), config)
    factors = u.astype(np.float32) * v.astype(np.float32) / 2
    for part, expected in (("weight", matrix * factors[:, None]), ("bias", bias * factors)):
        np.testing.assert_allclose(tensors.read(f"{name}.{part}"), expected, rtol=1e-6)
        np.testing.assert_allclose(tensors.read(f"{name}.{part}", 3, 5), expected[3:5], rtol=1e-6)
    assert tensors[f"{name}.weight"].form is None
    wrong = adjusted(memory_tensors(stored | {"model.u": u[:8]}), config)
    with pytest.raises(CheckpointError, match=r"the parts of model\.a\*model\.u\.weight do not fit"):
        wrong.read(f"{name}.weight")


def test_products_of_two_matrices(monkeypatch, rng):
    config = parse_config(config_of("tiny"), "tiny")
    family = architectures.family_of("LlamaForCausalLM")
    names = ("embed", product("model.embed", "model.into.T"), product("model.embed", "model.out"), "model.embed@absent")

    def linears(config, _):
        (linear, *_) = family.linears(config, family.tensors)
        return [dataclasses.replace(linear, sources=(name,)) for name in names]

    changed = dataclasses.replace(family, linears=linears, norms=lambda config, names: [])
    monkeypatch.setattr(architectures, "find_family", lambda architecture: changed)
    embed, into, out = (rng.standard_normal(shape).astype(np.float16) for shape in ((9, 5), (7, 5), (5, 7)))
    # Of a checkpoint whose names are those inside the model.
    stored = {"embed.weight": embed, "into.weight": into, "model.out.weight": out}
    tensors = adjusted(memory_tensors(stored), config)
    assert f"{names[3]}.weight" not in tensors.by_name
    np.testing.assert_array_equal(tensors.read("embed.weight"), embed)
    for name, factor in zip(names[1:], (into.T, out)):
        expected = (embed.astype(np.float64) @ factor.astype(np.float64)).astype(np.float32)
        assert tensors[f"{name}.weight"].shape == (9, 7) and tensors[f"{name}.weight"].form is None
        np.testing.assert_array_equal(tensors.read(f"{name}.weight"), expected)
        np.testing.assert_array_equal(tensors.read(f"{name}.weight", 3, 4), expected[3:4])
    wrong = adjusted(memory_tensors(stored | {"model.out.weight": into}), config)
    with pytest.raises(CheckpointError, match=r"the parts of model\.embed@model\.out\.weight do not fit"):
        _ = wrong[f"{names[2]}.weight"].shape


def test_what_is_computed_arrives_with_the_last_of_its_sources():
    early, late = (MemoryTensor(np.zeros((4, 4), np.float32)) for _ in range(2))
    late.arrival = 3
    part = part_of(late, "late[0:2/4]", Part(0, 0, 2, 4))
    columns = part_of(late, "late[,0:2/4]", Part(1, 0, 2, 4))
    of_both = JoinedTensor("joined", [early, late]), ProductTensor("product", early, late)
    for found in (AdjustedTensor(late), part, columns, *of_both, StackedTensor(late, "experts", 1)):
        assert found.arrival == 3
