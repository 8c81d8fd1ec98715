"""The vision tower and the connector of a checkpoint, as its conversion reads them: see `models.vision`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import AdjustedTensor, adjusted, stored_name
from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.checkpoint.tensor_part import FirstOfEach, PatchRows, Scalars
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.conversion.pack import check_finite
from tinychat.errors import UnsupportedModelError
from tinychat.models.architectures import family_of, parse_config
from tinychat.models.clipped_linears import BOUNDS, PARTS, WITHIN
from tinychat.models.dense import file_of
from tinychat.models.families.gemma4_vision import POSITIONS
from tinychat.models.layout import Quantization, tensor_specs
from tinychat.models.vision import Vision, read_vision

VISION_SECTION = "vision_config"


@dataclass(frozen=True)
class VisionSource:
    """The vision tower and the connector of a checkpoint."""

    vision: Vision
    tower: Checkpoint  # as a checkpoint of its own
    quantization: Quantization  # of the tower
    _tensors: Tensors  # those of connectors under the names of `ConnectorParts.stem`

    @property
    def size(self) -> int:
        """Size of the files that are written."""
        return vision_bytes(self.vision, self.quantization)

    def connector_file(self) -> bytes:
        """Return the content of the connectors' file."""
        tensors: dict[str, NDArray[np.float32]] = {}
        for parts in (self.vision.connector, *self.vision.others):
            for name, shape in parts.shapes.items():
                stored = f"{parts.stem}{name}"
                self._tensors.expect(stored, shape)
                tensors[f"{parts.prefix}{name}"] = self._tensors.read(stored).astype(np.float32)
                check_finite(tensors[f"{parts.prefix}{name}"], stored)
        return file_of(self.vision.connector_shapes, tensors)


def vision_of(folder: Path) -> Vision | None:
    """Return how the model of a checkpoint sees images.

    None for one that reads text alone, and for one whose way of seeing is not supported: its text model runs.
    """
    try:
        return read_vision(folder)
    except UnsupportedModelError:
        return None


def tower_quantization(quantization: Quantization) -> Quantization:
    """Return how a tower is stored beside a text model: in eight bits, which hardly change it, or unquantized."""
    return Quantization("f32" if quantization.dtype == "f32" else "int8")


def vision_bytes(vision: Vision, quantization: Quantization) -> int:
    """Return the bytes of tower and connector; quantization : the tower's."""
    specs = tensor_specs(parse_config(vision.tower, VISION_SECTION), quantization)
    return sum(spec.bytes for spec in specs.values()) + vision.connector_bytes


def bytes_beside(folder: Path, quantization: Quantization) -> int:
    """Return the bytes that the conversion of a checkpoint writes for images; quantization : the text model's."""
    vision = vision_of(folder)
    return vision_bytes(vision, tower_quantization(quantization)) if vision else 0


def open_vision(checkpoint: Checkpoint, quantization: Quantization) -> VisionSource | None:
    """Return a checkpoint's tower and connector; None where it has none, or text is all that is supported of it."""
    vision, tensors = vision_of(checkpoint.path), checkpoint.tensors
    if vision is None:
        return None
    config = parse_config(vision.tower, f"{checkpoint.path / 'config.json'}: {VISION_SECTION}")
    patches = f"{family_of(config.architecture).tensors.embed}.weight"
    prefix = _before(patches, tensors.by_name)
    if prefix is None:
        return None
    own = _under(tensors, prefix)
    own.by_name[patches] = PatchRows(own[patches])
    if config.position_axes and (tables := stored_name(own, f"{POSITIONS}.weight")):
        own.by_name[tables] = FirstOfEach(own[tables], config.position_axes)
    if config.clipped_linears:
        own.by_name.update(_bounds(own))
    tower = Checkpoint(checkpoint.path, config, adjusted(own, config))
    stem, first = vision.connector.stem, vision.connector.linears[0]
    stored = f"{stem}{first.transposed or f'{first.name}.weight'}"
    connectors = _under(tensors, _before(stored, tensors.by_name) or "")
    if first.transposed and stored in connectors.by_name:
        connectors.by_name[f"{stem}{first.name}.weight"] = AdjustedTensor(connectors[stored], transposed=True)
    return VisionSource(vision, tower, tower_quantization(quantization), connectors)


def _bounds(tensors: Tensors) -> dict[str, Tensor]:
    """Return the bounds of linears as `clipped_linears.clipped_bounds` names them."""
    found: dict[str, Tensor] = {}
    for name, weight in tensors.by_name.items():
        if name.endswith(f"{WITHIN}.weight"):
            stem = name.removesuffix(f"{WITHIN}.weight")
            parts = [tensors.by_name.get(f"{stem}.{part}") for part in PARTS]
            found[f"{stem}{BOUNDS}.weight"] = Scalars(parts, weight)
    return found


def _before(ending: str, names: Collection[str]) -> str | None:
    """Return the beginning of the name that has an ending; None where no name ends so."""
    return next((name.removesuffix(ending) for name in names if name.endswith(ending)), None)


def _under(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose names begin with a prefix, without it."""
    found = {name.removeprefix(prefix): each for name, each in tensors.by_name.items() if name.startswith(prefix)}
    return Tensors(tensors.folder, found)
