"""The model folder of a drafter, opened beside a larger model; see `models.drafter`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import FieldError, ModelFolderError
from tinychat.models.config import ModelConfig
from tinychat.models.drafter import ORDERING
from tinychat.models.eagle import DRAFT_IDS, Eagle
from tinychat.models.folder import WEIGHTS, ModelFolder, open_model_folder


def open_drafter(path: Path, larger: ModelConfig, name: str) -> ModelFolder:
    """Open the folder of a drafter for a larger model, called `name`; `FieldError` if it is not for that."""
    opened = open_model_folder(path)
    if difference := misfit(opened.config, larger):
        raise FieldError("draft", f"must be a drafter for {name}, unlike {path.name}: {difference}")
    _check_ordering(opened)
    return replace(opened, config=bound_config(opened.config, larger), tensors=opened.tensors | _draft_ids(opened))


def _draft_ids(folder: ModelFolder) -> dict[str, NDArray[np.generic]]:
    """Return the ids of the rows of EAGLE-3's output matrix, if these are some of the tokens."""
    if DRAFT_IDS not in folder.tensors:
        return {}
    stored = np.asarray(folder.tensors[DRAFT_IDS], np.float32)
    ids = np.add(stored, np.arange(len(stored)), dtype=np.float32)
    _check_ids(folder, DRAFT_IDS, ids)
    return {DRAFT_IDS: ids}


def _check_ordering(folder: ModelFolder) -> None:
    """Refuse ids of clusters that compiled code, which checks nothing, would write beyond the logits."""
    if ORDERING in folder.tensors:
        _check_ids(folder, ORDERING, np.asarray(folder.tensors[ORDERING], np.float32))


def _check_ids(folder: ModelFolder, name: str, ids: NDArray[np.float32]) -> None:
    if not np.all((ids >= 0) & (ids < folder.config.vocab_size)):
        raise ModelFolderError(f"{folder.path / WEIGHTS} is damaged ({name}): convert the model again")


def bound_config(config: ModelConfig, larger: ModelConfig) -> ModelConfig:
    """Return the configuration of a drafter that reads the cache of a larger model, which `misfit` says it can."""
    if config.eagle is not None:
        layers = config.eagle.layers_of(larger.num_hidden_layers)
        return replace(config, eagle=replace(config.eagle, layers=layers))
    assert config.drafter is not None
    (narrow, *_), (wide, *_) = larger.cache_shapes
    return replace(config, drafter=replace(config.drafter, narrow_layers=narrow, wide_layers=wide))


def misfit(config: ModelConfig, larger: ModelConfig) -> str:
    """Return in what a drafter does not fit a larger model; "" if it does."""
    if config.eagle is not None:
        return _misfit_of_eagle(config, config.eagle, larger)
    assert config.drafter is not None
    if config.varied is None or larger.varied is None or larger.altup or len(larger.cache_shapes) < 2:
        return "that is for Gemma 4 models"
    sizes = {
        "hidden_size": (config.drafter.hidden_size, larger.hidden_size),
        "vocab_size": (config.vocab_size, larger.vocab_size),
        "head_dim": (config.head_dim, larger.head_dim),
        "num_key_value_heads": (config.num_key_value_heads, larger.num_key_value_heads),
        "global_head_dim": (config.varied.wide_head_dim, larger.varied.wide_head_dim),
        "num_global_key_value_heads": (config.varied.wide_key_value_heads, larger.varied.wide_key_value_heads),
        "sliding_window": (max(config.sliding_windows), max(larger.sliding_windows)),
    }
    return _first_difference(sizes)


def _misfit_of_eagle(config: ModelConfig, eagle: Eagle, larger: ModelConfig) -> str:
    layers, sizes = eagle.layers_of(larger.num_hidden_layers), ("hidden_size", "vocab_size")
    has_others = larger.altup or larger.bidirectional or larger.loops
    if has_others or not 0 <= min(layers) <= max(layers) <= larger.num_hidden_layers:
        return f"that is for a model whose hidden states before layers {layers} are there"
    return _first_difference({name: (getattr(config, name), getattr(larger, name)) for name in sizes})


def _first_difference(sizes: Mapping[str, tuple[object, object]]) -> str:
    for name, (wanted, found) in sizes.items():
        if wanted != found:
            return f"that is for a model with {name} {wanted}, not {found}"
    return ""
