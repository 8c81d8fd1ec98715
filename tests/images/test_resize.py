"""Pixels of another size: the same bits as Pillow's."""

from hashlib import sha256

import numpy as np
import pytest

from tinychat.images import resize as resizing
from tinychat.images.resize import FILTERS, resize

_OF_PILLOW = {"bilinear": 2, "bicubic": 3, "lanczos": 1}


def random_pixels(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def by_pillow(pixels, height, width, resample):
    """Resize columns first, in every version of Pillow."""
    pillow = pytest.importorskip("PIL.Image")
    found = pillow.fromarray(pixels).resize((width, pixels.shape[0]), _OF_PILLOW[resample])
    return np.asarray(found.resize((width, height), _OF_PILLOW[resample]))


@pytest.mark.parametrize("resample", FILTERS)
def test_every_small_size_has_the_bits_of_pillow(resample):
    random = np.random.default_rng(1)
    for seed in range(600):
        old_height, old_width, height, width = map(int, random.integers(1, 48, 4))
        pixels = random_pixels(old_height, old_width, seed=seed)
        # Black and white alone: sums below 0 and above 255 everywhere.
        pixels = np.where(pixels > 127, np.uint8(255), np.uint8(0)) if seed % 3 == 0 else pixels
        found = resize(pixels, height, width, resample)
        assert found.dtype == np.uint8 and found.flags.c_contiguous
        assert np.array_equal(found, by_pillow(pixels, height, width, resample)), (pixels.shape, height, width)


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1, 1), (512, 512)),
        ((3, 1000), (6, 2048)),
        ((3001, 7), (5, 1)),
        ((700, 433), (512, 384)),
        ((433, 700), (1024, 1536)),
        ((1, 65536), (2, 2048)),
        ((257, 300), (257, 512)),
        ((300, 257), (512, 257)),
        ((64, 48), (64, 48)),
    ],
    ids=str,
)
def test_sizes_of_images_have_the_bits_of_pillow(resample, old, new):
    pixels = random_pixels(*old)
    assert np.array_equal(resize(pixels, *new, resample), by_pillow(pixels, *new, resample))


def test_blocks_do_not_change_bits(monkeypatch):
    pixels = random_pixels(90, 70)
    expected = resize(pixels, 41, 103, "lanczos")
    for rows, size in ((1, 1), (7, 100), (500, 1 << 20)):
        monkeypatch.setattr(resizing, "_BLOCK_ROWS", rows)
        monkeypatch.setattr(resizing, "_BLOCK_PIXELS", size)
        assert np.array_equal(resize(pixels, 41, 103, "lanczos"), expected)


# Of Pillow 13.0.0, recorded: what it gives where it is not installed.
_ROW = [[0, 255, 0, 0, 128, 64, 200]]
_RECORDED = {
    "bilinear": (
        [[109, 49, 126], [0, 170, 142, 0, 0, 100, 92, 109, 200]],
        "b581428eedc8717260f881c925b89371a8cee6cd88008fa632c830d9a8047118",
    ),
    "bicubic": (
        [[108, 44, 131], [0, 191, 163, 0, 0, 110, 89, 103, 206]],
        "c680f34c6b8a296e4f7c7b58263cbf7c19d3c69a7633ff2862355cdcce3a9e53",
    ),
    "lanczos": (
        [[106, 44, 133], [0, 192, 182, 0, 0, 116, 86, 102, 210]],
        "3e67d8cf33d30922577f860cf5b42389f7b1c868fc8d521a7715621a70e487be",
    ),
}


@pytest.mark.parametrize("resample", FILTERS)
def test_recorded_bits_of_pillow(resample):
    row = np.array(_ROW, np.uint8)[..., None]
    small, digest = _RECORDED[resample]
    assert [resize(row, 1, width, resample).ravel().tolist() for width in (3, 9)] == small
    pixels = np.arange(61 * 47 * 3, dtype=np.uint32).reshape(61, 47, 3)
    pixels = (pixels * np.uint32(2654435761) >> 24).astype(np.uint8)
    found = [resize(pixels, *size, resample).tobytes() for size in ((29, 90), (100, 17), (64, 64))]
    assert sha256(b"".join(found)).hexdigest() == digest


@pytest.mark.live
@pytest.mark.parametrize("resample", FILTERS)
def test_pixels_are_nearly_those_of_torch(resample):
    """The kernels of its default processors have weights of 15 bits, and the same order."""
    import torch

    random = np.random.default_rng(2)
    for seed in range(200):
        old_height, old_width, height, width = map(int, random.integers(2, 60, 4))
        pixels = random_pixels(old_height, old_width, seed=seed)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
        theirs = torch.nn.functional.interpolate(tensor, (height, width), mode=resample, antialias=True)[0]
        ours = resize(pixels, height, width, resample).astype(int)
        difference = np.abs(ours - theirs.permute(1, 2, 0).numpy())
        assert difference.max() <= 2 and (difference > 0).mean() < 0.05
