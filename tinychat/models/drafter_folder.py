"""The model folder of a drafter, opened beside a larger model; see `models.drafter`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tinychat.errors import FieldError, ModelFolderError
from tinychat.models.config import ModelConfig
from tinychat.models.drafter import ORDERING
from tinychat.models.folder import WEIGHTS, ModelFolder, open_model_folder


def open_drafter(path: Path, larger: ModelConfig, name: str) -> ModelFolder:
    """Open the folder of a drafter for a larger model, called `name`; `FieldError` if it is not for that."""
    opened = open_model_folder(path)
    if difference := misfit(opened.config, larger):
        raise FieldError("draft", f"must be a drafter for {name}, unlike {path.name}: {difference}")
    _check_ordering(opened)
    return replace(opened, config=bound_config(opened.config, larger))


def _check_ordering(folder: ModelFolder) -> None:
    """Refuse ids of clusters that compiled code, which checks nothing, would write beyond the logits."""
    if ORDERING in folder.tensors:
        ids = np.asarray(folder.tensors[ORDERING], np.float32)
        if not np.all((ids >= 0) & (ids < folder.config.vocab_size)):
            raise ModelFolderError(f"{folder.path / WEIGHTS} is damaged ({ORDERING}): convert the model again")


def bound_config(config: ModelConfig, larger: ModelConfig) -> ModelConfig:
    """Return the configuration of a drafter that reads the cache of a larger model, which `misfit` says it can."""
    assert config.drafter is not None
    (narrow, *_), (wide, *_) = larger.cache_shapes
    return replace(config, drafter=replace(config.drafter, narrow_layers=narrow, wide_layers=wide))


def misfit(config: ModelConfig, larger: ModelConfig) -> str:
    """Return in what a drafter does not fit a larger model; "" if it does."""
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
    for name, (wanted, found) in sizes.items():
        if wanted != found:
            return f"that is for a model with {name} {wanted}, not {found}"
    return ""
