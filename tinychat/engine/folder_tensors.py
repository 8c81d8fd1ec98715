"""The tensors of a model folder, as the parameters of the forward pass have them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinychat.engine.named_tensors import NamedTensors
from tinychat.engine.passthrough_parameters import passthrough_weight
from tinychat.kernels.sizes import BLOCK
from tinychat.kernels.variants import LayerNorm, NoNorm, NoPositions, RmsNorm
from tinychat.kernels.weights import Float32Weight, Int4Weight, Int8Weight, SplitWeight
from tinychat.models.architectures import norms
from tinychat.models.distance_biases import REACH, by_distance
from tinychat.models.folder import ModelFolder
from tinychat.models.layout import FREQUENT, stored_linears
from tinychat.models.passthrough import NATIVE
from tinychat.models.tensors import POSITIONS

KINDS: dict[str, Any] = {"int4": Int4Weight, "int8": Int8Weight, "f32": Float32Weight}


class FolderTensors:
    """The tensors of a model folder by name, as views of the mapped file; stacked over the layers that have them.

    embedding : that of another model, which a drafter reads.
    """

    def __init__(self, folder: ModelFolder, embedding: Any = None) -> None:
        self._embedding = embedding
        self._folder, self._config, self._tensors = folder, folder.config, folder.tensors
        self._stacks = {linear.name: linear.stack for linear in stored_linears(folder.config, folder.quantization)}
        self._norms = {norm.name: norm for norm in norms(folder.config)}

    def embedding(self) -> Any:
        """Return the embedding, whose first rows may be stored apart."""
        if self._embedding is not None:
            return self._embedding
        rest = self.weight("embed_tokens")
        return SplitWeight(self.weight(FREQUENT), rest) if self._folder.quantization.frequent else rest

    def weight(self, name: str) -> Any:
        """Return a linear."""
        dtype = self._folder.quantization.dtype_of(name)
        if dtype == NATIVE:
            return passthrough_weight(self._folder, name)
        kind = KINDS[dtype]
        *parts, _ = kind._fields
        bias = self._tensors.get(f"{name}.bias", np.zeros((*self._stacks[name], 0), np.float32))
        return kind(*(self._tensors[f"{name}.{part}"] for part in parts), bias)

    def norm(self, name: str, layers: Sequence[int] | None = None) -> Any:
        """Return the norms of some layers, or one outside of them; `NoNorm` where the model has none.

        Where only some of the layers have one, the others get any, which is not read.
        """
        if name not in self._tensors or not (layers is None or any(map(self._norms[name].is_in, layers))):
            return NoNorm()
        gain = self._tensors[name]
        parts = [gain]
        if self._config.layer_norm:
            parts.append(self._tensors.get(f"{name}.bias", np.zeros_like(gain)))
        if layers is None:
            parts = [part.reshape(-1) for part in parts]
        elif at := self._norms[name].at:
            parts = [part[[at.index(layer) if layer in at else 0 for layer in layers]] for part in parts]
        elif 0 < len(layers) < len(gain):
            parts = [part[list(layers)] for part in parts]
        return LayerNorm(*parts) if self._config.layer_norm else RmsNorm(*parts)

    def vectors(self, name: str, factor: float = 1.0) -> Any:
        """Return other vectors, stacked over the layers that have them, times a factor."""
        found = self._tensors[name]
        return found if factor == 1 else np.float32(factor) * np.asarray(found, np.float32)

    def by_tap(self, name: str, channels: int) -> Any:
        """Return the taps of convolutions, all channels of the first one before those of the next."""
        found = self._tensors[name]
        turned = found.reshape(len(found), channels, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(turned).reshape(found.shape)

    def by_distance(self, name: str, factor: float) -> Any:
        """Return biases of scores, times a factor, by head and distance, as far as a block of keys sees others."""
        return by_distance(self.vectors(name, factor), REACH + BLOCK)

    def by_reach(self, name: str, rows: int, factor: float) -> Any:
        """Return profiles of scores [rows, reach], times a factor, the farthest first, a block of zeros around them."""
        found = self.vectors(name, factor)
        return np.pad(found.reshape(len(found), rows, -1)[..., ::-1], ((0, 0), (0, 0), (BLOCK, BLOCK)))

    def vector(self, name: str) -> Any:
        """Return a vector of no layer."""
        return self._tensors[name]

    def once(self, name: str) -> Any:
        """Return a vector of no layer, as if it was that of one."""
        return self._tensors[name][None]

    def positions(self) -> Any:
        """Return the vectors of positions, or `NoPositions`."""
        return self._tensors.get(POSITIONS, NoPositions())


Tensors = FolderTensors | NamedTensors
