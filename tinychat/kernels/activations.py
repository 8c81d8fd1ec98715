"""Activations of an MLP, each a type of its own.

Silu      ``v / (1 + exp(-v))``                                        (SwiGLU: Shazeer, 2020)
Gelu      ``v / 2 * (1 + erf(v / sqrt(2)))``                           (Hendrycks and Gimpel, 2016)
GeluTanh  ``v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v**3)))``
Relu      ``max(v, 0)``
Relu2     ``max(v, 0)**2``                                             (So et al., 2021)

ClampedSwiglu is of gates alone: ``g / (1 + exp(-alpha g)) * (u + 1)`` with the gate g and what it lets through, u,
brought to ``g <= limit`` and ``-limit <= u <= limit`` (OpenAI, 2025, gpt-oss).
"""

import numpy as np

from tinychat.kernels.jit import always_inline_by_type, is_kind
from tinychat.kernels.simd import (
    add,
    divide,
    exp2,
    fma,
    maximum,
    minimum,
    multiply,
    splat_f32,
    subtract,
)
from tinychat.kernels.variants import ClampedSwiglu, Gelu, GeluTanh, Relu, Relu2


@always_inline_by_type
def gated(activation, gate, up):
    """Return what 16 gates let through of 16 numbers."""

    def clamped(activation, gate, up):
        limit, one = splat_f32(activation.limit), splat_f32(1.0)
        gate, up = minimum(gate, limit), maximum(minimum(up, limit), subtract(splat_f32(0.0), limit))
        power = exp2(multiply(gate, splat_f32(activation.alpha * np.float32(-1.4426950408889634))))
        return multiply(divide(gate, add(power, one)), add(up, one))

    if is_kind(activation, ClampedSwiglu):
        return clamped
    return lambda activation, gate, up: multiply(activated(activation, gate), up)


@always_inline_by_type
def activated(activation, v):
    """Return the activation of 16 numbers."""

    def gelu(activation, v):
        # erf of |v| / sqrt(2): Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most.
        size = maximum(v, subtract(splat_f32(0.0), v))
        t = divide(splat_f32(1.0), fma(size, splat_f32(0.3275911 * 0.7071067811865476), splat_f32(1.0)))
        p = fma(splat_f32(1.061405429), t, splat_f32(-1.453152027))
        p = fma(p, t, splat_f32(1.421413741))
        p = fma(p, t, splat_f32(-0.284496736))
        p = multiply(fma(p, t, splat_f32(0.254829592)), t)
        # v * (1 + sign(v) * (1 - tail)) / 2, which is max(v, 0) - |v| * tail / 2.
        tail = multiply(p, exp2(multiply(multiply(v, v), splat_f32(-0.5 * 1.4426950408889634))))
        return subtract(maximum(v, splat_f32(0.0)), multiply(multiply(size, splat_f32(0.5)), tail))

    def gelu_tanh(activation, v):
        # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
        cube = multiply(multiply(v, v), v)
        u = multiply(fma(cube, splat_f32(0.044715), v), splat_f32(-2 * 0.7978845608028654 * 1.4426950408889634))
        return divide(v, add(splat_f32(1.0), exp2(u)))

    def relu(activation, v):
        return maximum(v, splat_f32(0.0))

    def relu2(activation, v):
        positive = maximum(v, splat_f32(0.0))
        return multiply(positive, positive)

    def silu(activation, v):
        one = splat_f32(1.0)
        return divide(v, fma(exp2(multiply(v, splat_f32(-1.4426950408889634))), one, one))

    chosen = {Gelu: gelu, GeluTanh: gelu_tanh, Relu: relu, Relu2: relu2}
    return chosen.get(activation.instance_class, silu)
