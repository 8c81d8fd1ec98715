"""Activations of an MLP, each a type of its own; and the soft cap of scores and logits.

Silu      ``v / (1 + exp(-v))``                                        (SwiGLU: Shazeer, 2020)
Gelu      ``v / 2 * (1 + erf(v / sqrt(2)))``                           (Hendrycks and Gimpel, 2016)
GeluTanh  ``v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v**3)))``
Relu      ``max(v, 0)``
Relu2     ``max(v, 0)**2``                                             (So et al., 2021)
"""

from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.jit import inlined, inlined_by_type, is_kind
from tinychat.kernels.memory import load_f32, store_f32
from tinychat.kernels.simd import (
    LANES,
    add,
    divide,
    exp2,
    fma,
    like,
    maximum,
    minimum,
    multiply,
    splat_f32,
    subtract,
)
from tinychat.kernels.team import share_of, stage


class Silu(NamedTuple):
    """SiLU, also called swish."""


class Gelu(NamedTuple):
    """GELU by the error function."""


class GeluTanh(NamedTuple):
    """GELU by the hyperbolic tangent."""


class Relu(NamedTuple):
    """The positive part."""


class Relu2(NamedTuple):
    """Its square."""


class Uncapped(NamedTuple):
    """Numbers that stay as they are."""


class Capped(NamedTuple):
    """Numbers that are brought into -cap..cap: ``cap * tanh(v / cap)`` (Bello et al., 2016)."""

    cap: Any  # float32


@inlined_by_type
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


@inlined
def soft_cap(v, cap):
    """Return ``cap * tanh(v / cap)`` of a vector of any width, off by 1e-7 of the cap at most."""
    # tanh(u) is 1 - 2 / (exp(2 u) + 1); beyond 2**60 nothing changes.
    doubled = multiply(v, like(v, np.float32(2 * 1.4426950408889634) / cap))
    power = exp2(minimum(doubled, like(v, np.float32(60))))
    share = divide(like(v, np.float32(2)), add(power, like(v, np.float32(1))))
    return multiply(like(v, cap), subtract(like(v, np.float32(1)), share))


@inlined_by_type
def capped(cap, v):
    """Return numbers as their type, `Capped` or not, says."""
    if is_kind(cap, Capped):
        return lambda cap, v: soft_cap(v, cap.cap)
    return lambda cap, v: v


@stage
def cap_rows(team, rows, logits, cap):
    """Cap rows of logits, float32 [>= rows, a multiple of 16], where they stand; cap : `Capped`."""
    vectors = rows * logits.shape[1] // LANES
    first, last = share_of(team, vectors)
    for i in range(first * LANES, last * LANES, LANES):
        store_f32(logits, i, soft_cap(load_f32(logits, i), cap.cap))
