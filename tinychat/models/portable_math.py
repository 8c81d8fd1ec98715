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
# ln 2 likewise, in two: products with whole numbers below 2**11 are exact.
LN2_PARTS = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
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


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``e ** x`` within some 2**-51 of itself, for numbers of a size below 700."""
    twos = np.rint(x * (1 / math.log(2)))
    rest = x - twos * LN2_PARTS[0] - twos * LN2_PARTS[1]
    total = np.ones_like(rest)
    for n in reversed(range(1, 16)):
        total = total * rest / n + 1
    return np.ldexp(total, twos.astype(np.int64))


def tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the hyperbolic tangents, within some 2**-52 of 1."""
    return 1 - 2 / (exponential(2 * np.clip(x, -20, 20)) + 1)


def gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``x * P(X <= x)`` of a normal X (Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415)."""
    z = np.clip(x * math.sqrt(0.5), -6, 6)
    square = z * z
    term, total = z.copy(), z.copy()
    for n in range(1, 140):
        term *= square
        term *= 2 / (2 * n + 1)
        # Terms that change no bit only become smaller.
        if n % 8 == 0 and np.array_equal(total + term, total):
            break
        total += term
    return x * 0.5 * (1 + total * exponential(-square) * (2 / math.sqrt(math.pi)))


def _series(square: NDArray[np.float64], offset: int) -> NDArray[np.float64]:
    """Return the sum of ``(-square)**n / (2 n + offset)!``: cos of the root, or for offset 1 its sin over itself."""
    total = np.zeros_like(square)
    for n in reversed(range(TERMS)):
        total = total * square + (-1) ** n / math.factorial(2 * n + offset)
    return total
