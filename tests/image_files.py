"""Small images, and files of them."""

from base64 import b64encode

import numpy as np

from tinychat.images.data_url import data_url, file_bytes
from tinychat.images.image import Image


def picture(name="", shade=0):
    """Return an image of three times two pixels, another for each shade."""
    return Image(np.arange(18, dtype=np.uint8).reshape(2, 3, 3) + np.uint8(shade), name)


def picture_file(folder, name="cat.png", shade=0):
    """Write the file of a picture; return its path."""
    path = folder / name
    path.write_bytes(file_bytes(picture(shade=shade)))
    return path


def picture_url(shade=0):
    """Return the data: URL of a picture."""
    return data_url(picture(shade=shade))


def picture_base64(shade=0):
    """Return the file of a picture in base64."""
    return b64encode(file_bytes(picture(shade=shade))).decode()
