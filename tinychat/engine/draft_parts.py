"""Parameters that only models for drafts have: see `models.draft_head` and `models.drafter`."""

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np


class DraftInput(NamedTuple):
    """The input of a draft head or a drafter, which stands where others norm their embeddings."""

    embedding_norm: Any
    embedding_proj: Any
    hidden_norm: Any
    hidden_proj: Any


class ClusteredOutput(NamedTuple):
    """An output matrix in clusters of rows, which a linear chooses (`kernels.clusters`)."""

    centroids: Any  # float32
    clusters: Any  # stacked
    ordering: np.ndarray  # float32 [V]: the ids of the rows


NoState = namedtuple("NoState", ())  # of a model that makes no hidden state for the next token of a draft
