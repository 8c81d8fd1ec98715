"""GGUF files with an mmproj file: the same model as of the checkpoint that both were made of."""

import json
import os
import shutil

import families
import gemma4_towers
import gguf
import gguf_files
import mmproj_files
import numpy as np
import pytest
import towers
from click.testing import CliRunner
from test_images import NAMES, PLACES, SHAPED_NAMES, SHAPED_PLACES, TEMPLATE

import tinychat
from tinychat import api
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf import is_mmproj, mmproj_beside
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.checkpoint.gguf_file import GgufFile
from tinychat.checkpoint.gguf_mmproj import PROJECTORS, TOWER_LINK
from tinychat.cli import command_line
from tinychat.errors import CheckpointError, FieldError
from tinychat.images.image import Image
from tinychat.models.folder import open_model_folder
from tinychat.models.vision import CONNECTOR, VISION_FOLDER, read_vision, sees
from tinychat.store.local import code_lines
from tinychat.store.names import resolve

ODD = towers.BY_NAME["odd"]
# Of the only size of patches that the converter knows, with the preparation that no file says.
SHAPED = towers.Seeing(
    "shaped", towers.section(64, 2, 100, 2, 16, num_patches=25), 2, towers.LFM2_VL, "bfloat16", (4, 6)
)._replace(projector={"projector_hidden_size": 172})
PLAIN = SHAPED._replace(
    name="plain", projector={"projector_hidden_size": 96, "projector_use_layernorm": False}, dtype="float32"
)
MEANS = towers.BY_NAME["means"]
# With the factor and the limits of pixels that no file says.
FOURTHS = towers.Seeing("fourths", towers.section(64, 2, 100, 2, 4, 32) | towers.NO_HEAD, 4, towers.GEMMA3, "float16")
STACKED = towers.Seeing(
    "stacked",
    towers.qwen_section(96, 2, 172, 3, 16, 6, 2) | {"deepstack_visual_indexes": [2, 0]},
    2,
    towers.QWEN3_VL,
    "bfloat16",
    (16, 16),
)
EXPERTS = towers.BY_NAME["stacked"]._replace(name="experts", wrapper=towers.QWEN3_VL_MOE)
ROTATED = towers.BY_NAME["rotated"]
SEEING = [ODD, towers.BY_NAME["so400m"], SHAPED, PLAIN, MEANS, FOURTHS, STACKED, EXPERTS, ROTATED]
SEEING += [towers.BY_NAME["line"], towers.BY_NAME["merged"]]
CLIPPED = towers.BY_NAME["clipped"]
POOLED = CLIPPED._replace(
    name="pooled",
    section=gemma4_towers.section(144, 2, 1, 72, 538, 2, 4, position_embedding_size=840, standardize=True),
)
SEEING += [CLIPPED, POOLED]
PIXELS = {"shortest_edge": 1 << 16, "longest_edge": 1 << 24}
# llama.cpp's names of the text models, and their axes of positions.
QWEN3 = {towers.QWEN3_VL: "qwen3vl", towers.QWEN3_VL_MOE: "qwen3vlmoe"}
AXES = {"rope_type": "default", "mrope_section": [8, 7, 5]}
FIRST = 300  # of the tokens around images
each_seeing = pytest.mark.parametrize("seeing", SEEING, ids=lambda seeing: seeing.name)


def special_of(seeing):
    """Return the tokens around images by their ids, the image token first."""
    if seeing.is_gemma4:
        names = ["<|image|>", "<|image>", "<image|>", "<end_of_utterance>"]
    elif seeing.is_qwen:
        names = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<end_of_utterance>"]
    elif seeing.averages:
        names = ["<image_soft_token>", "<start_of_image>", "<end_of_image>", "<end_of_utterance>"]
    else:
        names = [*SHAPED_NAMES, *SHAPED_PLACES] if seeing.is_shaped else [*NAMES, *PLACES]
        names = ["<image>", *(name for name in names if name != "<image>")]
    return dict(enumerate(names, FIRST))


def template_of(seeing):
    if seeing.is_gemma4:
        return TEMPLATE.replace("<image>", "<|image|>")
    if seeing.is_qwen:
        return TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    return TEMPLATE.replace("<image>", "<start_of_image>") if seeing.averages else TEMPLATE


def text_of(seeing):
    """Return the text model as llama.cpp takes it, with numbers that a file has in float32."""
    text, changes = seeing.text, {}
    if seeing is CLIPPED:
        changes = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    elif seeing.is_gemma4:
        changes = {"num_hidden_layers": 2}
    elif seeing.averages:
        changes = {"query_pre_attn_scalar": 40, "sliding_window_pattern": 6, "rope_local_base_freq": 1e4}
    elif seeing.wrapper in QWEN3:
        changes = {"rope_scaling": AXES}
    elif seeing.is_qwen:
        changes = {"attention_bias": False, "layer_types": "none", "full_attention_interval": 2}
    eps = "norm_eps" if seeing.is_shaped else "rms_norm_eps"
    default = 1e-5 if seeing.is_shaped else 1e-6
    return gguf_files.like(text.name, **{eps: float(np.float32(text.config.get(eps, default)))}, **changes)


def write_files(seeing, folder, kind_of=lambda name: "F32", special=None, **changes):
    """Write the GGUF file of the language model, and the mmproj file beside it; return both."""
    folder.mkdir(parents=True, exist_ok=True)
    model = gguf_files.write_variant(
        text_of(seeing),
        folder / "model.gguf",
        kind_of,
        special=special or special_of(seeing),
        template=template_of(seeing),
        architecture=QWEN3.get(seeing.wrapper),
        stacked=len(seeing.stacked),
    )
    if seeing.is_qwen and seeing is not STACKED:
        size = towers.processor(seeing)["size"]
        pixels = {"min": size["shortest_edge"], "max": size["longest_edge"]}
        changes = {f"clip__vision__image_{end}_pixels": count for end, count in pixels.items()} | changes
    return model, mmproj_files.write_mmproj(seeing, folder / "mmproj-model.gguf", **changes)


def write_checkpoint(seeing, folder):
    """Write the checkpoint of the same, with numbers that a GGUF file has in float32."""
    text = text_of(seeing)
    # The writer of GGUF files has these.
    axes = {} if seeing.wrapper in QWEN3 else {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}}
    section = text.config | {"architectures": None} | (axes if seeing.is_qwen else {})
    section |= {"use_bidirectional_attention": "vision"} if seeing is POOLED else {}
    towers.write_checkpoint(seeing, folder, text, text_config=section)
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    for key in ("tile_size", "max_tiles", "min_image_tokens", "max_image_tokens") if seeing.is_shaped else ():
        del processor[key]
    processor |= {"size": PIXELS} if seeing is STACKED else {"max_soft_tokens": None} if seeing.is_gemma4 else {}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    path = folder / "tokenizer.json"
    tokenizer, special = json.loads(path.read_text()), special_of(seeing)
    tokens = {i: token for token, i in tokenizer["model"]["vocab"].items()} | special
    tokenizer["model"]["vocab"] = {token: i for i, token in tokens.items()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    tokenizer["added_tokens"] += [{"id": i, "content": token, **flags} for i, token in special.items()]
    path.write_text(json.dumps(tokenizer))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template_of(seeing)}))
    return folder


def files_of(folder):
    return {name: (folder / VISION_FOLDER / name).read_bytes() for name in os.listdir(folder / VISION_FOLDER)}


@each_seeing
@pytest.mark.parametrize("quant", ["f32", "int8"])
def test_the_tower_is_that_of_the_checkpoint(seeing, quant, tmp_path):
    model, _ = write_files(seeing, tmp_path / "gguf")
    checkpoint = write_checkpoint(seeing, tmp_path / "checkpoint")
    found, expected = (
        tinychat.convert(source, tmp_path / name, quant=quant, method="plain", check=False)
        for source, name in ((model, "found"), (checkpoint, "expected"))
    )
    assert files_of(found) == files_of(expected)
    assert files_of(found).keys() == {"config.json", "tinychat.json", "model.safetensors", CONNECTOR}
    if seeing.wrapper not in (towers.QWEN3_5, towers.QWEN3_5_MOE):
        # llama.cpp's converter rounds exponentials of decays.
        assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    ours, theirs = read_vision(found), read_vision(expected)
    assert (ours.preparation, ours.connector, ours.tower) == (theirs.preparation, theirs.connector, theirs.tower)
    assert (ours.image_token_id, ours.text_size) == (theirs.image_token_id, theirs.text_size)
    assert ours.wrapper == ("Idefics3ForConditionalGeneration" if seeing is ODD else seeing.wrapper)
    assert [parts.layer for parts in ours.others] == [layer + 1 for layer in sorted(seeing.stacked)]
    of_text = [open_model_folder(folder).config for folder in (found, expected)]
    for key in ("image_token_id", "joint_tokens", "deepstack_layers", "rotary_axes", "tie_word_embeddings"):
        assert getattr(of_text[0], key) == getattr(of_text[1], key)
    assert code_lines(found)[0].endswith("ForConditionalGeneration, from mmproj-model.gguf")


@pytest.mark.parametrize(
    ("seeing", "sizes", "count"),
    [
        (ODD, [(31, 50), (36, 36)], 4 * (13 + 17)),
        (SHAPED, [(40, 70), (544, 1024)], 77 + 2 * 256 + 231),
        (MEANS, [(31, 70), (90, 20)], 16 + 16),
        (STACKED, [(256, 320), (288, 256)], 80 + 72),
        (EXPERTS, [(40, 32)], 20),
        (ROTATED, [(60, 72), (24, 48)], 30 + 8),
        (CLIPPED, [(60, 72), (24, 48)], 15 * 18 + 11 * 23),
        (POOLED, [(60, 72)], 15 * 18),
    ],
    ids=lambda each: each.name if isinstance(each, towers.Seeing) else "",
)
def test_images_give_the_same_logits(seeing, sizes, count, tmp_path):
    model, _ = write_files(seeing, tmp_path / "gguf")
    checkpoint, rng = write_checkpoint(seeing, tmp_path / "checkpoint"), np.random.default_rng(3)
    images = [Image(rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in sizes]
    content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": "What is it?"}]
    tokens, logits = [], []
    for source, name in ((model, "found"), (checkpoint, "expected")):
        made = tinychat.convert(source, tmp_path / name, quant="f32")
        loaded = tinychat.load(made, context=1024, threads=1)
        ids = loaded.render_ids([{"role": "user", "content": content}])
        tokens.append(loaded.engine.images.tokens(ids))
        logits.append(loaded.logits(ids))
    assert tokens[0] == tokens[1]
    assert tokens[0].count(FIRST) == count
    if seeing is ROTATED:
        # llama.cpp's converter rounds exponentials of decays.
        np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-4 * logits[1].std())
    else:
        assert logits[0].tobytes() == logits[1].tobytes()


TYPED = [
    (
        SHAPED,
        {
            "multi_modal_projector.linear_1.weight": "mm.1.weight",
            "vision_tower.encoder.layers.1.self_attn.k_proj.weight": "v.blk.1.attn_k.weight",
        },
    ),
    (FOURTHS, {"vision_tower.encoder.layers.1.self_attn.out_proj.weight": "v.blk.1.attn_out.weight"}),
    (
        STACKED,
        {
            "visual.blocks.1.attn.qkv.weight": "v.blk.1.attn_qkv.weight",
            "visual.pos_embed.weight": "v.position_embd.weight",
            "visual.merger.linear_fc2.weight": "mm.2.weight",
            # That behind the first layer, whatever its number in the checkpoint.
            "visual.deepstack_merger_list.0.linear_fc1.weight": "v.deepstack.0.fc1.weight",
        },
    ),
]


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize(("seeing", "names"), TYPED, ids=[seeing.name for seeing, _ in TYPED])
def test_types_of_numbers(seeing, names, kind, tmp_path):
    model, file = write_files(seeing, tmp_path, kind=kind)
    exact, stored = mmproj_files.mmproj_tensors(seeing), gguf.GGMLQuantizationType[kind]
    with unpacked(model) as folder:
        tensors = open_checkpoint(folder).tensors
        for name, theirs in names.items():
            assert GgufFile(file).tensors[theirs].kind == kind
            expected = gguf.quants.dequantize(gguf.quants.quantize(exact[theirs], stored), stored)
            assert tensors.read(name).astype(np.float32).tobytes() == expected.astype(np.float32).tobytes()
    assert sees(tinychat.convert(model, tmp_path / "made", quant="int8", method="plain", check=False))


@pytest.mark.parametrize(
    ("seeing", "changes"),
    [(ODD, {"eps": 1e-5, "clip__vision__preproc_image_size": None}), (MEANS, {})],
    ids=["odd", "means"],
)
def test_numbers_that_only_older_files_lack_or_have_otherwise(seeing, changes, tmp_path):
    def swap(tensors):
        for name in [name for name in tensors if ".ffn_up." in name]:
            other = name.replace("up", "down")
            tensors[name], tensors[other] = tensors[other], tensors[name]

    model, _ = write_files(seeing, tmp_path / "new")
    older, _ = write_files(seeing, tmp_path / "old", change=swap, **changes)
    made = [
        tinychat.convert(file, tmp_path / name, quant="int8", method="plain", check=False)
        for file, name in ((model, "a"), (older, "b"))
    ]
    assert files_of(made[0]) == files_of(made[1])
    assert read_vision(made[0]) == read_vision(made[1])


def test_files_are_told_apart_by_name_or_first_key(tmp_path):
    model, tower = write_files(ODD, tmp_path)
    assert (is_mmproj(tower), is_mmproj(model), mmproj_beside(model)) == (True, False, [tower])
    renamed = tower.rename(tmp_path / "vision.gguf")
    assert (is_mmproj(renamed), mmproj_beside(model)) == (True, [renamed])
    (tmp_path / "Model-MMPROJ.gguf").write_bytes(b"GGUF")
    (tmp_path / "mmproj.txt").write_bytes(b"")
    (tmp_path / "mmproj-folder.gguf").mkdir()
    assert [file.name for file in mmproj_beside(model)] == ["Model-MMPROJ.gguf", "vision.gguf"]
    assert mmproj_beside(tmp_path / "nowhere" / "model.gguf") == []
    os.mkfifo(tmp_path / "pipe.gguf")
    assert not is_mmproj(tmp_path / "pipe.gguf")


def made_of(source, folder, **options):
    """Return the first line about a conversion, and whether its result sees."""
    made = tinychat.convert(source, folder, quant="int8", method="plain", check=False, **options)
    return (code_lines(made) or [""])[0], sees(made)


def test_which_file_is_taken(tmp_path):
    model, tower = write_files(ODD, tmp_path / "files")
    seen = ("sees images: vision/ has the vision tower of Idefics3ForConditionalGeneration, from {}", True)
    assert made_of(model, tmp_path / "one") == (seen[0].format("mmproj-model.gguf"), True)
    # A folder of them is as good as the model's file.
    assert made_of(model.parent, tmp_path / "folder") == (seen[0].format("mmproj-model.gguf"), True)
    other = shutil.copy(tower, model.with_name("mmproj-other.gguf"))
    reason = "several mmproj files lie beside model.gguf (mmproj-model.gguf, mmproj-other.gguf): name one of them"
    assert made_of(model, tmp_path / "two") == (f"text only: {reason}", False)
    assert made_of(model, tmp_path / "named", mmproj=other) == (seen[0].format("mmproj-other.gguf"), True)
    for file in (tower, model.with_name("mmproj-other.gguf")):
        file.rename(tmp_path / file.name)
    assert made_of(model, tmp_path / "none") == ("", False)
    given = made_of(model, tmp_path / "given", mmproj=tmp_path / "mmproj-model.gguf")
    assert given == (seen[0].format("mmproj-model.gguf"), True)


def test_the_folder_of_a_text_model_is_what_it_was(tmp_path):
    model, tower = write_files(ODD, tmp_path / "files", clip__projector_type="pixtral")
    assert made_of(model, tmp_path / "a") == (
        "text only: mmproj-model.gguf: projector 'pixtral' is not supported",
        False,
    )
    tower.unlink()
    assert made_of(model, tmp_path / "b") == ("", False)
    names = {file.name for file in (tmp_path / "b").iterdir()}
    assert {file.name for file in (tmp_path / "a").iterdir()} == names
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in "ab"]
    assert configs[0].pop("mmproj_left_out")
    assert configs[0] == configs[1]
    for name in names - {"config.json"}:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("kind", ["resampler", "pixtral", None, [1, 2]])
def test_kinds_of_towers_that_are_not_supported(kind, tmp_path):
    name = kind if isinstance(kind, str) else ""
    assert name not in PROJECTORS
    model, tower = write_files(ODD, tmp_path / "files", clip__projector_type=kind)
    for mmproj in (None, tower):
        with unpacked(model, mmproj) as folder:
            reason = json.loads((folder / "config.json").read_text())["mmproj_left_out"]
            assert reason == f"mmproj-model.gguf: projector {name!r} is not supported"
            assert not (folder / TOWER_LINK).exists()
            assert not (folder / "preprocessor_config.json").exists()


def test_the_kind_of_a_file_for_images_and_sound(tmp_path):
    model, _ = write_files(ODD, tmp_path, clip__projector_type=None, clip__vision__projector_type="idefics3")
    with unpacked(model) as folder:
        assert (folder / TOWER_LINK).exists()


def drop(name):
    return lambda tensors: tensors.pop(name)


def reshape(name, *shape):
    return lambda tensors: tensors.update({name: np.ones(shape, np.float32)})


# Changes of a file, and what is said of it.
HOSTILE = {
    "no layer": ({"change": drop("v.blk.2.attn_q.weight")}, "has no tensor v.blk.2.attn_q.weight: download it again"),
    "no bias": ({"change": drop("v.blk.1.ffn_down.bias")}, "has no tensor v.blk.1.ffn_down.bias"),
    "no patches": ({"change": drop("v.patch_embd.weight")}, "has no tensor v.patch_embd.weight"),
    "no connector": ({"change": drop("mm.model.fc.weight")}, "has no tensor mm.model.fc.weight"),
    "patches": (
        {"change": reshape("v.patch_embd.weight", 88, 6, 3, 6)},
        r"v.patch_embd.weight has shape \[88, 6, 3, 6\]; expected \[88, 3, 6, 6\]",
    ),
    "positions": ({"change": reshape("v.position_embd.weight", 35, 88)}, r"has shape \[35, 88\]; expected \[36, 88\]"),
    "connector": ({"change": reshape("mm.model.fc.weight", 96, 88)}, r"has shape \[96, 88\]; expected \[96, 792\]"),
    "vector": ({"change": reshape("v.blk.0.attn_v.weight", 88)}, r"v.blk.0.attn_v.weight has shape \[88\]"),
    "more layers": ({"clip__vision__block_count": 4}, "has no tensor v.blk.3"),
    "layers without end": ({"clip__vision__block_count": 2**32 - 1}, "num_hidden_layers is 4294967295; expected"),
    "no layers": ({"clip__vision__block_count": 0}, "num_hidden_layers is 0; expected"),
    "no number": ({"clip__vision__embedding_length": None}, "has no value clip.vision.embedding_length"),
    "text": ({"clip__vision__embedding_length": "88"}, "hidden_size is '88'; expected an integer"),
    "heads": ({"clip__vision__attention__head_count": 5}, "num_attention_heads"),
    "wide": ({"clip__vision__embedding_length": 2**31}, "hidden_size is 2147483648; expected"),
    "patch": ({"clip__vision__patch_size": 0}, "patch_size is 0; expected an integer from 1 to 1024"),
    "image": ({"clip__vision__image_size": 2**31}, "image_size is 2147483648; expected an integer"),
    "longest": ({"clip__vision__preproc_image_size": 5000}, "longest_edge is 5000; expected an integer from 1 to 4096"),
    "factor": ({"clip__vision__projector__scale_factor": 4}, "scale_factor is 4; expected a divisor"),
    "mean": ({"clip__vision__image_mean": [0.5, 0.5]}, r"image_mean is \[0.5, 0.5\]; expected a list of 3 numbers"),
    "not a number": ({"clip__vision__image_std": [0.5, float("nan"), 0.5]}, "(?i)nan"),
    "epsilon": ({"clip__vision__attention__layer_norm_epsilon": float("inf")}, "(?i)inf|layer_norm_eps"),
    "another model's": ({"clip__vision__projection_dim": 97}, "are of different models: their rows differ in size"),
}


HOSTILE_MEANS = {
    "no gains": ({"change": drop("mm.soft_emb_norm.weight")}, "has no tensor mm.soft_emb_norm.weight"),
    "gains": ({"change": reshape("mm.soft_emb_norm.weight", 88, 1)}, r"has shape \[88, 1\]; expected \[88\]"),
    "turned": ({"change": reshape("mm.input_projection.weight", 96, 88)}, r"has shape \[96, 88\]; expected \[88, 96\]"),
    "factor": ({"clip__vision__projector__scale_factor": 3}, "scale_factor does not divide the patches"),
    "no factor": ({"clip__vision__projector__scale_factor": 2**31}, "scale_factor does not divide the patches"),
    "image": ({"clip__vision__image_size": 6 * 2**29}, "tokens of an image is 72057594037927936"),
    "size": ({"clip__vision__image_size": "50"}, "scale_factor does not divide"),
    "patch": ({"clip__vision__patch_size": 0}, "patch_size is 0; expected an integer"),
    "another model's": ({"clip__vision__projection_dim": 97}, "are of different models: their rows differ in size"),
}
HOSTILE_STACKED = {
    "frame": ({"change": drop("v.patch_embd.weight.1")}, "has no tensor v.patch_embd.weight.1: download it again"),
    "frames": ({"change": reshape("v.patch_embd.weight.1", 96, 3, 16, 8)}, "parts of v.patch_embd.weight do not fit"),
    "patches": ({"change": reshape("v.patch_embd.weight", 96, 3, 8, 32)}, r"has shape \[96, 3, 8, 32\]; expected"),
    "apart": ({"change": drop("v.blk.1.attn_qkv.weight")}, "has no tensor v.blk.1.attn_qkv.weight"),
    "layer": ({"change": drop("v.deepstack.2.fc2.bias")}, "has no tensor v.deepstack.2.fc2.bias"),
    "norm": ({"change": reshape("v.deepstack.0.norm.weight", 96)}, r"has shape \[96\]; expected \[384\]"),
    "fewer layers": ({"clip__vision__is_deepstack_layers": [True, False, False]}, "layers that get images differ"),
    "no layers": ({"clip__vision__is_deepstack_layers": None}, "layers that get images differ"),
    "other layers": ({"clip__vision__is_deepstack_layers": [True, True, False]}, "has no tensor v.deepstack.1"),
    "layers behind all": (
        {"clip__vision__is_deepstack_layers": [True, False, False, True]},
        "deepstack_visual_indexes",
    ),
    "numbers": ({"clip__vision__is_deepstack_layers": list(range(5000))}, "is a list of 5000 values"),
    "no positions": ({"change": drop("v.position_embd.weight")}, "num_position_embeddings is 0; expected"),
    "positions": ({"change": reshape("v.position_embd.weight", 35, 96)}, "expected that of a square grid"),
    "merged": ({"clip__vision__spatial_merge_size": 7}, "spatial_merge_size is 7; expected an integer from 1 to 6"),
    "squares": ({"clip__vision__spatial_merge_size": 3}, r"expected \[864, 864\]"),
    "pixels": ({"clip__vision__image_max_pixels": 0}, "longest_edge is 0; expected an integer"),
    "fewest": ({"clip__vision__image_min_pixels": 2**32 - 1}, "shortest_edge is 4294967295; expected an integer"),
    "mean": ({"clip__vision__image_mean": [0.5, 0.5]}, r"image_mean is \[0.5, 0.5\]; expected a list of 3 numbers"),
    "another model's": ({"clip__vision__projection_dim": 97}, "are of different models: their rows differ in size"),
}
HOSTILE_CLIPPED = {
    "no queries": ({"change": drop("v.blk.0.attn_q.weight")}, "has no tensor v.blk.0.attn_q.weight|head_dim"),
    "no layer": ({"change": drop("v.blk.2.ffn_gate.weight")}, "has no tensor v.blk.2.ffn_gate.weight"),
    "bounds": ({"change": reshape("v.blk.1.attn_k.input_max", 2)}, r"attn_k.input_max has shape \[2\]; expected \[1\]"),
    "gains": ({"change": reshape("v.blk.1.attn_q_norm.weight", 24)}, r"has shape \[24\]; expected \[20\]"),
    "no positions": ({"change": drop("v.position_embd.weight")}, "position_embedding_size is 0; expected an integer"),
    "few positions": ({"change": reshape("v.position_embd.weight", 2, 800, 88)}, "position_embedding_size is 800; exp"),
    "positions": ({"change": reshape("v.position_embd.weight", 1800, 88)}, "position_embedding_size is 88; expected"),
    "other positions": ({"change": reshape("v.position_embd.weight", 3, 900, 88)}, r"expected \[2, 900, 88\]"),
    "heads": ({"clip__vision__attention__head_count": 3}, "head_dim|num_key_value_heads"),
    "no heads": ({"clip__vision__attention__head_count": 0}, "num_attention_heads is 0; expected"),
    "connector": (
        {"change": reshape("mm.input_projection.weight", 96, 80)},
        r"has shape \[96, 80\]; expected \[96, 88\]",
    ),
    "another model's": ({"clip__vision__projection_dim": 97}, "are of different models: their rows differ in size"),
}
HOSTILE_CASES = [
    pytest.param(seeing, *case, id=f"{seeing.name}-{name}")
    for seeing, cases in (
        (ODD, HOSTILE),
        (MEANS, HOSTILE_MEANS),
        (STACKED, HOSTILE_STACKED),
        (CLIPPED, HOSTILE_CLIPPED),
    )
    for name, case in cases.items()
]


@pytest.mark.parametrize(("seeing", "changes", "message"), HOSTILE_CASES)
def test_files_that_are_damaged_or_of_another_model(seeing, changes, message, tmp_path):
    model, tower = write_files(seeing, tmp_path / "files", **changes)
    with pytest.raises(CheckpointError, match=message) as error:
        tinychat.convert(model, tmp_path / "made", quant="int8", method="plain", mmproj=tower)
    assert str(tower) in str(error.value)
    assert "tinychat-gguf" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["files"]
    # Nobody asked for what lies beside the file.
    with unpacked(model) as folder:
        reason = json.loads((folder / "config.json").read_text())["mmproj_left_out"]
        assert "mmproj-model.gguf" in reason
        assert str(tmp_path) not in reason


@pytest.mark.parametrize("seeing", [ODD, MEANS, STACKED], ids=lambda seeing: seeing.name)
def test_an_activation_that_is_not_supported(seeing, tmp_path):
    model, tower = write_files(seeing, tmp_path, clip__use_gelu=False)
    with unpacked(model, tower) as folder:
        reason = json.loads((folder / "config.json").read_text())["mmproj_left_out"]
        assert "hidden_act 'quick_gelu' is not supported" in reason


@pytest.mark.parametrize("seeing", [MEANS, STACKED, ROTATED], ids=lambda seeing: seeing.name)
def test_a_tower_beside_a_text_model_of_another_kind(seeing, tmp_path):
    model = gguf_files.write_variant(ODD.text, tmp_path / "model.gguf", special=special_of(seeing))
    tower = mmproj_files.write_mmproj(seeing, tmp_path / "mmproj.gguf")
    assert made_of(model, tmp_path / "made", mmproj=tower) == (
        "text only: mmproj.gguf: its tower beside LlamaForCausalLM is not supported",
        False,
    )


def test_towers_of_models_that_are_as_wide(tmp_path):
    model, _ = write_files(ROTATED, tmp_path / "files")
    tower = mmproj_files.write_mmproj(STACKED, tmp_path / "mmproj.gguf")
    other, own = write_files(STACKED, tmp_path / "others")
    with pytest.raises(CheckpointError, match="layers that get images differ"), unpacked(model, tower):
        pass
    plain = mmproj_files.write_mmproj(ROTATED, tmp_path / "plain.gguf")
    with pytest.raises(CheckpointError, match="layers that get images differ"), unpacked(other, plain):
        pass
    with unpacked(other, own) as folder:
        assert (folder / TOWER_LINK).exists()


def test_a_vocabulary_without_the_image_token_of_gemma(tmp_path):
    names = ["<start_of_image>", "<end_of_image>", "<end_of_utterance>", "<unused7>", "<unused8>"]
    without = dict(enumerate(names, FIRST))
    model, _ = write_files(MEANS, tmp_path / "without", special=without)
    whole, _ = write_files(MEANS, tmp_path / "with", special=without | {FIRST + 4: "<image_soft_token>"})
    image = Image(np.random.default_rng(4).integers(0, 256, (40, 60, 3)).astype(np.uint8))
    content = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
    found = []
    for source, name in ((model, "found"), (whole, "expected")):
        made = tinychat.convert(source, tmp_path / name, quant="f32", check=False)
        assert read_vision(made).image_token_id == FIRST + 4
        loaded = tinychat.load(made, context=256, threads=1)
        found.append(loaded.logits(loaded.render_ids([{"role": "user", "content": content}])))
    assert found[0].tobytes() == found[1].tobytes()
    # What has no image keeps its tokens.
    tower = model.with_name("mmproj-model.gguf").rename(tmp_path / "away")
    assert "<unused8>" in (tinychat.convert(model, tmp_path / "alone", quant="f32") / "tokenizer.json").read_text()
    without.pop(FIRST + 3), without.pop(FIRST + 4)
    bare, _ = write_files(MEANS, tmp_path / "bare", special=without)
    with pytest.raises(CheckpointError, match="this has no <image_soft_token>"), unpacked(bare, tower):
        pass


def test_a_language_model_without_the_image_token(tmp_path):
    model = gguf_files.write_variant(ODD.text, tmp_path / "model.gguf")
    tower = mmproj_files.write_mmproj(ODD, tmp_path / "mmproj.gguf")
    with pytest.raises(CheckpointError, match="are of different models: this has no <image>"), unpacked(model, tower):
        pass
    assert made_of(model, tmp_path / "made")[1] is False


def test_files_in_the_place_of_others(tmp_path):
    model, tower = write_files(ODD, tmp_path / "files")
    target = tmp_path / "made"
    checkpoint = families.write_checkpoint(ODD.text, tmp_path / "checkpoint")
    cases = [
        (tower, None, CheckpointError, "give the model's file, and this one with it"),
        (tower, model, CheckpointError, "give the model's file, and this one with it"),
        (model, model, CheckpointError, "is no mmproj file, but a model"),
        (model, tmp_path / "nothing.gguf", CheckpointError, "nothing.gguf cannot be read: No such file"),
        (model, tmp_path, CheckpointError, "cannot be read"),
        (model, checkpoint / "config.json", CheckpointError, "does not begin with GGUF"),
        (checkpoint, tower, FieldError, "mmproj is for GGUF files"),
        ("someone/some-model", tower, FieldError, "mmproj is for GGUF files"),
    ]
    for source, mmproj, error, message in cases:
        with pytest.raises(error, match=message):
            tinychat.convert(source, target, mmproj=mmproj)
        assert not target.exists()


def test_the_command_says_what_it_sees_by(tmp_path):
    model, tower = write_files(ODD, tmp_path / "files")
    options = ["--quant", "int8", "--method", "plain", "--no-check"]
    found = CliRunner().invoke(command_line, ["convert", str(model), str(tmp_path / "a"), *options])
    assert found.exit_code == 0
    assert "sees images: vision/ has the vision tower of Idefics3ForConditionalGeneration, from mmproj-" in found.stderr
    tower = tower.rename(tmp_path / "tower.gguf")
    named = [str(model), str(tmp_path / "b"), "--mmproj", str(tower), *options]
    found = CliRunner().invoke(command_line, ["convert", *named])
    assert (found.exit_code, "from tower.gguf" in found.stderr) == (0, True)


def test_a_model_is_converted_again_when_its_mmproj_file_comes(tmp_path):
    model, tower = write_files(ODD, tmp_path)
    seeing, away = resolve(str(model)).path, tower.rename(tmp_path / "away")
    alone = resolve(str(model)).path
    away.rename(tower)
    assert resolve(str(model)).path == seeing != alone


def test_a_model_that_is_used_at_once_sees(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYCHAT_HOME", str(tmp_path / "home"))
    model, _ = write_files(ODD, tmp_path / "files", gguf_files.mixture, kind="Q8_0")
    folder = api.locate(str(model))
    assert sees(folder)
    kinds = [open_model_folder(each).quantization.dtype for each in (folder, folder / VISION_FOLDER)]
    assert kinds == ["native", "int8"]
