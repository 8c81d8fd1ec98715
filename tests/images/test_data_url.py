"""Images as data: URLs and back."""

import json

import numpy as np
import pytest
from image_files import picture, picture_base64, picture_url

pytest.importorskip("PIL")

from tinychat.errors import FieldError
from tinychat.images.data_url import data_url, file_bytes, image_of_base64, image_of_url, with_data_urls
from tinychat.images.image import Image, read_image


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (37, 129)])
def test_an_array_becomes_a_png_file_of_the_same_pixels(size):
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    assert np.array_equal(read_image(file_bytes(Image(pixels))).pixels, pixels)


def test_a_file_is_sent_as_it_was_given():
    image = read_image(file_bytes(picture()) + b"behind the last chunk", "cat.png")
    assert file_bytes(image).endswith(b"behind the last chunk")
    assert image_of_url(data_url(image), "x").data == image.data
    assert data_url(image).startswith("data:image/png;base64,")
    assert data_url(Image(picture().pixels, data=b"\xff\xd8\xff\xe0")).startswith("data:image/jpeg;base64,")


def test_base64_may_have_line_breaks():
    text = picture_base64()
    assert image_of_base64(f"{text[:40]}\n{text[40:]}", "x") == picture()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://example.com/cat.png", "must be a data: URL"),
        ("/etc/passwd", "must be a data: URL"),
        ("file:///etc/passwd", "must be a data: URL"),
        (None, "must be a data: URL"),
        (["data:"], "must be a data: URL"),
        ("data:image/png,abc", "must be a data: URL in base64"),
        ("data:", "must be a data: URL in base64"),
        ("data:image/png;base64,a", "is not an image in base64"),
        ("data:image/png;base64,é", "is not an image in base64"),
        ("data:image/png;base64,aGk=", "is not an image of a known format"),
    ],
)
def test_other_addresses_are_refused(url, problem):
    with pytest.raises(FieldError) as caught:
        image_of_url(url, "messages[0].content[0]")
    assert str(caught.value).startswith(f"messages[0].content[0] {problem}")


def test_messages_are_sent_as_json():
    parts = [{"type": "image", "image": picture()}, {"type": "text", "text": "What?"}]
    sent = with_data_urls([{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}])
    assert json.loads(json.dumps(sent)) == [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": picture_url()}}, {"type": "text", "text": "What?"}],
        },
        {"role": "assistant", "content": "A cat."},
    ]
