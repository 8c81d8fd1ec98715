"""Weights of experts, or of heads, that a checkpoint has in one tensor for all, each under a name of its own.

Qwen3.5 stacks them as [E, N, K], the rows of gates before those of their inputs in one tensor, and so does Granite,
whose names have no part for experts. Published files of Qwen3-VL have [E, K, N], which transformers transposes. gpt-oss
stacks them as [E, K, N], biases as [E, N]; or has them in MXFP4, where 32 columns share a power of two:
``_blocks`` uint8 [E, N, K/32, 16], two codes to a byte, the lower one first, and ``_scales`` uint8 [E, N, K/32], the
exponent and 127. Those of Inkling 2 are [E, N, K] or small floats, of which `checkpoint.small_floats` has the formats.
An expert is read only when it is asked for, one at a time.

mlx stacks them as [E, N, K], quantized or not, and calls them ``switch_mlp.gate_proj``, ``up_proj`` and ``down_proj``;
gpt-oss's keep their names, with gates and their inputs apart (github.com/ml-explore/mlx-lm, mlx_lm/models).
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import AdjustedTensor, stored_name
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.small_floats import Float4Tensor, weight_of_expert
from tinychat.checkpoint.tensor_part import ComputedRows, JoinedTensor, PackedTensor, StackedTensor, part_of
from tinychat.checkpoint.tensors import Derived, Tensor, Tensors
from tinychat.errors import CheckpointError
from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig
from tinychat.models.drafter import ORDERING
from tinychat.models.tensors import Part

HALVES = ".gate_proj", ".up_proj"
_NAMES_OF_MLX = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


class AsMatrix(Derived):
    """A tensor [N, ...] as a matrix of N rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        rows, *others = self._tensor.shape
        return rows, math.prod(others)

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        return self._tensor.read(start, stop).reshape(stop - start, -1)

    def read_integers(self) -> NDArray[Any]:
        """Return whole numbers."""
        return self._tensor.read_integers().reshape(self.shape)


def _taps_first(rows: FloatArray) -> FloatArray:
    """Return weights [N, K, taps] of a convolution as a linear's, [N, taps K]: the columns of the first tap first."""
    return np.ascontiguousarray(np.moveaxis(rows, -1, 1)).reshape(len(rows), -1)


def unstacked(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Return a checkpoint's tensors with each expert's and head's under a name of its own, where they are stacked."""
    found = dict(tensors.by_name)
    if config.drafter and config.drafter.clusters:
        found = _of_clusters(tensors, config) | found
    if config.eagle and (ids := _known(tensors, "d2t.weight")) is not None:
        found["d2t.weight"] = _Integers(ids)
    for layer in range(config.num_hidden_layers):
        if config.latents:
            found = _of_latents(tensors, config, layer) | found
        if config.compressed:
            found = _of_convolution(tensors, config, layer) | found
    for linear in linears(config):
        for shard in range(linear.shards if linear.experts else 0):
            expert = shard % linear.experts
            for name in linear.names(shard):
                if f"{name}.weight" in found:
                    continue
                stem = name.replace(f".experts.{expert}.", ".experts.")
                for part, tensor in _parts(tensors, stem, expert, config).items():
                    found.setdefault(f"{name}.{part}", tensor)
    return Tensors(tensors.folder, found)


def _known(tensors: Tensors, name: str) -> Tensor | None:
    """Return the tensor of a name, None where the checkpoint has none."""
    stored = stored_name(tensors, name)
    return None if stored is None else tensors.by_name[stored]


class _ClusterRows(Derived):
    """The rows of one cluster of an embedding; ids : those of all clusters, one cluster after another."""

    def __init__(self, embedding: Tensor, ids: Callable[[], NDArray[np.int64]], first: int, count: int) -> None:
        super().__init__(embedding)
        self._ids, self._first, self._count = ids, first, count

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the cluster's rows."""
        return self._count, *self._tensor.shape[1:]

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        ids = self._ids()[self._first + start : self._first + stop].tolist()
        return np.concatenate([self._tensor.read(i, i + 1) for i in ids] or [self._tensor.read(0, 0)])


class _Integers(Derived):
    """Whole numbers that are exact as float32, such as ids."""

    def read(self, start: int, stop: int) -> FloatArray:
        """Return numbers ``start..stop-1``."""
        return self._tensor.read_integers()[start:stop].astype(np.float32)


def _of_clusters(tensors: Tensors, config: ModelConfig) -> dict[str, Tensor]:
    """Return the ids of a drafter's clusters, and the rows of its embedding that belong to each."""
    assert config.drafter and config.drafter.clusters
    clusters, name = config.drafter.clusters, f"masked_embedding.{ORDERING}"
    embedding, ordering = _known(tensors, "model.embed_tokens.weight"), tensors.by_name.get(name)
    if embedding is None or ordering is None:
        return {}

    @cache
    def ids() -> NDArray[np.int64]:
        found = ordering.read_integers()
        if sorted(found.tolist()) != list(range(config.vocab_size)):
            raise CheckpointError(f"{ordering.path}: {name} is no permutation of ids: download the checkpoint again")
        return found

    size = clusters.intermediate_size
    found: dict[str, Tensor] = {
        f"masked_embedding.clusters.{number}.weight": _ClusterRows(embedding, ids, number * size, size)
        for number in range(clusters.num_experts)
    }
    return found | {f"{name}.weight": _Integers(ordering)}


def _of_convolution(tensors: Tensors, config: ModelConfig, layer: int) -> dict[str, Tensor]:
    """Return weights and biases of the second convolution of compressed attention in a layer by head."""
    assert config.compressed is not None
    net, found = config.compressed, dict[str, Tensor]()
    stem, d = f"model.layers.{layer}.self_attn.qkv_proj.conv_qk_grouped.", net.value_dim
    for end in ("weight", "bias"):
        whole = _known(tensors, f"{stem}{end}")
        if whole is None:
            continue
        if end == "weight" and whole.shape[1:] != (d, net.taps):
            shape = [net.channels, d, net.taps]
            raise CheckpointError(f"{whole.path}: {stem}{end} has shape {list(whole.shape)}, expected {shape}")
        for head in range(net.value_heads):
            part = part_of(whole, f"{stem}{end}", Part(0, head * d, (head + 1) * d, net.channels))
            is_weight = end == "weight"
            found[f"{stem}{head}.{end}"] = ComputedRows(part, _taps_first, (d, d * net.taps)) if is_weight else part
    return found


def _of_latents(tensors: Tensors, config: ModelConfig, layer: int) -> dict[str, Tensor]:
    """Return the matrices of a layer's heads: of a latent's keys, transposed, and of its values.

    Checkpoints have those of a head after those of the one before, rows of keys and then of values, in one tensor.
    """
    assert config.latents is not None
    stem, H, keys = f"model.layers.{layer}.self_attn.", config.num_attention_heads, config.latents.qk_nope_head_dim
    name, size = f"{stem}kv_b_proj.weight", keys + config.latents.v_head_dim
    whole, found = _known(tensors, name), dict[str, Tensor]()
    if whole is None:
        return {}
    for head in range(H):
        first = head * size
        part = part_of(whole, name, Part(0, first, first + keys, H * size))
        found[f"{stem}k_b_proj.{head}.weight"] = AdjustedTensor(part, transposed=True)
        values = Part(0, first + keys, first + size, H * size)
        found[f"{stem}v_b_proj.{head}.weight"] = part_of(whole, name, values)
    return found


def _parts(tensors: Tensors, stem: str, expert: int, config: ModelConfig) -> dict[str, Tensor]:
    """Return weight and bias of one expert, as far as they are stacked; `stem` is the weights' name."""
    transposed = config.swiglu_limit is not None or _is_transposed(tensors, stem, config)

    def stacked(name: str, half: int | None = None) -> Tensor | None:
        known = stored_name(tensors, name)
        return None if known is None else StackedTensor(tensors[known], known, expert, half, transposed)

    assert config.experts is not None
    weight = (
        weight_of_expert(tensors, stem, expert, config.experts.num_experts)
        or _rows_of_expert(tensors, stem, expert, config)
        or stacked(stem)
        or stacked(f"{stem.replace('.experts.', '.')}.weight")
    )
    if {f"{stem}_blocks", f"{stem}_scales"} <= tensors.by_name.keys():
        own: dict[str, Tensor] = {
            f"{stem}.{part}": AsMatrix(StackedTensor(tensors[f"{stem}_{part}"], stem, expert))
            for part in ("blocks", "scales")
        }
        weight = Float4Tensor(Tensors(tensors.folder, own), stem, "blocks", is_mxfp4=True, scales="scales")
    for half, ending in enumerate(HALVES):
        if stem.endswith(ending):
            weight = weight or stacked(f"{stem.removesuffix(ending)}.gate_up_proj", half)
    found = {"weight": weight, "bias": stacked(f"{stem}_bias")}
    known = {part: tensor for part, tensor in found.items() if tensor is not None}
    return known or _parts_of_mlx(tensors, stem, expert, config)


def _rows_of_expert(tensors: Tensors, stem: str, expert: int, config: ModelConfig) -> Tensor | None:
    """Return the rows of one expert in a matrix of all experts' rows, as Nomic BERT has them; None without one."""
    whole = _known(tensors, stem)
    if whole is None or len(whole.shape) != 2:
        return None
    assert config.experts is not None
    count = config.experts.num_experts
    size = -(-whole.shape[0] // count)
    return part_of(whole, stem, Part(0, expert * size, (expert + 1) * size, count * size))


def _is_transposed(tensors: Tensors, stem: str, config: ModelConfig) -> bool:
    """Return whether the weights of all experts have their columns first, which the shape of one shows."""
    assert config.experts is not None
    before, D, F = stem.rpartition(".experts.")[0], config.hidden_size, config.experts.intermediate_size
    name, columns_first = ("down_proj", (F, D)) if F != D else ("gate_up_proj", (D, 2 * F))
    known = _known(tensors, f"{before}.experts.{name}")
    return known is not None and known.shape[1:] == columns_first


def _parts_of_mlx(tensors: Tensors, stem: str, expert: int, config: ModelConfig) -> dict[str, Tensor]:
    """Return weight and bias of one expert as mlx has them."""
    before, _, part = stem.rpartition(".experts.")
    if config.swiglu_limit is None:
        return _of_all_experts(tensors, f"{before}.switch_mlp.{_NAMES_OF_MLX.get(part, part)}", expert)
    if part != "gate_up_proj":
        return _of_all_experts(tensors, stem, expert)
    assert config.experts is not None
    gates, inputs = (_of_all_experts(tensors, f"{before}.experts{half}", expert) for half in HALVES)
    # Those of the checkpoint alternate.
    order = np.arange(2 * config.experts.intermediate_size).reshape(2, -1).T.reshape(-1)
    both = {end: JoinedTensor(f"{stem}.{end}", [gates[end], inputs[end]]) for end in gates.keys() & inputs.keys()}
    return {end: AdjustedTensor(tensor, order=order) for end, tensor in both.items()}


def _of_all_experts(tensors: Tensors, name: str, expert: int) -> dict[str, Tensor]:
    """Return weight and bias of one expert, of tensors of all."""
    found: dict[str, Tensor] = {}
    for end in ("weight", "bias"):
        if (stored := stored_name(tensors, f"{name}.{end}")) is not None:
            whole = tensors[stored]
            if isinstance(whole, PackedTensor):
                found[end] = whole.of_expert(expert)
            else:
                found[end] = StackedTensor(whole, stored, expert)
    return found
