"""The activations of MLPs in NumPy, float32: see `kernels.activations`."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from tinychat.conversion.cores import on_each
from tinychat.conversion.source import Floats
from tinychat.models.config import ModelConfig

# Tokens whose activations are computed at a time: their intermediate results stay in the processor's cache.
ACTIVATED_ROWS = 64


def activated(config: ModelConfig, inner: Floats, numbers: Sequence[Floats] = (), limit: float = np.inf) -> Floats:
    """Apply the activation of a first linear's outputs, some tokens at a time: see `_activated`."""
    blocks = [inner[start : start + ACTIVATED_ROWS] for start in range(0, len(inner), ACTIVATED_ROWS)]
    return np.concatenate(on_each(functools.partial(_activated, config, numbers, limit), blocks))


@np.errstate(over="ignore")  # of a power whose inverse is then zero
def _activated(config: ModelConfig, numbers: Sequence[Floats], limit: float, inner: Floats) -> Floats:
    """Return ``activation(gate) * up`` [T, F] of [T, 2 F], or of an MLP without gates ``activation(up)`` of [T, F].

    numbers : those of an activation that has some; limit : of SiLU and what it lets through.
    """
    activation = ACTIVATIONS[config.hidden_act]
    if not config.gated:
        return np.asarray(activation(inner, *numbers), np.float32)
    gate, up = np.split(inner, 2, axis=1)
    if config.swiglu_limit is not None:
        gate, up = np.minimum(gate, config.swiglu_limit), np.clip(up, -config.swiglu_limit, config.swiglu_limit)
        return np.asarray(gate / (1 + np.exp(-config.swiglu_alpha * gate)) * (up + 1), np.float32)
    if config.swiglu_caps is not None:
        capped, up = (
            np.float32(cap) * np.tanh(each / np.float32(cap)) for cap, each in zip(config.swiglu_caps, (gate, up))
        )
        return np.asarray(capped / (1 + np.exp(-gate)) * up, np.float32)
    if limit < np.inf:
        return np.asarray(np.minimum(activation(gate), limit) * np.clip(up, -limit, limit), np.float32)
    return np.asarray(activation(gate) * up, np.float32)


def _gelu(v: Floats) -> Floats:
    """Return ``v / 2 * (1 + erf(v / sqrt(2)))``; see `kernels.activations`."""
    t = 1 / (1 + np.float32(0.3275911 * 0.5**0.5) * np.abs(v))
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    tail = functools.reduce(lambda p, factor: (p * t + np.float32(factor)).astype(np.float32), factors, 0 * t) * t
    return np.asarray(np.maximum(v, 0) - np.abs(v) / 2 * tail * np.exp(-np.square(v) / 2), np.float32)


ACTIVATIONS: dict[str, Callable[..., Floats]] = {
    "silu": lambda v: v / (1 + np.exp(-v)),
    "gelu": _gelu,
    "gelu_tanh": lambda v: v / (1 + np.exp(np.float32(-2 * (2 / np.pi) ** 0.5) * (v + np.float32(0.044715) * v**3))),
    "relu": lambda v: np.maximum(v, 0),
    "xielu": lambda v, p, n: np.where(v > 0, p * v * v, n * (np.exp(np.minimum(v, 0)) - 1 - v)) + v / 2,
    "relu2": lambda v: np.square(np.maximum(v, 0)),
}
