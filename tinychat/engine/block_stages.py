"""The stages of layers that read mixtures of blocks: see `engine.stages`."""

from tinychat.engine.stages import FLOAT
from tinychat.engine.wiring import stage


@stage("block_mixtures")
def mix_slots(counter, T, slots, seen, hidden, takes_hidden, queries, query, sizes, factors, out):
    """Mix what some slots and the residual stream have."""
    D, count = sizes.hidden_size, int(seen.first + seen.others) + takes_hidden
    slots.need(counter.config.mixtures.slots * D)
    factors.need(2 * count)
    out.need(hidden.columns)
    counter.note("mixtures", T * (2 * count + 1) * D * FLOAT, T * count * 3 * D)


@stage("block_mixtures")
def take_message(counter, T, gates, message, sizes, x):
    """Take a message in."""
    D = sizes.hidden_size
    counter.note("messages", T * 5 * D * FLOAT, T * 10 * D)


@stage("block_mixtures")
def store_slot(counter, T, x, slot, sizes, slots):
    """Write rows to a slot."""
    counter.note("mixtures", T * 2 * sizes.hidden_size * FLOAT)


@stage("block_mixtures")
def load_slot(counter, T, slots, slot, sizes, x):
    """Read the rows of a slot."""
    counter.note("mixtures", T * 2 * sizes.hidden_size * FLOAT)


@stage("block_mixtures")
def add_rows(counter, T, first, second, sizes, out):
    """Add rows."""
    out.need(first.columns)
    counter.note("sums of branches", T * 3 * sizes.hidden_size * FLOAT, T * sizes.hidden_size)


@stage("residual_convolution")
def convolve_rows(counter, batch, x, taps, offset, sizes):
    """Convolve over the last positions."""
    T, C = counter.T, taps.layout.size // sizes.taps
    counter.note("convolution", (2 * T + 3 * sizes.taps) * C * FLOAT, T * C * sizes.taps)


@stage("residual_convolution")
def convolve_by_token(counter, batch, x, taps, token_taps, offset, sizes):
    """Convolve over the last positions, with taps of each token."""
    T, C = counter.T, taps.layout.size // sizes.taps
    counter.note("convolution", (2 * T + 3 * sizes.taps) * C * FLOAT, 2 * T * C * sizes.taps)


@stage("clipped_heads")
def clip_queries(counter, T, batch, x, scales, sizes):
    """Scale and clip queries, and the weights of profiles."""
    columns = sizes.num_attention_heads * (sizes.head_dim + counter.config.mixtures.relative_size)
    counter.note("norms of queries and keys", T * 3 * columns * FLOAT, T * 3 * columns)


@stage("clipped_heads")
def append_clipped(counter, T, batch, keys, values, scales, sizes, cache):
    """Clip keys, norm values, and append both to the cache."""
    size = cache.heads * cache.head_dim
    counter.note("norms and append", T * 4 * size * FLOAT, T * 4 * size)
