"""Activations of an MLP, each a type of its own.

Silu      ``v / (1 + exp(-v))``                                        (SwiGLU: Shazeer, 2020)
Gelu      ``v / 2 * (1 + erf(v / sqrt(2)))``                           (Hendrycks and Gimpel, 2016)
GeluTanh  ``v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v**3)))``
Relu      ``max(v, 0)``
Relu2     ``max(v, 0)**2``                                             (So et al., 2021)
Xielu     ``p v**2 + v / 2`` above 0, ``n (exp(v) - 1 - v) + v / 2`` below; p and n are the layer's
          (Huang and Schlag, 2024, https://arxiv.org/abs/2411.13010)

ClampedSwiglu needs a gate g and an up projection u: ``g / (1 + exp(-alpha g)) * (u + 1)``, clamped to ``g <= limit``
and ``-limit <= u <= limit`` (OpenAI, 2025, gpt-oss). LimitedSilu clamps u so, and SiLU of g to ``<= limit`` (Ling Team,
2026, Ling 3.0). CappedSwiglu has soft caps a and b: ``a tanh(g / a) / (1 + exp(-g)) * b tanh(u / b)`` (Thinking
Machines, 2026, Inkling 2). ClippedActivation is another one, whose products are brought between two bounds (Gemma 4).
"""

import numpy as np

from tinychat.kernels.jit import always_inline_by_type, is_kind
from tinychat.kernels.norms import between
from tinychat.kernels.scores import soft_cap
from tinychat.kernels.simd import LOG2_E, exp2, fma, maximum, minimum
from tinychat.kernels.variants import (
    CappedSwiglu,
    ClampedSwiglu,
    ClippedActivation,
    Gelu,
    GeluTanh,
    LimitedSilu,
    Relu,
    Relu2,
    Xielu,
)


@always_inline_by_type
def gated(activation, gate, up):
    """Return ``activation(gate) * up`` of 16 numbers."""

    def clamped(activation, gate, up):
        limit = activation.limit
        gate, up = minimum(gate, limit), maximum(minimum(up, limit), np.float32(0) - limit)
        power = exp2(gate * (activation.alpha * np.float32(-LOG2_E)))
        return gate / (power + 1.0) * (up + 1.0)

    def limited(activation, gate, up):
        limit = activation.limit
        return minimum(activated(activation, gate), limit) * maximum(minimum(up, limit), np.float32(0) - limit)

    def capped(activation, gate, up):
        return soft_cap(gate, activation.gate) / (exp2(gate * -LOG2_E) + 1.0) * soft_cap(up, activation.up)

    def clipped(activation, gate, up):
        return between(gated(activation.activation, gate, up), activation.bounds[0], activation.bounds[1])

    kinds = {ClampedSwiglu: clamped, LimitedSilu: limited, CappedSwiglu: capped, ClippedActivation: clipped}
    for kind, function in kinds.items():
        if is_kind(activation, kind):
            return function
    return lambda activation, gate, up: activated(activation, gate) * up


@always_inline_by_type
def activated(activation, v):
    """Return the activation of 16 numbers."""

    def gelu(activation, v):
        # erf of |v| / sqrt(2): Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most.
        size = maximum(v, 0.0 - v)
        t = 1.0 / fma(size, 0.3275911 * 0.7071067811865476, 1.0)
        p = fma(1.061405429, t, -1.453152027)
        p = fma(p, t, 1.421413741)
        p = fma(p, t, -0.284496736)
        p = fma(p, t, 0.254829592) * t
        # v * (1 + sign(v) * (1 - tail)) / 2, which is max(v, 0) - |v| * tail / 2.
        tail = p * exp2(v * v * (-0.5 * LOG2_E))
        return maximum(v, 0.0) - size * 0.5 * tail

    def gelu_tanh(activation, v):
        # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
        u = fma(v * v * v, 0.044715, v) * (-2 * 0.7978845608028654 * LOG2_E)
        return v / (1.0 + exp2(u))

    def relu(activation, v):
        return maximum(v, 0.0)

    def relu2(activation, v):
        positive = maximum(v, 0.0)
        return positive * positive

    def xielu(activation, v):
        # One of the two is 0, and so is what comes of it.
        above, below = maximum(v, 0.0), minimum(v, np.float32(0))
        curve = (exp2(below * LOG2_E) - 1.0 - below) * activation.negative[0]
        return fma(above * above, activation.positive[0], curve + v * 0.5)

    def silu(activation, v):
        return v / fma(exp2(v * -LOG2_E), 1.0, 1.0)

    chosen = {Gelu: gelu, GeluTanh: gelu_tanh, Relu: relu, Relu2: relu2, Xielu: xielu}
    return chosen.get(activation.instance_class, silu)
