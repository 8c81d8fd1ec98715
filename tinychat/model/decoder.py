"""The decoder as an engine: token ids in, logits out, with a cache that can be rewound."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import ContextError, SettingError
from tinychat.kernels.kv import CacheBuffers
from tinychat.model.cache import KVCache
from tinychat.model.config import ModelConfig
from tinychat.model.context import check_context
from tinychat.model.folder import ModelFolder
from tinychat.model.forward import Sizes, take_part
from tinychat.model.parameters import bind_parameters
from tinychat.model.rope import RopeTable, rope_tables
from tinychat.model.scratch import allocate_activations, allocate_attention, allocate_job, allocate_scratch
from tinychat.model.team import Team
from tinychat.model.thread_count import ThreadCount

CHUNK_SIZE = 256
NO_WINDOW = 2**31
Logits = NDArray[np.float32]


class Bound(NamedTuple):
    """What belongs to certain buffers of the cache: replaced together, in one step, when they are."""

    front: CacheBuffers
    table: RopeTable
    team: Team


class Decoder:
    """A model folder's decoder and its KV cache.

    Parameters
    ----------
    folder : ModelFolder
    context_size : int
        Capacity of the cache in positions.
    threads : int
        How many compute together, at most; the result does not depend on it.
    fewest_threads : int
        How many do at least, where other programs hold the cores.
    kv : {"bf16", "f16", "int8", "f32"}
        Type of the cache.
    """

    def __init__(self, folder: ModelFolder, context_size: int, threads: int, kv: str, fewest_threads: int = 1) -> None:
        config = folder.config
        self.config = config
        self.vocab_size = config.vocab_size
        self.chunk_size = CHUNK_SIZE
        self.threads = threads
        self._thread_count = ThreadCount(fewest_threads, threads)
        self.cache = KVCache(config, context_size, kv)
        self._job = allocate_job(config, self.chunk_size)
        quantization = folder.quantization
        self._parameters = (bind_parameters(folder), sizes_of(config))
        self._activations = allocate_activations(config, quantization, self.chunk_size)
        self._scratch = allocate_scratch(config, quantization, self.chunk_size, threads)
        self._bound = self._bind()

    @property
    def context_size(self) -> int:
        """Capacity of the cache in positions."""
        return self.cache.context_size

    @property
    def cached_ids(self) -> list[int]:
        """Token ids whose keys and values the cache holds."""
        return self.cache.ids

    def reusable_prefix(self, ids: Sequence[int]) -> int:
        """Return how many leading ids the cache holds and may use again.

        None under dynamic RoPE past the trained length, where every key depends on the length of the whole.
        """
        if self._angles_depend_on(max(len(ids), self.cache.length)):
            return 0
        return self.cache.common_prefix(ids)

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions of the cache."""
        self.cache.rewind(length)

    def drop(self, start: int, stop: int) -> None:
        """Take positions ``start..stop`` out of the cache; what follows moves down, its keys re-rotated."""
        self.cache.drop(start, stop)

    def resize(self, context_size: int) -> None:
        """Give the cache another capacity; what it holds stays.

        Raises
        ------
        SettingError
            If that is less than what is stored, or more than this machine's memory.
        """
        check_context(context_size)
        try:
            self.cache.resize(context_size)
        except MemoryError:
            raise SettingError(f"a context of {context_size} tokens needs more memory than there is") from None

    def step(self, ids: Sequence[int], sequence_length: int | None = None) -> Logits:
        """Run up to `chunk_size` ids after the cached ones.

        Parameters
        ----------
        ids : sequence of int
        sequence_length : int, optional
            Positions that the whole prompt will take, of which `ids` may be a part; dynamic RoPE asks.

        Returns
        -------
        float32 [vocab_size]
            Logits after the last id: a view that the next step overwrites.

        Raises
        ------
        ContextError
            If the ids do not fit into the context.
        SettingError
            If there are none or more than `chunk_size`, or one is no id of the vocabulary.
        """
        self._run(ids, sequence_length, outputs=1)
        return self._job.logits[0, : self.vocab_size]

    def logits(self, ids: Sequence[int]) -> Logits:
        """Run `ids` from an empty context and return the logits after each, float32 [T, vocab_size].

        Raises
        ------
        ContextError
            If the ids do not fit into the context.
        SettingError
            If one is no id of the vocabulary.
        """
        self._check_room(len(ids))
        self.rewind(0)
        rows = np.empty((len(ids), self.vocab_size), np.float32)
        for start in range(0, len(ids), self.chunk_size):
            part = ids[start : start + self.chunk_size]
            self._run(part, len(ids), outputs=len(part))
            rows[start : start + len(part)] = self._job.logits[: len(part), : self.vocab_size]
        return rows

    def compile(self) -> None:
        """Compile the forward pass, or load it from the kernel cache."""
        self._bound.team.compile()

    def call_arguments(self) -> tuple[Any, ...]:
        """Return arguments of the compiled function, for their types."""
        return self._bound.team.call_arguments()

    def _run(self, ids: Sequence[int], sequence_length: int | None, outputs: int) -> None:
        self._check(ids)
        start, stop = self.cache.length, self.cache.length + len(ids)
        self._check_room(stop)
        if self._bound.front is not self.cache.front:
            self._bound = self._bind()
        self._job.numbers[:] = len(ids), start, outputs
        self._job.ids[: len(ids)] = ids
        self._job.cos_sin[: len(ids)] = self._cos_sin(start, stop, sequence_length)
        self._bound.team.run(len(ids))
        self.cache.append(ids)

    def _check_room(self, length: int) -> None:
        if length > self.context_size:
            raise ContextError(
                f"{length} tokens do not fit into a context of {self.context_size}: "
                "shorten the text, or use a larger context"
            )

    def _check(self, ids: Sequence[int]) -> None:
        """Refuse what compiled code, which looks nothing up, would read beyond its arrays for."""
        if not 1 <= len(ids) <= self.chunk_size:
            raise SettingError(f"{len(ids)} tokens in one step: give 1 to {self.chunk_size}")
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < self.vocab_size:
                raise SettingError(f"token id {token_id} is out of range: this model knows 0 to {self.vocab_size - 1}")

    def _bind(self) -> Bound:
        """Make what belongs to the cache's buffers as they are now: whatever rewrites the cache swaps them.

        A team of its own, since a worker that wakes late must never meet buffers other than those of its job.
        """
        front, size, config = self.cache.front, self.cache.context_size, self.config
        attention = allocate_attention(config, size, self.threads, self.cache.kv)
        arguments = (*self._parameters, front, self._activations, attention, self._scratch, self._job)
        return Bound(front, RopeTable(config, size), Team(take_part, self._thread_count, arguments))

    def _cos_sin(self, start: int, stop: int, sequence_length: int | None) -> NDArray[np.float32]:
        total = max(stop, sequence_length or 0)
        if self._angles_depend_on(total):
            return rope_tables(self.config, start, stop, total)
        return self._bound.table[start:stop]

    def _angles_depend_on(self, sequence_length: int) -> bool:
        """Say whether the rotary angles of a sequence depend on its length."""
        scaling = self.config.rope_scaling
        dynamic = scaling is not None and scaling.rope_type == "dynamic"
        return dynamic and sequence_length > self.config.max_position_embeddings


def sizes_of(config: ModelConfig) -> Sizes:
    """Return the numbers that the compiled forward pass takes."""
    return Sizes(
        config.num_attention_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
        np.array([window or NO_WINDOW for window in config.sliding_windows], np.int64),
    )
