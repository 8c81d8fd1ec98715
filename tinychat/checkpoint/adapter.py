"""Adapters (LoRA): small matrices by which a training changes a checkpoint's weights, merged when these are read.

Of PEFT (github.com/huggingface/peft) and mlx-lm: ``W + scale * B @ A`` (Hu et al., 2021,
https://arxiv.org/abs/2106.09685), with DoRA each row of that brought to a length of its own (Liu et al., 2024,
https://arxiv.org/abs/2402.09353).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adapter_files import ENDINGS, MERGED_CONFIG, MERGED_WEIGHTS
from tinychat.checkpoint.tensors import Derived, Tensor, Tensors, open_weights
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.architectures import linears, norms
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues

_PREFIX = "base_model.model."
# What PEFT names them, and mlx-lm; its matrices are transposed.
_LINEAR, _EMBEDDING, _MLX = ("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"), ("lora_a", "lora_b")
_LENGTHS = ("lora_magnitude_vector", "m")
# Ways to begin a training that leave the base as it is; and settings that do more than add a product.
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
_NOT_SUPPORTED = (
    "alora_invocation_tokens", "layer_replication", "lora_bias", "target_parameters", "trainable_token_indices",
    "use_qalora",
)  # fmt: skip
_PART = re.compile(rf"(.+)\.({'|'.join((*_LINEAR, *_EMBEDDING, *_MLX, *_LENGTHS))})(?:\.default)?(?:\.weight)?")
Floats = NDArray[np.float32]


def merged(tensors: Tensors, of_gguf: ModelConfig | None = None) -> Tensors:
    """Return a checkpoint's tensors, merged with the adapter whose files `checkpoint.folder` has put beside them.

    of_gguf : the configuration of a GGUF file, of which some rows are in another order than an adapter knows them.
    `UnsupportedModelError` for an adapter of another kind, `CheckpointError` for one that does not fit.
    """
    folder = tensors.folder
    weights = next((path for ending in ENDINGS if (path := folder / f"{MERGED_WEIGHTS}{ending}").exists()), None)
    if weights is None:
        return tensors
    weights, adapter, found = weights.resolve(), _Adapter((folder / MERGED_CONFIG).resolve()), dict(tensors.by_name)
    changes, whole = _parts(open_weights(weights))
    if not changes and not whole:
        raise CheckpointError(f"{weights} has no tensors: the adapter changes nothing")
    names = {name: _stored(found, name, weights) for name in (*whole, *(f"{module}.weight" for module in changes))}
    plain = {*names.values()} if of_gguf is None else _unadjusted_names(of_gguf)
    for name in names.values():
        if name not in plain:
            what = f"{one_line(name, 80)} of a GGUF file, whose rows are in another order"
            raise UnsupportedModelError(f"{weights}: the adapter changes {what}: merge it with the original checkpoint")
    found |= {names[name]: tensor for name, tensor in whole.items()}
    for module, parts in changes.items():
        name = names[f"{module}.weight"]
        found[name] = adapter.merged(found[name], module, parts)
    return Tensors(folder, found)


def _unadjusted_names(config: ModelConfig) -> set[str]:
    """Return the names of weights that are stored in GGUF files as in the checkpoints that these were made from."""
    found: set[str] = set()
    for linear in linears(config):
        if linear == replace(linear, order=(), scale=1.0, scales=(), transposed=False, unit_rows=False, cut=1):
            orders = linear.order or (None,) * len(linear.sources)
            for shard in range(linear.shards):
                plain = (name for name, order in zip(linear.names(shard), orders) if order is None)
                found |= {f"{name}.{part}" for name in plain for part in ("weight", "bias")}
    for norm in norms(config):
        if (norm.offset, norm.scale, norm.function) == (0.0, 1.0, ""):
            found |= {f"{source}.{part}" for source in norm.sources for part in ("weight", "bias")}
    return found


def _parts(tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Return the matrices by the modules that they change, and the tensors that replace others, by their names."""
    changes: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix(_PREFIX).replace(".base_layer.", ".").replace(".modules_to_save.", ".")
        part = _PART.fullmatch(plain)
        if part is not None:
            changes.setdefault(part[1], {})[part[2]] = tensor
        elif "lora" in plain or "token_adapter" in plain:
            raise UnsupportedModelError(f"{tensor.path}: {one_line(name, 80)} of an adapter is not supported")
        else:
            whole[plain] = tensor
    return changes, whole


def _stored(tensors: Mapping[str, Tensor], name: str, source: Path) -> str:
    """Return the name that the checkpoint has for a tensor of the adapter; of a part of the model, it is longer."""
    names = (name, name.replace("model.", "model.language_model.", 1), name.partition(".")[2])
    found = next((each for each in names if each in tensors), None)
    longer = [each for each in tensors if each.endswith(f".{name}")] if found is None else [found]
    if len(longer) == 1:
        return longer[0]
    lacking = f"the adapter changes {one_line(name, 80)}, which the checkpoint lacks"
    if name.startswith("lm_head."):
        raise CheckpointError(f"{source}: {lacking}: its output matrix is the embedding")
    raise CheckpointError(f"{source}: {lacking}: it is one of another model")


class _Adapter:
    """The settings of an adapter."""

    def __init__(self, path: Path) -> None:
        self._path, self._values = path, ConfigValues(read_json_object(path), str(path))
        values = self._values
        kind = values.optional_text("peft_type") or values.optional_text("fine_tune_type") or "lora"
        if kind.lower() not in ("lora", "dora", "full"):
            raise UnsupportedModelError(f"{path}: an adapter of the kind {one_line(kind, 40)!r} is not supported")
        # Others begin with a change of the base.
        if values.get("init_lora_weights") not in _BEGINNINGS:
            what = one_line(repr(values.get("init_lora_weights")), 40)
            raise UnsupportedModelError(f"{path}: init_lora_weights {what} is not supported")
        for key in _NOT_SUPPORTED:
            if values.get(key):
                raise UnsupportedModelError(f"{path}: {key} is not supported")

    def merged(self, tensor: Tensor, module: str, parts: Mapping[str, Tensor]) -> "MergedTensor":
        """Return the weight of a module, merged with the matrices that change it."""
        kind = next((kind for kind in (_LINEAR, _EMBEDDING, _MLX) if kind[0] in parts and kind[1] in parts), None)
        if kind is None:
            raise CheckpointError(
                f"{self._path}: half of what changes {one_line(module, 80)} is missing: fetch it again"
            )
        a, b = (_floats(parts[name]) for name in kind)
        if a.ndim != 2 or b.ndim != 2 or 0 in a.shape:
            raise CheckpointError(f"{self._path}: what changes {one_line(module, 80)} is no pair of matrices")
        scale = self._scale_of_mlx() if kind == _MLX else self._scale(module, len(a))
        a, b = (a.T, b.T) if kind == _MLX else (a, b)
        turned = kind == _EMBEDDING or self._values.flag("fan_in_fan_out", False)
        left, right = (a.T, b.T) if turned else (b, a)
        lengths = next((_floats(parts[name]).reshape(-1) for name in _LENGTHS if name in parts), None)
        if turned and lengths is not None:
            raise UnsupportedModelError(f"{self._path}: DoRA of {one_line(module, 80)} is not supported")
        return MergedTensor(tensor, module, left, right, scale, lengths)

    def _scale(self, module: str, rank: int) -> float:
        alpha, own = self._values.number("lora_alpha", -1e6, 1e6), self._alpha_of_pattern(module)
        return (alpha if own is None else own) / (rank**0.5 if self._values.flag("use_rslora", False) else rank)

    def _alpha_of_pattern(self, module: str) -> float | None:
        """Return the alpha of the first pattern that a module's name fits, as PEFT takes it."""
        patterns = self._values.optional_section("alpha_pattern")
        if patterns is None:
            return None
        for pattern in patterns.keys():
            plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
            if re.search(r"[][*+?|()\\{}]", plain):
                raise UnsupportedModelError(f"{self._path}: alpha_pattern {one_line(pattern, 60)!r} is not supported")
            if module == plain or (not pattern.startswith("^") and module.endswith(f".{plain}")):
                return patterns.number(pattern, -1e6, 1e6)
        return None

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
        fits = self._left.shape[1] == len(self._right) and (len(self._left), self._right.shape[1]) == shape
        if not fits or (self._lengths is not None and len(self._lengths) != len(self._left)):
            what = f"{one_line(self._name, 80)} of shape {list(shape)}"
            raise CheckpointError(f"{self.path}: the adapter does not fit {what}: it is one of another model")
        return shape

    # Callers refuse numbers that are not finite.
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
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
    found: Floats = tensor.read(0, tensor.shape[0] if tensor.shape else 1).astype(np.float32)
    return found
