"""Image files without what is beside their pixels, for Pillow to read; only the orientation is taken from it.

Files come from anybody. A table of EXIF may name the same bytes thousands of times, and Pillow joins the comment of a
GIF file block by block: a file of some megabytes would take many gigabytes, or an hour.
"""

import struct

# libjpeg reads all of an image again for each; encoders write ten or so.
MAX_SCANS = 50
_EXIF = b"Exif\0\0"
_ORIENTATION, _SHORT = 0x0112, 3
# Of JPEG's segments for applications, those that say what the numbers of pixels mean: JFIF's and Adobe's.
_OF_COLORS, _OF_PEOPLE = (0xE0, 0xEE), (*range(0xE0, 0xF0), 0xFE)
_ALONE, _SCAN = (0x01, *range(0xD0, 0xDA)), 0xDA
# Before the pixels. No camera writes a hundred.
_MAX_SEGMENTS = 1 << 16
_GIF_EXTENSION, _GIF_IMAGE, _GIF_CONTROL = 0x21, 0x2C, 0xF9


def without_metadata(data: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a file as Pillow may read them, and the EXIF of a JPEG file.

    Files of other formats are not changed. Of what is damaged before the pixels the begin is left, which is no image.
    `ValueError` for what would take hours.
    """
    if data.startswith(b"\xff\xd8"):
        return _plain_jpeg(data)
    return _plain_gif(data) if data.startswith((b"GIF87a", b"GIF89a")) else data, b""


def orientation_of(exif: bytes) -> int:
    """Return how the camera was held, 1 to 8 as EXIF numbers it; 1 where that is not to be read."""
    exif = exif.removeprefix(_EXIF)
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (table,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, table)
        for i in range(count):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, table + 2 + 12 * i)
            if (tag, kind) == (_ORIENTATION, _SHORT):
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _plain_jpeg(data: bytes) -> tuple[bytes, bytes]:
    plain, exif, at = [data[:2]], b"", 2
    for _ in range(_MAX_SEGMENTS):
        # Before a marker there may be other bytes, and more of 0xff.
        at = data.find(b"\xff", at)
        if at < 0 or at + 4 > len(data):
            return b"".join(plain), exif
        marker = data[at + 1]
        if marker in (0x00, 0xFF):
            at += 1
        elif marker == _SCAN:
            if data.count(bytes((0xFF, _SCAN)), at) > MAX_SCANS:
                raise ValueError(f"it has more than {MAX_SCANS} scans")
            return b"".join([*plain, data[at:]]), exif
        elif marker in _ALONE:
            at += 2
        else:
            end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            segment = data[at:end]
            if marker in _OF_COLORS or marker not in _OF_PEOPLE:
                plain.append(segment)
            elif not exif and segment[4:].startswith(_EXIF):
                exif = segment[4:]
            at = end
    raise _endless()


def _plain_gif(data: bytes) -> bytes:
    """Return a GIF file whose first frame has one extension at most, the one that says which colour is transparent."""
    has_colors, bits = divmod(data[10] if len(data) > 10 else 0, 0x80)
    at = 13 + has_colors * 3 * (2 << (bits & 7))
    begin, control, blocks = data[:at], b"", 0
    while at + 1 < len(data) and data[at] == _GIF_EXTENSION:
        end = at + 2
        while end < len(data) and data[end] and blocks <= _MAX_SEGMENTS:
            end += 1 + data[end]
            blocks += 1
        blocks += 1
        if blocks > _MAX_SEGMENTS:
            raise _endless()
        if data[at + 1] == _GIF_CONTROL:
            control = data[at : end + 1]
        at = end + 1
    is_image = at < len(data) and data[at] == _GIF_IMAGE
    return begin + control + data[at:] if is_image else begin


def _endless() -> ValueError:
    return ValueError("too much of it comes before its pixels")
