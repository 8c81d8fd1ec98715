"""Parameters that only vision towers have, which read patches of images instead of ids: see `models.vision`."""

from collections import namedtuple
from typing import Any, NamedTuple


class PatchInput(NamedTuple):
    """The linear of patches, which stands where others embed ids."""

    projection: Any


class PlacedPatchInput(NamedTuple):
    """The same of a tower that gets the vectors of the patches' positions with them, in place of hidden states."""

    projection: Any


NoOutput = namedtuple("NoOutput", ())  # of a model without logits
