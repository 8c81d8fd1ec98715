"""Tiles, patches and texts of images; on live machines, those of transformers."""

import importlib
import json
import math
import re
import sys
from dataclasses import replace
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import towers

from tinychat.errors import CheckpointError, SettingError, UnsupportedModelError
from tinychat.images.image import Image
from tinychat.images.preparation import plan, prepare, written_otherwise
from tinychat.images.resize import resize
from tinychat.models.image_preparation import (
    BoundedImage,
    FilledImage,
    OneTile,
    ShapedTiles,
    SquareTiles,
    WholeImage,
    read_preparation,
)

HALVES = (0.5, 0.5, 0.5)
# SmolVLM 256M and 500M, granite-docling; SmolVLM 2.2B, whose tiles have pixels of no patch; Idefics3 8B.
SMALL = SquareTiles(16, 4, "lanczos", 1 / 255, HALVES, HALVES, 512, 2048, True)
LARGE = replace(SMALL, patch_size=14, scale_factor=3, tile_size=384, longest_edge=1536)
IDEFICS = replace(SMALL, patch_size=14, scale_factor=2, tile_size=364, longest_edge=1456)
LFM2 = ShapedTiles(16, 2, "bilinear", 1 / 255, HALVES, HALVES, 512, 2, 10, 64, 256, 2.0, True)
# Qwen3.5, within what a step takes; with an area that is no multiple of a token's; the first Qwen2-VL.
QWEN = WholeImage(16, 2, "bicubic", 1 / 255, HALVES, HALVES, 1 << 16, 8192 * 16 * 16)
QWEN_SMALL = replace(QWEN, patch_size=14, min_pixels=5000, max_pixels=100_000)
QWEN2_VL = replace(QWEN, patch_size=14, min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
GEMMA4 = FilledImage(16, 3, "bicubic", 1 / 255, HALVES, HALVES, 280)
GEMMA3 = OneTile(14, 4, "bilinear", 1 / 255, HALVES, HALVES, 896)
# Mistral Small 3.1 and Ministral 3, within what a step takes; Pixtral 12B.
MISTRAL = BoundedImage(14, 2, "bicubic", 1 / 255, HALVES, HALVES, 1540, 8192 * 14 * 14)
PIXTRAL = replace(MISTRAL, patch_size=16, scale_factor=1, longest_edge=1024, max_pixels=8192 * 16 * 16)
# Small images are enough to see each of their pixels.
TINY = replace(SMALL, patch_size=3, scale_factor=2, tile_size=20, longest_edge=70)
TINY_ONE = OneTile(3, 2, "bilinear", 1 / 255, HALVES, HALVES, 20)
TINY_SHAPED = replace(LFM2, patch_size=3, tile_size=24, min_tokens=4, max_tokens=16)
TINY_WHOLE = replace(QWEN, patch_size=3, min_pixels=150, max_pixels=2000)
TINY_BOUNDED = replace(MISTRAL, patch_size=3, longest_edge=61)
UNEVEN = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}

SIZES = [
    (1, 1),
    (3, 1000),
    (1000, 3),
    (1, 65536),
    (512, 512),
    (513, 512),
    (600, 800),
    (800, 600),
    (1080, 1920),
    (3000, 4000),
    (64, 2048),
    (2047, 2048),
    (333, 334),
    (5000, 5003),
]
SIZES += [(int(h), int(w)) for h, w in np.random.default_rng(3).integers(1, 3000, (200, 2))]


def random_image(height, width):
    return Image(np.random.default_rng(height + width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_plans_of_idefics3_and_smolvlm():
    row = "<image>" * 64
    whole = f"<fake_token_around_image><global-img>{row}<fake_token_around_image>"
    found = plan(600, 800, replace(SMALL, is_split=False))
    assert (found.text, found.grids) == (whole, ((32, 32),))
    assert plan(600, 800, SMALL, "low") == found
    found = plan(600, 800, SMALL)
    lines = [
        "".join(f"<fake_token_around_image><row_{y}_col_{x}>{row}" for x in (1, 2, 3, 4)) + "\n" for y in (1, 2, 3)
    ]
    assert found.text == "".join(lines) + "\n" + whole
    assert found.sizes == ((1536, 2048), (1536, 2048)) and found.grids == ((32, 32),) * 13
    # An odd side becomes even, then as many tiles as it takes.
    assert plan(769, 1024, SMALL).sizes == ((1538, 2048), (2048, 2048))
    assert plan(3, 1000, SMALL).sizes == ((6, 2048), (512, 2048))
    assert plan(1, 65536, SMALL).sizes == ((1, 2048), (512, 2048))
    assert plan(700, 700, replace(SMALL, longest_edge=512)).grids == ((32, 32),)
    assert plan(100, 100, LARGE).grids == ((27, 27),) * 17 and plan(100, 100, LARGE).text.count("<image>") == 17 * 81


def test_plans_of_lfm2_vl():
    found = plan(600, 800, LFM2)
    assert found.sizes == ((416, 576),) and found.grids == ((26, 36),)
    assert found.text == "<|image_start|>" + "<image>" * (13 * 18) + "<|image_end|>"
    found = plan(1080, 1920, LFM2)
    assert (found.rows, found.columns, found.overview) == (2, 4, (384, 672))
    assert found.grids == ((32, 32),) * 8 + ((24, 42),)
    parts = re.split(r"<\|img_(row_\d_col_\d|thumbnail)\|>", found.text)
    names = [f"row_{y}_col_{x}" for y in (1, 2) for x in (1, 2, 3, 4)]
    assert parts[0] == "<|image_start|>" and parts[1::2] == [*names, "thumbnail"]
    assert parts[2:-1:2] == ["<image>" * 256] * 8 and parts[-1] == "<image>" * (12 * 21) + "<|image_end|>"
    assert plan(1080, 1920, LFM2, "low").text == f"<|image_start|>{parts[-1]}"
    unseen = plan(1080, 1920, replace(LFM2, has_overview=False))
    assert unseen.text == found.text.partition("<|img_thumbnail|>")[0] + "<|image_end|>"
    assert unseen.grids == found.grids[:-1]
    assert plan(1080, 1920, replace(LFM2, min_tiles=1, max_tiles=1)).grids == ((24, 42),)


def test_plans_of_qwen():
    found = plan(600, 800, QWEN)
    assert (found.sizes, found.grids, found.overview) == (((608, 800),), ((38, 50),), None)
    assert (found.text, found.image_token) == ("<|image_pad|>" * (19 * 25), "<|image_pad|>")
    # Too many pixels, too few, and a side of less than half a token.
    assert plan(3024, 4032, QWEN).grids == ((78, 104),)
    assert plan(10, 12, QWEN).grids == ((16, 18),)
    assert plan(3024, 4032, QWEN, "low").grids == ((26, 36),)
    assert plan(600, 800, QWEN_SMALL, "low") == plan(600, 800, QWEN_SMALL)
    assert plan(15, 3000, QWEN).grids == plan(5, 1000, QWEN).grids == ((2, 228),)
    assert plan(13, 2600, QWEN2_VL).grids == ((2, 58),)
    for size in ((5, 1001), (1001, 5)):
        with pytest.raises(SettingError, match=r"an image of \d+ x \d+ pixels is too narrow .* 200 times the other"):
            plan(*size, QWEN)


@pytest.mark.parametrize("preparation", [QWEN, QWEN_SMALL, QWEN2_VL], ids=["qwen", "small", "qwen2-vl"])
def test_no_image_has_more_patches_than_the_largest(preparation):
    random = np.random.default_rng(4)
    for shorter, ratio in zip(random.integers(1, 400, 3000), random.uniform(1, 200, 3000)):
        (rows, columns), text = (found := plan(int(shorter), int(shorter * ratio), preparation)).grids[0], found.text
        assert rows % 2 == columns % 2 == 0 < rows and rows * columns <= preparation.most_patches <= 8192
        assert text.count("<|image_pad|>") == rows * columns // 4
    # Another one only exceeds the pixels as far as no side has less than a token, and sides are whole tokens.
    assert QWEN.most_patches == 8192 and replace(QWEN, min_pixels=1, max_pixels=1).most_patches == 800


def test_plans_of_gemma4():
    found = plan(600, 800, GEMMA4)
    # As large as 280 tokens of 48 pixels a side let it be, also if that is larger than it is.
    assert (found.sizes, found.grids) == (((672, 912),), ((42, 57),)) and plan(60, 80, GEMMA4) == found
    assert found.text == "<|image>" + "<|image|>" * (14 * 19) + "<image|>" and found.image_token == "<|image|>"
    assert plan(600, 800, GEMMA4, "low").grids == ((21, 27),)
    assert plan(3, 1000, GEMMA4).grids == ((3, 840),) and plan(1000, 7, GEMMA4).grids == ((600, 3),)
    assert plan(65536, 1, replace(GEMMA4, max_tokens=70)).grids == ((210, 3),)
    assert written_otherwise(GEMMA4) is None


def test_plans_of_mistral():
    found = plan(57, 84, MISTRAL)
    row = "[IMG][IMG][IMG]"
    # Upwards to whole tokens.
    assert (found.sizes, found.grids, found.overview) == (((84, 84),), ((6, 6),), None)
    assert (found.text, found.image_token) == (f"{row}[IMG_BREAK]{row}[IMG_BREAK]{row}[IMG_END]", "[IMG]")
    assert plan(1, 1, MISTRAL).text == "[IMG][IMG_END]"
    # A side that is too long, one that nothing would be left of, and as many tokens as a step takes.
    assert plan(1000, 2000, MISTRAL).sizes == ((784, 1540),)
    assert plan(1, 65536, MISTRAL).sizes == ((28, 1540),)
    assert plan(3024, 4032, MISTRAL).grids == ((78, 104),)
    assert plan(3024, 4032, PIXTRAL).grids == ((48, 64),) and plan(2000, 2000, PIXTRAL).grids == ((64, 64),)
    assert plan(3024, 4032, MISTRAL, "low").grids == ((26, 36),)
    assert plan(300, 400, MISTRAL, "low") == plan(300, 400, MISTRAL)
    assert (MISTRAL.most_patches, PIXTRAL.most_patches) == (8192, 4096)
    assert replace(MISTRAL, max_pixels=1).most_patches == 55 * 4


@pytest.mark.parametrize(
    "preparation",
    [MISTRAL, PIXTRAL, MISTRAL.of_low_detail, replace(TINY_BOUNDED, scale_factor=6, longest_edge=4096, max_pixels=99)],
    ids=["mistral", "pixtral", "low", "few"],
)
def test_no_bounded_image_has_more_patches_than_the_largest(preparation):
    random, scale, step = np.random.default_rng(4), preparation.scale_factor, preparation.step
    for shorter, ratio in zip(random.integers(1, 3000, 3000), random.uniform(1, 50, 3000)):
        (rows, columns), text = (found := plan(int(shorter * ratio), int(shorter), preparation)).grids[0], found.text
        assert rows % scale == columns % scale == 0 < columns and rows * columns <= preparation.most_patches
        assert max(rows, columns) * preparation.patch_size < preparation.longest_edge + step
        counts = text.count("[IMG]"), text.count("[IMG_BREAK]"), text.count("[IMG_END]")
        assert counts == (rows * columns // scale**2, rows // scale - 1, 1)


@pytest.mark.parametrize("size", [(600, 800), (1, 65536), (896, 896)], ids=str)
def test_plans_of_gemma3(size):
    found = plan(*size, GEMMA3)
    assert (found.text, found.image_token) == ("<image_soft_token>" * 256, "<image_soft_token>")
    assert (found.sizes, found.grids) == (((896, 896),), ((64, 64),))
    around = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
    assert written_otherwise(GEMMA3) == ("<start_of_image>", around)
    assert written_otherwise(SMALL) is written_otherwise(LFM2) is None


@pytest.mark.parametrize("preparation", [SMALL, LARGE, IDEFICS, LFM2], ids=["small", "large", "idefics3", "lfm2"])
@pytest.mark.parametrize("size", [*SIZES, (65536, 1000), (1, 32768), (8192, 8192)], ids=str)
def test_texts_have_a_token_for_each_row(size, preparation):
    found = plan(*size, preparation)
    scale = preparation.scale_factor
    tokens = [(rows // scale) * (columns // scale) for rows, columns in found.grids]
    assert found.text.count("<image>") == sum(tokens) <= 25 * 256
    runs = [len(run) // len("<image>") for run in re.findall("(?:<image>)+", found.text)]
    assert runs == tokens
    assert all(rows % scale == columns % scale == 0 for rows, columns in found.grids)
    # One very long row is no more work than another image.
    assert all(rows * columns <= 2048 for rows, columns in found.grids)


@pytest.mark.parametrize(
    "preparation", [TINY, TINY_SHAPED, TINY_ONE, TINY_WHOLE, TINY_BOUNDED], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("size", [(31, 57), (57, 31), (1, 1), (5, 90)], ids=str)
def test_patches_hold_the_pixels_of_their_tiles(size, preparation):
    image, preparation = random_image(*size), replace(preparation, **UNEVEN)
    found = prepare(image, preparation)
    whole = image.pixels
    for step in found.plan.sizes:
        whole = resize(whole, *step, preparation.resample)
    height, width = whole.shape[0] // found.plan.rows, whole.shape[1] // found.plan.columns
    tiles = [
        whole[row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row in range(found.plan.rows)
        for column in range(found.plan.columns)
    ]
    if found.plan.overview is not None:
        source = whole if isinstance(preparation, SquareTiles) else image.pixels
        tiles.append(resize(source, *found.plan.overview, preparation.resample))
    assert found.plan == plan(*size, preparation) and len(found.tiles) == len(tiles) == len(found.plan.grids)
    mean, std = (np.array(UNEVEN[key]) for key in ("mean", "std"))
    side = preparation.patch_size
    for tile, patches, (rows, columns) in zip(tiles, found.tiles, found.plan.grids, strict=True):
        assert patches.dtype == np.float32 and patches.shape == (rows * columns, 3 * side * side)
        normal = (tile / 255 - mean) / std
        for index, patch in enumerate(patches):
            row, column = divmod(index, columns)
            pixels = normal[row * side : (row + 1) * side, column * side : (column + 1) * side]
            pixels = pixels if isinstance(preparation, ShapedTiles) else pixels.transpose(2, 0, 1)
            # Rounded to float32 in each of three steps.
            assert np.abs(patch - pixels.ravel()).max() < 1e-6


def written(folder, processor=None, **changes):
    """Write the files of a model that sees, and read them."""
    values = {"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": 512}, **changes}
    if processor is not None:
        (folder / "processor_config.json").write_text(json.dumps(processor))
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return read_preparation(folder, 16, changes.get("downsample_factor", 4))


def test_files_of_idefics3_and_smolvlm(tmp_path):
    values = {
        "do_convert_rgb": True,
        "do_image_splitting": False,
        "do_pad": True,
        "image_mean": list(UNEVEN["mean"]),
        "image_std": list(UNEVEN["std"]),
        "resample": 3,
        "rescale_factor": 0.5,
        "size": {"longest_edge": 2048},
    }
    expected = SquareTiles(16, 4, "bicubic", 0.5, *UNEVEN.values(), 512, 2048, False)
    assert written(tmp_path, {"image_seq_len": 64}, **values) == expected
    assert written(tmp_path, image_processor_type="SmolVLMImageProcessorFast", size={"longest_edge": 2048}) == SMALL
    # What transformers writes today: one file.
    nested = {"image_processor": {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 728}}}
    (tmp_path / "processor_config.json").write_text(json.dumps({**nested, "image_seq_len": 169}))
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_preparation(tmp_path, 14, 2) == replace(IDEFICS, longest_edge=728)


def test_files_of_lfm2_vl(tmp_path):
    kind = {"image_processor_type": "Lfm2VlImageProcessorFast", "downsample_factor": 2}
    values = {"min_tiles": 1, "max_tiles": 4, "min_image_tokens": 3, "max_image_tokens": 200, "tile_size": 448}
    values |= {"max_pixels_tolerance": 1.5, "use_thumbnail": False, "encoder_patch_size": 16, "resample": 1}
    assert written(tmp_path, **kind) == LFM2
    expected = ShapedTiles(16, 2, "lanczos", 1 / 255, HALVES, HALVES, 448, 1, 4, 3, 200, 1.5, False)
    assert written(tmp_path, **kind, **values) == expected
    found = written(tmp_path, **kind, do_image_splitting=False)
    assert found == replace(LFM2, min_tiles=1, max_tiles=1)


def test_files_of_qwen(tmp_path):
    kind = {"image_processor_type": "Qwen2VLImageProcessorFast", "downsample_factor": 2}
    area = {"shortest_edge": 65536, "longest_edge": 16777216}
    halves = {"image_mean": list(HALVES), "image_std": list(HALVES)}
    sizes = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    assert written(tmp_path, **kind, size=area, **halves, **sizes) == QWEN
    # Older files have these keys, which override the others; colours are CLIP's by default.
    older = {"min_pixels": 3136, "max_pixels": 1_000_000}
    expected = replace(QWEN, **UNEVEN, min_pixels=3136, max_pixels=1_000_000)
    assert written(tmp_path, **kind, **older) == expected == written(tmp_path, **kind, **older, size=area)
    assert written(tmp_path, **kind) == replace(expected, max_pixels=28 * 28 * 1280)


def test_files_of_gemma3(tmp_path):
    values = {
        "image_processor_type": "Gemma3ImageProcessor",
        "do_convert_rgb": None,
        "do_pan_and_scan": None,
        "pan_and_scan_min_crop_size": None,
        "image_seq_length": 256,
        "size": {"height": 896, "width": 896},
    }
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_length": 256}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    assert read_preparation(tmp_path, 14, 4) == GEMMA3
    kind = {"image_processor_type": "Gemma3ImageProcessorFast", "resample": 3, "image_mean": list(UNEVEN["mean"])}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(kind))
    (tmp_path / "processor_config.json").unlink()
    assert read_preparation(tmp_path, 14, 2) == OneTile(14, 2, "bicubic", 1 / 255, UNEVEN["mean"], HALVES, 224)


def test_files_of_gemma4(tmp_path):
    values = {"image_processor_type": "Gemma4ImageProcessorFast", "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": values}))
    assert read_preparation(tmp_path, 16, 3) == GEMMA4
    values |= {"max_soft_tokens": 560, "patch_size": 16, "pooling_kernel_size": 3, "resample": 2, "do_normalize": True}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": values}))
    assert read_preparation(tmp_path, 16, 3) == replace(GEMMA4, max_tokens=560, resample="bilinear")


def test_files_of_mistral(tmp_path):
    kind = {"image_processor_type": "PixtralImageProcessorFast", "downsample_factor": 2, "patch_size": {"height": 9}}
    halves = {"image_mean": list(HALVES), "image_std": list(HALVES)}
    tokens = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    sizes = {"patch_size": 16, "spatial_merge_size": 2}
    expected = replace(MISTRAL, patch_size=16, max_pixels=8192 * 16 * 16)
    found = written(tmp_path, {**tokens, **sizes}, **kind, **halves, size={"longest_edge": 1540})
    assert found == expected
    # What transformers takes for keys that a file lacks.
    assert written(tmp_path, {}, **kind) == replace(expected, **UNEVEN, longest_edge=1024)


_GEMMA3 = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 64, "width": 64}}
_LFM2 = {"image_processor_type": "Lfm2VlImageProcessor", "downsample_factor": 2}
_QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "downsample_factor": 2}
_MISTRAL = {"image_processor_type": "PixtralImageProcessor", "downsample_factor": 2}


@pytest.mark.parametrize(
    ("processor", "changes", "problem"),
    [
        (None, {"image_processor_type": None}, "an image processor of no type"),
        (None, {"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor' is not supported"),
        (None, {"image_processor_type": 3}, "image_processor_type is 3; expected a string"),
        (None, {"do_resize": False}, "do_resize false is not supported"),
        (None, {"do_normalize": False}, "do_normalize false is not supported"),
        (None, {"resample": 0}, "resample 0 is not supported"),
        (None, {"resample": "cubic"}, "resample is 'cubic'; expected an integer from 0 to 5"),
        (None, {"size": {"height": 5}}, "size: longest_edge is missing"),
        (None, {"size": {"longest_edge": 5000}}, "longest_edge is 5000; expected an integer from 1 to 4096"),
        (None, {"max_image_size": {"longest_edge": 500}}, "max_image_size is 500; expected patches of 16 pixels"),
        (None, {"max_image_size": {"longest_edge": 15}}, "in groups of 4"),
        (None, {"image_mean": [0.5]}, "image_mean is [0.5]; expected a list of 3 numbers"),
        (None, {"image_std": [0, 1, 1]}, "image_std is [0, 1, 1]; expected numbers from 1e-06"),
        ({"image_seq_len": 169}, {}, "image_seq_len is 169; expected the model's 64 tokens of a tile"),
        ({"image_processor": []}, {}, "image_processor is []; expected an object"),
        ({"use_image_special_tokens": False}, _LFM2, "use_image_special_tokens false is not supported"),
        (None, {**_GEMMA3, "do_pan_and_scan": True}, "do_pan_and_scan true is not supported"),
        (
            None,
            {**_GEMMA3, "size": {"height": 64, "width": 80}},
            "size: width is 80; expected an integer from 64 to 64",
        ),
        (None, {**_GEMMA3, "size": {"longest_edge": 64}}, "size: height is missing"),
        (None, {**_GEMMA3, "size": {"height": 80, "width": 80}}, "size is 80; expected patches of 16 pixels a side"),
        ({"image_seq_length": 4}, _GEMMA3, "image_seq_length is 4; expected the model's 1 tokens of a tile"),
        (None, {**_LFM2, "encoder_patch_size": 14}, "encoder_patch_size is 14; expected the model's 16"),
        (None, {**_LFM2, "tile_size": 528}, "tile_size is 528; expected patches of 16 pixels"),
        (None, {**_LFM2, "tile_size": 520}, "tile_size is 520; expected a multiple of 32"),
        (None, {**_LFM2, "min_tiles": 11}, "min_tiles is 11; expected an integer from 1 to 10"),
        (None, {**_LFM2, "max_tiles": 1000}, "max_tiles is 1000; expected an integer from 1 to 64"),
        (None, {**_LFM2, "min_image_tokens": 0}, "min_image_tokens is 0; expected an integer from 1 to 256"),
        (None, {**_QWEN, "patch_size": 14}, "patch_size is 14; expected the model's 16"),
        (None, {**_QWEN, "merge_size": 4}, "merge_size is 4; expected the model's 2"),
        (None, {**_QWEN, "size": {"height": 5}}, "size: longest_edge is missing; expected an integer from 1"),
        (None, {**_QWEN, "max_pixels": 0}, "max_pixels is 0; expected an integer from 1"),
        (None, {**_QWEN, "min_pixels": 1 << 22}, "min_pixels is 4194304; expected an integer from 1 to 1003520"),
        (None, {**_QWEN, "size": {"shortest_edge": 2_000_000, "longest_edge": 3_000_000}}, "more than 8192 patches"),
        ({"patch_size": 14}, _MISTRAL, "patch_size is 14; expected the model's 16"),
        ({"spatial_merge_size": 1}, _MISTRAL, "spatial_merge_size is 1; expected the model's 2"),
        ({"image_break_token": "<br>"}, _MISTRAL, "image_break_token '<br>' is not supported"),
        ({"image_token": 10}, _MISTRAL, "image_token is 10; expected a string"),
        (None, {**_MISTRAL, "size": {"height": 64, "width": 64}}, "size: longest_edge is missing"),
        (None, {**_MISTRAL, "size": {"longest_edge": 5000}}, "longest_edge is 5000; expected an integer from 1"),
    ],
)
def test_errors_name_the_key(processor, changes, problem, tmp_path):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=re.escape(problem)) as caught:
        written(tmp_path, processor, **changes)
    assert "config.json: " in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json does not exist"):
        read_preparation(tmp_path, 16, 4)


@pytest.fixture
def columns_first(monkeypatch):
    """Resize columns first in every version of Pillow, as `tinychat.images.resize` does."""
    pillow = pytest.importorskip("PIL.Image")
    by_pillow = pillow.Image.resize

    def resized(picture, size, resample=None, **options):
        picture = by_pillow(picture, (size[0], picture.height), resample)
        return by_pillow(picture, size, resample)

    monkeypatch.setattr(pillow.Image, "resize", resized)


@pytest.fixture
def torchvision(monkeypatch, columns_first):
    """Stand in for what the default processors call of torchvision, which is not installed: resizing is Pillow's."""
    import torch
    import transformers.image_processing_backends as backends
    import transformers.image_transforms  # noqa: F401 (before there is a torchvision)
    from PIL import Image as pillow

    def resized(self, image, size, resample=None, **options):
        arrays = [each.permute(1, 2, 0).numpy() for each in image]
        found = [pillow.fromarray(array).resize((size.width, size.height), resample) for array in arrays]
        return torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in found])

    def normalized(self, images, mean, std, inplace=False):
        return (images - mean[:, None, None]) / std[:, None, None]

    names = (
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.v2",
        "torchvision.transforms.v2.functional",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for outer, inner in pairwise(names):
        setattr(sys.modules[outer], inner.rpartition(".")[2], sys.modules[inner])
    monkeypatch.setattr(backends.TorchvisionBackend, "resize", resized)
    monkeypatch.setattr(backends.TorchvisionBackend, "normalize", normalized)


def processor_class(family, name):
    module = f"transformers.models.{family}.image_processing_{'pil_' if name.endswith('Pil') else ''}{family}"
    return getattr(importlib.import_module(module), name)


def as_picture(image):
    """Return an image of Pillow's: of an array transformers guesses which axis is the colours."""
    return importlib.import_module("PIL.Image").fromarray(image.pixels)


def square_processor(family, name, preparation):
    names = {"bilinear": 2, "bicubic": 3, "lanczos": 1}
    return processor_class(family, name)(
        size={"longest_edge": preparation.longest_edge},
        max_image_size={"longest_edge": preparation.tile_size},
        do_image_splitting=preparation.is_split,
        resample=names[preparation.resample],
        image_mean=list(preparation.mean),
        image_std=list(preparation.std),
        rescale_factor=preparation.rescale,
    )


def patches_by_convolution(pixels, side):
    """Return the columns that a convolution of torch sees."""
    import torch

    return torch.nn.functional.unfold(torch.from_numpy(pixels)[None], side, stride=side)[0].T.numpy()


@pytest.mark.live
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("smolvlm", "SmolVLMImageProcessor"),
        ("smolvlm", "SmolVLMImageProcessorPil"),
        ("idefics3", "Idefics3ImageProcessor"),
        ("idefics3", "Idefics3ImageProcessorPil"),
    ],
)
@pytest.mark.parametrize(
    "preparation", [TINY, replace(TINY, is_split=False), replace(TINY, **UNEVEN)], ids=["split", "whole", "uneven"]
)
def test_square_tiles_are_those_of_transformers(family, name, preparation, torchvision):
    processor = square_processor(family, name, preparation)
    random = np.random.default_rng(5)
    sizes = [(1, 1), (1, 90), (90, 1), (20, 20), (70, 70), (21, 20), (3, 1000), (400, 300)]
    for size in [*sizes, *random.integers(1, 150, (60, 2))]:
        image = random_image(*map(int, size))
        expected = processor([[as_picture(image)]], return_row_col_info=True, return_tensors="np")
        found = prepare(image, preparation)
        rows, columns = expected["rows"][0][0], expected["cols"][0][0]
        assert (rows, columns) == ((found.plan.rows, found.plan.columns) if found.plan.overview else (0, 0))
        assert len(expected["pixel_values"][0]) == len(found.tiles)
        for theirs, ours in zip(expected["pixel_values"][0], found.tiles, strict=True):
            theirs = patches_by_convolution(np.asarray(theirs), preparation.patch_size)
            if name.endswith("Pil"):
                # They rescale pixels to float32 first, and so round them once more.
                assert np.abs(theirs - ours).max() < 1e-6
            else:
                assert np.array_equal(theirs, ours)


@pytest.mark.live
@pytest.mark.parametrize(("height", "width"), [(600, 800), (801, 600), (300, 300), (3, 1000), (2500, 1900)])
def test_pixels_of_a_real_size_are_those_of_transformers(height, width, torchvision):
    processor = square_processor("smolvlm", "SmolVLMImageProcessor", SMALL)
    image = random_image(height, width)
    expected = processor([[as_picture(image)]], return_tensors="np")["pixel_values"][0]
    for theirs, ours in zip(expected, prepare(image, SMALL).tiles, strict=True):
        assert np.array_equal(patches_by_convolution(np.asarray(theirs), 16), ours)


@pytest.mark.live
@pytest.mark.parametrize(
    "preparation", [SMALL, LARGE, IDEFICS, replace(SMALL, is_split=False)], ids=["small", "large", "idefics3", "whole"]
)
def test_texts_of_square_tiles_are_those_of_transformers(preparation, torchvision):
    smolvlm = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    idefics3 = importlib.import_module("transformers.models.idefics3.processing_idefics3").Idefics3Processor
    processor = square_processor("smolvlm", "SmolVLMImageProcessorPil", preparation)
    marks = ("<fake_token_around_image>", "<image>", "<global-img>")
    tokens = (preparation.tile_size // preparation.patch_size // preparation.scale_factor) ** 2
    model = SimpleNamespace(image_seq_len=tokens)
    model.fake_image_token, model.image_token, model.global_image_tag = marks
    for height, width in SIZES:
        rows, columns = rows_and_columns(processor, height, width, preparation)
        found = plan(height, width, preparation).text
        assert found == smolvlm.get_image_prompt_string(rows, columns, tokens, *marks)
        assert found == idefics3.replace_image_token(model, {"rows": [[rows]], "cols": [[columns]]}, 0)


def rows_and_columns(processor, height, width, preparation):
    """Return the tiles that a processor of transformers makes of an image of some size, without resizing it."""
    module = sys.modules[type(processor).__module__]
    image = np.broadcast_to(np.uint8(0), (3, height, width))
    if not preparation.is_split:
        return 0, 0
    height, width = module.get_resize_output_image_size(image, resolution_max_side=preparation.longest_edge)
    image = np.broadcast_to(np.uint8(0), (3, height, width))
    sizes = []
    processor.resize = lambda image, size, resample: sizes.append((size.height, size.width))
    processor.resize_for_vision_encoder(image, preparation.tile_size)
    image = np.broadcast_to(np.uint8(0), (3, *sizes[0]))
    _, rows, columns = processor.split_images(image, {"longest_edge": preparation.tile_size})
    return rows, columns


def shaped_processor(preparation):
    return processor_class("lfm2_vl", "Lfm2VlImageProcessor")(
        downsample_factor=preparation.scale_factor,
        encoder_patch_size=preparation.patch_size,
        min_tiles=preparation.min_tiles,
        max_tiles=preparation.max_tiles,
        min_image_tokens=preparation.min_tokens,
        max_image_tokens=preparation.max_tokens,
        max_pixels_tolerance=preparation.tolerance,
        tile_size=preparation.tile_size,
        use_thumbnail=preparation.has_overview,
        do_image_splitting=preparation.max_tiles > 1,
        image_mean=list(preparation.mean),
        image_std=list(preparation.std),
    )


@pytest.mark.live
@pytest.mark.parametrize(
    "preparation",
    [
        TINY_SHAPED,
        replace(TINY_SHAPED, **UNEVEN),
        replace(TINY_SHAPED, has_overview=False),
        replace(TINY_SHAPED, min_tiles=1, max_tiles=1),
    ],
    ids=["split", "uneven", "no overview", "whole"],
)
def test_shaped_tiles_are_those_of_transformers(preparation, torchvision):
    processing = importlib.import_module("transformers.models.lfm2_vl.processing_lfm2_vl").Lfm2VlProcessor
    processor = shaped_processor(preparation)
    model = processing.__new__(processing)
    model.image_processor, model.image_token = processor, "<image>"
    model.image_start_token, model.image_end_token = "<|image_start|>", "<|image_end|>"
    model.image_thumbnail_token = "<|img_thumbnail|>"
    random = np.random.default_rng(6)
    for size in [(1, 1), (1, 20), (24, 24), (300, 200), *random.integers(5, 150, (80, 2))]:
        image = random_image(*map(int, size))
        expected = processor([as_picture(image)], return_row_col_info=True)
        found = prepare(image, preparation)
        text = model.replace_image_token(expected, 0, use_image_special_tokens=True)
        assert found.plan.text == text, size
        assert found.plan.grids == tuple(map(tuple, expected["spatial_shapes"].tolist()))
        for theirs, ours in zip(expected["pixel_values"].numpy(), found.tiles, strict=True):
            assert np.array_equal(theirs[: len(ours)], ours)


@pytest.mark.live
def test_shapes_of_real_sizes_are_those_of_transformers(torchvision):
    processor = shaped_processor(LFM2)
    options = {"max_image_tokens": 256, "encoder_patch_size": 16, "downsample_factor": 2}
    for height, width in SIZES:
        found = plan(height, width, LFM2)
        is_large = processor._is_image_too_large(height, width, max_pixels_tolerance=2.0, **options)
        grid = processor._get_grid_layout(height, width, 2, 10, 512)[:2] if is_large else (1, 1)
        assert (found.columns, found.rows) == grid
        size = processor.smart_resize(height, width, min_image_tokens=64, **options)[::-1]
        # Theirs of a very narrow image are refused by their own model, or have thousands of tokens.
        if size[0] * size[1] <= 512 * 1024:
            assert size == (found.overview if is_large else found.sizes[0])


def whole_processor(name, preparation):
    return processor_class("qwen2_vl", name)(
        size={"shortest_edge": preparation.min_pixels, "longest_edge": preparation.max_pixels},
        patch_size=preparation.patch_size,
        merge_size=preparation.scale_factor,
        image_mean=list(preparation.mean),
        image_std=list(preparation.std),
    )


@pytest.mark.live
@pytest.mark.parametrize("name", ["Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil"])
@pytest.mark.parametrize("preparation", [TINY_WHOLE, replace(TINY_WHOLE, **UNEVEN)], ids=["halves", "uneven"])
def test_whole_images_are_those_of_transformers(name, preparation, torchvision):
    processing = importlib.import_module("transformers.models.qwen3_vl.processing_qwen3_vl").Qwen3VLProcessor
    processor = whole_processor(name, preparation)
    model = processing.__new__(processing)
    model.image_processor, model.image_token = processor, "<|image_pad|>"
    random = np.random.default_rng(7)
    for size in [(1, 1), (1, 200), (200, 1), (24, 24), (300, 200), *random.integers(2, 150, (80, 2))]:
        image = random_image(*map(int, size))
        expected = processor([as_picture(image)], return_tensors="np")
        found = prepare(image, preparation)
        assert found.plan.text == model.replace_image_token(expected, 0)
        ((_, rows, columns),) = expected["image_grid_thw"].tolist()
        assert found.plan.grids == ((rows, columns),)
        (ours,) = found.tiles
        theirs, ours = np.asarray(expected["pixel_values"]), towers.as_frames(ours, (rows, columns), 2)
        if name.endswith("Pil"):
            # They rescale pixels to float32 first, and so round them once more.
            assert np.abs(theirs - ours).max() < 1e-6
        else:
            assert np.array_equal(theirs, ours)


@pytest.mark.live
@pytest.mark.parametrize("preparation", [QWEN, QWEN_SMALL, QWEN2_VL], ids=["qwen", "small", "qwen2-vl"])
def test_sizes_of_whole_images_are_those_of_transformers(preparation, torchvision):
    processor = whole_processor("Qwen2VLImageProcessor", preparation)
    smart_resize = sys.modules[type(processor).__module__].smart_resize
    factor = preparation.patch_size * preparation.scale_factor
    for height, width in SIZES:
        try:
            expected = smart_resize(height, width, factor, preparation.min_pixels, preparation.max_pixels)
        except ValueError:
            with pytest.raises(SettingError, match="too narrow"):
                plan(height, width, preparation)
        else:
            assert plan(height, width, preparation).sizes == (expected,)


@pytest.mark.live
@pytest.mark.parametrize("name", ["Gemma3ImageProcessor", "Gemma3ImageProcessorPil"])
@pytest.mark.parametrize(
    "preparation", [TINY_ONE, replace(TINY_ONE, resample="bicubic", **UNEVEN)], ids=["tiny", "uneven"]
)
def test_one_tile_is_that_of_transformers(name, preparation, torchvision):
    processor = processor_class("gemma3", name)(
        size={"height": preparation.tile_size, "width": preparation.tile_size},
        resample={"bilinear": 2, "bicubic": 3}[preparation.resample],
        image_mean=list(preparation.mean),
        image_std=list(preparation.std),
    )
    sizes = [(1, 1), (1, 90), (20, 20), (3, 1000), (400, 300)]
    for size in [*sizes, *np.random.default_rng(5).integers(1, 150, (60, 2))]:
        image = random_image(*map(int, size))
        (theirs,) = processor([[as_picture(image)]], return_tensors="np")["pixel_values"]
        (ours,) = prepare(image, preparation).tiles
        theirs = patches_by_convolution(np.asarray(theirs), preparation.patch_size)
        if name.endswith("Pil"):
            assert np.abs(theirs - ours).max() < 1e-6
        else:
            assert np.array_equal(theirs, ours)


@pytest.mark.live
@pytest.mark.parametrize("most", [70, 280, 560])
def test_sizes_of_filled_images_are_those_of_transformers(most, torchvision):
    theirs = sys.modules[processor_class("gemma4", "Gemma4ImageProcessorPil").__module__]
    preparation = replace(GEMMA4, max_tokens=most)
    for height, width in [*SIZES, (1, 5000), (5000, 1), (1, 48), (47, 48)]:
        expected = theirs.get_aspect_ratio_preserving_size(height, width, 16, 9 * most, 3)
        assert plan(height, width, preparation).sizes == (expected,)
        assert math.prod(expected) <= preparation.most_patches * 16**2


@pytest.mark.live
def test_filled_images_are_those_of_transformers(torchvision):
    preparation = replace(GEMMA4, patch_size=4, max_tokens=70)
    processor = processor_class("gemma4", "Gemma4ImageProcessorPil")(patch_size=4, max_soft_tokens=70)
    for size in [(1, 1), (1, 90), (20, 20), (300, 200), *np.random.default_rng(5).integers(1, 150, (40, 2))]:
        image = random_image(*map(int, size))
        seen = processor([as_picture(image)], return_tensors="np")
        (ours,) = prepare(image, preparation).tiles
        # The tower brings pixels from -1 to 1, and theirs are rounded once more.
        assert np.abs(2 * np.asarray(seen["pixel_values"])[0, : len(ours)] - 1 - ours).max() < 1e-6


def bounded_processor(name, preparation):
    return processor_class("pixtral", name)(
        size={"longest_edge": preparation.longest_edge},
        image_mean=list(preparation.mean),
        image_std=list(preparation.std),
    )


@pytest.mark.live
@pytest.mark.parametrize("name", ["PixtralImageProcessor", "PixtralImageProcessorPil"])
@pytest.mark.parametrize(
    "preparation",
    [TINY_BOUNDED, replace(TINY_BOUNDED, scale_factor=1, **UNEVEN), replace(TINY_BOUNDED, longest_edge=60)],
    ids=["merged", "uneven", "even"],
)
def test_bounded_images_are_those_of_transformers(name, preparation, torchvision):
    processing = importlib.import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor
    model = processing.__new__(processing)
    model.patch_size, model.spatial_merge_size = preparation.patch_size, preparation.scale_factor
    model.image_token, model.image_break_token, model.image_end_token = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
    processor = bounded_processor(name, preparation)
    random = np.random.default_rng(8)
    for size in [(1, 1), (2, 100), (100, 2), (24, 24), (61, 61), (300, 200), *random.integers(3, 150, (80, 2))]:
        image = random_image(*map(int, size))
        # As the processor of the whole model calls it.
        expected = processor([as_picture(image)], patch_size=preparation.step, return_tensors="np")
        found = prepare(image, preparation)
        assert found.plan.text == model.replace_image_token(expected, 0)
        assert found.plan.sizes == (tuple(expected["image_sizes"][0].tolist()),)
        (ours,), theirs = found.tiles, patches_by_convolution(np.asarray(expected["pixel_values"][0]), 3)
        if name.endswith("Pil"):
            assert np.abs(theirs - ours).max() < 1e-6
        else:
            assert np.array_equal(theirs, ours)


@pytest.mark.live
@pytest.mark.parametrize("preparation", [MISTRAL, PIXTRAL], ids=["mistral", "pixtral"])
def test_sizes_of_bounded_images_are_those_of_transformers(preparation):
    module = sys.modules[processor_class("pixtral", "PixtralImageProcessorPil").__module__]
    compared = 0
    for height, width in SIZES:
        image = np.broadcast_to(np.uint8(0), (3, height, width))
        size = module.get_resize_output_image_size(image, preparation.longest_edge, preparation.step, "channels_first")
        # They fail where nothing is left of a side, and ours are shrunk to what a step takes.
        if min(size) and size[0] * size[1] <= preparation.max_pixels:
            assert plan(height, width, preparation).sizes == (size,)
            compared += 1
        elif min(size):
            found = plan(height, width, preparation).sizes[0]
            assert 0.95 * preparation.max_pixels < found[0] * found[1] <= preparation.max_pixels
    assert compared > 100
