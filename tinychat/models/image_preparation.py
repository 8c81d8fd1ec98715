"""How a model wants its images: the image processor's part of `processor_config.json`, or `preprocessor_config.json`.

Models of the kind of Idefics3 see square tiles of one size, those of LFM2-VL tiles of any shape.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.config_values import ConfigValues

PROCESSOR, IMAGE_PROCESSOR = "processor_config.json", "preprocessor_config.json"
PREPARATION_FILES = (PROCESSOR, IMAGE_PROCESSOR)
# Pillow's numbers of the filters that images are resized with.
_RESAMPLES = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
# Sides of images and tiles, as transformers bounds them; nor has a message more tokens of one image.
_MAX_SIDE, _MAX_TILES, _MAX_TOKENS = 4096, 64, 1 << 14


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


Preparation = SquareTiles | ShapedTiles


def read_preparation(folder: Path, patch_size: int, scale_factor: int) -> Preparation:
    """Read how to prepare images for the model in a folder, by its patches' size and how many give one token a side.

    `UnsupportedModelError` for another kind of image processor, `CheckpointError` for a file that is missing, damaged,
    or contradicts the model.
    """
    processor, values = _read_files(folder)
    kind = values.optional_text("image_processor_type") or ""
    # Of the same processors in older and faster versions.
    base = kind.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor")
    if base not in ("Idefics3", "SmolVLM", "Lfm2Vl"):
        found = f"image_processor_type {one_line(kind, 60)!r}" if kind else "an image processor of no type"
        raise UnsupportedModelError(f"{values.source}: {found} is not supported")
    values.require(do_resize=True, do_rescale=True, do_normalize=True)
    if base == "Lfm2Vl":
        return _shaped_tiles(processor, values, patch_size, scale_factor)
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


def _square_tiles(processor: ConfigValues, values: ConfigValues, patch_size: int, scale_factor: int) -> SquareTiles:
    tile_size = _longest_edge(values, "max_image_size", 364)
    rows = _token_rows(values, "max_image_size", tile_size, patch_size, scale_factor)
    expected = processor.optional_integer("image_seq_len", 1, _MAX_TOKENS)
    if expected not in (None, rows * rows):
        raise processor.error("image_seq_len", f"the model's {rows * rows} tokens of a tile")
    return SquareTiles(
        *_of_pixels(values, patch_size, scale_factor, 1),
        tile_size=tile_size,
        longest_edge=_longest_edge(values, "size", 4 * 364),
        is_split=values.flag("do_image_splitting", True),
    )


def _shaped_tiles(processor: ConfigValues, values: ConfigValues, patch_size: int, scale_factor: int) -> ShapedTiles:
    processor.require(use_image_special_tokens=True)
    for key, model in (("encoder_patch_size", patch_size), ("downsample_factor", scale_factor)):
        if values.optional_integer(key, 1, _MAX_SIDE) not in (None, model):
            raise values.error(key, f"the model's {model}")
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


def _of_pixels(
    values: ConfigValues, patch_size: int, scale_factor: int, resample: int
) -> tuple[int, int, str, float, tuple[float, ...], tuple[float, ...]]:
    """Return the values of `_Tiles`, in their order; `resample` is the number of the default filter."""
    found = values.optional_integer("resample", 0, 5)
    name = _RESAMPLES.get(resample if found is None else found)
    if name is None:
        raise UnsupportedModelError(f"{values.source}: resample {found} is not supported")
    rescale = values.optional_number("rescale_factor", 1e-6, 1)
    # Half of white, of each channel.
    mean = (0.5, 0.5, 0.5) if values.get("image_mean") is None else values.numbers("image_mean", 3, -1e3, 1e3)
    std = (0.5, 0.5, 0.5) if values.get("image_std") is None else values.numbers("image_std", 3, 1e-6, 1e3)
    return patch_size, scale_factor, name, 1 / 255 if rescale is None else rescale, mean, std


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
