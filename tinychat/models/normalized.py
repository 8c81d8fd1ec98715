"""Normalized GPT: a residual stream of length 1, and vectors of length 1 inside of the layers.

Norms bring vectors to length 1: ``x / sqrt(sum(x**2) + EPS)``. Each branch draws the residual stream towards it,
``x + rate * (norm(branch) - x)``, and the result is normed again. Queries and keys of each head are normed, and queries
scaled behind the rotation. What attention gives is normed before its last linear, and so is what the gates of an MLP
let through (Loshchilov et al., 2024, https://arxiv.org/abs/2410.01131).
"""

from dataclasses import dataclass
from math import sqrt

from tinychat.models.tensors import Norm

EPS = 1e-6
# The vectors of rates by the norms of the branches.
RATES = {"post_self_attn_layernorm": "attention_rate", "post_mlp_layernorm": "mlp_rate"}


@dataclass(frozen=True, slots=True)
class Normalized:
    """Factors of vectors, whose numbers are multiples of what they begin with in training."""

    rate_scale: float
    query_scale: float  # of the squares of their numbers


def length_norm(name: str, size: int, layers: int | None, padded: bool = True) -> Norm:
    """Return a norm that brings vectors of so many numbers to length 1: an RMS norm whose gains are all the same."""
    return Norm(name, "", size, layers, padded, scale=1 / sqrt(size))


def width_factor(size: int, hidden_size: int) -> float:
    """Return the factor of vectors of `size` numbers before their norm.

    An RMS norm adds its epsilon to the mean of squares, not to their sum, and all norms have that of the residual
    stream, ``EPS / hidden_size``: of vectors of another size it is right for these multiples.
    """
    return sqrt(size / hidden_size)
