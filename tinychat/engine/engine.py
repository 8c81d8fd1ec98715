"""The engine of a model: its weights, a team of threads and working memory, shared by all sequences."""

import itertools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import cached_property, partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.arguments import Arguments, Parameters
from tinychat.engine.blocks import BlockPool
from tinychat.engine.context import largest_step
from tinychat.engine.counting import Cost, count_step
from tinychat.engine.dims import LOG2_E, dims_of
from tinychat.engine.forward_pass import ForwardPass
from tinychat.engine.hidden_states import States, normed_states
from tinychat.engine.image_ids import ImageIds, Tile
from tinychat.engine.parameters import bind_parameters
from tinychat.engine.scheduled_chunk import ScheduledChunk
from tinychat.engine.scratch import allocate_attention, allocate_batch, allocate_scratch
from tinychat.engine.share import ALL, ProcessorShare
from tinychat.engine.thread_count import ThreadCount
from tinychat.engine.workers import Workers
from tinychat.errors import SettingError
from tinychat.kernels.buffers import AttentionScratch, zeros_on_lines
from tinychat.kernels.pointers import pointers_of
from tinychat.kernels.setup import sources_digest
from tinychat.kernels.sizes import LANES
from tinychat.models.folder import ModelFolder, model_fingerprint
from tinychat.models.head_folder import open_head
from tinychat.models.layout import padded
from tinychat.models.rope import RopeTable, angle_set, has_query_scales, query_scales, rope_tables, sliding_rope
from tinychat.models.tensors import GRID_POSITIONS, PROJECTION

FLOAT32 = np.dtype(np.float32)
Logits = NDArray[np.float32]


class AttentionMemory(NamedTuple):
    """Scratch of attention and its pointers."""

    positions: int
    scratch: AttentionScratch
    pointers: NDArray[np.int64]


class Engine:
    """A model folder's decoder: runs token ids of one sequence or of several at once.

    Made once for a model. What belongs to one conversation, the keys and values of its tokens, is a `Sequence`; any
    number of them share the weights, the threads, the scratch and the block pool. It runs on up to `threads` threads,
    and no fewer than `fewest_threads` where other programs hold the cores; the result does not depend on that. `kv` is
    the type of caches, `cache_memory` the most bytes for all of them: see `BlockPool`. It takes `share`, a percentage,
    of the cores' time: see `ProcessorShare`. A drafter has a `larger` engine, whose embedding it reads: see `drafter`.
    """

    def __init__(
        self,
        folder: ModelFolder,
        threads: int,
        kv: str,
        fewest_threads: int = 1,
        cache_memory: int | None = None,
        share: int = ALL,
        larger: "Engine | None" = None,
    ) -> None:
        config, quantization = folder.config, folder.quantization
        self.config = config
        self.vocab_size: int = config.vocab_size
        self.chunk_size: int = largest_step(config)
        # The last image of a step may be longer than what is left of that.
        self.most_rows: int = self.chunk_size + config.joint_tokens
        self.threads = threads
        self.images: ImageIds | None = None
        if config.image_token_id is not None:
            self.images = ImageIds(config.vocab_size, config.image_token_id, config.joint_tokens)
        self.parameters: Parameters = bind_parameters(folder, larger and larger.parameters.embed_tokens)
        self._folder = folder
        self._fewest_threads, self._cache_memory = fewest_threads, cache_memory
        self.kv = kv
        self.pool: BlockPool = larger.pool if larger and config.drafter else BlockPool(config, kv, cache_memory)
        self._rope_tables: dict[int, RopeTable] = {}
        self._sliding_cos_sin = RopeTable(sliding_rope(config), 0)
        self._query_scale = config.attention_scale * LOG2_E
        attention = allocate_attention(config, 0, threads, kv)
        self._attention = AttentionMemory(0, attention, pointers_of(attention))
        counted = count_step(config, quantization, self.most_rows)
        self._batch = allocate_batch(config, self.most_rows, len(counted.costs))
        self._batch.query_factors[:] = self._query_scale
        self._second_kind = config.max_position_embeddings if config.token_kinds > 1 else 0
        self._has_query_scales = has_query_scales(config)
        self._scratch = allocate_scratch(config, quantization, self.most_rows, threads, counted.widths)
        self._lasting = (self.parameters, dims_of(config), self._scratch, self._batch)
        arguments = Arguments(*self._lasting, self.pool.buffers, attention, self._rows_of_logits(0))
        self._pointers = pointers_of(arguments)
        self._replaced = len(pointers_of(self._lasting))  # where those of the others begin
        self._memory: tuple[NDArray[np.int64], ...] = (self._pointers[:0], self._pointers[:0])  # those in use
        self.forward_pass: ForwardPass = ForwardPass(arguments)
        self._workers = Workers(self.forward_pass, ThreadCount(fewest_threads, threads), (self._pointers,))
        self.take_share(share)

    @property
    def trained_length(self) -> int:
        """Positions that the model was trained on."""
        return self.config.trained_length

    @property
    def projection(self) -> NDArray[np.generic] | None:
        """The linear layer that vectors of texts have behind the last norm: [embedding_dim, hidden_size], or None."""
        found = self._folder.tensors.get(PROJECTION)
        return None if found is None else found[:, : self.config.hidden_size]

    @property
    def grid_positions(self) -> NDArray[np.generic]:
        """A vision tower's vectors of positions: float32 [position_grid**2 or 2 position_axes, hidden_size]."""
        return self._folder.tensors[GRID_POSITIONS][:, : self.config.hidden_size]

    @cached_property
    def origin(self) -> str:
        """Fingerprint of the model's files and the compiled code, on which keys and values depend."""
        return f"{sources_digest()} {model_fingerprint(self._folder.path)}"

    def take_share(self, percent: int) -> None:
        """Take at most this share of the cores' time from the next step on."""
        self.share = ProcessorShare(percent)
        self._workers.limit(self.share.threads)

    def changed(self, kv: str, threads: int) -> "Engine":
        """Return an engine of the same weights with another type of caches or number of threads, not compiled yet."""
        fewest = min(self._fewest_threads, threads)
        other = Engine(self._folder, threads, kv, fewest, self._cache_memory, self.share.percent)
        other.images = self.images
        return other

    def run(self, chunks: SequenceOf[ScheduledChunk], out: Logits | None = None) -> list[Logits]:
        """Run ids of sequences, up to `most_rows` in all, after those in their caches; append them.

        Parameters
        ----------
        chunks : sequence of ScheduledChunk
        out : float32 [>= outputs of all chunks, vocab_size], optional
            Memory for the logits, of `new_logits`; fresh memory costs time.

        Returns
        -------
        list of float32 [outputs, vocab_size]
            For each chunk, the logits after the last of its ids.

        Raises
        ------
        SettingError
            If there are no ids, too many, or ids outside of the vocabulary that are of no image (`image_ids`), or of
            a part of one whose tokens attend to each other; if a sequence is of another engine, or twice in the batch;
            if `out` is not of `new_logits`, or has too few rows.
        ContextError
            If the ids do not fit into the context.
        CacheFullError
            If there is no memory for their keys and values.
        """
        # From here on, what is checked is what runs.
        chunks = [chunk.exact() for chunk in chunks]
        self.share.wait()
        placed = self._image_rows(chunks)
        # Nobody else may move the blocks of the cache meanwhile, and steps take turns.
        with self.pool.lock:
            self._check(chunks)
            outputs = sum(chunk.outputs for chunk in chunks)
            rows = self.new_logits(outputs) if out is None else self._checked_logits(out, outputs)
            self._run_checked(chunks, rows, placed)
        ends = itertools.accumulate(chunk.outputs for chunk in chunks)
        return [rows[end - chunk.outputs : end] for chunk, end in zip(chunks, ends)]

    def hidden_states(self, chunks: SequenceOf[ScheduledChunk]) -> list[States]:
        """Run ids as `run` does, whose errors it has; return the final hidden states after all of them.

        Those of each chunk are float64 [ids, hidden_size], behind the last norm; no logits are computed.
        """
        chunks = [chunk.exact()._replace(outputs=0) for chunk in chunks]
        self.share.wait()
        placed = self._image_rows(chunks)
        with self.pool.lock:
            self._check(chunks)
            self._run_checked(chunks, self.new_logits(0), placed)
            rows = self._scratch.hidden[: sum(len(chunk.ids) for chunk in chunks), : self.config.hidden_size]
            states = normed_states(self.parameters.norm, self.config.rms_norm_eps, rows)
        ends = itertools.accumulate(len(chunk.ids) for chunk in chunks)
        return [states[end - len(chunk.ids) : end] for chunk, end in zip(chunks, ends)]

    def last_states(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return hidden states, behind the last norm, of rows of the last step: float32 [stop - first, D].

        They are for drafts, and not the same bits in every step: see `hidden_states`. Of a drafter they are what it
        has made to be read for the next token, which may be before the norm.
        """
        if self.config.drafter:
            return self._scratch.last_hidden[first:stop, : self.config.drafter.hidden_size].copy()
        rows = self._scratch.hidden[first:stop, : self.config.hidden_size]
        if self.config.eagle and not self.config.eagle.gives_normed:
            return rows.copy()
        scales = np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + np.float32(self.config.rms_norm_eps))
        states: NDArray[np.float32] = rows / scales * self.parameters.norm.gain[: self.config.hidden_size]
        return states

    def keep_states(self, layers: SequenceOf[int]) -> None:
        """Keep the hidden states before some layers, and behind all of them, in each step from the next one on."""
        with self.pool.lock:
            width = self._scratch.hidden.shape[1]
            kept = zeros_on_lines((self.most_rows, width * len(layers)), np.float32)
            self._scratch = self._scratch._replace(kept=kept)
            self._lasting = (*self._lasting[:2], self._scratch, self._batch)
            self._pointers[: self._replaced] = pointers_of(self._lasting)
            self._batch.kept[:] = -1
            self._batch.kept[list(layers)] = np.arange(len(layers)) * width

    def kept_states(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return the hidden states of `keep_states` of rows of the last step: float32 [stop - first, layers D]."""
        kept = self._scratch.kept[first:stop].reshape(stop - first, -1, self._scratch.hidden.shape[1])
        return kept[:, :, : self.config.hidden_size].reshape(stop - first, -1)

    @cached_property
    def draft_head(self) -> "Engine | None":
        """The engine of the model's draft head, not compiled yet; None without one."""
        head = open_head(self._folder)
        if head is None:
            return None
        return Engine(head, self.threads, self.kv, self._fewest_threads, self._cache_memory, self.share.percent)

    def drafter(self, folder: ModelFolder) -> "Engine":
        """Return the engine of a drafter for this one, not compiled yet; its folder is of `open_drafter`."""
        fewest, share = self._fewest_threads, self.share.percent
        return Engine(folder, self.threads, self.kv, fewest, self._cache_memory, share, larger=self)

    def _image_rows(self, chunks: SequenceOf[ScheduledChunk]) -> list[tuple[int, Tile]]:
        """Return the tiles of image ids in a step, with the index of each; rows that are missing are computed."""
        if self.images is None or max((max(chunk.ids, default=0) for chunk in chunks), default=0) < self.vocab_size:
            return []
        return [*self.images.computed([token_id for chunk in chunks for token_id in chunk.ids])]

    def _run_checked(self, chunks: SequenceOf[ScheduledChunk], logits: Logits, placed: list[tuple[int, Tile]]) -> None:
        """Run a step that was checked, and append its ids to the caches; a drafter leaves these as they are."""
        appended = () if self.config.drafter else chunks
        for chunk in appended:
            chunk.cache.make_room(len(chunk.ids))
        states = self._begin_states(chunks)
        job = self._post(chunks, logits)
        self._place(placed)
        self._workers.run(*job, states)
        self.share.note()
        for chunk in appended:
            chunk.cache.append(chunk.ids, chunk.sequence_length)

    def rest(self) -> None:
        """Let the threads sleep until the next step: another engine wants the cores."""
        self._workers.rest()

    def new_logits(self, rows: int) -> Logits:
        """Return memory for rows of logits: float32 [rows, vocab_size]."""
        return self._rows_of_logits(rows)[:, : self.vocab_size]

    def _rows_of_logits(self, rows: int) -> Logits:
        """Return memory for rows of logits, padded to whole vectors."""
        return np.empty((rows, padded(self.vocab_size, LANES)), np.float32)

    def _post(self, chunks: SequenceOf[ScheduledChunk], logits: Logits) -> tuple[Any, ...]:
        """Write the batch and the pointers of what changed; return the number of ids, and all memory in use."""
        batch, firsts = self._batch, [0]
        ids: list[int] = []
        sequences: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        larger_states = 0
        for i, chunk in enumerate(chunks):
            first, start, table = len(ids), chunk.cache.length, chunk.cache.table
            stop = start + len(chunk.ids)
            ids += chunk.ids
            sequences += [i] * len(chunk.ids)
            positions += range(start, stop)
            firsts.append(len(ids))
            wanted += range(len(ids) - chunk.outputs, len(ids))
            turns = self._turns(chunk, start, stop)
            batch.cos_sin[0, first : len(ids), : turns.shape[1]] = turns
            if len(batch.cos_sin) > 1:
                turns = self._sliding_cos_sin[start:stop]
                batch.cos_sin[1, first : len(ids), : turns.shape[1]] = turns
            batch.tables[i, : len(table)] = table
            if chunk.hidden is not None:
                width = chunk.hidden.shape[1]
                is_larger = self.config.eagle is not None and width > self.config.hidden_size
                larger_states += is_larger * len(chunk.ids)
                states = self._scratch.inputs if is_larger else self._scratch.last_hidden
                states[first : len(ids), :width] = chunk.hidden
            if chunk.rows is not None:
                self._scratch.inputs[first : len(ids), : chunk.rows.shape[1]] = chunk.rows
        T, outputs = len(ids), len(wanted)
        batch.ids[:T], batch.sequences[:T], batch.positions[:T] = ids, sequences, positions
        batch.vectors[:T] = batch.positions[:T]
        if self._second_kind:
            for first, stop, chunk in zip(firsts, firsts[1:], chunks):
                if chunk.second is not None:
                    rows = batch.vectors[first:stop]
                    rows[rows >= chunk.second] += self._second_kind
        batch.firsts[: len(firsts)], batch.wanted[:outputs] = firsts, wanted
        if self._has_query_scales:
            batch.query_factors[:T] = self._query_scale * query_scales(self.config, positions)
        batch.counts[:] = T, outputs, len(chunks), larger_states
        attention = self._attention_for(max(chunk.cache.context_size for chunk in chunks))
        where = (logits.ctypes.data, outputs, logits.strides[0] // logits.itemsize)
        memory = self.pool.pointers, attention.pointers
        if not all(map(is_, memory, self._memory)):
            self._pointers[self._replaced : -len(where)], self._memory = np.concatenate(memory), memory
        self._pointers[-len(where) :] = where
        return T, self._lasting, self.pool.buffers, attention.scratch, logits

    def _place(self, placed: list[tuple[int, Tile]]) -> None:
        """Write rows of images into the posted step, and the id that stands for them in place of theirs."""
        if self.images is not None:
            batch = self._batch
            batch.images[: batch.counts[0]] = 0
            # With a part for each of the first layers behind that which replaces the embedding.
            parts = (1 + self.config.deepstack_layers, -1)
            for index, tile in placed:
                token_id = int(batch.ids[index])
                row, left = tile.compute()[token_id - tile.ids.start], tile.ids.stop - token_id
                batch.ids[index], batch.images[index] = self.config.image_input_id, batch.positions[index] + left
                rows = self._scratch.images[index].reshape(parts)
                rows[:, : self.config.hidden_size] = row.reshape(parts)

    def _begin_states(self, chunks: SequenceOf[ScheduledChunk]) -> tuple[object, ...]:
        """Write the addresses of the sequences' states; return these."""
        held: list[object] = []
        for i, chunk in enumerate(chunks):
            if (states := chunk.cache.states) is not None:
                certain = len(chunk.ids) - max(chunk.outputs - 1, 0)
                self._batch.states[:, i] = states.begin(len(chunk.ids), certain)
                held.append(states.memory)
        return tuple(held)

    def costs(self, T: int, start: int) -> list[Cost]:
        """Return the cost of each stage of a step of `T` tokens after `start` others."""
        return count_step(self.config, self._folder.quantization, T, start, self.pool.position_bytes).costs

    def stage_seconds(self, run: Callable[[], object]) -> NDArray[np.float64]:
        """Return the seconds of each stage in the one step that `run` takes; nobody else may use the engine."""
        clocks = self._batch.clocks
        clocks[0] = 1
        try:
            run()
        finally:
            count, clocks[0] = clocks[0], 0
        return np.diff(clocks[1:count]) / 1e9

    def compile(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Load the forward pass from the kernel cache, or compile it and call `progress` with (done, total)."""
        self.forward_pass.prepare(self.threads, progress)

    def _check(self, chunks: SequenceOf[ScheduledChunk]) -> None:
        """Refuse a batch for which compiled code, which checks nothing, would read or write beyond its arrays."""
        count = sum(len(chunk.ids) for chunk in chunks)
        if not 1 <= count <= self.most_rows or not all(len(chunk.ids) for chunk in chunks):
            raise SettingError(f"{count} tokens in one step: give 1 to {self.most_rows}, and each sequence some")
        if len({id(chunk.cache) for chunk in chunks}) < len(chunks):
            raise SettingError("a sequence stands twice in one step: give its ids together")
        for chunk in chunks:
            if chunk.cache.pool is not self.pool:
                raise SettingError("a sequence of another engine: a step takes those of its own engine")
            chunk.check()
            self._check_rows(chunk)
            if self.config.bidirectional and (chunk.cache.length or len(chunk.ids) < chunk.sequence_length):
                raise SettingError("a part of a text: its tokens attend to later ones, so give all of them in one step")
            if self.config.joint_tokens and self.images is not None:
                self.images.check_whole(chunk.ids, chunk.cache.ids[-1:])
            for token_id in (min(chunk.ids), max(chunk.ids)):
                # Those of images were looked up.
                is_of_image = self.images is not None and token_id >= self.vocab_size
                if not (0 <= token_id < self.vocab_size or is_of_image):
                    known = f"this model knows 0 to {self.vocab_size - 1}"
                    raise SettingError(f"token id {token_id} is out of range: {known}")

    def _check_rows(self, chunk: ScheduledChunk) -> None:
        """Refuse a vision tower's chunk without patches, or one that wants logits; patches for other models."""
        columns, found = self.config.patch_columns, None if chunk.rows is None else chunk.rows.shape
        if found != ((len(chunk.ids), columns) if columns else None) or (columns and chunk.outputs):
            wanted = f"a vision tower takes {columns} of each patch, and gives no logits" if columns else "give ids"
            raise SettingError(f"rows of the shape {found} for {len(chunk.ids)} ids: {wanted}")
        size, found = self.config.hidden_size, None if chunk.hidden is None else chunk.hidden.shape
        if self.config.places_patches and found != (len(chunk.ids), size):
            raise SettingError(f"hidden of the shape {found}: this vision tower takes {size} of each patch's position")
        turned, found = self.config.rotary_dim if columns else 0, None if chunk.turns is None else chunk.turns.shape
        if found != ((len(chunk.ids), turned) if turned else None):
            wanted = f"this vision tower takes {turned} numbers of each patch" if turned else "this model takes none"
            raise SettingError(f"turns of the shape {found}: {wanted}")

    def _checked_logits(self, out: Logits, rows: int) -> Logits:
        """Return memory for logits; refuse an array that compiled code would write beyond, or must not write to."""
        width, whole = padded(self.vocab_size, LANES), getattr(out, "base", None)
        is_ours = (
            isinstance(whole, np.ndarray)
            and whole.dtype == FLOAT32
            and (whole.shape[1:], out.shape[1:]) == ((width,), (self.vocab_size,))
            and whole.strides == out.strides == (4 * width, 4)
            # Else it is too wide to begin anywhere but where a row does; it takes microseconds to look.
            and (width == self.vocab_size or (out.ctypes.data - whole.ctypes.data) % (4 * width) == 0)
            and out.flags.writeable
        )
        if not is_ours or len(out) < rows:
            raise SettingError(f"memory for {rows} rows of logits is wanted: give what `new_logits` returns")
        return out

    def _turns(self, chunk: ScheduledChunk, start: int, stop: int) -> NDArray[np.float32]:
        """Return cosines, then sines of a chunk's ids, which begin at index `start`."""
        if chunk.turns is not None:
            return chunk.turns
        images = chunk.cache.images
        if images is None or self.images is None:
            return self._cos_sin(start, stop, chunk.sequence_length)
        images.extend(start, chunk.ids, self.images.find)
        return images.turns(start, stop, partial(self._cos_sin, sequence_length=chunk.sequence_length))

    def _cos_sin(self, start: int, stop: int, sequence_length: int) -> NDArray[np.float32]:
        angles = angle_set(self.config, sequence_length)
        if angles is None:
            return rope_tables(self.config, start, stop, sequence_length)
        if angles not in self._rope_tables:
            self._rope_tables[angles] = RopeTable(self.config, sequence_length)
        return self._rope_tables[angles][start:stop]

    def _attention_for(self, positions: int) -> AttentionMemory:
        """Return scratch of attention for a context of so many positions; it grows with the longest one."""
        if positions > self._attention.positions:
            scratch = allocate_attention(self.config, positions, self.threads, self.kv)
            self._attention = AttentionMemory(positions, scratch, pointers_of(scratch))
        return self._attention
