"""What runs a model: its weights, a team of threads and working memory, shared by all sequences."""

import threading
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.cache import KVCache
from tinychat.engine.context import DEFAULT_CONTEXT, memory_for
from tinychat.engine.forward import take_part
from tinychat.engine.parameters import LOG2_E, bind_parameters, sizes_of
from tinychat.engine.scratch import allocate_attention, allocate_job, allocate_scratch
from tinychat.engine.sequence import Sequence
from tinychat.engine.thread_count import ThreadCount
from tinychat.engine.workers import Workers
from tinychat.errors import SettingError
from tinychat.kernels.attention import AttentionScratch
from tinychat.kernels.kv import empty_buffers
from tinychat.kernels.memory import places_of
from tinychat.models.folder import ModelFolder
from tinychat.models.rope import RopeTable, angle_set, rope_tables, sliding_rope, temperatures

CHUNK_SIZE = 256
Logits = NDArray[np.float32]


class AttentionMemory(NamedTuple):
    """Working memory of attention, and where it is; replaced as a whole, since Ctrl-C may come at any time."""

    positions: int
    scratch: AttentionScratch
    places: NDArray[np.int64]


class Engine:
    """A model folder's decoder: runs token ids of any sequence, one sequence at a time.

    Made once for a model. What belongs to one conversation, the keys and values of its tokens, is a `Sequence`; any
    number of them share the weights, the threads and the working memory.

    Parameters
    ----------
    folder : ModelFolder
    threads : int
        How many compute together, at most; the result does not depend on it.
    kv : {"bf16", "f16", "int8", "f32"}
        Type of the sequences' caches.
    fewest_threads : int
        How many do at least, where other programs hold the cores.

    Attributes
    ----------
    chunk_size : int
        Most ids that run at once.
    """

    def __init__(self, folder: ModelFolder, threads: int, kv: str, fewest_threads: int = 1) -> None:
        config, quantization = folder.config, folder.quantization
        self.config = config
        self.vocab_size = config.vocab_size
        self.chunk_size = CHUNK_SIZE
        self.threads = threads
        self.parameters = bind_parameters(folder)
        self.kv = kv
        self._rope_tables: dict[int, RopeTable] = {}
        self._sliding_cos_sin = RopeTable(sliding_rope(config), 0)
        self._query_scale = config.attention_scale * LOG2_E
        self._lock = threading.Lock()
        cache = empty_buffers(kv, (0, 0), 0, config.head_dim)
        attention = allocate_attention(config, 0, threads, kv)
        self._attention = AttentionMemory(0, attention, places_of(attention))
        self._job = allocate_job(config, self.chunk_size, cache, attention)
        arguments = (
            self.parameters,
            sizes_of(config),
            cache,
            allocate_scratch(config, quantization, self.chunk_size, threads),
            attention,
            self._job,
        )
        self._workers = Workers(take_part, ThreadCount(fewest_threads, threads), arguments)

    def sequence(self, context_size: int | None = None) -> Sequence:
        """Return a new sequence without tokens.

        Parameters
        ----------
        context_size : int, optional
            Capacity of its cache in positions; the model's own when omitted, at most 8192.

        Raises
        ------
        SettingError
            If the capacity is out of range, or needs more than this machine's memory.
        """
        if context_size is None:
            context_size = min(self.config.max_position_embeddings, DEFAULT_CONTEXT)
        with memory_for(context_size):
            return Sequence(self, KVCache(self.config, context_size, self.kv))

    def run(self, cache: KVCache, ids: SequenceOf[int], sequence_length: int, outputs: int) -> Logits:
        """Run up to `chunk_size` ids of one sequence after those in its cache, and append them.

        Parameters
        ----------
        cache : KVCache
            The sequence's, with room for the ids.
        ids : sequence of int
        sequence_length : int
            Positions that the whole prompt will take, of which the ids may be a part.
        outputs : int
            After how many of the last ids to return logits.

        Returns
        -------
        float32 [outputs, vocab_size]

        Raises
        ------
        SettingError
            If there are no ids, or too many, or one is not of the vocabulary.
        """
        self._check(ids, outputs)
        T, job, start = len(ids), self._job, cache.length
        with self._lock:
            job.counts[:] = T, outputs
            job.ids[:T] = ids
            job.sequences[:T] = 0
            job.positions[:T] = np.arange(start, start + T)
            job.cos_sin[0, :T] = self._cos_sin(start, start + T, sequence_length)
            if len(job.cos_sin) > 1:
                job.cos_sin[1, :T] = self._sliding_cos_sin[start : start + T]
            job.query_factors[:T] = self._query_scale * temperatures(self.config, start, start + T)
            job.caches[0] = cache.places
            job.attention[:] = self._attention_for(cache.context_size).places
            self._workers.run(T)
            logits = job.logits[:outputs, : self.vocab_size].copy()
        cache.append(ids, sequence_length)
        return logits

    def stage_seconds(self, run: Callable[[], object]) -> NDArray[np.float64]:
        """Return the seconds of each stage of the forward pass, in its order, in the one step that `run` takes.

        Nobody else may use the engine meanwhile.
        """
        clocks = self._job.clocks
        clocks[0] = 1
        try:
            run()
        finally:
            count, clocks[0] = clocks[0], 0
        return np.diff(clocks[1:count]) / 1e9

    def compile(self) -> None:
        """Compile the forward pass, or load it from the kernel cache."""
        self._workers.compile()

    def call_arguments(self) -> tuple[Any, ...]:
        """Return arguments of the compiled function, for their types."""
        return self._workers.call_arguments()

    def _check(self, ids: SequenceOf[int], outputs: int) -> None:
        """Refuse what compiled code, which looks nothing up, would read beyond its arrays for."""
        if not 1 <= len(ids) <= self.chunk_size:
            raise SettingError(f"{len(ids)} tokens in one step: give 1 to {self.chunk_size}")
        if not 1 <= outputs <= len(ids):
            raise SettingError(f"logits after {outputs} of {len(ids)} tokens: give 1 to {len(ids)}")
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < self.vocab_size:
                raise SettingError(f"token id {token_id} is out of range: this model knows 0 to {self.vocab_size - 1}")

    def _cos_sin(self, start: int, stop: int, sequence_length: int) -> NDArray[np.float32]:
        angles = angle_set(self.config, sequence_length)
        if angles is None:
            return rope_tables(self.config, start, stop, sequence_length)
        if angles not in self._rope_tables:
            self._rope_tables[angles] = RopeTable(self.config, sequence_length)
        return self._rope_tables[angles][start:stop]

    def _attention_for(self, positions: int) -> AttentionMemory:
        """Return working memory for a sequence of so many positions; it grows with the longest one."""
        if positions > self._attention.positions:
            scratch = allocate_attention(self.config, positions, self.threads, self.kv)
            self._attention = AttentionMemory(positions, scratch, places_of(scratch))
        return self._attention
