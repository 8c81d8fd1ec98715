"""From an image to what a model sees of it: tiles of patches, and the text in whose tokens they appear."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tinychat.errors import SettingError
from tinychat.images.detail import HIGH, LOW
from tinychat.images.image import Image
from tinychat.images.resize import resize
from tinychat.models.image_preparation import (
    MISTRAL_TOKENS,
    BoundedImage,
    FilledImage,
    OneTile,
    Preparation,
    ShapedTiles,
    SquareTiles,
    WholeImage,
)

IMAGE_TOKEN, _QWEN_TOKEN = "<image>", "<|image_pad|>"
_GEMMA4_TOKEN, _GEMMA4_START, _GEMMA4_END = "<|image|>", "<|image>", "<image|>"
_SOFT_TOKEN, _SOFT_START, _SOFT_END = "<image_soft_token>", "<start_of_image>", "<end_of_image>"
_FAKE, _GLOBAL = "<fake_token_around_image>", "<global-img>"
_START, _THUMBNAIL, _END = "<|image_start|>", "<|img_thumbnail|>", "<|image_end|>"

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class ImagePlan:
    """The tiles and the text of an image of some size: known without its pixels.

    `text` replaces the image token of a chat template, and holds as many `image_token` as the model has rows for. The
    image is resized to each of `sizes` and split into `rows` times `columns` tiles; if there is an `overview`, of this
    size, it is the last tile, resized from the image itself, or from the last of the sizes where
    `is_overview_of_tiles`.
    """

    text: str
    sizes: tuple[Size, ...]
    rows: int
    columns: int
    overview: Size | None
    is_overview_of_tiles: bool
    patch_size: int
    image_token: str = IMAGE_TOKEN

    @property
    def grids(self) -> tuple[Size, ...]:
        """The rows and columns of patches of each tile, in the order of the text."""
        height, width = self.sizes[-1]
        tiles = [(height // self.rows, width // self.columns)] * (self.rows * self.columns)
        tiles += [self.overview] if self.overview else []
        return tuple((height // self.patch_size, width // self.patch_size) for height, width in tiles)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """The pixels of an image's tiles, each uint8 [height, width, 3], and the plan they follow."""

    plan: ImagePlan
    preparation: Preparation
    pixels: tuple[npt.NDArray[np.uint8], ...]

    @property
    def tiles(self) -> tuple[npt.NDArray[np.float32], ...]:
        """The patches of each tile: see `patches`."""
        return tuple(patches(tile, self.preparation) for tile in self.pixels)


def plan(height: int, width: int, preparation: Preparation, detail: str = HIGH) -> ImagePlan:
    """Return the tiles and the text of an image of this size, seen in this detail.

    SettingError for a size that the model does not see.
    """
    if detail == LOW:
        preparation = preparation.of_low_detail
    if isinstance(preparation, ShapedTiles):
        return _plan_shaped(height, width, preparation)
    if isinstance(preparation, WholeImage):
        return _plan_whole(height, width, preparation)
    if isinstance(preparation, FilledImage):
        return _plan_filled(height, width, preparation)
    if isinstance(preparation, BoundedImage):
        return _plan_bounded(height, width, preparation)
    if isinstance(preparation, OneTile):
        return _plan_one(preparation)
    return _plan_square(height, width, preparation)


def written_otherwise(preparation: Preparation) -> tuple[str, str] | None:
    """Return the text that chat templates write for an image, and that with one image token which takes its place.

    None where templates write the image token itself.
    """
    if isinstance(preparation, OneTile):
        return _SOFT_START, f"\n\n{_SOFT_START}{_SOFT_TOKEN}{_SOFT_END}\n\n"
    return None


def prepare(image: Image, preparation: Preparation) -> PreparedImage:
    """Return an image resized and split into tiles."""
    height, width, _ = image.pixels.shape
    planned = plan(height, width, preparation, image.detail)
    whole = image.pixels
    for size in planned.sizes:
        whole = resize(whole, *size, preparation.resample)
    lines = np.split(whole, planned.rows)
    tiles = [tile for line in lines for tile in np.split(line, planned.columns, axis=1)]
    if planned.overview is not None:
        source = whole if planned.is_overview_of_tiles else image.pixels
        tiles.append(resize(source, *planned.overview, preparation.resample))
    return PreparedImage(planned, preparation, tuple(map(np.ascontiguousarray, tiles)))


def patches(tile: npt.NDArray[np.uint8], preparation: Preparation) -> npt.NDArray[np.float32]:
    """Return the patches of a tile, row by row, as a vision encoder takes them: float32 [patches, columns].

    Their pixels are normalized; those beyond the last whole patch are dropped. The columns are in the order of the
    weights of the model's first layer: by channel, row and column where it is a convolution, else by row, column and
    channel (`ShapedTiles`, `FilledImage`).
    """
    size = preparation.patch_size
    rows, columns = tile.shape[0] // size, tile.shape[1] // size
    tile = tile[: rows * size, : columns * size]
    values = _values(preparation.rescale, preparation.mean, preparation.std)
    normal = np.stack([values[channel][tile[..., channel]] for channel in range(3)])
    axes = (1, 3, 2, 4, 0) if isinstance(preparation, (ShapedTiles, FilledImage)) else (1, 3, 0, 2, 4)
    return normal.reshape(3, rows, size, columns, size).transpose(axes).reshape(rows * columns, 3 * size * size)


@lru_cache(maxsize=16)
def _values(rescale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> npt.NDArray[np.float32]:
    """Return the 256 values of a pixel in each channel, rounded as transformers' default processors round them."""
    factor = np.float32(1 / rescale)
    shifts, scales = (np.array(numbers, np.float32)[:, None] * factor for numbers in (mean, std))
    found: npt.NDArray[np.float32] = (np.arange(256, dtype=np.float32) - shifts) / scales
    return found


def _plan_one(preparation: OneTile) -> ImagePlan:
    size = preparation.tile_size
    text = _SOFT_TOKEN * (size // preparation.patch_size // preparation.scale_factor) ** 2
    return ImagePlan(text, ((size, size),), 1, 1, None, False, preparation.patch_size, _SOFT_TOKEN)


def _plan_square(height: int, width: int, preparation: SquareTiles) -> ImagePlan:
    tile_size = preparation.tile_size
    tokens = IMAGE_TOKEN * (tile_size // preparation.patch_size // preparation.scale_factor) ** 2
    tile = (tile_size, tile_size)
    first = _with_longest_edge(height, width, preparation.longest_edge)
    last = _in_whole_tiles(*first, tile_size) if preparation.is_split else tile
    rows, columns = last[0] // tile_size, last[1] // tile_size
    overview = f"{_FAKE}{_GLOBAL}{tokens}{_FAKE}"
    if last == tile:
        return ImagePlan(overview, (first, last), 1, 1, None, True, preparation.patch_size)
    lines = [
        "".join(f"{_FAKE}<row_{row + 1}_col_{column + 1}>{tokens}" for column in range(columns)) + "\n"
        for row in range(rows)
    ]
    text = "".join(lines) + "\n" + overview
    return ImagePlan(text, (first, last), rows, columns, tile, True, preparation.patch_size)


def _with_longest_edge(height: int, width: int, longest: int) -> Size:
    """Return the size of this shape whose longer side is given; the other one is even, but for 1."""
    ratio = width / height
    if width >= height:
        shorter = int(longest / ratio)
        return max(shorter + shorter % 2, 1), longest
    shorter = int(longest * ratio)
    return longest, max(shorter + shorter % 2, 1)


def _in_whole_tiles(height: int, width: int, tile_size: int) -> Size:
    """Return a size of about this shape that consists of square tiles."""
    ratio = width / height
    if width >= height:
        width = _up_to_multiple(width, tile_size)
        return _up_to_multiple(int(width / ratio), tile_size), width
    height = _up_to_multiple(height, tile_size)
    return height, _up_to_multiple(int(height * ratio), tile_size)


def _up_to_multiple(number: float, of: int) -> int:
    return math.ceil(number / of) * of


def _plan_shaped(height: int, width: int, preparation: ShapedTiles) -> ImagePlan:
    step = preparation.step
    whole = _within_tokens(height, width, preparation)
    overview = IMAGE_TOKEN * ((whole[0] // step) * (whole[1] // step))
    rows = columns = 1
    if _is_large(height, width, preparation):
        rows, columns = _tile_grid(height, width, preparation)
    if rows == columns == 1:
        return ImagePlan(_START + overview + _END, (whole,), 1, 1, None, False, preparation.patch_size)
    tile_size = preparation.tile_size
    tokens = IMAGE_TOKEN * (tile_size // step) ** 2
    text = "".join(
        f"<|img_row_{row + 1}_col_{column + 1}|>{tokens}" for row in range(rows) for column in range(columns)
    )
    text += _THUMBNAIL + overview if preparation.has_overview else ""
    size = (rows * tile_size, columns * tile_size)
    return ImagePlan(
        _START + text + _END,
        (size,),
        rows,
        columns,
        whole if preparation.has_overview else None,
        False,
        preparation.patch_size,
    )


def _within_tokens(height: int, width: int, preparation: ShapedTiles) -> Size:
    """Return the size of about this shape that has neither too many nor too few tokens."""
    step = preparation.step
    most, least = (tokens * step * step for tokens in (preparation.max_tokens, preparation.min_tokens))
    rounded = [max(step, round(side / step) * step) for side in (height, width)]
    if rounded[0] * rounded[1] > most:
        shrink = math.sqrt((height * width) / most)
        rounded = [max(step, math.floor(side / shrink / step) * step) for side in (height, width)]
    elif rounded[0] * rounded[1] < least:
        grow = math.sqrt(least / (height * width))
        rounded = [_up_to_multiple(side * grow, step) for side in (height, width)]
    # The shorter side of a narrow image has been rounded up. transformers makes up to 3,000 tokens of it, or fails.
    longest = int(most * preparation.tolerance) // min(rounded) // step * step
    return min(rounded[0], longest), min(rounded[1], longest)


def _is_large(height: int, width: int, preparation: ShapedTiles) -> bool:
    """Return whether an image has too many pixels for one tile."""
    step = preparation.step
    rounded = [max(preparation.patch_size, round(side / step) * step) for side in (height, width)]
    return rounded[0] * rounded[1] > preparation.max_tokens * step * step * preparation.tolerance


def _tile_grid(height: int, width: int, preparation: ShapedTiles) -> Size:
    """Return the rows and columns of square tiles whose shape is nearest to that of an image."""
    sides = range(1, preparation.max_tiles + 1)
    grids = [(rows, columns) for rows in sides for columns in sides]
    grids = [grid for grid in grids if preparation.min_tiles <= math.prod(grid) <= preparation.max_tiles]
    best, least = (1, 1), math.inf
    for rows, columns in sorted(grids, key=math.prod):
        distance = abs(width / height - columns / rows)
        # Of two shapes that are as near, the one with more tiles if the image has half of its pixels.
        has_pixels = height * width > 0.5 * preparation.tile_size**2 * rows * columns
        if distance < least or (distance == least and has_pixels):
            best, least = (rows, columns), distance
    return best


def _plan_whole(height: int, width: int, preparation: WholeImage) -> ImagePlan:
    if max(height, width) > WholeImage.MAX_RATIO * min(height, width):
        ratio = f"one side is more than {WholeImage.MAX_RATIO} times the other"
        raise SettingError(f"an image of {width} x {height} pixels is too narrow for this model: {ratio}; crop it")
    tokens = _tokens_of_whole(height, width, preparation)
    return _plan_tile(tokens, _QWEN_TOKEN * math.prod(tokens), _QWEN_TOKEN, preparation)


def _plan_tile(tokens: Size, text: str, image_token: str, preparation: Preparation) -> ImagePlan:
    """Return the plan of an image that is one tile of whole tokens; tokens : rows and columns of them."""
    rows, columns = (count * preparation.step for count in tokens)
    return ImagePlan(text, ((rows, columns),), 1, 1, None, False, preparation.patch_size, image_token)


def _tokens_of_whole(height: int, width: int, preparation: WholeImage) -> Size:
    """Return the rows and columns of tokens for an image with neither too many nor too few pixels."""
    step = preparation.step
    rounded = round(height / step), round(width / step)
    pixels = math.prod(rounded) * step**2
    if pixels > preparation.max_pixels:
        shrink = math.sqrt(height * width / preparation.max_pixels)
        return max(1, math.floor(height / shrink / step)), max(1, math.floor(width / shrink / step))
    if pixels < preparation.min_pixels:
        grow = math.sqrt(preparation.min_pixels / (height * width))
        return math.ceil(height * grow / step), math.ceil(width * grow / step)
    return rounded


def _plan_filled(height: int, width: int, preparation: FilledImage) -> ImagePlan:
    tokens = _tokens_of_filled(height, width, preparation)
    text = _GEMMA4_START + _GEMMA4_TOKEN * math.prod(tokens) + _GEMMA4_END
    return _plan_tile(tokens, text, _GEMMA4_TOKEN, preparation)


def _tokens_of_filled(height: int, width: int, preparation: FilledImage) -> Size:
    """Return the rows and columns of the most tokens that an image of about this shape may have."""
    step, most = preparation.step, preparation.max_tokens
    grow = math.sqrt(preparation.most_patches * preparation.patch_size**2 / (height * width))
    rows, columns = math.floor(grow * height / step), math.floor(grow * width / step)
    # One side of a narrow image would have no token.
    if rows == 0:
        return 1, min(width // height, most)
    if columns == 0:
        return min(height // width, most), 1
    return rows, columns


def _plan_bounded(height: int, width: int, preparation: BoundedImage) -> ImagePlan:
    token, line_end, end = MISTRAL_TOKENS.values()
    rows, columns = _tokens_of_bounded(height, width, preparation)
    return _plan_tile((rows, columns), line_end.join([token * columns] * rows) + end, token, preparation)


def _tokens_of_bounded(height: int, width: int, preparation: BoundedImage) -> Size:
    """Return the rows and columns of tokens for an image: upwards to whole ones, but for one with too many pixels."""
    step, ratio = preparation.step, max(height, width) / preparation.longest_edge
    if ratio > 1:
        # transformers makes nothing of the shorter side of a very narrow image, and fails.
        height, width = (max(1, math.floor(side / ratio)) for side in (height, width))
    rows, columns = math.ceil(height / step), math.ceil(width / step)
    if rows * columns * step**2 <= preparation.max_pixels:
        return rows, columns
    shrink = max(1.0, math.sqrt(height * width / preparation.max_pixels))
    return max(1, math.floor(height / shrink / step)), max(1, math.floor(width / shrink / step))
