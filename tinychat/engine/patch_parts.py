"""Parameters that only vision towers have, which read patches of images instead of ids: see `models.vision`."""

from collections import namedtuple
from typing import Any, NamedTuple


class PatchInput(NamedTuple):
    """The linear of patches, which stands where others embed ids."""

    projection: Any


NoOutput = namedtuple("NoOutput", ())  # of a model without logits
