"""References within a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping


def referred(root: object, reference: object) -> object:
    """Return the part of a schema that a reference such as ``#/$defs/name`` names; None where it names none there."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for key in reference[1:].split("/")[1:]:
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
