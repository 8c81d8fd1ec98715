"""Images from files that anybody sent, from arrays and from Pillow."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest

from tinychat.errors import FieldError
from tinychat.images import image as images
from tinychat.images.image import Image, image_of, read_image
from tinychat.images.metadata import orientation_of, without_metadata

pillow = pytest.importorskip("PIL.Image")


def random_pixels(height=5, width=7, channels=3):
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), dtype=np.uint8)


def saved(picture, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def png(width, height, depth=8, colours=2, rows=b""):
    """Return a PNG file whose header says what it likes."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def problem_of(data, **names):
    with pytest.raises(FieldError) as caught:
        read_image(data, **names)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "GIF"])
def test_files_without_loss_give_their_pixels(kind):
    pixels = random_pixels()
    found = read_image(saved(pillow.fromarray(pixels), kind, **({"lossless": True} if kind == "WEBP" else {})), "a cat")
    assert np.array_equal(found.pixels, pixels)
    assert found.name == "a cat" and found.data and repr(found) == "Image('a cat', 7 x 5)"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"a cat", "dpi": (5, 5), "exif": b"?"}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_files_with_loss_give_what_pillow_gives(options, mode):
    data = saved(pillow.fromarray(random_pixels(40, 30)).convert(mode), "JPEG", **options)
    assert np.array_equal(read_image(data).pixels, np.asarray(pillow.open(io.BytesIO(data)).convert("RGB")))


def test_all_pixels_of_an_image_of_many_strips_are_there(monkeypatch):
    monkeypatch.setattr(images, "_STRIP_PIXELS", 20)
    for channels in (3, 4):
        pixels = random_pixels(23, 7, channels)
        found = read_image(saved(pillow.fromarray(pixels)))
        assert np.array_equal(found.pixels, image_of(pixels).pixels)
        expected = pixels if channels == 3 else np.asarray(on_white(pillow.fromarray(pixels)))
        assert np.array_equal(found.pixels, expected)


def on_white(picture):
    picture = picture.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", picture.size, "white"), picture).convert("RGB")


def test_transparent_pixels_are_seen_on_white():
    colour, opacity = np.divmod(np.arange(1 << 16).reshape(256, 256), 256)
    pixels = np.stack([colour, colour[::-1], colour, opacity], axis=-1).astype(np.uint8)
    assert np.array_equal(image_of(pixels).pixels, np.asarray(on_white(pillow.fromarray(pixels))))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "RGBX", "YCbCr", "CMYK", "HSV", "RGBa"])
def test_images_of_pillow_of_every_mode(mode):
    picture = pillow.fromarray(random_pixels(11, 9)).convert("RGBA" if mode == "RGBa" else "RGB")
    picture = picture.convert(mode)
    assert picture.mode == mode
    assert np.array_equal(image_of(picture).pixels, np.asarray(on_white(picture.convert("RGBA"))))


def test_a_palette_with_transparency():
    picture = pillow.fromarray(random_pixels(8, 8)).quantize(16)
    for transparency in (3, bytes(range(0, 256, 16))):
        found = read_image(saved(picture, transparency=transparency))
        expected = pillow.open(io.BytesIO(saved(picture, transparency=transparency)))
        assert np.array_equal(found.pixels, np.asarray(on_white(expected)))
        assert not np.array_equal(found.pixels, np.asarray(picture.convert("RGB")))


def test_sixteen_bits_become_eight():
    grey = np.array([[0, 1, 128, 129, 0x7FFF, 0xFF00, 0xFFFF]], np.uint16)
    expected = np.rint(grey / 257).astype(np.uint8)
    found = read_image(saved(pillow.fromarray(grey)))
    assert np.array_equal(found.pixels, np.repeat(expected[..., None], 3, axis=-1))
    colours = png(2, 1, depth=16, rows=b"\0" + bytes([10, 0, 20, 0, 30, 0, 40, 1, 50, 1, 60, 1]))
    assert read_image(colours).pixels.tolist() == [[[10, 20, 30], [40, 50, 60]]]


def test_the_first_frame_of_several():
    frames = [pillow.fromarray(random_pixels(6, 6 + i)[:, :6]) for i in range(3)]
    for kind in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert pillow.open(io.BytesIO(data)).n_frames == 3
        assert np.array_equal(read_image(data).pixels, np.asarray(frames[0]))


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_images_are_turned_upright(orientation, kind):
    from PIL import ImageOps

    exif = pillow.Exif()
    exif[0x0112] = orientation
    data = saved(pillow.fromarray(random_pixels(6, 9)), kind, exif=exif)
    expected = ImageOps.exif_transpose(pillow.open(io.BytesIO(data)))
    found = read_image(data)
    assert np.array_equal(found.pixels, np.asarray(expected)) and found.pixels.flags.c_contiguous
    assert found.pixels.shape[:2] == ((9, 6) if 5 <= orientation <= 8 else (6, 9))


def test_the_first_orientation_counts_in_either_order():
    for order, endian in ((b"II", "<"), (b"MM", ">")):
        table = struct.pack(f"{endian}HIHHHIHH", 42, 8, 2, 0x0112, 3, 1, 6, 0)
        table += struct.pack(f"{endian}HHIHHI", 0x0112, 3, 1, 5, 0, 0)
        for exif in (order + table, b"Exif\0\0" + order + table):
            assert orientation_of(exif) == 6
        assert orientation_of(order + table.replace(struct.pack(f"{endian}HH", 0x0112, 3), bytes(4))) == 1
        for length in range(len(table)):
            assert orientation_of(order + table[:length]) in (1, 6)


def segment(marker, data):
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def test_metadata_never_reaches_pillow():
    pixels = random_pixels(40, 30)
    data = saved(pillow.fromarray(pixels), "JPEG")
    expected = read_image(data).pixels
    # A table of 5,000 entries, each of the same 60,000 bytes: in four segments, 40 gigabytes.
    table = b"II*\0" + struct.pack("<IH", 8, 5000)
    table += b"".join(struct.pack("<HHII", i, 7, 60_000, 0) for i in range(5000))
    hostile = b"".join(segment(0xE1, b"Exif\0\0" + table[i : i + 60_000]) for i in range(0, len(table), 60_000)) * 4
    hostile += segment(0xE2, b"MPF\0" + table[:60_000]) + segment(0xED, b"Photoshop 3.0\0") + segment(0xFE, b"a cat")
    for begin in (hostile, b"junk\xff\xff" + hostile, hostile + b"\xff\x00\xff\xd0"):
        plain, exif = without_metadata(data[:2] + begin + data[2:])
        assert plain == data and exif == b"Exif\0\0" + table[:60_000]
        assert np.array_equal(read_image(data[:2] + begin + data[2:]).pixels, expected)
    assert without_metadata(data[:2] + hostile) == (data[:2], exif)


def test_comments_of_gif_files_never_reach_pillow():
    picture = pillow.fromarray(random_pixels(8, 8)).quantize(16)
    data = saved(picture, "GIF", transparency=3)
    at = data.index(b"!\xf9")
    comment = b"!\xfe" + (b"\xff" + b"c" * 255) * 1000 + b"\0"
    application = b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"
    control = data[at : at + 8]
    hostile = data[:at] + comment + application + control * 3 + comment + data[at:]
    assert without_metadata(hostile) == (data, b"") == without_metadata(data)
    assert read_image(hostile) == read_image(data)
    for cut in (at + 1, at + 300, len(hostile) - len(data) + at):
        assert without_metadata(hostile[:cut]) == (data[:at], b"")
    for cut in range(14):
        assert without_metadata(data[:cut]) == (data[:cut], b"")


def test_a_jpeg_file_of_thousands_of_scans_is_refused():
    data = saved(pillow.fromarray(random_pixels(40, 30)), "JPEG", progressive=True)
    scan = data.index(b"\xff\xda")
    assert 5 < data.count(b"\xff\xda") < 20
    many = data[:-2] + data[scan : data.index(b"\xff\xda", scan + 1)] * 100
    assert problem_of(many, name="slow.jpg") == (
        "image slow.jpg cannot be read as an image: it has more than 50 scans; save it again"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff\xfe\0\2" * (1 << 17),
        b"\xff\xd8" + b"\xff" * (1 << 17),
        b"\xff\xd8" + b"\xff\xd0" * (1 << 17),
        b"GIF89a" + bytes(7) + b"!\xfe\0" * (1 << 17),
        b"GIF89a" + bytes(7) + b"!\xfe" + b"\1c" * (1 << 17) + b"\0",
    ],
    ids=["segments", "fill", "markers", "extensions", "blocks"],
)
def test_a_file_that_does_not_come_to_its_pixels_is_refused(data):
    assert "cannot be read as an image: too much of it comes before its pixels" in problem_of(data)


def test_a_damaged_orientation_turns_nothing():
    pixels = random_pixels(6, 9)
    for exif in (b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0II*\0\xff\xff\xff\xff", b"?" * 40):
        for kind in ("PNG", "WEBP"):
            options = {"lossless": True} if kind == "WEBP" else {}
            data = saved(pillow.fromarray(pixels), kind, exif=exif, **options)
            assert np.array_equal(read_image(data).pixels, pixels)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_file_that_ends_early_or_is_damaged_gives_an_image_or_one_line(kind):
    data = saved(pillow.fromarray(random_pixels(40, 30)), kind)
    for length in range(0, len(data) - 1, max(1, len(data) // 60)):
        try:
            assert read_image(data[:length]).pixels.shape == (40, 30, 3)
        except FieldError as error:
            assert "\n" not in str(error)
    random = np.random.default_rng(len(data))
    for _ in range(200):
        changed = np.frombuffer(data, np.uint8).copy()
        changed[random.integers(len(data), size=3)] = random.integers(256, size=3)
        try:
            assert read_image(changed.tobytes()).pixels.size
        except FieldError as error:
            assert "\n" not in str(error)


def test_errors_name_the_field_the_image_and_the_remedy():
    formats = "PNG, JPEG, GIF, WEBP or BMP"
    assert problem_of(b"", field="images[2]") == f"images[2] is not an image of a known format: send {formats}"
    assert problem_of(b"<svg/>", name="a\nb.svg").startswith(r"image a\x0ab.svg is not an image")
    cut = saved(pillow.fromarray(random_pixels(40, 30)), "JPEG")[:-400]
    assert problem_of(cut, name="cut.jpg").startswith("image cut.jpg cannot be read as an image: image file is trunc")


@pytest.mark.parametrize("size", [(8193, 8192), (0x7FFFFFFF, 0x7FFFFFFF), (1, 0x7FFFFFFF), (14_000, 12_800)])
def test_huge_images_are_refused_before_they_are_decoded(size):
    assert problem_of(png(*size), name="bomb.png") == (
        "image bomb.png has more than 64 million pixels: send a smaller image"
    )


def test_an_image_may_be_narrow_but_not_without_end():
    assert read_image(png(1 << 16, 1, rows=bytes(1 + 3 * (1 << 16)))).pixels.shape == (1, 1 << 16, 3)
    for data in (png((1 << 16) + 1, 1), png(1, 1 << 26)):
        assert problem_of(data) == "image has a side of more than 65536 pixels: send a smaller image"


def test_files_of_other_formats_are_not_decoded():
    for kind in ("PPM", "EPS", "ICO", "PDF", "TGA", "TIFF", "AVIF"):
        data = saved(pillow.fromarray(random_pixels(16, 16)), kind)
        assert "known format" in problem_of(data)


def test_a_file_that_is_too_large(monkeypatch):
    monkeypatch.setattr(images, "MAX_FILE_BYTES", 1 << 20)
    assert problem_of(bytes((1 << 20) + 1)) == "image is larger than 1 MiB: send a smaller image"


def test_more_than_sixteen_bits_are_refused():
    for values in (np.ones((2, 3), np.int32), np.ones((2, 3), np.float32)):
        with pytest.raises(FieldError, match="more than 16 bits"):
            image_of(pillow.fromarray(values))


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    data = saved(pillow.fromarray(random_pixels()))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert problem_of(data).startswith("image cannot be read without the package pillow: ")
    assert problem_of(data).endswith(" install pillow")
    # Arrays need no decoder.
    assert image_of(random_pixels()).pixels.shape == (5, 7, 3)


def test_arrays_are_copied():
    pixels = random_pixels()
    found = image_of(pixels)
    pixels[:] = 0
    assert found.pixels.any() and image_of(found) is found
    with pytest.raises(ValueError, match="read-only"):
        found.pixels[0, 0, 0] = 1
    grey = random_pixels()[..., 0]
    assert np.array_equal(image_of(grey).pixels, np.stack([grey] * 3, axis=-1))


def test_paths_and_bytes(tmp_path):
    path = tmp_path / "cat.png"
    path.write_bytes(saved(pillow.fromarray(random_pixels())))
    for value in (path, str(path)):
        found = image_of(value)
        assert found.name == "cat.png" and found.data == path.read_bytes()
    assert image_of(path.read_bytes()) == found
    for value in (tmp_path, tmp_path / "dog.png", "a\0b"):
        with pytest.raises(FieldError, match="cannot be read"):
            image_of(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [[1]],
        np.zeros((2, 3)),
        np.zeros(3, np.uint8),
        np.zeros((2, 3, 2), np.uint8),
        np.zeros((0, 3, 3), np.uint8),
        np.zeros((1, 2, 3, 3), np.uint8),
        pillow.new("RGB", (0, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_image(value):
    with pytest.raises(FieldError, match=r"pictures\[0\] "):
        image_of(value, "pictures[0]")


def test_digests_tell_images_apart():
    pixels = random_pixels()
    one = Image(pixels, "one", b"file")
    same = [one, Image(pixels, "two"), image_of(pixels), Image(np.asfortranarray(pixels))]
    assert len({image.digest for image in same}) == len({*same}) == 1 and len(one.digest) == 64
    others = [pixels[:-1], pixels.reshape(7, 5, 3), 255 - pixels, pixels[:, :, ::-1]]
    assert len({one, *map(image_of, others)}) == 5
    assert one != "one"
