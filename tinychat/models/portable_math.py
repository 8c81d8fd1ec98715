"""Elementary functions whose last bit is the same on every processor.

numpy and the C library have several versions of them, choose one by the processor, and these differ in the last bit:
enough to change a token now and then. Here they consist of operations that IEEE 754 rounds in one way only, additions
and multiplications, or of decimal arithmetic with so many digits that the last bit is certain.
"""

import math
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

DECIMAL = Context(prec=40)
# pi / 2 in three parts of 33 bits or less: products with whole numbers below 2**20 are exact.
HALF_PI_PARTS = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
TERMS = 9  # of the Taylor series: for angles up to pi / 4 the next one is below 2**-56


def power(base: float, exponents: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``base ** exponents``, each rounded once."""
    log = DECIMAL.ln(Decimal(base))
    products = (DECIMAL.multiply(log, Decimal(x)) for x in exponents.tolist())
    return np.array([float(DECIMAL.exp(product)) for product in products], np.float64)


def logarithm(x: float) -> float:
    """Return the natural logarithm, rounded once."""
    return float(DECIMAL.ln(Decimal(x)))


def cos_sin(angles: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosines and sines within some 2**-52 of the exact ones, for angles below a million."""
    quarters = np.rint(angles * (2 / math.pi))
    rest = angles
    for part in HALF_PI_PARTS:
        rest = rest - quarters * part
    square = rest * rest
    cos, sin = _series(square, 0), rest * _series(square, 1)
    odd = quarters % 2 == 1
    cos, sin = np.where(odd, sin, cos), np.where(odd, cos, sin)
    # A quarter turn takes (cos, sin) to (-sin, cos).
    turn = quarters % 4
    return np.where((turn == 1) | (turn == 2), -cos, cos), np.where(turn >= 2, -sin, sin)


def _series(square: NDArray[np.float64], offset: int) -> NDArray[np.float64]:
    """Return the sum of ``(-square)**n / (2 n + offset)!``: cos of the root, or for offset 1 its sin over itself."""
    total = np.zeros_like(square)
    for n in reversed(range(TERMS)):
        total = total * square + (-1) ** n / math.factorial(2 * n + offset)
    return total
