"""Tables of the rotary position embedding.

Half-split convention: channel i of a head is rotated together with channel i + d/2 by the angle
``position * inverse_frequency[i]``. (Meta's own files and GGUF pair 2i with 2i + 1 instead.)
The formulas are those of transformers, evaluated in float64, to the same bits on every processor.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinychat.models.config import ModelConfig
from tinychat.models.portable_math import cos_sin, logarithm, power
from tinychat.models.rope_scaling import RopeScaling

TABLE_STEP = 256  # positions computed at once: some milliseconds


def rope_tables(config: ModelConfig, start: int, stop: int, sequence_length: int | None = None) -> NDArray[np.float32]:
    """Return cosines, then sines for the positions ``start..stop-1``, float32 [stop - start, rotary_dim].

    `sequence_length` is that of the whole sequence, see `angle_set`; `stop` when omitted. Both are times the attention
    factor (yarn, longrope).
    """
    frequencies = inverse_frequencies(config, stop if sequence_length is None else sequence_length)
    return _rows(frequencies, attention_factor(config.rope_scaling), start, stop)


def _rows(frequencies: NDArray[np.float64], factor: float, start: int, stop: int) -> NDArray[np.float32]:
    angles = np.arange(start, stop, dtype=np.float64)[:, None] * frequencies
    return (np.concatenate(cos_sin(angles), axis=1) * factor).astype(np.float32)


def grid_turns(config: ModelConfig, grid: tuple[int, int]) -> NDArray[np.float32]:
    """Return cosines, then sines for the places of a grid, row by row: float32 [rows columns, rotary_dim].

    Half of a head's pairs turn by the row, the others by the column, with the same frequencies or, if these are
    `alternating_turns`, with the first, third and so on of the head's, and the others.
    """
    rows, columns = grid
    of_rows = of_columns = _plain(config.rope_theta, config.rotary_dim // 2)
    if config.alternating_turns:
        of_columns = _plain(config.rope_theta, config.rotary_dim)[1::2]
    by_row, by_column = (
        _rows(frequencies, 1.0, 0, count).reshape(count, 2, -1)
        for frequencies, count in ((of_rows, rows), (of_columns, columns))
    )
    by_row, by_column = np.repeat(by_row, columns, axis=0), np.tile(by_column, (rows, 1, 1))
    return np.concatenate([by_row, by_column], axis=2).reshape(rows * columns, -1)


class RopeTable:
    """Cosines and sines of positions from 0 on, computed on demand, for sequences of one `angle_set`."""

    def __init__(self, config: ModelConfig, sequence_length: int) -> None:
        self._frequencies = inverse_frequencies(config, sequence_length)
        self._factor = attention_factor(config.rope_scaling)
        self._table = np.empty((0, config.rotary_dim), np.float32)
        self._filled = 0

    def __getitem__(self, positions: slice) -> NDArray[np.float32]:
        """Return rows ``positions.start..positions.stop``, float32 [n, rotary_dim]."""
        if positions.stop > len(self._table):
            # Room for more rows than are asked for; they are computed when they are, so that no step waits for them.
            longer = np.empty(
                (max(positions.stop + TABLE_STEP, 2 * len(self._table)), self._table.shape[1]), np.float32
            )
            longer[: self._filled] = self._table[: self._filled]
            self._table = longer
        while self._filled < positions.stop:
            start, stop = self._filled, min(self._filled + TABLE_STEP, len(self._table))
            self._table[start:stop] = _rows(self._frequencies, self._factor, start, stop)
            self._filled = stop
        return self._table[positions]


def has_query_scales(config: ModelConfig) -> bool:
    """Return whether `query_scales` depend on the position."""
    return bool(config.log_temperature_length or config.temperature_beta or config.mixtures)


def query_scales(config: ModelConfig, positions: Sequence[int]) -> NDArray[np.float64]:
    """Return the factors of queries at these positions, beside the attention's scale."""
    if config.log_temperature_length:
        length = config.log_temperature_length
        whole = logarithm(length)
        return np.array([logarithm(1.0 + p) / whole if p >= length else 1.0 for p in positions])
    if (net := config.mixtures) is not None:
        return np.array([1.0 + net.growth * logarithm(max(1.0, (p + 1) / net.floor)) for p in positions])
    if not config.temperature_beta:
        return np.ones(len(positions))
    steps = np.array(positions) // config.temperature_length
    kinds, which = np.unique(steps, return_inverse=True)
    growth = np.array([1 + config.temperature_beta * logarithm(1.0 + step) for step in kinds.tolist()])
    return np.asarray(growth[which], np.float64)


def angle_set(config: ModelConfig, sequence_length: int) -> int | None:
    """Return the set of angles of a sequence of this length, which cannot use keys of another set.

    Most models have one set, 0. With "longrope" there is a set 1, for sequences beyond the training length; with
    "doubling" set n is for those up to 2**n times that length; with "dynamic" each length beyond
    ``max_position_embeddings`` has a set of its own, None.
    """
    scaling = config.rope_scaling
    if scaling is not None and scaling.rope_type == "doubling":
        return ((max(1, sequence_length) - 1) // scaling.original_max_position_embeddings).bit_length()
    if scaling is not None and scaling.rope_type == "longrope":
        return int(sequence_length > scaling.original_max_position_embeddings)
    if scaling is not None and scaling.rope_type == "dynamic" and sequence_length > config.max_position_embeddings:
        return None
    return 0


def sliding_rope(config: ModelConfig) -> ModelConfig:
    """Return the configuration for the angles of layers with a base of their own, `sliding_rope_theta`."""
    rotary_dims = tuple(dim for dim, window in zip(config.rotary_dims, config.sliding_windows) if window)
    theta = config.sliding_rope_theta or config.rope_theta
    dims = rotary_dims or config.rotary_dims
    return replace(config, rope_theta=theta, sliding_rope_theta=None, rope_scaling=None, rotary_dims=dims)


def inverse_frequencies(config: ModelConfig, sequence_length: int = 0) -> NDArray[np.float64]:
    """Compute the angle per position of each channel pair: float64 [rotary_dim / 2], in radians."""
    scaling, theta = config.rope_scaling, config.rope_theta
    if scaling is None:
        return _plain(theta, config.rotary_dim)
    if scaling.rope_type in ("dynamic", "doubling"):
        return _plain(_stretched_theta(config, scaling, sequence_length), config.rotary_dim)
    plain = _plain(theta, config.rotary_dim)
    if scaling.rope_type == "linear":
        return plain / scaling.factor
    if scaling.rope_type == "proportional":
        return np.where(np.arange(len(plain)) < int(scaling.rotated * len(plain)), plain / scaling.factor, 0.0)
    if scaling.rope_type == "llama3":
        return _llama3(plain, scaling)
    if scaling.rope_type == "longrope":
        factors = scaling.long_factor if angle_set(config, sequence_length) else scaling.short_factor
        return plain / np.array(factors, np.float64)
    return _yarn(plain, config, scaling)


def attention_factor(scaling: RopeScaling | None) -> float:
    """Return the factor of cosines and sines: 1 except for yarn and longrope."""
    if scaling is None or scaling.rope_type not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.rope_type == "longrope":
        growth = logarithm(scaling.factor) / logarithm(scaling.original_max_position_embeddings)
        return 1.0 if scaling.factor <= 1 else math.sqrt(1 + growth)
    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.factor, scaling.mscale) / magnitude(scaling.factor, scaling.mscale_all_dim)
    return magnitude(scaling.factor, 1.0)


def magnitude(factor: float, mscale: float) -> float:
    """Return the factor by which yarn strengthens scores, or the angles' cosines and sines."""
    return 1.0 if factor <= 1 else 0.1 * mscale * logarithm(factor) + 1.0


def _plain(theta: float, rotary_dim: int) -> NDArray[np.float64]:
    return power(theta, -np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)


def _stretched_theta(config: ModelConfig, scaling: RopeScaling, sequence_length: int) -> float:
    """Return the base of NTK scaling, with which the slowest pair of channels turns `growth` times slower."""
    if scaling.rope_type == "dynamic":
        stretch = max(sequence_length, config.max_position_embeddings) / config.max_position_embeddings
        growth = scaling.factor * stretch - (scaling.factor - 1)
    else:
        # 3 beyond the training length, 7 beyond twice that, then 15, and so on.
        growth = float((2 << (angle_set(config, sequence_length) or 0)) - 1)
    # The only pair of a rotation of two channels is the fastest.
    exponent = np.array([config.rotary_dim / max(1, config.rotary_dim - 2)])
    return config.rope_theta * float(power(growth, exponent)[0])


def _llama3(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Keep short wavelengths, divide long ones by the factor, blend linearly between the two."""
    rotations = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return frequencies * (unscaled + (1 - unscaled) / scaling.factor)


def _yarn(frequencies: NDArray[np.float64], config: ModelConfig, scaling: RopeScaling) -> NDArray[np.float64]:
    """Keep channels that rotate often, divide those that rotate rarely, ramp over the pairs between."""
    low = _pair_with_rotations(config, scaling, scaling.beta_fast)
    high = _pair_with_rotations(config, scaling, scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    if low == high:
        high += 0.001  # transformers' own guard against a ramp of no width
    pairs = np.arange(config.rotary_dim // 2, dtype=np.float64)
    unscaled = 1 - np.clip((pairs - low) / (high - low), 0.0, 1.0)
    return frequencies * (unscaled + (1 - unscaled) / scaling.factor)


def _pair_with_rotations(config: ModelConfig, scaling: RopeScaling, rotations: float) -> float:
    """Return the (fractional) channel pair that turns `rotations` times over the training length."""
    wavelength_ratio = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
    return config.rotary_dim * logarithm(wavelength_ratio) / (2 * logarithm(config.rope_theta))
