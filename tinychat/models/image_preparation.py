"""How a model wants its images: the image processor's part of `processor_config.json`, or `preprocessor_config.json`.

Models of the kind of Idefics3 see square tiles of one size, those of LFM2-VL tiles of any shape, Gemma 3 one square,
and those of Qwen2-VL and its followers, and of Pixtral, whole images.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.config_values import ConfigValues

PROCESSOR, IMAGE_PROCESSOR = "processor_config.json", "preprocessor_config.json"
PREPARATION_FILES = (PROCESSOR, IMAGE_PROCESSOR)
# Pillow's numbers of the filters that images are resized with.
_RESAMPLES = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
# Sides of images and tiles, as transformers bounds them; nor has a message more tokens of one image.
_MAX_SIDE, _MAX_TILES, _MAX_TOKENS = 4096, 64, 1 << 14
# A tile runs in one step of a tower, which takes no more.
MOST_PATCHES = 8192
_HALVES = (0.5, 0.5, 0.5)
# What transformers takes for keys that the files of Qwen2-VL and its followers lack: CLIP's colours, and pixels. The
# colours are Pixtral's, too.
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 28 * 28 * 1280
# Of a whole image in low detail.
_FEW_TOKENS = 256
# Mistral's names of the tokens of an image, and behind each of its rows; the last has one of its own.
MISTRAL_TOKENS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}


@dataclass(frozen=True)
class _Tiles:
    """The values that all models have.

    Patches are squares of `patch_size` pixels a side; `scale_factor` squared of them are one image token. A pixel of
    each channel becomes ``(pixel * rescale - mean) / std``.
    """

    patch_size: int
    scale_factor: int
    resample: str
    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def step(self) -> int:
        """Pixels a side of the square that an image token stands for."""
        return self.patch_size * self.scale_factor


@dataclass(frozen=True)
class SquareTiles(_Tiles):
    """Idefics3 and SmolVLM: an image of `longest_edge` pixels is split into squares of `tile_size`, if it `is_split`.

    Its overview follows, a square of the same size; without the splitting it is all that the model sees.
    """

    tile_size: int
    longest_edge: int
    is_split: bool

    @property
    def of_low_detail(self) -> "SquareTiles":
        """The preparation of an image that takes few tokens: its overview."""
        return replace(self, is_split=False)


@dataclass(frozen=True)
class ShapedTiles(_Tiles):
    """LFM2-VL: an image keeps its shape and is given from `min_tokens` to `max_tokens` image tokens.

    One with more pixels than `tolerance` times those of `max_tokens` is split into `min_tiles` to `max_tiles` squares
    of `tile_size`, unless the latter is 1; `has_overview` if all of it follows.
    """

    tile_size: int
    min_tiles: int
    max_tiles: int
    min_tokens: int
    max_tokens: int
    tolerance: float
    has_overview: bool

    @property
    def of_low_detail(self) -> "ShapedTiles":
        """The preparation of an image that takes few tokens: all of it in one tile."""
        return replace(self, min_tiles=1, max_tiles=1)

    @property
    def most_patches(self) -> int:
        """Patches of the largest tile: a square of a split image, or a whole one."""
        whole = int(self.max_tokens * self.tolerance) * self.scale_factor**2
        return max(whole, (self.tile_size // self.patch_size) ** 2)


@dataclass(frozen=True)
class OneTile(_Tiles):
    """Gemma 3: an image of any shape becomes one square of `tile_size`."""

    tile_size: int

    @property
    def of_low_detail(self) -> "OneTile":
        """The same: every image takes as many tokens."""
        return self


@dataclass(frozen=True)
class WholeImage(_Tiles):
    """Qwen2-VL and its followers: an image is one tile, keeps its shape, and has `min_pixels` to `max_pixels`.

    No side may be more than `MAX_RATIO` times the other one.
    """

    MAX_RATIO: ClassVar[int] = 200

    min_pixels: int
    max_pixels: int

    @property
    def of_low_detail(self) -> "WholeImage":
        """The preparation of an image that takes few tokens: 256, or as few as any."""
        few = min(self.max_pixels, _FEW_TOKENS * self.step**2)
        return replace(self, max_pixels=max(self.min_pixels, few))

    @property
    def most_patches(self) -> int:
        """Patches of the largest tile: narrow images have more than pixels of theirs would be, when these are few."""
        # Sides are rounded to whole tokens: upwards where pixels are too few, and where one side would have no token.
        least = self.min_pixels / self.step**2
        narrow = math.ceil(least + (math.sqrt(self.MAX_RATIO) + 1) * math.sqrt(least)) + 1
        tokens = max(self.max_pixels // self.step**2, narrow, self.MAX_RATIO)
        return tokens * self.scale_factor**2


@dataclass(frozen=True)
class FilledImage(_Tiles):
    """Gemma 4: an image is one tile, keeps its shape, and is as large as `max_tokens` allow."""

    max_tokens: int

    @property
    def of_low_detail(self) -> "FilledImage":
        """The preparation of an image that takes few tokens: as many as the least detail of the model's makers has."""
        return replace(self, max_tokens=min(self.max_tokens, 70))

    @property
    def most_patches(self) -> int:
        """Patches of the largest tile."""
        return self.max_tokens * self.scale_factor**2


@dataclass(frozen=True)
class BoundedImage(_Tiles):
    """Pixtral and Mistral 3: an image is one tile and keeps its shape; no side has more than `longest_edge` pixels.

    Nor has it more than `max_pixels`, in whole tokens.
    """

    longest_edge: int
    max_pixels: int

    @property
    def of_low_detail(self) -> "BoundedImage":
        """The preparation of an image that takes few tokens."""
        return replace(self, max_pixels=min(self.max_pixels, _FEW_TOKENS * self.step**2))

    @property
    def most_patches(self) -> int:
        """Patches of the largest tile; a row of tokens may be as long as the edge, however few the pixels may be."""
        side = math.ceil(self.longest_edge / self.step)
        return min(side**2, max(side, self.max_pixels // self.step**2)) * self.scale_factor**2


Preparation = SquareTiles | ShapedTiles | OneTile | WholeImage | FilledImage | BoundedImage


def read_preparation(folder: Path, patch_size: int, scale_factor: int) -> Preparation:
    """Read how to prepare images for the model in a folder, by its patches' size and how many give one token a side.

    `UnsupportedModelError` for another kind of image processor, `CheckpointError` for a file that is missing, damaged,
    or contradicts the model.
    """
    processor, values = _read_files(folder)
    kind = values.optional_text("image_processor_type") or ""
    # Of the same processors in older and faster versions.
    base = kind.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor")
    if base not in ("Gemma3", "Gemma4", "Idefics3", "SmolVLM", "Lfm2Vl", "Pixtral", "Qwen2VL"):
        found = f"image_processor_type {one_line(kind, 60)!r}" if kind else "an image processor of no type"
        raise UnsupportedModelError(f"{values.source}: {found} is not supported")
    values.require(do_resize=True, do_rescale=True)
    if base == "Gemma4":
        return _filled_image(values, patch_size, scale_factor)
    values.require(do_normalize=True)
    if base == "Gemma3":
        return _one_tile(processor, values, patch_size, scale_factor)
    if base == "Lfm2Vl":
        return _shaped_tiles(processor, values, patch_size, scale_factor)
    if base == "Qwen2VL":
        return _whole_image(values, patch_size, scale_factor)
    if base == "Pixtral":
        return _bounded_image(processor, values, patch_size, scale_factor)
    return _square_tiles(processor, values, patch_size, scale_factor)


def _read_files(folder: Path) -> tuple[ConfigValues, ConfigValues]:
    """Return the values of the processor, which may have no file, and of the image processor in or beside it."""
    path = folder / PROCESSOR
    processor = ConfigValues(read_json_object(path) if path.is_file() else {}, str(path))
    nested = processor.optional_section("image_processor")
    if nested is None:
        path = folder / IMAGE_PROCESSOR
        nested = ConfigValues(read_json_object(path), str(path))
    return processor, nested


def _one_tile(processor: ConfigValues, values: ConfigValues, patch_size: int, scale_factor: int) -> OneTile:
    # With it, a model sees parts of wide and tall images, too, as other texts tell it.
    values.require(do_pan_and_scan=False)
    size = values.optional_section("size") or ConfigValues({"height": 224, "width": 224}, values.source)
    tile_size = size.integer("height", 1, _MAX_SIDE)
    size.integer("width", tile_size, tile_size)
    rows = _token_rows(values, "size", tile_size, patch_size, scale_factor)
    for each in (processor, values):
        _check_tokens(each, "image_seq_length", rows)
    return OneTile(*_of_pixels(values, patch_size, scale_factor, 2), tile_size=tile_size)


def _square_tiles(processor: ConfigValues, values: ConfigValues, patch_size: int, scale_factor: int) -> SquareTiles:
    tile_size = _longest_edge(values, "max_image_size", 364)
    rows = _token_rows(values, "max_image_size", tile_size, patch_size, scale_factor)
    _check_tokens(processor, "image_seq_len", rows)
    return SquareTiles(
        *_of_pixels(values, patch_size, scale_factor, 1),
        tile_size=tile_size,
        longest_edge=_longest_edge(values, "size", 4 * 364),
        is_split=values.flag("do_image_splitting", True),
    )


def _shaped_tiles(processor: ConfigValues, values: ConfigValues, patch_size: int, scale_factor: int) -> ShapedTiles:
    processor.require(use_image_special_tokens=True)
    _check_patches(values, encoder_patch_size=patch_size, downsample_factor=scale_factor)
    tile_size = _optional(values, "tile_size", 512, _MAX_SIDE)
    _token_rows(values, "tile_size", tile_size, patch_size, scale_factor)
    if tile_size % (patch_size * scale_factor):
        raise values.error("tile_size", f"a multiple of {patch_size * scale_factor}")
    is_split = values.flag("do_image_splitting", True)
    max_tiles = _optional(values, "max_tiles", 10, _MAX_TILES) if is_split else 1
    max_tokens = _optional(values, "max_image_tokens", 256, _MAX_TOKENS)
    tolerance = values.optional_number("max_pixels_tolerance", 1, 64)
    return ShapedTiles(
        *_of_pixels(values, patch_size, scale_factor, 2),
        tile_size=tile_size,
        min_tiles=_optional(values, "min_tiles", 2, max_tiles) if is_split else 1,
        max_tiles=max_tiles,
        min_tokens=_optional(values, "min_image_tokens", 64, max_tokens),
        max_tokens=max_tokens,
        tolerance=2.0 if tolerance is None else tolerance,
        has_overview=values.flag("use_thumbnail", True),
    )


def _whole_image(values: ConfigValues, patch_size: int, scale_factor: int) -> WholeImage:
    _check_patches(values, patch_size=patch_size, merge_size=scale_factor)
    # Their names are of sides, their values numbers of pixels.
    size = values.optional_section("size") or ConfigValues(
        {"shortest_edge": _MIN_PIXELS, "longest_edge": _MAX_PIXELS}, values.source
    )
    highest = 1 << 32
    most = values.optional_integer("max_pixels", 1, highest) or size.integer("longest_edge", 1, highest)
    most = min(most, MOST_PATCHES * patch_size**2)
    least = values.optional_integer("min_pixels", 1, most) or size.integer("shortest_edge", 1, most)
    pixels = _of_pixels(values, patch_size, scale_factor, 3, (_CLIP_MEAN, _CLIP_STD))
    found = WholeImage(*pixels, min_pixels=least, max_pixels=most)
    if found.most_patches > MOST_PATCHES:
        raise CheckpointError(f"{values.source}: merge_size and min_pixels make more than {MOST_PATCHES} patches")
    return found


def _filled_image(values: ConfigValues, patch_size: int, scale_factor: int) -> FilledImage:
    _check_patches(values, patch_size=patch_size, pooling_kernel_size=scale_factor)
    # The tower itself brings pixels from -1 to 1; other numbers than 0 and 1 would be taken before that.
    normal = values.flag("do_normalize", False)
    for key, only in (("image_mean", 0.0), ("image_std", 1.0)):
        if normal and values.get(key) is not None and set(values.numbers(key, 3, -1e3, 1e3)) != {only}:
            raise UnsupportedModelError(f"{values.source}: {key} is not supported")
    most = values.optional_integer("max_soft_tokens", 1, MOST_PATCHES // scale_factor**2) or 280
    found = FilledImage(*_of_pixels(values, patch_size, scale_factor, 3), max_tokens=most)
    return replace(found, mean=_HALVES, std=_HALVES)


def _bounded_image(processor: ConfigValues, values: ConfigValues, patch_size: int, scale_factor: int) -> BoundedImage:
    # The image processor's own patches give way to these.
    _check_patches(processor, patch_size=patch_size, spatial_merge_size=scale_factor)
    for key, name in MISTRAL_TOKENS.items():
        if (found := processor.optional_text(key)) not in (None, name):
            raise UnsupportedModelError(f"{processor.source}: {key} {one_line(str(found), 40)!r} is not supported")
    pixels = _of_pixels(values, patch_size, scale_factor, 3, (_CLIP_MEAN, _CLIP_STD))
    longest = _longest_edge(values, "size", 1024)
    bounded = BoundedImage(*pixels, longest_edge=longest, max_pixels=MOST_PATCHES * patch_size**2)
    if bounded.most_patches > MOST_PATCHES:
        raise CheckpointError(f"{values.source}: size: longest_edge makes rows of more than {MOST_PATCHES} patches")
    return bounded


def _check_patches(values: ConfigValues, **sizes: int) -> None:
    """Refuse a file that contradicts the model's sizes."""
    for key, size in sizes.items():
        if values.optional_integer(key, 1, _MAX_SIDE) not in (None, size):
            raise values.error(key, f"the model's {size}")


def _of_pixels(
    values: ConfigValues,
    patch_size: int,
    scale_factor: int,
    resample: int,
    colours: tuple[tuple[float, ...], tuple[float, ...]] = (_HALVES, _HALVES),
) -> tuple[int, int, str, float, tuple[float, ...], tuple[float, ...]]:
    """Return the values of `_Tiles`, in their order; the defaults are a filter's number, means and deviations."""
    found = values.optional_integer("resample", 0, 5)
    name = _RESAMPLES.get(resample if found is None else found)
    if name is None:
        raise UnsupportedModelError(f"{values.source}: resample {found} is not supported")
    rescale = values.optional_number("rescale_factor", 1e-6, 1)
    mean = colours[0] if values.get("image_mean") is None else values.numbers("image_mean", 3, -1e3, 1e3)
    std = colours[1] if values.get("image_std") is None else values.numbers("image_std", 3, 1e-6, 1e3)
    return patch_size, scale_factor, name, 1 / 255 if rescale is None else rescale, mean, std


def _check_tokens(processor: ConfigValues, key: str, rows: int) -> None:
    """Refuse another number of tokens of a tile than the model's."""
    if processor.optional_integer(key, 1, _MAX_TOKENS) not in (None, rows * rows):
        raise processor.error(key, f"the model's {rows * rows} tokens of a tile")


def _longest_edge(values: ConfigValues, key: str, default: int) -> int:
    section = values.optional_section(key)
    return default if section is None else section.integer("longest_edge", 1, _MAX_SIDE)


def _token_rows(values: ConfigValues, key: str, tile_size: int, patch_size: int, scale_factor: int) -> int:
    """Return the rows of image tokens that a square tile has; the model drops pixels that are no whole patch."""
    rows, rest = divmod(tile_size // patch_size, scale_factor)
    if rest or not rows:
        raise CheckpointError(
            f"{values.source}: {key} is {tile_size}; expected patches of {patch_size} pixels a side, in groups of"
            f" {scale_factor}"
        )
    return rows


def _optional(values: ConfigValues, key: str, default: int, high: int) -> int:
    """Return an integer from 1 to `high`, by default a number that may exceed it."""
    found = values.optional_integer(key, 1, high)
    return min(default, high) if found is None else found
