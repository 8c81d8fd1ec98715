"""Attention as a stage of the forward pass: which rows are attended together, and by which thread.

Items of all sequences of a step are handed out to whichever thread is free. Where there are only a few, as of a single
token, each of their chunks is handed out by itself, and merged when all are done: the same sums in the same order.
"""

from tinychat.kernels.attention import (
    Item,
    attend_chunk,
    finish,
    load_queries,
    merge,
    rows_of,
    state_of,
    visible_chunks,
)
from tinychat.kernels.jit import always_inline, inline
from tinychat.kernels.kv import head_of
from tinychat.kernels.sizes import BLOCK, CHUNK, ITEM_ROWS, ITEMS_PER_THREAD
from tinychat.kernels.team import barrier, finish_stage, next_tile, share, stage
from tinychat.kernels.team_queue import THREADS

MAX_CHUNKS = 2**31
SEQUENCES = 2  # which of a job's counts


@always_inline
def sequence_rows(job, sequence, group):
    """Return how many rows a sequence has for each KV head in this step."""
    return (job.firsts[sequence + 1] - job.firsts[sequence]) * group


@always_inline
def items_of(job, sequence, G, group):
    """Return how many items of work a sequence has."""
    return G * ((sequence_rows(job, sequence, group) + ITEM_ROWS - 1) // ITEM_ROWS)


@always_inline
def item_of(scratch, thread, job, sequence, number, G, group, window, scoring):
    """Return item `number` of a sequence: the KV heads of the first rows, then of the next."""
    return Item(
        scratch.queries[thread],
        scratch.scores[thread],
        scratch.weights[thread],
        scratch.positions[thread],
        scratch.maxima[thread],
        scratch.sums[thread],
        scratch.kept[thread],
        scratch.added[thread],
        job.tables[sequence],
        job.firsts[sequence],
        number % G,
        group,
        number // G * ITEM_ROWS,
        sequence_rows(job, sequence, group),
        window,
        scoring,
    )


@always_inline
def sequence_of(job, unit, G, group):
    """Return whose item number `unit` of all is, and its number among those of that sequence."""
    sequence = 0
    while unit >= items_of(job, sequence, G, group):
        unit -= items_of(job, sequence, G, group)
        sequence += 1
    return sequence, unit


@always_inline
def load_positions(item, job):
    """Note the positions of an item's rows; those past the last, which fill up its last tile, repeat it."""
    rows, token, head = rows_of(item), item.token + item.row0 // item.group, item.row0 % item.group
    for r in range(rows):
        item.positions[r] = job.positions[token]
        head += 1
        if head == item.group:
            token, head = token + 1, 0
    for r in range(rows, ITEM_ROWS):
        item.positions[r] = item.positions[rows - 1]


@always_inline
def first_head(job, unit, chunk, G, group, window, cache):
    """Return the number of the head of the first block that item number `unit` of all reads from a chunk on."""
    sequence, number = sequence_of(job, unit, G, group)
    first = max(0, job.positions[job.firsts[sequence] + number // G * ITEM_ROWS // group] + 1 - window)
    return head_of(cache, job.tables[sequence, max(chunk * CHUNK, first) // BLOCK], number % G)


@always_inline
def following(team, unit, units):
    """Return the unit that this thread will take after `unit`, if all take as long; the same if there is none."""
    other = unit + team.queue[THREADS]
    return other if other < units else unit


@inline
def attend_few(team, job, qkv, G, items, d, group, window, scoring, cache, scratch, out):
    """Attend for a few items: each chunk of each of them is a unit of its own; merged when all are done."""
    start, stop = chunks_of(job, window)
    count = stop - start
    unit = next_tile(team)
    while unit < items * count:
        sequence, number = sequence_of(job, unit // count, G, group)
        item = item_of(scratch, team.thread, job, sequence, number, G, group, window, scoring)
        load_positions(item, job)
        first, last = visible_chunks(item)
        if first <= start + unit % count < last:
            load_queries(item, cache, qkv, d)
            other = following(team, unit, items * count)
            ahead = first_head(job, other // count, start + other % count, G, group, window, cache)
            attend_chunk(item, cache, state_of(scratch.partials, unit), start + unit % count, ahead)
        unit = next_tile(team)
    finish_stage(team, items * count)
    first_item, last_item = share(team.thread, barrier(team.queue, team.thread), items)
    for i in range(first_item, last_item):
        sequence, number = sequence_of(job, i, G, group)
        item = item_of(scratch, team.thread, job, sequence, number, G, group, window, scoring)
        load_positions(item, job)
        first, last = visible_chunks(item)
        total = state_of(scratch.partials, i * count + first - start)
        for chunk in range(first + 1, last):
            merge(item, total, state_of(scratch.partials, i * count + chunk - start))
        finish(item, total, out, d)


@inline
def attend_many(team, job, qkv, G, items, d, group, window, scoring, cache, scratch, out):
    """Attend for many items: each is a unit, its chunks one after another; the longest of a sequence first."""
    total, part = state_of(scratch.totals, team.thread), state_of(scratch.partials, team.thread)
    unit = next_tile(team)
    while unit < items:
        sequence, number = sequence_of(job, items - 1 - unit, G, group)
        item = item_of(scratch, team.thread, job, sequence, number, G, group, window, scoring)
        load_positions(item, job)
        load_queries(item, cache, qkv, d)
        other = items - 1 - following(team, unit, items)
        first, last = visible_chunks(item)
        for chunk in range(first, last):
            if chunk + 1 < last:
                ahead = head_of(cache, item.table[(chunk + 1) * CHUNK // BLOCK], item.g)
            else:
                ahead = first_head(job, other, 0, G, group, window, cache)
            if chunk == first:
                attend_chunk(item, cache, total, chunk, ahead)
            else:
                attend_chunk(item, cache, part, chunk, ahead)
                merge(item, total, part)
        finish(item, total, out, d)
        unit = next_tile(team)
    finish_stage(team, items)


@always_inline
def chunks_of(job, window):
    """Return the range of chunks that the sequences of a step see anything of."""
    start, stop = MAX_CHUNKS, 0
    for sequence in range(job.counts[SEQUENCES]):
        start = min(start, max(0, job.positions[job.firsts[sequence]] + 1 - window) // CHUNK)
        stop = max(stop, job.positions[job.firsts[sequence + 1] - 1] // CHUNK + 1)
    return start, stop


@stage
def attend(team, job, qkv, sizes, window, scoring, cache, scratch, out):
    """Attend from tokens of one or several sequences, each to all that the cache holds of its own up to it.

    job : `counts` of it, int64, say how many sequences there are; `firsts` int64 [>= sequences + 1], where the tokens
    of each begin, and where those of the last end; `positions` int64 of each token, one after the other in a sequence;
    `tables` int32 [>= sequences, blocks], where their blocks are; qkv : float32 [>= T, >= H d + 15], rotated and scaled
    queries first; window : positions a query sees, itself included; scoring : of `kernels.scores`;
    cache : a LayerCache, already appended to; out : float32 [>= T, >= H d].
    """
    G, d, items = cache.keys.shape[2], sizes.head_dim, 0
    group = sizes.num_attention_heads // G
    for sequence in range(job.counts[SEQUENCES]):
        items += items_of(job, sequence, G, group)
    if items <= ITEMS_PER_THREAD * team.queue[THREADS]:
        attend_few(team, job, qkv, G, items, d, group, window, scoring, cache, scratch, out)
    else:
        attend_many(team, job, qkv, G, items, d, group, window, scoring, cache, scratch, out)
