"""The stages of the forward pass: which kernel each is, and what it takes.

A body notes, for one call, what the stage reads and computes (bytes, multiply-adds), under the name that profiles have
for it, and how many columns it needs in the arrays between stages: `counter` is an `engine.counting.Counter`.
"""

import numpy as np

from tinychat.engine.wiring import compiled_by, stage
from tinychat.kernels.sizes import LANES
from tinychat.kernels.variants import Before, BothWays, JointImages, NoTable, Ungated
from tinychat.kernels.weights import Looped, PerLayer
from tinychat.models.altup import STREAM_LINEARS
from tinychat.models.block_mixtures import GATES as MESSAGE_GATES
from tinychat.models.compressed import HEADS
from tinychat.models.eagle import STATES
from tinychat.models.layout import padded
from tinychat.models.mamba import STEPS
from tinychat.models.selective import LOW

FLOAT = 4  # bytes
# What profiles call the inputs of linears that take them as they are.
PLAIN_INPUTS = {
    "embed_tokens": "quantize patches",
    "o_proj": "quantize attention",
    "other_o_proj": "quantize attention",
    "wide_o_proj": "quantize attention",
    "q_b_proj": "quantize latents",
    "v_b_proj": "quantize latents",
    HEADS: "quantize convolution",
    **dict.fromkeys(MESSAGE_GATES, "quantize messages"),
    "conv_out_proj": "quantize convolution",
    "laurel_right": "quantize LAuReL",
    STATES: "quantize hidden states",
    "input_gate": "quantize streams",
    **dict.fromkeys(STREAM_LINEARS, "quantize streams"),
    "delta_out_proj": "quantize states",
    "delta_decay_proj": "quantize gates",
    "delta_gate_proj": "quantize gates",
    "mamba_out_proj": "quantize states",
    LOW: "quantize steps",
    STEPS: "quantize steps",
    "experts_out_proj": "quantize experts",
}


def inner_columns(activation, size):
    """Return the outputs of an MLP's first linear."""
    return size if isinstance(activation, Ungated) else 2 * size


@compiled_by("weight_access")
def layer_of(stacked, layer):
    """Return layer `layer` of a tuple of arrays, or of such tuples, stacked over the layers or over their runs."""
    if isinstance(stacked, Looped):
        return layer_of(stacked.part, int(stacked.indices[layer]))
    if isinstance(stacked, PerLayer):
        index = int(stacked.indices[layer])
        first, second = layer_of(stacked.first, max(index, 0)), layer_of(stacked.second, max(-1 - index, 0))
        return PerLayer(index, first, second)
    if isinstance(stacked, tuple):
        return type(stacked)(*(layer_of(part, layer) for part in stacked))
    return stacked[layer]


@compiled_by("kv")
def layer_cache(cache, layer):
    """Return one layer of a cache; outside of compiled code, of a list of `NamedCache`."""
    return cache[layer] if cache else None


@compiled_by("kv")
def narrow_cache(cache):
    """Return the layer's cache where heads are narrow."""
    return cache


@compiled_by("kv")
def wide_cache(cache):
    """Return the layer's cache where heads are wide."""
    return cache


@compiled_by("embedding")
def keep_rows(team, T, columns, layer, hidden, kept):
    """Keep the hidden states before a layer for a drafter; outside of compiled code nobody asks for them."""


@stage("embedding")
def embed(counter, T, weight, ids, sizes, hidden):
    """Write the embeddings of the ids."""
    hidden.need(counter.columns(weight))
    counter.note("embedding", T * (counter.bytes(weight) // weight.rows))


@stage("embedding")
def add_positions(counter, T, vectors, rows, hidden):
    """Add the vectors of positions to the embeddings."""
    counter.note("end of embedding", T * vectors.columns * 3 * FLOAT, T * vectors.columns)


@stage("norms")
def norm_rows(counter, T, norm, sizes, hidden):
    """Norm the embeddings, or what a branch gives."""
    counter.note("norms of rows", T * sizes.hidden_size * 3 * FLOAT, T * sizes.hidden_size)


@stage("inputs")
def quantize_normed(counter, T, hidden, norm, sizes, weight, s):
    """Norm the residual stream and write it for a linear: squares are summed, then scaled, with a gain."""
    hidden.need(counter.columns(weight))
    s.x.need(counter.columns(weight))
    counter.note("norms and quantize", (T + 1) * sizes.hidden_size * FLOAT, T * sizes.hidden_size * 3)


@stage("inputs")
def quantize_plain(counter, T, values, weight, s):
    """Write rows for a linear as they are."""
    values.need(counter.columns(weight))
    s.x.need(counter.columns(weight))
    counter.note(PLAIN_INPUTS[weight.name], T * weight.columns * FLOAT, T * weight.columns)


@stage("inputs")
def cut_gates(counter, T, gate_up, cutoff, size):
    """Close all but the largest gates."""
    counter.note("largest gates", T * size * 4 * FLOAT, T * size * 4)


@stage("inputs")
def quantize_activated(counter, T, gate_up, activation, size, weight, s):
    """Write for a linear what gates let through, or what an activation makes of an MLP without gates."""
    columns = inner_columns(activation, size)
    gate_up.need(padded(columns, LANES) + LANES)
    s.x.need(counter.columns(weight))
    counter.note("activation and quantize", T * columns * FLOAT, T * size * 3)


@stage("linear")
def linear(counter, T, weight, s, out, add):
    """Apply a linear."""
    out.need(padded(weight.rows, LANES))
    counter.note(weight.name, counter.bytes(weight), T * weight.rows * weight.columns)


@stage("linear")
def head(counter, T, weight, s, out):
    """Apply the output matrix."""
    counter.note("lm_head", counter.bytes(weight), T * weight.rows * weight.columns)


@stage("norms")
def norm_width(counter, T, qkv, norm, sizes):
    """Norm queries and keys, each over all heads."""
    H, G, d = sizes.num_attention_heads, counter.config.num_key_value_heads, sizes.head_dim
    counter.note("norms of queries and keys", T * (H + G) * d * 2 * FLOAT, T * (H + G) * d * 3)


@stage("norms")
def norm_heads(counter, T, qkv, norm, sizes):
    """Norm each head of queries and keys, with gains of its own."""
    H, G, d = sizes.num_attention_heads, counter.config.num_key_value_heads, sizes.head_dim
    counter.note("norms of queries and keys", T * (H + G) * d * 2 * FLOAT, T * (H + G) * d * 4)


@stage("norms")
def scale_queries(counter, T, qkv, gains, sizes):
    """Multiply queries by the gains of each head of queries and keys."""
    size = sizes.num_attention_heads * sizes.head_dim
    counter.note("norms of queries and keys", T * size * 2 * FLOAT, T * size * 2)


@stage("rope")
def rope_append(counter, T, batch, qkv, q_gain, k_gain, angles, rotary_dim, sizes, cache):
    """Rotate queries and keys, append keys and values to the cache."""
    H, G, d = sizes.num_attention_heads, cache.heads, cache.head_dim
    qkv.need(padded((H + 2 * G) * d, LANES) + LANES)
    counter.note("rope and append", T * (H + 2 * G) * d * FLOAT, T * (H + G) * d * 2)


@stage("rope")
def norm_values(counter, T, qkv, sizes, cache):
    """Norm the values of each head, without gains."""
    size = cache.heads * cache.head_dim
    counter.note("norms of values", T * size * 2 * FLOAT, T * size * 2)


@stage("rope")
def rotate_queries(counter, T, batch, qkv, q_gain, angles, rotary_dim, sizes, cache):
    """Rotate queries, where a layer has no keys and values of its own."""
    size = sizes.num_attention_heads * cache.head_dim
    qkv.need(padded(size, LANES) + LANES)
    counter.note("rope and append", T * size * FLOAT, T * size * 2)


@stage("attend")
def attend(counter, batch, qkv, sizes, window, scoring, cache, scratch, out):
    """Attend to all positions of the cache that are in the window."""
    H, d = sizes.num_attention_heads, cache.head_dim
    out.need(H * d)
    size = window.window if isinstance(window, (BothWays, Before, JointImages)) else window
    sides = 1 + isinstance(window, BothWays)
    seen = int(np.minimum(batch.positions + 1, size).sum()) * sides
    values = d if counter.config.varied else counter.config.value_dim
    counter.note("attention", (int(batch.positions[-1]) + 1) * cache.bytes, seen * H * (d + values))


@stage("latent")
def norm_latents(counter, T, down, q_gain, kv_gain, sizes, low, qkv):
    """Norm the latents of queries, and of the key."""
    rank, of_queries = sizes.kv_lora_rank, counter.config.latents.q_lora_rank
    low.need(of_queries)
    columns = of_queries + sizes.head_dim
    counter.note("norms of latents", T * (2 * columns + rank) * FLOAT, T * (of_queries + rank) * 3)


@stage("latent")
def split_queries(counter, T, queries, sizes, weight, s, qkv):
    """Take queries apart, and write what is not rotated for the linears of heads."""
    s.latents.x.need(counter.columns(weight))
    columns = sizes.num_attention_heads * counter.config.latents.query_dim
    counter.note("quantize queries", T * 2 * columns * FLOAT, T * columns)


@stage("latent")
def quantize_heads(counter, T, values, heads, size, weight, s):
    """Write numbers of each head for the linears of heads."""
    s.latents.x.need(counter.columns(weight))
    counter.note(PLAIN_INPUTS[weight.name], T * heads * size * FLOAT, T * heads * size)


@stage("latent")
def linear_heads(counter, T, weight, s, out, heads, stride):
    """Apply the linear of each head."""
    out.need(heads * stride)
    counter.note(weight.name, counter.bytes(weight), T * heads * weight.rows * weight.columns)


@stage("short_convolution")
def short_convolution(counter, T, batch, bcx, taps, rows, sizes, cache, out):
    """Convolve over the last positions, and append to the cache."""
    D = sizes.hidden_size
    bcx.need(padded(3 * D, LANES) + LANES)
    out.need(D)
    seen = taps.layout.size // D
    counter.note("short convolution", T * D * (3 + seen) * FLOAT, T * D * (2 + seen))


@stage("compressed")
def convolve_heads(counter, batch, x, taps, bias, layer, sizes, pairs):
    """Convolve queries and keys with those of the position before; delay half of the values."""
    T, C, values = counter.T, sizes.value_heads * sizes.value_dim, sizes.key_heads * sizes.value_dim
    pairs.need(2 * C)
    counter.note("convolution", T * (4 * C + values) * FLOAT, T * 4 * C)


@stage("compressed")
def norm_lengths(counter, T, convolved, key_scales, sizes, qkv):
    """Add what the second convolution gives to queries and keys, and bring each to its length."""
    C = sizes.value_heads * sizes.value_dim
    counter.note("norms of queries and keys", T * 3 * C * FLOAT, T * 3 * C)


@stage("attention_gates")
def take_gates(counter, T, qkv, sizes, gates):
    """Take the gates out between queries and keys."""
    H, G, d = sizes.num_attention_heads, counter.config.num_key_value_heads, sizes.head_dim
    gates.need(H * d)
    counter.note("gates of attention", T * 2 * (H + 2 * G) * d * FLOAT)


@stage("attention_gates")
def gate_attended(counter, T, gates, sizes, attended):
    """Multiply what attention gives by its gates."""
    columns = sizes.num_attention_heads * sizes.head_dim
    counter.note("gates of attention", T * columns * 3 * FLOAT, T * columns * 4)


@stage("attention_gates")
def gate_heads(counter, T, gates, with_softplus, sizes, size, attended):
    """Multiply what attention gives by a gate for each head."""
    columns = sizes.num_attention_heads * size
    counter.note("gates of attention", T * columns * 2 * FLOAT, T * columns)


@stage("delta_net")
def convolve(counter, batch, x, taps, bias, layer, sizes):
    """Convolve queries, keys and values over the last positions, in place; the last inputs are part of the state."""
    T, C = counter.T, counter.config.recurrence.channels
    counter.note("convolution", (2 * T + 3 * sizes.taps) * C * FLOAT, T * C * sizes.taps)


@stage("delta_net")
def delta_factors(counter, T, gates, log_decay, bias, x, sizes, factors):
    """Write decays, rates, and the factors of keys and queries."""
    keys = sizes.key_heads * sizes.key_dim
    gates.need(padded(2 * sizes.value_heads, LANES))
    factors.need(2 * (sizes.value_heads + sizes.key_heads))
    counter.note("decays and rates", T * 2 * (keys + sizes.value_heads) * FLOAT, T * 2 * keys)


@stage("delta_net")
def delta_rule(counter, batch, x, factors, layer, sizes, out):
    """Scan the positions; the state is read once and written once for each sequence."""
    T, values = counter.T, sizes.value_heads * sizes.value_dim
    state = values * sizes.key_dim
    out.need(values)
    counter.note("delta rule", (2 * state + T * 2 * values) * FLOAT, T * 3 * state)


@stage("delta_net")
def norm_gated(counter, T, x, gain, sizes, out):
    """Norm each head's result, and multiply it by its gate."""
    values = sizes.value_heads * sizes.value_dim
    x.need(padded(counter.config.delta_net.channels + values, LANES))
    counter.note("gated norm", T * values * 3 * FLOAT, T * values * 5)


@stage("channel_delta")
def channel_factors(counter, T, gates, log_decay, bias, x, sizes, decays, factors):
    """Write decays of channels, rates, and the factors of keys and queries."""
    keys = sizes.key_heads * sizes.key_dim
    decays.need(2 * keys)
    factors.need(3 * sizes.key_heads)
    counter.note("decays and rates", T * 5 * keys * FLOAT, T * 5 * keys)


@stage("channel_delta")
def channel_rule(counter, batch, x, decays, factors, layer, sizes, out):
    """Scan the positions; the state is read once and written once for each sequence."""
    T, values = counter.T, sizes.value_heads * sizes.value_dim
    state = values * sizes.key_dim
    x.need(padded(counter.config.recurrence.channels, LANES))
    out.need(values)
    counter.note("delta rule", (2 * state + T * 2 * values) * FLOAT, T * 4 * state)


@stage("channel_delta")
def norm_sigmoid(counter, T, gates, gain, sizes, out):
    """Norm each head's result, and multiply it by its gate."""
    values = sizes.value_heads * sizes.value_dim
    counter.note("gated norm", T * values * 3 * FLOAT, T * values * 5)


@stage("mamba")
def step_factors(counter, T, steps, log_decay, bias, limits, sizes, factors):
    """Write decays and steps."""
    heads = sizes.value_heads
    steps.need(padded(heads, LANES))
    factors.need(2 * heads)
    counter.note("decays and steps", T * 3 * heads * FLOAT)


@stage("mamba")
def scan_steps(counter, batch, x, factors, skip, layer, sizes, out):
    """Scan the positions; the state is read once and written once for each sequence."""
    T, values = counter.T, sizes.value_heads * sizes.value_dim
    state = values * sizes.key_dim
    x.need(padded(counter.config.recurrence.channels + values, LANES))
    out.need(values)
    counter.note("scan", (2 * state + T * 3 * values) * FLOAT, T * (2 * state + 6 * values))


@stage("mamba")
def norm_groups(counter, T, gain, sizes, out):
    """Norm groups of channels."""
    values = sizes.value_heads * sizes.value_dim
    counter.note("gated norm", T * values * 2 * FLOAT, T * values * 3)


@stage("selective")
def norm_selective(counter, T, gains, sizes, low):
    """Norm the vectors of steps, keys and queries."""
    columns = counter.config.selective.step_rank + 2 * sizes.key_dim
    counter.note("decays and steps", T * 2 * columns * FLOAT, T * columns * 3)


@stage("selective")
def scan_selective(counter, batch, x, steps, low, gains, decays, skip, layer, sizes, out):
    """Scan the positions; the state is read once and written once for each sequence."""
    T, values = counter.T, sizes.value_heads * sizes.value_dim
    state = values * sizes.key_dim
    x.need(padded(2 * values, LANES))
    out.need(values)
    counter.note("scan", (3 * state + T * 4 * values) * FLOAT, T * (4 * state + 6 * values))


@stage("norms")
def add_normed(counter, T, branch, norm, sizes, hidden):
    """Add to the residual stream what a norm makes of a branch."""
    branch.need(hidden.columns)
    counter.note("norms after", T * sizes.hidden_size * 3 * FLOAT, T * sizes.hidden_size * 4)


@stage("norms")
def add_scaled(counter, T, branch, scales, hidden):
    """Add a branch to the residual stream, both scaled."""
    branch.need(hidden.columns)
    D = counter.config.hidden_size
    counter.note("sums of branches", T * 3 * D * FLOAT, T * 3 * D)


@stage("norms")
def interpolate(counter, T, branch, rates, sizes, hidden):
    """Draw the residual stream towards a branch, both of length 1."""
    branch.need(hidden.columns)
    counter.note("sums of branches", T * sizes.hidden_size * 6 * FLOAT, T * sizes.hidden_size * 7)


@stage("norms")
def hold_rows(counter, T, hidden, held):
    """Hold the residual stream for the loops that begin."""
    held.need(hidden.columns)
    counter.note("beginnings of loops", T * counter.config.hidden_size * 2 * FLOAT)


@stage("norms")
def rejoin_rows(counter, T, held, norm, sizes, hidden):
    """Begin the next loop with what is held, added to the residual stream and normed."""
    counter.note("beginnings of loops", T * sizes.hidden_size * 4 * FLOAT, T * sizes.hidden_size * 3)


@stage("layer_inputs")
def take_inputs(counter, T, table, ids, projected, gain, layer, sizes, gate_up):
    """Write a layer's inputs behind the gates of each token."""
    size, columns, row = sizes.layer_input_size, 0, 0
    if not isinstance(table, NoTable):
        columns, row = counter.columns(table), counter.bytes(table) // table.rows
    gate_up.need(size + max(size, columns) + LANES)
    counter.note("inputs of layers", T * (row + 3 * size * FLOAT), T * size * 4)


@stage("layer_inputs")
def scale_rows(counter, T, factor, hidden):
    """Multiply the residual stream by a number."""
    D = counter.config.hidden_size
    counter.note("factors of layers", T * D * 2 * FLOAT, T * D)


@stage("embedding")
def pick_rows(counter, T, rows, hidden, out):
    """Copy the rows whose logits are wanted."""
    out.need(hidden.columns)
    counter.note("norms and quantize", T * counter.config.hidden_size * FLOAT)


@stage("scores")
def cap_rows(counter, rows, logits, cap):
    """Cap the logits."""
    counter.note("soft cap", rows * counter.config.vocab_size * FLOAT, rows * counter.config.vocab_size * 4)
