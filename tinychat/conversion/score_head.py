"""The head of a model that ranks, taken from its checkpoint: see `models.ranker`."""

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.adjusted import stored_name
from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.checkpoint.safetensors_file import read_floats
from tinychat.conversion.pack import check_finite
from tinychat.errors import CheckpointError
from tinychat.models.architectures import family_of
from tinychat.models.ranker import Ranker
from tinychat.models.score_head import SCORE_WEIGHTS, head_shapes

Floats = NDArray[np.float32]


def head_of(checkpoint: Checkpoint, ranker: Ranker) -> dict[str, Floats]:
    """Return the head's tensors by their names in a model folder; CheckpointError for one that is not there or wrong.

    A GGUF file's have been written beside its configuration; elsewhere they are tensors of the checkpoint, or rows of
    its output matrix.
    """
    shapes = head_shapes(ranker, checkpoint.config.hidden_size)
    file = checkpoint.path / SCORE_WEIGHTS
    if file.is_file():
        found = read_floats(file, shapes)
    elif ranker.tokens:
        found = {"score.weight": _row_of_tokens(checkpoint, ranker), "score.bias": np.zeros(1, np.float32)}
    else:
        sources = {"score": ranker.score, "dense": ranker.dense, "norm": ranker.norm}
        found = {}
        for name, shape in shapes.items():
            layer, _, part = name.partition(".")
            found[name] = _read(checkpoint, f"{sources[layer]}.{part}", shape)
    for name, values in found.items():
        check_finite(values, f"{name} of the head that ranks")
    return found


def _read(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Floats:
    """Return a tensor, zeros for biases that the checkpoint lacks."""
    stored = stored_name(checkpoint.tensors, name)
    if stored is None and name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    values = checkpoint.tensors.read(stored or name).astype(np.float32)
    if values.shape != shape:
        raise CheckpointError(f"{checkpoint.path}: {name} has shape {values.shape}; expected {shape}")
    return values


def _row_of_tokens(checkpoint: Checkpoint, ranker: Ranker) -> Floats:
    """Return the row whose product with the hidden state is the score: float32 [1, D]."""
    config, tensors = checkpoint.config, checkpoint.tensors
    names = ("lm_head.weight", f"{family_of(config.architecture).tensors.embed}.weight")
    stored = next((found for name in names if (found := stored_name(tensors, name)) is not None), names[0])
    rows = [tensors.read(stored, token, token + 1).astype(np.float32) for token in ranker.tokens]
    row: Floats = (rows[0] if len(rows) == 1 else rows[0] - rows[1]) * np.float32(config.logits_multiplier)
    return row
