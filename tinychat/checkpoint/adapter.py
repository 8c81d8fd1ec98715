"""Adapters (LoRA): small matrices by which a training changes a checkpoint's weights, merged when these are read.

Of PEFT (github.com/huggingface/peft) and mlx-lm: ``W + scale * B @ A`` (Hu et al., 2021,
https://arxiv.org/abs/2106.09685), with DoRA each row of that brought to a length of its own (Liu et al., 2024,
https://arxiv.org/abs/2402.09353).
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adapter_files import MERGED_CONFIG, MERGED_WEIGHTS
from tinychat.checkpoint.tensors import Derived, Tensor, Tensors, open_weights
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.config_values import ConfigValues

_PREFIX = "base_model.model."
# What PEFT names them, and mlx-lm; its matrices are transposed.
_LINEAR, _EMBEDDING, _MLX = ("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"), ("lora_a", "lora_b")
_LENGTHS = ("lora_magnitude_vector", "m")
_PART = re.compile(rf"(.+)\.({'|'.join((*_LINEAR, *_EMBEDDING, *_MLX, *_LENGTHS))})(?:\.default)?(?:\.weight)?")
Floats = NDArray[np.float32]


def merged(tensors: Tensors) -> Tensors:
    """Return a checkpoint's tensors, merged with the adapter whose files `checkpoint.folder` has put beside them.

    `UnsupportedModelError` for an adapter of another kind, `CheckpointError` for one that does not fit.
    """
    folder = tensors.folder
    weights = next(folder.glob(f"{MERGED_WEIGHTS}.*"), None)
    if weights is None:
        return tensors
    adapter, found = _Adapter(folder / MERGED_CONFIG), dict(tensors.by_name)
    changes, whole = _parts(open_weights(weights))
    for module, parts in changes.items():
        name = _stored(found, f"{module}.weight", weights)
        found[name] = adapter.merged(found[name], module, parts)
    for name, tensor in whole.items():
        found[_stored(found, name, weights)] = tensor
    return Tensors(folder, found)


def _parts(tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Return the matrices by the modules that they change, and the tensors that replace others, by their names."""
    changes: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix(_PREFIX).replace(".base_layer.", ".").replace(".modules_to_save.", ".")
        part = _PART.fullmatch(plain)
        if part is not None:
            changes.setdefault(part[1], {})[part[2]] = tensor
        elif "lora" in plain:
            raise UnsupportedModelError(f"{tensor.path}: {one_line(name, 80)} of an adapter is not supported")
        else:
            whole[plain] = tensor
    return changes, whole


def _stored(tensors: Mapping[str, Tensor], name: str, source: Path) -> str:
    """Return the name that the checkpoint has for a tensor of the adapter."""
    names = (name, name.replace("model.", "model.language_model.", 1), f"language_model.{name}", name.partition(".")[2])
    for each in names:
        if each in tensors:
            return each
    raise CheckpointError(
        f"{source}: the adapter changes {one_line(name, 80)}, which the checkpoint lacks: it is one of another model"
    )


class _Adapter:
    """The settings of an adapter."""

    def __init__(self, path: Path) -> None:
        self._path, self._values = path, ConfigValues(read_json_object(path), str(path))
        kind = self._values.optional_text("peft_type") or self._values.optional_text("fine_tune_type") or "lora"
        if kind.lower() not in ("lora", "dora", "full"):
            raise UnsupportedModelError(f"{path}: an adapter of the kind {one_line(kind, 40)!r} is not supported")
        self._values.require(use_qalora=False, lora_bias=False)

    def merged(self, tensor: Tensor, module: str, parts: Mapping[str, Tensor]) -> "MergedTensor":
        """Return the weight of a module, merged with the matrices that change it."""
        for first, second in (_LINEAR, _EMBEDDING, _MLX):
            if first in parts and second in parts:
                a, b = (_floats(parts[name]) for name in (first, second))
                is_mlx = (first, second) == _MLX
                a, b = (a.T, b.T) if is_mlx else (a, b)
                scale = self._scale_of_mlx() if is_mlx else self._scale(module, len(a))
                turned = (first, second) == _EMBEDDING or self._values.flag("fan_in_fan_out", False)
                left, right = (a.T, b.T) if turned else (b, a)
                lengths = next((_floats(parts[name]).reshape(-1) for name in _LENGTHS if name in parts), None)
                return MergedTensor(tensor, module, left, right, scale, lengths)
        raise CheckpointError(f"{self._path}: half of what changes {one_line(module, 80)} is missing: fetch it again")

    def _scale(self, module: str, rank: int) -> float:
        alpha = self._values.number("lora_alpha", -1e6, 1e6)
        patterns = self._values.optional_section("alpha_pattern")
        for pattern in sorted(patterns.keys()) if patterns else ():
            plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
            if re.search(r"[][*+?|()\\{}]", plain):
                raise UnsupportedModelError(f"{self._path}: alpha_pattern {one_line(pattern, 60)!r} is not supported")
            if patterns and f".{module}".endswith(f".{plain}"):
                alpha = patterns.number(pattern, -1e6, 1e6)
        return alpha / (rank**0.5 if self._values.flag("use_rslora", False) else rank)

    def _scale_of_mlx(self) -> float:
        section = self._values.optional_section("lora_parameters")
        return (section or self._values).number("scale", -1e6, 1e6)


class MergedTensor(Derived):
    """A weight with a product of two matrices added, float32; with `lengths`, each row is brought to its own."""

    def __init__(
        self, tensor: Tensor, name: str, left: Floats, right: Floats, scale: float, lengths: Floats | None
    ) -> None:
        super().__init__(tensor)
        self._name, self._left, self._right = name, left, right
        self._scale, self._lengths = scale, lengths

    @property
    def kind(self) -> str:
        """The type's name."""
        return "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        shape = self._tensor.shape
        fits = self._left.shape[1:] == self._right.shape[:1] and (len(self._left), *self._right.shape[1:]) == shape
        if not fits or (self._lengths is not None and len(self._lengths) != len(self._left)):
            what = f"{one_line(self._name, 80)} of shape {list(shape)}"
            raise CheckpointError(f"{self.path}: the adapter does not fit {what}: it is one of another model")
        return shape

    def read(self, start: int, stop: int) -> Floats:
        """Return rows ``start..stop-1``; sums in float64, so that others beside them leave them as they are."""
        added = self._left[start:stop].astype(np.float64) @ self._wide
        rows = self._tensor.read(start, stop).astype(np.float64) + self._scale * added
        if self._lengths is not None:
            rows *= (self._lengths[start:stop] / np.sqrt(np.square(rows).sum(axis=1)))[:, None]
        found: Floats = rows.astype(np.float32)
        return found

    @cached_property
    def _wide(self) -> NDArray[np.float64]:
        return self._right.astype(np.float64)


def _floats(tensor: Tensor) -> Floats:
    found: Floats = tensor.read(0, tensor.shape[0]).astype(np.float32)
    return found
