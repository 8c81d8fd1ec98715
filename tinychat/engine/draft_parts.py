"""Parameters that only models for drafts have: see `models.draft_head`, `models.drafter` and `models.eagle`."""

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np


class DraftInput(NamedTuple):
    """The input of a draft head or a drafter, which stands where others norm their embeddings."""

    embedding_norm: Any
    embedding_proj: Any
    hidden_norm: Any
    hidden_proj: Any


class StatesInput(NamedTuple):
    """The input of EAGLE-3, which stands where others norm their embeddings."""

    embedding_norm: Any
    qkv_proj: Any  # queries, keys and values of the embedding, before those of the hidden state are added
    states_proj: Any  # of a larger model's hidden states
    hidden_norm: Any  # of the hidden state that the residual stream begins with, or `NoNorm`


class StatesAttention(NamedTuple):
    """Attention whose queries, keys and values are there in part: see `StatesInput`."""

    attention: Any


class FrequentOutput(NamedTuple):
    """An output matrix with the rows of some tokens."""

    rows: Any
    ids: np.ndarray  # float32 [rows]


class ClusteredOutput(NamedTuple):
    """An output matrix in clusters of rows, which a linear chooses (`kernels.clusters`)."""

    centroids: Any  # float32
    clusters: Any  # stacked
    ordering: np.ndarray  # float32 [V]: the ids of the rows


NoState = namedtuple("NoState", ())  # of a model that makes no hidden state for the next token of a draft
