"""Elementary functions beside those of Python, which are within a last bit or two of exact."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from tinychat.models.architectures import parse_config
from tinychat.models.portable_math import cos_sin, exponential, gelu, logarithm, power
from tinychat.models.rope import RopeTable, rope_tables
from tinychat.models.shapes import config_of

WITHOUT_AVX512 = "X86_V4 AVX512_SKX AVX512_ICL AVX512_SPR AVX512F AVX512CD"
HASH = """
import hashlib, warnings; warnings.simplefilter("ignore")
from tinychat.models.architectures import parse_config
from tinychat.models.rope import rope_tables
from tinychat.models.shapes import config_of
for shape in ("tinyllama-1.1b", "llama-2-7b", "llama-3.2-1b"):
    print(hashlib.sha256(rope_tables(parse_config(config_of(shape), shape), 6000, 6400).tobytes()).hexdigest())
"""


@pytest.mark.parametrize("largest", [0.5, 7, 1000, 1e6])
def test_cosines_and_sines(largest, rng):
    angles = np.concatenate([rng.uniform(-largest, largest, 20_000), np.arange(-9, 10) * math.pi / 4])
    cos, sin = cos_sin(angles)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=2.0**-51)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=2.0**-51)


def test_small_values_keep_their_digits():
    angles = np.array([1e-9, math.pi, 1000 * math.pi, 6194 * 0.7498942093324559])
    np.testing.assert_allclose(cos_sin(angles)[1], [math.sin(x) for x in angles], rtol=1e-13)


def test_powers_and_logarithms():
    exponents = -np.arange(0, 128, 2) / 128
    np.testing.assert_allclose(power(500_000.0, exponents), [500_000.0**x for x in exponents], rtol=4e-16)
    assert power(10.0, np.array([-2.0, 0.0])).tolist() == [0.01, 1.0]
    assert logarithm(8.0) == math.log(8)


@pytest.mark.parametrize("largest", [1e-9, 0.3, 2, 5, 30])
def test_gelus_have_the_bits_of_all_terms(largest, rng):
    x = np.concatenate([rng.uniform(-largest, largest, 3000), [0.0, -0.0, largest, 1e-300]])
    found = gelu(x)
    # A number has the same bits beside others.
    assert found.tobytes() == np.concatenate([gelu(part) for part in np.split(x, 4)]).tobytes()
    exact = np.array([v / 2 * math.erfc(-v / math.sqrt(2)) for v in x])
    assert np.abs(found - exact).max() <= 1e-15 * max(1, largest)
    z = np.clip(x * math.sqrt(0.5), -6, 6)
    term = total = z
    for n in range(1, 140):
        term = term * (z * z) * (2 / (2 * n + 1))
        total = total + term
    assert np.array_equal(found, x * 0.5 * (1 + total * exponential(-z * z) * (2 / math.sqrt(math.pi))))


def test_a_table_is_filled_as_it_is_asked_for():
    config = parse_config(config_of("tiny"), "test")
    table = RopeTable(config, 0)
    for start, stop in [(0, 1), (1, 300), (255, 257), (599, 600), (10, 20)]:
        np.testing.assert_array_equal(table[start:stop], rope_tables(config, start, stop))


def test_tables_are_the_same_without_the_processor_s_best_instructions():
    """numpy chooses its functions by the processor; a variable of its own makes it choose others."""
    plain, lesser = (
        subprocess.run([sys.executable, "-c", HASH], capture_output=True, text=True, env=os.environ | extra, check=True)
        for extra in ({}, {"NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX512})
    )
    assert len(plain.stdout.split()) == 3
    assert lesser.stdout == plain.stdout
