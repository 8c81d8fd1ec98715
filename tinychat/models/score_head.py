"""The head of a model that ranks: what computes a score of the pooled hidden state. See `models.ranker`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import ModelFolderError
from tinychat.models.dense import DenseLayer, Floats, file_of, specs_of
from tinychat.models.folder import map_weights
from tinychat.models.portable_math import exponential
from tinychat.models.ranker import Ranker

SCORE_WEIGHTS = "ranker.safetensors"
"""The file of the head in a model folder."""


class ScoreHead(NamedTuple):
    """The tensors of a head, which compute a score: see `Ranker` and `generate.embeddings.embed_ids`."""

    ranker: Ranker
    score: DenseLayer  # of one row
    dense: DenseLayer | None = None
    norm: DenseLayer | None = None  # gains and biases, float32 [D]

    @property
    def pooling(self) -> str:
        """Which hidden states are pooled."""
        return self.ranker.pooling

    @np.errstate(over="ignore", invalid="ignore")
    def finish(self, total: NDArray[np.float64], tokens: int) -> Floats:
        """Return the score of what was pooled from so many tokens, a logit: float32 [1]."""
        x = (total / tokens if self.pooling == "mean" else total).astype(np.float32)
        if self.dense is not None:
            x = self.dense.apply(x)
        if self.norm is not None:
            x = _normed(x.astype(np.float64), self.norm, self.ranker.norm_eps)
        found = self.score.apply(x)
        if not np.isfinite(found).all():
            raise ModelFolderError("the model's scores are not finite: convert it again from a sound checkpoint")
        return found


def relevance(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scores as numbers from 0 to 1, by the logistic function."""
    return (1 / (1 + exponential(np.clip(-scores.astype(np.float64), -700, 700)))).astype(np.float32)


def _normed(x: NDArray[np.float64], norm: DenseLayer, eps: float) -> Floats:
    x = x - np.add.accumulate(x)[-1] / len(x)
    scaled = x / np.sqrt(np.add.accumulate(x * x)[-1] / len(x) + eps)
    found: Floats = (scaled * norm.weight + norm.bias).astype(np.float32)
    return found


def head_shapes(ranker: Ranker, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the file's tensors by their names; all linears have biases there."""
    shapes: dict[str, tuple[int, ...]] = {"score.weight": (1, hidden_size), "score.bias": (1,)}
    if ranker.dense:
        shapes |= {"dense.weight": (hidden_size, hidden_size), "dense.bias": (hidden_size,)}
    if ranker.norm:
        shapes |= {"norm.weight": (hidden_size,), "norm.bias": (hidden_size,)}
    return shapes


def head_file(ranker: Ranker, hidden_size: int, tensors: Mapping[str, Floats]) -> bytes:
    """Return the content of the file."""
    return file_of(head_shapes(ranker, hidden_size), tensors)


def read_head(folder: Path, ranker: Ranker, hidden_size: int) -> ScoreHead:
    """Read the head of a model folder; ModelFolderError for a damaged file."""
    tensors = map_weights(folder / SCORE_WEIGHTS, specs_of(head_shapes(ranker, hidden_size)))

    if not all(np.isfinite(values).all() for values in tensors.values()):
        raise ModelFolderError(f"{folder / SCORE_WEIGHTS} holds numbers that are not finite: convert the model again")

    def layer(name: str, activation: str = "") -> DenseLayer:
        weight, bias = (tensors[f"{name}.{part}"].astype(np.float32) for part in ("weight", "bias"))
        return DenseLayer(np.ascontiguousarray(weight.T), bias, activation)

    dense = layer("dense", ranker.activation) if ranker.dense else None
    return ScoreHead(ranker, layer("score"), dense, layer("norm") if ranker.norm else None)
