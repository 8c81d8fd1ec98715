"""The model folder of a drafter, opened beside a larger model; see `models.drafter`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tinychat.errors import FieldError, ModelFolderError
from tinychat.models.config import ModelConfig
from tinychat.models.drafter import ORDERING, bound_config, misfit
from tinychat.models.folder import WEIGHTS, ModelFolder, open_model_folder


def open_drafter(path: Path, larger: ModelConfig, name: str) -> ModelFolder:
    """Open the folder of a drafter for a larger model, called `name`; `FieldError` if it is not for that."""
    opened = open_model_folder(path)
    if what := misfit(opened.config, larger):
        raise FieldError("draft", f"must be a drafter for {name}, unlike {path.name}: {what}")
    _check_ordering(opened)
    return replace(opened, config=bound_config(opened.config, larger))


def _check_ordering(folder: ModelFolder) -> None:
    """Refuse ids of clusters that compiled code, which checks nothing, would write beyond the logits."""
    if ORDERING in folder.tensors:
        ids = np.asarray(folder.tensors[ORDERING], np.float32)
        if not np.all((ids >= 0) & (ids < folder.config.vocab_size)):
            raise ModelFolderError(f"{folder.path / WEIGHTS} is damaged ({ORDERING}): convert the model again")
