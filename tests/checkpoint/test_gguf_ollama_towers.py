"""Files by Ollama's own converter with a vision tower in them: the model of llama.cpp's two files."""

import json
import shutil

import gguf
import gguf_files
import numpy as np
import pytest
import towers
from test_gguf_mmproj import EXPERTS, FIRST, FOURTHS, MEANS, QWEN3, ROTATED, STACKED, files_of, write_files

import tinychat
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.checkpoint.gguf_mmproj import TOWER_LINK
from tinychat.checkpoint.gguf_ollama import in_llama_cpp_form
from tinychat.errors import CheckpointError
from tinychat.models.vision import read_vision, sees
from tinychat.store.local import code_lines
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template

# Parts of names by llama.cpp's, first the longer ones.
GEMMA3 = {
    "v.patch_embd": "v.patch_embedding",
    "v.position_embd": "v.position_embedding",
    "v.post_ln": "v.post_layernorm",
    ".ln1": ".layer_norm1",
    ".ln2": ".layer_norm2",
    ".attn_out": ".attn_output",
    ".ffn_up": ".mlp.fc1",
    ".ffn_down": ".mlp.fc2",
    "mm.": "mm.mm_",
}
QWEN = {
    ".fc1": ".linear_fc1",
    ".fc2": ".linear_fc2",
    "v.patch_embd": "v.patch_embed",
    "v.position_embd": "v.pos_embed",
    "v.post_ln": "v.merger.norm",
    ".ln1": ".norm1",
    ".ln2": ".norm2",
    ".ffn_up": ".mlp.linear_fc1",
    ".ffn_down": ".mlp.linear_fc2",
    "mm.0": "v.merger.linear_fc1",
    "mm.2": "v.merger.linear_fc2",
}
LEFT_OUT = ("rope.dimension_sections", "n_deepstack_layers")


def ollama_tensors(seeing, tower):
    """Yield the tensors of a tower by Ollama's names."""
    found = {tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in gguf.GGUFReader(tower).tensors}
    for name, (values, kind) in found.items():
        if name == "v.patch_embd.weight" and seeing.is_qwen:
            frames = np.stack([values, found["v.patch_embd.weight.1"][0]], axis=2)
            values = frames.reshape(-1, *frames.shape[2:])
        for layer in seeing.stacked:
            name = name.replace(f"v.deepstack.{layer}.", f"v.deepstack_merger.{seeing.stacked.index(layer)}.", 1)
        for part, theirs in (QWEN if seeing.is_qwen else GEMMA3).items():
            name = name.replace(part, theirs)
        if name == "v.patch_embed.weight.1":
            continue
        parts = np.split(values, 3) if "attn_qkv" in name else [values]
        for letter, part in zip("qkv", parts):
            yield name.replace("attn_qkv", f"attn_{letter}"), part, kind


def write_ollama(seeing, folder, change=lambda keys, tensors: None, **options):
    """Write the file, and llama.cpp's two of the same; return its path and that of the model's."""
    model, tower = write_files(seeing, folder / "plain", **options)
    reader, parts = gguf.GGUFReader(model), seeing.section
    architecture = reader.fields["general.architecture"].contents()
    target = folder / "ollama.gguf"
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        left_out = architecture in QWEN3.values() and name.endswith(LEFT_OUT) and seeing.any_grid == (10, 8)
        if name.startswith("GGUF.") or name == "general.architecture" or left_out:
            continue
        value, kind = field.contents(), field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)
    keys = {
        "vision.block_count": parts["depth" if seeing.is_qwen else "num_hidden_layers"],
        "vision.embedding_length": parts["hidden_size"],
        "vision.attention.head_count": parts["num_heads" if seeing.is_qwen else "num_attention_heads"],
        "vision.patch_size": parts["patch_size"],
        "vision.num_channels": 3,
    }
    if seeing.is_qwen:
        size = towers.processor(seeing)["size"]
        keys |= {
            "vision.spatial_merge_size": parts["spatial_merge_size"],
            "vision.deepstack_visual_indexes": seeing.stacked or None,
            "vision.shortest_edge": 0 if seeing is STACKED else size["shortest_edge"],
            "vision.longest_edge": 0 if seeing is STACKED else size["longest_edge"],
            "vision.image_mean": [0.5, 0.5, 0.5],
            "vision.image_std": [0.5, 0.5, 0.5],
        }
    else:
        keys |= {
            "vision.image_size": parts["image_size"],
            "vision.feed_forward_length": parts["intermediate_size"],
            "vision.attention.layer_norm_epsilon": 1e-6,
            "mm.tokens_per_image": seeing.tokens,
        }
    tensors = {tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors}
    tensors |= {name: (values, kind) for name, values, kind in ollama_tensors(seeing, tower)}
    change(keys, tensors)
    add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in keys.items():
        if value is not None:
            add[type(value)](f"{architecture}.{key}", value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values), raw_dtype=kind)
    gguf_files.write(writer)
    return target, model


@pytest.mark.parametrize(
    "seeing", [MEANS, FOURTHS, STACKED, EXPERTS, ROTATED, towers.BY_NAME["line"]], ids=lambda seeing: seeing.name
)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_file_with_its_tower_is_the_model_of_two_files(seeing, kind, tmp_path):
    file, model = write_ollama(seeing, tmp_path / "files", kind=kind)
    found, expected = (
        tinychat.convert(source, tmp_path / name, quant="int8", method="plain", check=False)
        for source, name in ((file, "found"), (model, "expected"))
    )
    assert files_of(found) == files_of(expected)
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    ours, theirs = read_vision(found), read_vision(expected)
    assert (ours.preparation, ours.image_token_id, ours.wrapper) == (theirs.preparation, FIRST, seeing.wrapper)
    assert code_lines(found)[0].endswith("ForConditionalGeneration, from ollama.gguf")


def drop(name):
    return lambda keys, tensors: tensors.pop(name)


def reshape(name, *shape):
    return lambda keys, tensors: tensors.update({name: (np.ones(shape, np.float32), gguf.GGMLQuantizationType.F32)})


def put(key, value):
    return lambda keys, tensors: keys.update({key: value})


HOSTILE = {
    "no tower": (MEANS, drop("v.patch_embedding.weight"), "has no tensor v.patch_embd.weight"),
    "tokens": (MEANS, put("mm.tokens_per_image", 9), "mm_tokens_per_image is 9|does not divide the patches"),
    "other tokens": (MEANS, put("mm.tokens_per_image", 2), "does not divide the patches"),
    "no tokens": (MEANS, put("mm.tokens_per_image", 0.25), "does not divide|mm_tokens_per_image"),
    "part": (STACKED, drop("v.blk.1.attn_v.weight"), r"has shape \[192, 96\]; expected \[288, 96\]"),
    "parts": (STACKED, reshape("v.blk.1.attn_v.weight", 96, 32), "parts of v.blk.1.attn_qkv.weight do not fit"),
    "frames": (STACKED, reshape("v.patch_embed.weight", 288, 3, 16, 16), r"has shape \[288, 3, 16, 16\]; expected"),
    "colours": (STACKED, reshape("v.patch_embed.weight", 96, 2, 16, 16), r"has shape \[32, 3, 16, 16\]; expected"),
    "layer": (STACKED, put("vision.deepstack_visual_indexes", [2, 7]), "layers that get images differ"),
    "no sizes": (STACKED, put("vision.embedding_length", None), "has no value clip.vision.embedding_length"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_towers_that_are_damaged_are_left_out(case, tmp_path):
    seeing, change, message = HOSTILE[case]
    file, _ = write_ollama(seeing, tmp_path / "files", change)
    with pytest.raises(CheckpointError, match=message), unpacked(file, file):
        pass
    with unpacked(file) as folder:
        assert not (folder / TOWER_LINK).exists()
        reason = json.loads((folder / "config.json").read_text())["mmproj_left_out"]
        assert "ollama.gguf" in reason and str(tmp_path) not in reason


def test_files_beside_are_no_matter_unless_one_is_named(tmp_path):
    file, model = write_ollama(MEANS, tmp_path / "files")
    tower = (model.with_name("mmproj-model.gguf")).rename(file.with_name("mmproj-other.gguf"))
    shutil.copy(tower, tower.with_name("mmproj-third.gguf"))
    for named, origin in ((None, file), (tower, tower)):
        made = tmp_path / origin.stem
        tinychat.convert(file, made, quant="int8", method="plain", check=False, mmproj=named)
        assert sees(made)
        assert code_lines(made)[0].endswith(f"from {origin.name}")


def test_turns_of_gemma_3_show_images(tmp_path):
    metadata = {"general.architecture": "gemma3", "gemma3.rope.local.freq_base": 1e4}
    metadata["tokenizer.ggml.tokens"] = ["<start_of_turn>"]
    in_llama_cpp_form(metadata, {})
    file, _ = write_ollama(FOURTHS, tmp_path / "files")
    with unpacked(file) as folder:
        path = folder / "tokenizer_config.json"
        template = {"chat_template": metadata["tokenizer.chat_template"]}
        path.write_text(json.dumps(json.loads(path.read_text()) | template))
        rendered = load_template(folder, load_tokenizer(folder)).render(
            [
                {"role": "system", "content": "Rhyme."},
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is it? "}]},
            ]
        )
    expected = "<start_of_turn>user\nRhyme.\n\n<start_of_image>What is it?<end_of_turn>\n<start_of_turn>model\n"
    assert rendered.endswith(expected)
