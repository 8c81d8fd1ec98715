"""GGUF files: every type of tensor, every family, both kinds of tokenizer, and what is damaged."""

import json
import shutil
import struct
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import families
import gguf
import gguf_files
import numpy as np
import pytest
import reference
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat import api
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf import is_gguf
from tinychat.checkpoint.gguf_checkpoint import text_files, unpacked
from tinychat.checkpoint.gguf_file import GgufFile, open_gguf
from tinychat.conversion.convert import check_tensors, read_norm, read_table
from tinychat.conversion.source import Source
from tinychat.errors import CheckpointError, ConversionError, TextError, UnsupportedModelError
from tinychat.models.architectures import expected_shapes, linears, norms, tables
from tinychat.models.layout import Quantization
from tinychat.store.local import code_lines, list_models, summary_line
from tinychat.text.hard_texts import HARD_TEXTS
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template

LLAMA_TOKENIZER = Path(__file__).parents[3] / "shared" / "data" / "llama2-tokenizer.model"
F32 = Quantization("f32")
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
OTHERS = ("llama-all-biases", "phi3-longrope", "phi4-mini", "smollm3")
VARIANTS = gguf_files.BY_NAME | {name: gguf_files.like(name) for name in OTHERS}
# What a file cannot say, or says of another architecture that computes the same.
TOLD_APART = {
    "mistral": {"architecture"},
    "minicpm": {"architecture"},
    "internlm2": {"architecture"},
    "baichuan2-7b": {"architecture"},
    "glm4-moe-lite": {"architecture"},
    # Every fourth rotation is left out there, whatever the configuration says.
    "smollm3": {"rotary_dims"},
    # Neither is done there.
    "qwen": {"rope_scaling", "log_temperature_length"},
    "qwen3-next": {"architecture"},
    # Its own names for what these do not have.
    "falcon-7b": {"max_position_embeddings"},
    # The width of MLPs without experts, of which there are none.
    "cohere2-moe-sigmoid": {"intermediate_size"},
    "nemotron3": {"intermediate_size"},
    "nemotron-h-latents": {"intermediate_size"},
}


@pytest.fixture
def small(tmp_path):
    return gguf_files.write_variant(families.BY_NAME["smollm2"], tmp_path / "small.gguf")


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_every_type_are_read_row_by_row(kind, tmp_path, rng):
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    data = rng.integers(0, 256, (7, 3 * size), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "blocks.gguf", "llama")
    writer.add_tensor("weight", data, raw_dtype=number)
    gguf_files.write(writer)
    file = GgufFile(tmp_path / "blocks.gguf")
    assert file.tensors["weight"].shape == (7, 3 * block)
    # Any bits are a scale, also those of NaN.
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, number)
        np.testing.assert_array_equal(file.tensors["weight"].read(2, 6), expected[2:6])
        assert file.tensors["weight"].read(0, 7).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plain_numbers_are_mapped(dtype, tmp_path, rng):
    values = rng.standard_normal((5, 9)).astype(dtype)
    writer = gguf.GGUFWriter(tmp_path / "plain.gguf", "llama")
    writer.add_tensor("weight", values)
    writer.add_tensor("vector", values[0])
    gguf_files.write(writer)
    file = GgufFile(tmp_path / "plain.gguf")
    np.testing.assert_array_equal(file.tensors["weight"].read(1, 4), values[1:4])
    np.testing.assert_array_equal(file.tensors["vector"].read(0, 9), values[0])
    assert file.tensors["weight"].read(0, 5).dtype == dtype


def test_a_name_may_lack_its_ending(tmp_path, monkeypatch):
    names = gguf_files.gguf_names

    def without_ending(*arguments):
        return {
            key: name and name.replace("output_norm.weight", "output_norm") for key, name in names(*arguments).items()
        }

    monkeypatch.setattr(gguf_files, "gguf_names", without_ending)
    with unpacked(gguf_files.write_variant(families.BY_NAME["smollm2"], tmp_path / "model.gguf")) as folder:
        check_tensors(open_checkpoint(folder))


def same(found, expected):
    """Say whether values of a configuration are the same, float32 in the file."""
    if isinstance(expected, float) or (isinstance(expected, tuple) and expected and isinstance(expected[0], float)):
        return found == expected or found == pytest.approx(expected, rel=1e-6)
    if is_dataclass(expected) and is_dataclass(found):
        return all(same(getattr(found, field.name), getattr(expected, field.name)) for field in fields(expected))
    return found == expected


@pytest.mark.parametrize(
    ("name", "architecture"), [("qwen2-tied", "qwen2vl"), ("qwen3", "qwen3vl"), ("qwen3-moe", "qwen3vlmoe")]
)
def test_the_text_model_of_one_that_looks_at_images_is_that_of_its_family(name, architecture, tmp_path, monkeypatch):
    expected = gguf_files.write_variant(VARIANTS[name], tmp_path / "plain.gguf")
    monkeypatch.setitem(gguf_files.ARCHITECTURES, VARIANTS[name].config["model_type"], architecture)
    file = gguf_files.write_variant(VARIANTS[name], tmp_path / "model.gguf")
    with unpacked(file) as found, unpacked(expected) as plain:
        assert open_checkpoint(found).config == open_checkpoint(plain).config
        check_tensors(open_checkpoint(found))


def differing(found, expected):
    """Return the names of the values in which configurations differ."""
    names = [field.name for field in fields(found)]
    return {name for name in names if not same(getattr(found, name), getattr(expected, name))}


def check_same_tensors(found, expected):
    """Compare the tensors of a file with those of the checkpoint that it was made from."""
    check_tensors(found)
    ours, theirs = Source(found), Source(expected)
    for linear in linears(expected.config):
        for shard in range(linear.shards):
            rows = theirs.weight(linear.name, shard)
            np.testing.assert_array_equal(ours.weight(linear.name, shard), rows, err_msg=linear.name)
            bias = theirs.bias(linear.name, shard)
            np.testing.assert_array_equal(ours.bias(linear.name, shard), bias, err_msg=linear.name)
    for norm, their_norm in zip(norms(found.config), norms(expected.config), strict=True):
        pairs = zip(
            read_norm(found.tensors, norm, F32).items(),
            read_norm(expected.tensors, their_norm, F32).items(),
            strict=True,
        )
        for (part, values), (their_part, their_values) in pairs:
            assert part == their_part
            # Decays pass an exponential and a logarithm.
            tolerance = 1e-6 if part in ("delta_A_log", "mamba_A_log", "mamba_decays") else 0
            np.testing.assert_allclose(values, their_values, rtol=tolerance, atol=0, err_msg=part)
    for table in tables(expected.config):
        np.testing.assert_array_equal(read_table(found, table, F32), read_table(expected, table, F32))
    for tensor, shape in expected_shapes(found.config):
        if shape[0] == 1:
            continue
        np.testing.assert_array_equal(
            found.tensors.read(tensor, 1, shape[0] - 1), found.tensors.read(tensor)[1:-1], err_msg=tensor
        )


# Not that whose multipliers are in the file's weights: its logits are compared with llama.cpp's.
@pytest.mark.parametrize("name", sorted({*VARIANTS} - {"falcon-h1"}))
def test_a_file_is_the_checkpoint_that_it_was_made_from(name, tmp_path):
    variant = VARIANTS[name]
    expected = open_checkpoint(families.write_checkpoint(variant, tmp_path / "checkpoint"))
    with unpacked(gguf_files.write_variant(variant, tmp_path / "model.gguf")) as folder:
        found = open_checkpoint(folder)
        assert differing(found.config, expected.config) <= TOLD_APART.get(name, set())
        check_same_tensors(found, expected)


def f32_model(source, folder):
    made = tinychat.convert(source, folder / f"{source.stem}-f32", quant="f32")
    return tinychat.load(made, context=families.CONTEXT_SIZE)


def test_older_files_have_the_matrices_of_heads_in_one_tensor(tmp_path, monkeypatch):
    variant = gguf_files.BY_NAME["deepseek-v2"]
    expected = Source(open_checkpoint(families.write_checkpoint(variant, tmp_path / "checkpoint")))
    stacked = gguf_files.stacked
    monkeypatch.setattr(gguf_files, "stacked", lambda weights: stacked(families.with_heads_in_one(weights)))
    file = gguf_files.write_variant(variant, tmp_path / "model.gguf")
    assert "blk.0.attn_kv_b.weight" in GgufFile(file).tensors
    with unpacked(file) as folder:
        found = Source(open_checkpoint(folder))
        for name in ("k_b_proj", "v_b_proj"):
            np.testing.assert_array_equal(found.weight(name, 5), expected.weight(name, 5))


@pytest.mark.parametrize("name", ["llama2-gqa", "phi4-mini"])
def test_a_converted_file_predicts_what_its_checkpoint_does(name, tmp_path):
    variant = families.BY_NAME[name]
    file = gguf_files.write_variant(variant, tmp_path / "model.gguf")
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    models = [f32_model(source, tmp_path) for source in (file, checkpoint)]
    ids = families.make_ids(variant)
    found, expected = (model.logits(ids) for model in models)
    # Numbers such as the norm's epsilon are float32 in the file.
    assert np.abs(found - expected).max() < 1e-4 * expected.std()
    assert models[0].encode("a b") == models[1].encode("a b")


def repacked(folder):
    """Put experts into a checkpoint of gpt-oss as a file has them in MXFP4, but by the checkpoint's layout of codes."""
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        rows = weights.pop(name).astype(np.float32).swapaxes(1, 2)
        blocks = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.MXFP4).reshape(*rows.shape[:2], -1, 17)
        # A block's byte has the codes of columns 16 apart there, of neighbours here.
        codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        weights[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        weights[f"{name}_scales"] = np.ascontiguousarray(blocks[..., 0])
    save_file(weights, folder / "model.safetensors")
    return folder


def test_experts_in_mxfp4_give_the_logits_of_the_checkpoint(tmp_path):
    variant = gguf_files.like("gpt-oss", intermediate_size=64, swiglu_limit="none")
    variant = replace(variant, dtype="float32", files="safetensors")
    checkpoint = repacked(families.write_checkpoint(variant, tmp_path / "checkpoint"))
    file = gguf_files.write_variant(
        variant, tmp_path / "model.gguf", lambda name: "MXFP4" if "experts" in name and "weight" in name else "F32"
    )
    stored = open_gguf(file)[0].tensors
    assert {stored[f"blk.1.ffn_{part}_exps.weight"].kind for part in ("gate", "up", "down")} == {"MXFP4"}
    found, expected = (f32_model(source, tmp_path).logits(families.make_ids(variant)) for source in (file, checkpoint))
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


def test_scales_of_whole_tensors_multiply_them(tmp_path):
    """NVFP4 has them in tensors of their own: one for a matrix, or one for each expert."""
    variant = gguf_files.like("qwen3-moe", hidden_size=128, moe_intermediate_size=64)
    scales = {
        "blk.1.ffn_up_exps.scale": np.linspace(0.1, 3, variant.config["num_experts"], dtype=np.float32),
        "blk.0.attn_q.scale": np.array([1 / 3], np.float32),
    }
    kinds = {"experts": "NVFP4", "q_proj": "NVFP4"}

    def kind_of(name):
        return next((kind for part, kind in kinds.items() if part in name), "F32")

    def tensors_of(name, **scales):
        with unpacked(gguf_files.write_variant(variant, tmp_path / name, kind_of, **scales)) as folder:
            yield open_checkpoint(folder).tensors

    for plain, scaled in zip(tensors_of("plain.gguf"), tensors_of("scaled.gguf", **scales), strict=True):
        for name, factor in (
            ("model.layers.1.mlp.experts.3.up_proj.weight", scales["blk.1.ffn_up_exps.scale"][3]),
            ("model.layers.0.self_attn.q_proj.weight", np.float32(1 / 3)),
            ("model.layers.1.self_attn.q_proj.weight", np.float32(1)),
        ):
            assert scaled[name].kind == "NVFP4"
            np.testing.assert_allclose(scaled.read(name, 5, 40), plain.read(name, 5, 40) * factor, rtol=2.0**-18)
            np.testing.assert_array_equal(
                reference.values_of_codes(scaled[name].read_codes(5, 40)), scaled.read(name, 5, 40)
            )
    damaged = {"blk.0.attn_q.scale": np.ones(3, np.float32)}
    for tensors in tensors_of("damaged.gguf", **damaged):
        with pytest.raises(CheckpointError, match=r"attn_q\.scale has shape"):
            tensors.read("model.layers.0.self_attn.q_proj.weight")


def test_halves_of_one_type_keep_their_codes(tmp_path):
    kinds = {"gate_proj": "Q4_0", "up_proj": "Q4_0", "down_proj": "Q8_0"}

    def codes_and_values(layer_1):
        def kind_of(name):
            by_part = kinds | (layer_1 if ".1." in name else {})
            return next((kind for part, kind in by_part.items() if f"experts.{part}.weight" in name), "F32")

        variant = gguf_files.like("gpt-oss", intermediate_size=64)
        with unpacked(gguf_files.write_variant(variant, tmp_path / "model.gguf", kind_of)) as folder:
            tensors = open_checkpoint(folder).tensors
            for layer in (0, 1):
                name = f"model.layers.{layer}.mlp.experts.4.gate_up_proj.weight"
                has_form = tensors[name].form is not None
                codes = reference.values_of_codes(tensors[name].read_codes(60, 70)) if has_form else None
                yield tensors[name].kind, codes, tensors.read(name)[60:70]

    for kind, codes, values in codes_and_values({}):
        assert kind == "Q4_0"
        np.testing.assert_array_equal(codes, values)
    # Codes of two types are of no one form: they are rounded.
    _, (kind, codes, _) = codes_and_values({"up_proj": "Q5_0"})
    assert (kind, codes) == ("Q4_0 and Q5_0", None)


def test_a_file_is_converted_once_where_a_model_is_named(small):
    folder = api.locate(str(small))
    assert folder.name.startswith("small-")
    assert json.loads((folder / "tinychat.json").read_text())["quantization"]["method"] == "int8"
    assert api.locate(str(small)) == folder
    assert api.locate(str(small.parent)) == api.locate(str(small.parent))


def stored_method(folder):
    return json.loads((folder / "tinychat.json").read_text())["quantization"]["method"]


def test_a_file_of_codes_is_native_unless_another_way_is_asked_for(tmp_path):
    file = gguf_files.write_variant(families.BY_NAME["tinyllama"], tmp_path / "codes.gguf", gguf_files.mixture)
    named = api.locate(str(file))
    assert stored_method(named) == "kept"
    assert summary_line(named).startswith("Q4_1, ")
    assert [model.quantization for model in list_models()] == ["Q4_1"]
    native, rounded = code_lines(named)
    assert native.startswith("native: ")
    assert "Q4_1" in native
    assert rounded == "rounded to 8 bits: 3 tensors of F32"
    assert stored_method(tinychat.convert(file, tmp_path / "native", check=False)) == "kept"
    assert stored_method(tinychat.convert(file, tmp_path / "alias", "kept", check=False)) == "kept"
    assert stored_method(tinychat.convert(file, tmp_path / "int8", "int8", method="plain", check=False)) == "int8"
    assert stored_method(tinychat.convert(file, tmp_path / "asked", method="plain", check=False)) == "int4"


def test_a_checkpoint_without_codes_cannot_be_native(small, tmp_path):
    with pytest.raises(ConversionError, match=rf"^{small.stem} has no codes for native: choose int4, int8"):
        tinychat.convert(small, tmp_path / "native", "native", check=False)
    assert not (tmp_path / "native").exists()


# Apertus has such a scaling where a file names none.
@pytest.mark.parametrize("name", ["llama2-gqa", "apertus"])
def test_llama_3_factors_are_those_of_its_tensor(name, tmp_path):
    factors = np.linspace(1, 8, 12, dtype=np.float32)
    file = gguf_files.write_variant(families.BY_NAME[name], tmp_path / "model.gguf", rope_freqs=factors)
    with unpacked(file) as folder:
        scaling = open_checkpoint(folder).config.rope_scaling
    assert scaling.short_factor == scaling.long_factor == tuple(factors.astype(float))
    assert scaling.attention_factor == 1


def copy_metadata(file, writer):
    """Write what a file says of its model, but not the architecture."""
    for key, value in file.metadata.items():
        if key != "general.architecture":
            value = value.tolist() if isinstance(value, np.ndarray) else value
            kind = gguf.GGUFValueType.ARRAY if isinstance(value, list) else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind)


def split(path, parts):
    """Cut a file into parts as llama.cpp names them; the first has the metadata."""
    whole = GgufFile(path)
    names = sorted(whole.tensors)
    for part in range(parts):
        writer = gguf.GGUFWriter(path.with_name(f"cut-{part + 1:05d}-of-{parts:05d}.gguf"), "llama")
        if part == 0:
            copy_metadata(whole, writer)
        writer.add_uint16("split.count", parts)
        for name in names[part::parts]:
            writer.add_tensor(name, np.array(whole.tensors[name].read(0, whole.tensors[name].shape[0])))
        gguf_files.write(writer)
    return path.with_name(f"cut-00001-of-{parts:05d}.gguf")


def test_split_files_are_one_model(tmp_path):
    first = split(gguf_files.write_variant(families.BY_NAME["smollm2"], tmp_path / "one.gguf"), 3)
    weights = families.make_weights(families.BY_NAME["smollm2"])
    assert len(open_gguf(first)) == 3
    with unpacked(first) as folder:
        checkpoint = open_checkpoint(folder)
        for tensor, _ in expected_shapes(checkpoint.config):
            np.testing.assert_array_equal(checkpoint.tensors.read(tensor), weights[tensor].astype(np.float32))
    first.with_name("cut-00002-of-00003.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"cut-00002-of-00003\.gguf is missing"):
        open_gguf(first)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_queries_keys_and_values_may_stand_in_one_tensor(kind, tmp_path):
    """As in older files of Phi-2."""
    apart = GgufFile(gguf_files.write_variant(gguf_files.BY_NAME["phi"], tmp_path / "apart.gguf", lambda name: kind))
    writer = gguf.GGUFWriter(tmp_path / "fused.gguf", "phi2")
    copy_metadata(apart, writer)

    def add(name, theirs):
        tensors = [apart.tensors[each] for each in theirs]
        number = gguf.GGMLQuantizationType[tensors[0].kind]
        is_plain = number == gguf.GGMLQuantizationType.F32
        rows = np.concatenate([(each.read if is_plain else each.blocks)(0, each.shape[0]) for each in tensors])
        writer.add_tensor(name, rows, raw_dtype=number)

    for name in apart.tensors:
        if "attn_q." in name:
            add(name.replace("attn_q.", "attn_qkv."), [name.replace("_q.", f"_{part}.") for part in "qkv"])
        elif not any(f"attn_{part}." in name for part in "kv"):
            add(name, [name])
    gguf_files.write(writer)
    with unpacked(tmp_path / "fused.gguf") as fused, unpacked(apart.path) as other:
        found, expected = open_checkpoint(fused), open_checkpoint(other)
        assert found.config == expected.config
        for tensor, shape in expected_shapes(expected.config):
            np.testing.assert_array_equal(found.tensors.read(tensor), expected.tensors.read(tensor), err_msg=tensor)
            assert found.tensors[tensor].form == expected.tensors[tensor].form
            if found.tensors[tensor].form is not None:
                codes, others = (each.tensors[tensor].read_codes(1, shape[0] - 1) for each in (found, expected))
                assert all(np.array_equal(a, b) for a, b in zip(codes, others, strict=True))


def test_a_sentencepiece_vocabulary_gives_the_ids_of_its_own_file(tmp_path):
    if not LLAMA_TOKENIZER.exists():
        pytest.skip(f"{LLAMA_TOKENIZER} is not there")
    file = gguf_files.write_sentencepiece(tmp_path / "llama.gguf", LLAMA_TOKENIZER)
    shutil.copy(LLAMA_TOKENIZER, tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false, "tokenizer_class": "LlamaTokenizer"}')
    expected = load_tokenizer(tmp_path)
    with unpacked(file) as folder:
        found = load_tokenizer(folder)
    assert [found.encode(text) for text in HARD_TEXTS] == [expected.encode(text) for text in HARD_TEXTS]
    assert (found.bos_id, found.eos_id, found.special_ids) == (1, 2, expected.special_ids)


PATTERNS = {
    "default": ["don", "'", "t", "␣", "123", "45", "␣x", "\n\n"],
    "gpt-2": ["don", "'t", "␣12345", "␣x", "\n\n"],
    "smollm": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "llama-bpe": ["don", "'t", "␣", "123", "45", "␣x", "\n\n"],
    "lfm2": ["don", "'t", "␣", "123", "45", "␣x", "\n\n"],
    "qwen2": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "qwen35": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "bailingmoe2": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "seed-coder": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "jais-2": ["don", "'t", "␣", "123", "45", "␣x", "\n\n"],
    "tiny_aya": ["don't", "␣", "12", "3", "45", "␣x", "\n\n"],
    "afmoe": ["don", "'t", "␣", "12", "3", "45", "␣x", "\n\n"],
    "youtu": ["don't", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "deepseek-coder": ["don", "'", "t", "␣", "1", "2", "3", "4", "5", "␣x", "\n", "\n"],
    "laguna": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
    "deepseek-llm": ["don", "'", "t", "␣", "123", "45", "␣x", "\n", "\n"],
    "deepseek-v3": ["don", "'t", "␣", "123", "45", "␣x", "\n\n"],
    "gpt-4o": ["don't", "␣", "123", "45", "␣x", "\n\n"],
    "kimi-k2": ["don't", "␣", "123", "45", "␣x", "\n\n"],
    "tekken": ["don", "'t", "␣", "1", "2", "3", "4", "5", "␣x", "\n\n"],
}


@pytest.mark.parametrize(("pre", "expected"), [("qwen2", [";ĊĊ"]), ("laguna", [";", "ĊĊ"])])
def test_laguna_cuts_at_line_feeds_first(pre, expected, tmp_path):
    with unpacked(gguf_files.write_byte_pairs(tmp_path / "bpe.gguf", pre)) as folder:
        tokenizer = load_tokenizer(folder)
    assert [tokenizer.piece(i) for i in tokenizer.encode(";\n\n", add_bos=False)] == expected


@pytest.mark.parametrize("pre", PATTERNS)
def test_text_is_cut_as_the_named_pre_tokenizer_does(pre, tmp_path):
    """Every run of letters, digits or signs can be merged into one token: what is left apart was cut."""
    file = gguf_files.write_byte_pairs(tmp_path / "bpe.gguf", pre)
    with unpacked(file) as folder:
        tokenizer = load_tokenizer(folder)
        found = [tokenizer.piece(i) for i in tokenizer.encode("don't 12345 x\n\n", add_bos=False)]
    readable = [piece.replace("Ġ", "␣").replace("Ċ", "\n") for piece in found]
    assert readable == PATTERNS[pre]
    assert tokenizer.adds_bos == (pre in ("llama-bpe", "lfm2", "tekken"))


def test_template_and_ends_of_a_turn_are_kept(tmp_path):
    letters = gguf_files.byte_level_tokens(259)[0][3:]
    file = gguf_files.write_vocabulary(
        tmp_path / "chat.gguf",
        "gpt2",
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<end>", *letters, "ab"],
        [3, 3, 3, 3] + [1] * (len(letters) + 1),
        merges=["a b"],
        eos_token_id=3,
        eot_token_id=1,
        chat_template="{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    )
    with unpacked(file) as folder:
        generation = json.loads((folder / "generation_config.json").read_text())
        tokenizer = load_tokenizer(folder)
        ids = load_template(folder, tokenizer).render_ids([{"role": "user", "content": "ab<end>"}], False)
    assert generation["eos_token_id"] == [3, 1, 2]
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert [tokenizer.piece(i) for i in ids] == ["<|im_start|>", "ab", *"<end>", "<|im_end|>"]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["<|end|>", "<|call|>"], ["<|end|>", "<|call|>"]),
        # gpt-oss thinks in a message before the one that it answers with.
        (["<|end|>", "<|call|>", "<|return|>"], ["<|call|>", "<|return|>"]),
        (["<|end|>", "<|calls|>", "<|flush|>"], ["<|calls|>", "<|flush|>"]),
    ],
)
def test_the_end_of_a_message_ends_no_turn_of_several(ends, expected, tmp_path):
    letters = gguf_files.byte_level_tokens(259)[0][3:]
    kinds = [3] * len(ends) + [1] * len(letters)
    file = gguf_files.write_vocabulary(tmp_path / "ends.gguf", "gpt2", [*ends, *letters], kinds)
    with unpacked(file) as folder:
        found = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert [ends[i] for i in found] == expected


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.1, 0.5, 0.999])
def test_a_file_that_ends_early_is_refused(share, small, tmp_path):
    whole = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"cut\.gguf (ends within|counts more|cannot be read)"):
        open_gguf(cut)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, b"GGML", "does not begin with GGUF"),
        (4, struct.pack("<I", 1), "version 1"),
        (8, struct.pack("<Q", 1 << 60), "counts more than it holds"),
        (16, struct.pack("<Q", 1 << 60), "counts more than it holds"),
        (24, struct.pack("<Q", 1 << 62), "counts more than it holds"),
    ],
)
def test_damaged_headers_are_refused_at_once(position, value, reason, small):
    data = bytearray(small.read_bytes())
    data[position : position + len(value)] = value
    small.write_bytes(data)
    with pytest.raises(CheckpointError, match=reason):
        open_gguf(small)


def test_every_changed_byte_of_a_header_is_refused_or_read(small, rng):
    data = small.read_bytes()
    header = 6000
    for position in rng.integers(24, header, 150):
        changed = bytearray(data)
        changed[position] ^= int(rng.integers(1, 256))
        small.write_bytes(changed)
        try:
            with unpacked(small) as folder:
                open_checkpoint(folder)
                load_tokenizer(folder)
        except (CheckpointError, UnsupportedModelError, TextError) as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("general.architecture", "mamba", "architecture 'mamba' is not supported"),
        ("tokenizer.ggml.model", "rwkv", "model is 'rwkv', which is not supported"),
        ("tokenizer.ggml.pre", "nobody-knows", "pre is 'nobody-knows', which is not supported"),
    ],
)
def test_what_is_not_supported_is_named(key, value, reason, small):
    file = open_gguf(small)[0]
    file.metadata[key] = value
    with pytest.raises(UnsupportedModelError, match=reason) as raised:
        text_files([file])
    assert len(str(raised.value)) < 200


def test_experts_are_refused_where_they_are_not_known(small):
    file = open_gguf(small)[0]
    file.metadata |= {"general.architecture": "phi3", "phi3.expert_count": 8}
    with pytest.raises(UnsupportedModelError, match="a mixture of experts of phi3 is not supported"):
        text_files([file])


def test_a_folder_with_several_models_asks_for_one(small):
    shutil.copy(small, small.with_name("other.gguf"))
    assert is_gguf(small.parent)
    with pytest.raises(CheckpointError, match=r"several GGUF files \(other\.gguf, small\.gguf\)"):
        api.locate(str(small.parent))


def test_a_file_that_somebody_has_is_not_read_again(tmp_path):
    path = gguf_files.write_variant(gguf_files.BY_NAME["llama2-gqa"], tmp_path / "model.gguf")
    (first,) = open_gguf(path)
    (tmp_path / "other.gguf").symlink_to(path)
    assert open_gguf(tmp_path / "other.gguf")[0] is first
    path.write_bytes(path.read_bytes() + b"\0")
    assert open_gguf(path)[0] is not first
