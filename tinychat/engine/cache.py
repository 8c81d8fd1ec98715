"""The KV cache: per layer a front and a back buffer of keys and values.

A step appends to the front in place: no copy. Whatever rewrites the past reads the front, writes the back, and flips: a
rewrite that is interrupted leaves the old cache as it was.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import FieldError, SettingError
from tinychat.kernels.attention import BLOCK
from tinychat.kernels.kv import STORAGE, CacheBuffers, empty_buffers
from tinychat.kernels.memory import places_of
from tinychat.kernels.rewrite import rewrite
from tinychat.models.config import ModelConfig
from tinychat.models.layout import padded
from tinychat.models.portable_math import cos_sin
from tinychat.models.rope import inverse_frequencies, sliding_rope


class KVCache:
    """Keys and values of the tokens in context.

    Invariant: ``0 <= len(ids) <= context_size``, and the front buffers hold the positions of `ids`; whatever they
    hold beyond has no effect. `ids` grows only after the compiled call that wrote the positions has returned. The keys'
    angles are those of a sequence of `angles_of` tokens.

    Parameters
    ----------
    config : ModelConfig
    context_size : int
        Capacity in positions; buffers are rounded up to whole blocks of 64. Memory is taken as it is written.
    kv : {"bf16", "f16", "int8", "f32"}
    """

    def __init__(self, config: ModelConfig, context_size: int, kv: str = "bf16") -> None:
        if kv not in STORAGE:
            raise FieldError("kv", f"must be one of {', '.join(STORAGE)}, not {kv!r}")
        self.config = config
        self.context_size = context_size
        self.kv = kv
        self.ids: list[int] = []
        self.angles_of = 0
        self.front = self._allocate(context_size, kv)
        self._placed = self.front, places_of(self.front)

    @property
    def length(self) -> int:
        """Positions stored."""
        return len(self.ids)

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the front buffers are, for `kernels.memory.arrays_at`."""
        if self._placed[0] is not self.front:
            self._placed = self.front, places_of(self.front)
        return self._placed[1]

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one token takes, over all layers."""
        return sum(buffer.nbytes for buffer in self.front) // padded(self.context_size, BLOCK)

    def common_prefix(self, ids: Sequence[int]) -> int:
        """Return how many leading ids are those in the cache."""
        count = 0
        for stored, wanted in zip(self.ids, ids):
            if stored != wanted:
                break
            count += 1
        return count

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions."""
        del self.ids[length:]

    def append(self, ids: Sequence[int], angles_of: int | None = None) -> None:
        """Note the ids whose keys and values have been written after the last position.

        angles_of : tokens of the sequence that their keys were rotated for; as many as there are now when omitted.
        """
        self.angles_of = self.length + len(ids) if angles_of is None else angles_of
        self.ids += ids

    def drop(self, start: int, stop: int) -> None:
        """Take positions ``start..stop`` out; later ones move down, their keys re-rotated to where they now stand."""
        kept = [*range(start), *range(stop, self.length)]
        self._rewrite(np.array(kept, np.int64), self.context_size, self.kv)

    def resize(self, context_size: int, kv: str | None = None) -> None:
        """Move everything to buffers of another capacity or type.

        Raises
        ------
        SettingError
            If `context_size` is less than what is stored.
        """
        if context_size < self.length:
            raise SettingError(f"context {context_size} is less than the {self.length} tokens in use: clear first")
        self._rewrite(np.arange(self.length), context_size, kv or self.kv)

    def copy(self) -> "KVCache":
        """Return a cache of its own memory that holds the same."""
        other = KVCache(self.config, self.context_size, self.kv)
        self._write(other.front, np.arange(self.length))
        other.append(self.ids, self.angles_of)
        return other

    def _rewrite(self, sources: NDArray[np.int64], context_size: int, kv: str) -> None:
        back = self._allocate(context_size, kv)
        self._write(back, sources)
        ids = [self.ids[source] for source in sources]
        # Ctrl-C may come between any two of these: an empty cache is valid with either buffers, as is the smaller size.
        self.ids = []
        self.context_size = min(self.context_size, context_size)
        self.front, self.kv = back, kv
        self.context_size = context_size
        self.ids = ids

    def _write(self, back: CacheBuffers, sources: NDArray[np.int64]) -> None:
        """Fill position j of `back` with ``sources[j]`` of the front."""
        rows = np.empty((1, self.config.head_dim), np.float32)
        rotary_dims = np.array(self.config.rotary_dims, np.int64)
        angle_sets = np.array(self.config.angle_sets, np.int64)
        rewrite(0, 1, self.front, back, sources, self._turns(sources), angle_sets, rotary_dims, rows)

    def _turns(self, sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return cosines and sines of the angles from each key's old position to its new one, for each set of them."""
        moves = (np.arange(len(sources)) - sources)[:, None]
        frequencies = [inverse_frequencies(self.config, self.angles_of)]
        if max(self.config.angle_sets):
            frequencies.append(inverse_frequencies(sliding_rope(self.config)))
        return np.stack([np.concatenate(cos_sin(moves * each), axis=1) for each in frequencies]).astype(np.float32)

    def _allocate(self, context_size: int, kv: str) -> CacheBuffers:
        config = self.config
        heads = (config.num_hidden_layers, config.num_key_value_heads)
        return empty_buffers(kv, heads, padded(context_size, BLOCK), config.head_dim)
