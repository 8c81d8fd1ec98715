"""The tensors of a checkpoint in float32, read when asked for."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.conversion.pack import check_finite, weight_names
from tinychat.engine.named_tensors import NamedVector
from tinychat.kernels.variants import ChannelScale, ClippedNorm, NoNorm
from tinychat.models.architectures import linears, norms
from tinychat.models.tensors import Linear, Table

Floats = NDArray[np.float32]
NormNames = NamedVector | ChannelScale | ClippedNorm | NoNorm
# Rows of the embedding or the output matrix that are widened to float32 at a time.
SLAB_ROWS = 8192


class Source:
    """The tensors of a checkpoint in float32, read when asked for; `ConversionError` if a weight is not finite."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self._tensors = checkpoint.tensors
        self._linears = {linear.name: linear for linear in linears(self.config)}
        self._norms = {norm.name: norm for norm in norms(self.config)}

    def layout(self, name: str) -> Linear:
        """Return the layout of a linear; a tied ``lm_head`` is the embedding."""
        return self._linears.get(name) or self._linears["embed_tokens"]

    def weight(self, name: str, shard: int) -> Floats:
        """Return a linear's weight [N, K]."""
        layout = self.layout(name)
        parts = weight_names(layout, shard)
        weight = np.empty((sum(layout.rows), layout.columns), np.float32)
        first = 0
        for part, rows in zip(parts, layout.rows):
            weight[first : first + rows] = self._tensors.read(part)
            first += rows
        check_finite(weight, " + ".join(parts))
        return weight

    def slabs(self, linear: Linear, rows: int = SLAB_ROWS) -> Iterator[Floats]:
        """Yield the weight of a linear outside the layers, `rows` rows at a time."""
        for source, count in zip(linear.sources, linear.rows):
            part, end = f"{source}.weight", linear.first + count
            for first in range(linear.first, end, rows):
                slab = self._tensors.read(part, first, min(first + rows, end)).astype(np.float32)
                check_finite(slab, part)
                yield slab

    def linear(self, name: str, shard: int, inputs: Floats, residual: Floats | None) -> Floats:
        """Apply a linear: see `conversion.float_stages.Linear`."""
        outputs = inputs @ self.weight(name, shard).T
        bias = self.bias(name, shard)
        return outputs if bias is None else outputs + bias

    def bias(self, name: str, shard: int) -> Floats | None:
        """Return a linear's bias [N], None where it has none."""
        linear = self.layout(name)
        if not linear.bias:
            return None
        parts = [self._tensors.read(f"{source}.bias") for source in linear.names(shard)]
        return np.concatenate([part.astype(np.float32) for part in parts])

    def has_norm(self, name: str, layer: int) -> bool:
        """Return whether a layer has a norm with gains of its own."""
        norm = self._norms.get(name)
        return norm is not None and norm.source != "" and norm.is_in(layer)

    def norm_tensors(self, name: str, layer: int = 0) -> list[str]:
        """Return the checkpoint's names of a norm's gains and, if it has them, biases; none of gains of 1."""
        norm = self._norms[name]
        if not norm.source:
            return []
        return [f"{norm.source.format(layer)}.{part}" for part in ("weight", "bias")[: 1 + norm.bias]]

    def normed(self, norm: NormNames, x: Floats, eps: np.float32 | None = None) -> Floats:
        """Norm the last axis; `eps` is that of the configuration when omitted."""
        if isinstance(norm, NoNorm):
            return x
        if isinstance(norm, ClippedNorm):
            least, most, *_ = self.vector(norm.bounds)
            return self.normed(norm.norm, x, eps).clip(least, most)
        if isinstance(norm, ChannelScale):
            return np.asarray((x + self.vector(norm.shift)) * self.vector(norm.scale), np.float32)
        names = self.norm_tensors(norm.layout.name, norm.layers[0])
        gain, *bias = [self._tensors.read(name).astype(np.float32) for name in names] or [
            np.full(1, norm.layout.scale, np.float32)
        ]
        eps = np.float32(self.config.rms_norm_eps) if eps is None else eps
        if self.config.layer_norm:
            x = x - x.mean(axis=-1, keepdims=True)
        scaled = x * (1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps)) * gain
        return np.asarray(scaled + bias[0] if bias else scaled, np.float32)

    def vector(self, vector: NamedVector) -> Floats:
        """Return numbers of a layer that are stored like a norm's."""
        names = self.norm_tensors(vector.layout.name, vector.layers[0])
        return self._tensors.read(names[0]).astype(np.float32) if names else np.ones(1, np.float32)

    def embeddings(self, ids: Sequence[int]) -> Floats:
        """Return the embeddings [T, D] of some ids."""
        return self.rows(self._linears["embed_tokens"], ids)

    def rows(self, linear: Linear, numbers: Sequence[int]) -> Floats:
        """Return some rows of a linear outside the layers."""
        name = f"{linear.sources[0]}.weight"
        rows = {i: self._tensors.read(name, i, i + 1).astype(np.float32)[0] for i in sorted({*numbers})}
        return np.stack([rows[i] for i in numbers])

    def table(self, table: Table, rows: int) -> Floats:
        """Return the first rows of a table of vectors."""
        return self._tensors.read(f"{table.source}.weight", table.first, table.first + rows).astype(np.float32)
