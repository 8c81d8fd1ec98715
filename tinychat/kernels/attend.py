"""Attention as a stage of the forward pass: its work tiles.

An item (`kernels.attention`) is a work tile. Where there are few items, as of a single token, each of their chunks is a
work tile, and chunks are merged when all are done: the same sums in the same order.
"""

from tinychat.kernels.amx_attention import begin_tiles, end_tiles
from tinychat.kernels.attention import (
    Item,
    attend_chunk,
    finish,
    load_queries,
    merge,
    note_end,
    seen_from,
    state_of,
    visible_chunks,
)
from tinychat.kernels.jit import always_inline, inline
from tinychat.kernels.kv import head_of, head_size, value_width
from tinychat.kernels.sizes import BLOCK, CHUNK, ITEM_ROWS, ITEMS_PER_THREAD
from tinychat.kernels.team import barrier, finish_stage, next_tile, share, stage
from tinychat.kernels.team_queue import THREADS

MAX_CHUNKS = 2**31
SEQUENCES = 2  # index of a batch's counts


@always_inline
def sequence_rows(batch, sequence, group):
    """Return the number of rows that a sequence has for each KV head in this step."""
    return (batch.firsts[sequence + 1] - batch.firsts[sequence]) * group


@always_inline
def items_of(batch, sequence, G, group):
    """Return the number of items of a sequence."""
    return G * ((sequence_rows(batch, sequence, group) + ITEM_ROWS - 1) // ITEM_ROWS)


@always_inline
def sequence_of(batch, item, G, group):
    """Return the sequence of item `item` of all, and its number in that sequence."""
    sequence = 0
    while item >= items_of(batch, sequence, G, group):
        item -= items_of(batch, sequence, G, group)
        sequence += 1
    return sequence, item


@always_inline
def load_item(scratch, thread, batch, index, G, group, window, scoring):
    """Return item `index` of all: of each sequence the KV heads of the first rows, then of the next."""
    sequence, number = sequence_of(batch, index, G, group)
    item = Item(
        scratch.queries[thread],
        scratch.query_scales[thread],
        scratch.query_starts[thread],
        scratch.scores[thread],
        scratch.weights[thread],
        scratch.weight_steps[thread],
        scratch.positions[thread],
        scratch.ends[thread],
        scratch.lanes[thread],
        scratch.rescale[thread],
        scratch.part_rescale[thread],
        scratch.tiles[thread],
        batch.tables[sequence],
        batch.firsts[sequence],
        number % G,
        group,
        number // G * ITEM_ROWS,
        sequence_rows(batch, sequence, group),
        batch.positions[batch.firsts[sequence + 1] - 1] + 1,
        window,
        scoring,
    )
    token, last, head = item.token + item.row0 // group, batch.firsts[sequence + 1] - 1, item.row0 % group
    for r in range(ITEM_ROWS):
        item.positions[r] = batch.positions[token]
        note_end(window, item, r, batch, token)
        head += 1
        if head == group:
            # Rows past the last, which fill up its last tile, repeat it.
            token, head = min(token + 1, last), 0
    return item


@always_inline
def first_head(batch, item, chunk, G, group, window, cache):
    """Return the head of the first block that item `item` of all reads from a chunk on."""
    sequence, number = sequence_of(batch, item, G, group)
    first = seen_from(window, batch.positions[batch.firsts[sequence] + number // G * ITEM_ROWS // group])
    return head_of(cache, batch.tables[sequence, max(chunk * CHUNK, first, 0) // BLOCK], number % G)


@always_inline
def likely_next(team, work, count):
    """Return this thread's work tile after `work`, if all take as long; the same if there is none."""
    other = work + team.queue[THREADS]
    return other if other < count else work


@inline
def attend_few(team, batch, qkv, G, items, d, group, window, scoring, cache, scratch, out):
    """Attend for a few items: a work tile is one chunk of one item; merge when all are done."""
    start, stop = chunks_of(batch, window)
    count = stop - start
    work = next_tile(team)
    while work < items * count:
        item = load_item(scratch, team.thread, batch, work // count, G, group, window, scoring)
        first, last = visible_chunks(item)
        if first <= start + work % count < last:
            load_queries(item, cache, qkv, d)
            other = likely_next(team, work, items * count)
            next_head = first_head(batch, other // count, start + other % count, G, group, window, cache)
            attend_chunk(item, cache, state_of(scratch.partials, work), start + work % count, next_head)
        work = next_tile(team)
    finish_stage(team, items * count)
    first_item, last_item = share(team.thread, barrier(team.queue, team.thread), items)
    for i in range(first_item, last_item):
        item = load_item(scratch, team.thread, batch, i, G, group, window, scoring)
        first, last = visible_chunks(item)
        total = state_of(scratch.partials, i * count + first - start)
        for chunk in range(first + 1, last):
            merge(item, cache, total, state_of(scratch.partials, i * count + chunk - start))
        finish(item, cache, total, out, value_width(cache, d))


@inline
def attend_many(team, batch, qkv, G, items, d, group, window, scoring, cache, scratch, out):
    """Attend for many items: a work tile is an item, its chunks in order; the longest of a sequence first."""
    total, part = state_of(scratch.totals, team.thread), state_of(scratch.partials, team.thread)
    work = next_tile(team)
    while work < items:
        item = load_item(scratch, team.thread, batch, items - 1 - work, G, group, window, scoring)
        load_queries(item, cache, qkv, d)
        other = items - 1 - likely_next(team, work, items)
        first, last = visible_chunks(item)
        for chunk in range(first, last):
            if chunk + 1 < last:
                next_head = head_of(cache, item.table[(chunk + 1) * CHUNK // BLOCK], item.g)
            else:
                next_head = first_head(batch, other, 0, G, group, window, cache)
            if chunk == first:
                attend_chunk(item, cache, total, chunk, next_head)
            else:
                attend_chunk(item, cache, part, chunk, next_head)
                merge(item, cache, total, part)
        finish(item, cache, total, out, value_width(cache, d))
        work = next_tile(team)
    finish_stage(team, items)


@always_inline
def chunks_of(batch, window):
    """Return the range of chunks that the sequences of a step see; no image ends behind the step."""
    start, stop = MAX_CHUNKS, 0
    for sequence in range(batch.counts[SEQUENCES]):
        start = min(start, max(0, seen_from(window, batch.positions[batch.firsts[sequence]])) // CHUNK)
        stop = max(stop, batch.positions[batch.firsts[sequence + 1] - 1] // CHUNK + 1)
    return start, stop


@stage
def attend(team, batch, qkv, sizes, window, scoring, cache, scratch, out):
    """Attend from tokens of one or several sequences, each to the positions of its own up to it, or to all.

    batch : `counts`, int64, of which the third is the number of sequences; `firsts` int64 [>= sequences + 1], the first
    token of each, and the end of the last; `positions` int64 of each token, ascending in a sequence; `images` int64 of
    each token, for `JointImages`: the position behind its image, or 0; `tables` int32 [>= sequences, blocks]; qkv :
    float32 [>= T, >= H d + 15], rotated and scaled queries first; window : positions a query sees, itself included, or
    `BothWays`, `Before` or `JointImages`; scoring : of `kernels.scores`; cache : a LayerCache, already appended to;
    out : float32 [>= T, >= H d], d of values.
    """
    G, d, items, most = cache.keys.shape[2], head_size(cache), 0, 0
    group = sizes.num_attention_heads // G
    for sequence in range(batch.counts[SEQUENCES]):
        items += items_of(batch, sequence, G, group)
        most = max(most, sequence_rows(batch, sequence, group))
    begin_tiles(scratch, cache, team.thread, most)
    if items <= ITEMS_PER_THREAD * team.queue[THREADS]:
        attend_few(team, batch, qkv, G, items, d, group, window, scoring, cache, scratch, out)
    else:
        attend_many(team, batch, qkv, G, items, d, group, window, scoring, cache, scratch, out)
    end_tiles(scratch, cache, team.thread, most)
