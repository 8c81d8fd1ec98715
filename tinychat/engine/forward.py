"""The decoder's forward pass: token ids in, logits out. This and `engine.mlps` alone say how a layer is wired.

It reads like the paper: embedding, then for each layer attention and MLP, each behind a norm and added to the
residual stream, then the last norm and the output matrix. What only some families have is a kind of its own: a norm
that is not there (`NoNorm`), a short convolution or a state instead of attention, an MLP without a gate, beside
attention or of experts, numbers without a cap. A function that depends on a kind is `by_kind`: its own body is the
common case, which `where` replaces; or it does nothing `unless` the model has a part. Of what it does not have nothing
is compiled. What shall be compiled by itself is `by_kind`, too; a plain function is written into its caller, and
`engine.compiled` lists it.

This is plain Python, which `engine.compiled` compiles, calibration runs in NumPy (`conversion.float_pass`), and
`engine.counting` runs to find how much memory and work it takes. Its stages are the functions of `engine.stages` and
`engine.stream_stages`; others with a `team` only put stages together. They serve a whole prompt (T > 1) and one token
(T = 1). Every thread runs the whole function and does its share of each stage; a stage ends when all threads have done
theirs, so that the next may read what they wrote.
Three kinds of arrays stay apart: parameters (never written), scratch (allocated once), cache.
"""

import numpy as np

from tinychat.engine import arguments
from tinychat.engine.mlps import add_branch, begin_parallel, run_mlp
from tinychat.engine.stages import (
    add_positions,
    attend,
    cap_rows,
    channel_factors,
    channel_rule,
    convolve,
    delta_factors,
    delta_rule,
    embed,
    gate_attended,
    gate_heads,
    head,
    layer_cache,
    layer_of,
    linear,
    linear_heads,
    narrow_cache,
    norm_gated,
    norm_groups,
    norm_heads,
    norm_latents,
    norm_rows,
    norm_sigmoid,
    norm_values,
    norm_width,
    pick_rows,
    quantize_activated,
    quantize_latents,
    quantize_normed,
    quantize_plain,
    rope_append,
    rotate_queries,
    scale_queries,
    scale_rows,
    scan_steps,
    short_convolution,
    split_queries,
    step_factors,
    take_gates,
    take_inputs,
    wide_cache,
)
from tinychat.engine.stream_stages import (
    add_laurel,
    add_quarter,
    add_to_streams,
    correct_streams,
    match_streams,
    pick_quarter,
    pick_stream,
    predict_streams,
    route_streams,
)
from tinychat.engine.wiring import by_kind, unless
from tinychat.kernels.buffers import NoLatents, NoStreams
from tinychat.kernels.variants import (
    HeadsNorm,
    NoEnd,
    NoInputs,
    NoMixer,
    NoNorm,
    NoPositions,
    Unchanged,
)
from tinychat.kernels.weights import ADD, STORE, PerLayer

# The other streams. Not literals, for each of which a stage would be compiled once more.
FIRST, SECOND, THIRD = np.int64(0), np.int64(1), np.int64(2)


def forward(team, p, sizes, cache, s, attention, batch, logits):
    """Run a batch's rows, appending to the cache; leave logits of those that are wanted."""
    embed_ids(team, p, sizes, s, batch)
    for layer in range(sizes.num_hidden_layers):
        run_layer(team, layer_of(p.layers, layer), p.inputs, sizes, cache, s, attention, batch)
    predict(team, p, sizes, s, batch, logits)


def embed_ids(team, p, sizes, s, batch):
    """Begin the residual stream."""
    T = batch.counts[0]
    embed(team, T, p.embed_tokens, batch.ids, sizes, s.hidden)
    embed_positions(team, T, p.embed_positions, batch.positions, s.hidden)
    norm_embedding(team, T, p.embed_norm, sizes, s)
    project_inputs(team, T, p.inputs, sizes, s)
    begin_streams(team, T, p.streams, sizes, s)


def run_layer(team, w, inputs, sizes, cache, s, attention, batch):
    """Add the output of attention, or of the part that replaces it, to the residual stream, and then the MLP's."""
    T = batch.counts[0]
    begin_parallel(team, T, w.mlp, sizes, s)
    run_mixer(team, T, w.mixer, sizes, layer_cache(cache, w.cache_layer), s, attention, batch)
    run_mlp(team, T, w.mlp, sizes, s)
    end_layer(team, T, w.end, inputs, batch, sizes, s)


def predict(team, p, sizes, s, batch, logits):
    """Compute the logits of the rows that are wanted."""
    outputs = batch.counts[1]
    pick_hidden(team, outputs, p.streams, sizes, s, batch)
    quantize_normed(team, outputs, s.last_hidden, p.norm, sizes, p.lm_head, s)
    head(team, outputs, p.lm_head, s, logits)
    cap_logits(team, outputs, logits, p.cap)


@unless(vectors=NoPositions)
def embed_positions(team, T, vectors, positions, hidden):
    """Add the vectors of positions to the embeddings."""
    add_positions(team, T, vectors, positions, hidden)


@unless(norm=NoNorm)
def norm_embedding(team, T, norm, sizes, s):
    """Norm the embeddings."""
    norm_rows(team, T, norm, sizes, s.hidden)


@norm_embedding.where(norm=arguments.DraftInput)
def _(team, T, norm, sizes, s):
    quantize_normed(team, T, s.hidden, norm.embedding_norm, sizes, norm.embedding_proj, s)
    linear(team, T, norm.embedding_proj, s, s.hidden, STORE)
    quantize_normed(team, T, s.last_hidden, norm.hidden_norm, sizes, norm.hidden_proj, s)
    linear(team, T, norm.hidden_proj, s, s.hidden, ADD)


@unless(inputs=NoInputs)
def project_inputs(team, T, inputs, sizes, s):
    """Project the embeddings to the inputs of all layers."""
    quantize_normed(team, T, s.hidden, inputs.before, sizes, inputs.projection, s)
    linear(team, T, inputs.projection, s, s.inputs, STORE)


@unless(streams=NoStreams)
def begin_streams(team, T, streams, sizes, s):
    """Begin the other streams, with linears of the embeddings."""
    quantize_normed(team, T, s.hidden, streams.before, sizes, streams.projection, s)
    linear(team, T, streams.projection, s, s.streams.others, STORE)
    match_streams(team, T, s.hidden, sizes, s.streams.others)


@by_kind
def pick_hidden(team, outputs, streams, sizes, s, batch):
    """Pick the rows whose logits are wanted."""
    pick_rows(team, outputs, batch.wanted, s.hidden, s.last_hidden)


@pick_hidden.where(streams=arguments.Streams)
def _(team, outputs, streams, sizes, s, batch):
    pick_quarter(team, outputs, batch.wanted, s.hidden, s.last_hidden)
    end_stream(team, outputs, batch.wanted, FIRST, streams.first, sizes, s)
    end_stream(team, outputs, batch.wanted, SECOND, streams.second, sizes, s)
    end_stream(team, outputs, batch.wanted, THIRD, streams.third, sizes, s)


@by_kind
def end_stream(team, outputs, rows, stream, weight, sizes, s):
    """Add one of the other streams to the rows whose logits are wanted."""
    pick_stream(team, outputs, rows, s.streams.others, stream, sizes, s.branch)
    quantize_plain(team, outputs, s.branch, weight, s)
    linear(team, outputs, weight, s, s.branch, STORE)
    add_quarter(team, outputs, rows, s.hidden, s.branch, sizes, s.last_hidden)


@by_kind
def run_mixer(team, T, w, sizes, kv, s, attention, batch):
    """Run attention."""
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.qkv_proj, s)
    linear(team, T, w.qkv_proj, s, s.qkv, STORE)
    norm_queries_keys(team, T, s.qkv, w.width_norm, sizes)
    rope_append(team, T, batch, s.qkv, w.q_norm, w.k_norm, w.angles, w.rotary_dim, sizes, kv)
    scale_rotated(team, T, s.qkv, w.rotated_gains, sizes)
    attend(team, batch, s.qkv, sizes, w.window, w.scoring, kv, attention, s.attended)
    quantize_plain(team, T, s.attended, w.o_proj, s)
    add_branch(team, T, w.o_proj, w.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.ShortConvolution)
def _(team, T, w, sizes, kv, s, attention, batch):
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.in_proj, s)
    linear(team, T, w.in_proj, s, s.qkv, STORE)
    short_convolution(team, T, batch, s.qkv, w.taps, s.rows, sizes, kv, s.attended)
    quantize_plain(team, T, s.attended, w.out_proj, s)
    add_branch(team, T, w.out_proj, w.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.GatedAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.qkv, STORE)
    take_gates(team, T, s.qkv, sizes, s.states.heads)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    gate_attended(team, T, s.states.heads, sizes, s.attended)
    quantize_plain(team, T, s.attended, a.o_proj, s)
    add_branch(team, T, a.o_proj, a.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.HeadGatedAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, w.gates_proj, s.states.inputs)
    linear(team, T, w.gates_proj, s.states.inputs, s.states.gates, STORE)
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.qkv, STORE)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    gate_heads(team, T, s.states.gates, w.with_softplus, sizes, s.attended)
    quantize_plain(team, T, s.attended, a.o_proj, s)
    add_branch(team, T, a.o_proj, a.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.OtherHeads)
def _(team, T, w, sizes, kv, s, attention, batch):
    run_mixer(team, T, w.attention, w.sizes, kv, s, attention, batch)


@run_mixer.where(w=arguments.LatentAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.latents.down, STORE)
    norm_latents(team, T, s.latents.down, w.q_norm, w.kv_norm, sizes, s.latents.low, s.qkv)
    find_queries(team, T, w, w.q_proj, sizes, s)
    linear_heads(team, T, w.k_proj, s, s.qkv, sizes, sizes.head_dim)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    quantize_latents(team, T, s.attended, sizes, w.v_proj, s)
    linear_heads(team, T, w.v_proj, s, s.latents.values, sizes, sizes.v_head_dim)
    quantize_plain(team, T, s.latents.values, a.o_proj, s)
    linear(team, T, a.o_proj, s, s.hidden, ADD)


@by_kind
def find_queries(team, T, w, q_proj, sizes, s):
    """Find each head's query, from a latent of all."""
    quantize_plain(team, T, s.latents.low, q_proj, s)
    linear(team, T, q_proj, s, s.latents.queries, STORE)
    split_queries(team, T, s.latents.queries, sizes, w.k_proj, s, s.qkv)


@find_queries.where(q_proj=NoLatents)
def _(team, T, w, q_proj, sizes, s):
    split_queries(team, T, s.latents.down, sizes, w.k_proj, s, s.qkv)


@run_mixer.where(w=arguments.DeltaLayer)
def _(team, T, w, sizes, kv, s, attention, batch):
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.gates_proj, s.states.inputs)
    linear(team, T, w.gates_proj, s.states.inputs, s.states.gates, STORE)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.in_proj, s)
    linear(team, T, w.in_proj, s, s.qkv, STORE)
    convolve(team, batch, s.qkv, w.taps, w.taps_bias, w.layer, sizes)
    delta_factors(team, T, s.states.gates, w.log_decay, w.bias, s.qkv, sizes, s.states.factors)
    delta_rule(team, batch, s.qkv, s.states.factors, w.layer, sizes, s.states.out)
    norm_gated(team, T, s.qkv, w.norm, sizes, s.states.out)
    quantize_plain(team, T, s.states.out, w.out_proj, s)
    linear(team, T, w.out_proj, s, s.hidden, ADD)


@run_mixer.where(w=arguments.ChannelDeltaLayer)
def _(team, T, w, sizes, kv, s, attention, batch):
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.gates_proj, s.states.inputs)
    linear(team, T, w.gates_proj, s.states.inputs, s.states.gates, STORE)
    quantize_plain(team, T, s.states.gates, w.decay_proj, s.states.inputs)
    linear(team, T, w.decay_proj, s.states.inputs, s.states.decays, STORE)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.low_proj, s)
    linear(team, T, w.low_proj, s, s.states.low, STORE)
    quantize_plain(team, T, s.states.low, w.gate_proj, s)
    linear(team, T, w.gate_proj, s, s.states.heads, STORE)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.in_proj, s)
    linear(team, T, w.in_proj, s, s.qkv, STORE)
    convolve(team, batch, s.qkv, w.taps, w.taps_bias, w.layer, sizes)
    channel_factors(team, T, s.states.gates, w.log_decay, w.bias, s.qkv, sizes, s.states.decays, s.states.factors)
    channel_rule(team, batch, s.qkv, s.states.decays, s.states.factors, w.layer, sizes, s.states.out)
    norm_sigmoid(team, T, s.states.heads, w.norm, sizes, s.states.out)
    quantize_plain(team, T, s.states.out, w.out_proj, s)
    linear(team, T, w.out_proj, s, s.hidden, ADD)


@run_mixer.where(w=arguments.MambaLayer)
def _(team, T, w, sizes, kv, s, attention, batch):
    run_scan(team, T, w, sizes, s, batch)
    quantize_plain(team, T, s.states.out, w.out_proj, s)
    linear(team, T, w.out_proj, s, s.hidden, ADD)


@run_mixer.where(w=arguments.MambaBeside)
def _(team, T, w, sizes, kv, s, attention, batch):
    run_scan(team, T, w.mamba, sizes, s, batch)
    run_mixer(team, T, w.attention, sizes, kv, s, attention, batch)
    quantize_plain(team, T, s.states.out, w.mamba.out_proj, s)
    linear(team, T, w.mamba.out_proj, s, s.hidden, ADD)


@by_kind
def run_scan(team, T, w, sizes, s, batch):
    """Run Mamba-2 up to its last linear."""
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.steps_proj, s.states.inputs)
    linear(team, T, w.steps_proj, s.states.inputs, s.states.gates, STORE)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.in_proj, s)
    linear(team, T, w.in_proj, s, s.qkv, STORE)
    convolve(team, batch, s.qkv, w.taps, w.taps_bias, w.layer, sizes)
    step_factors(team, T, s.states.gates, w.log_decay, w.bias, w.limits, sizes, s.states.factors)
    scan_steps(team, batch, s.qkv, s.states.factors, w.skip, w.layer, sizes, s.states.out)
    norm_scanned(team, T, w.norm, sizes, s.states.out)


@unless(norm=NoNorm)
def norm_scanned(team, T, norm, sizes, out):
    """Norm what Mamba-2's gates let through."""
    norm_groups(team, T, norm, sizes, out)


@run_mixer.where(w=arguments.VariedAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    begin_attention(team, T, w.keys, w, sizes, kv, s, batch)
    attend(team, batch, s.qkv, sizes, w.window, w.scoring, kv, attention, s.attended)
    quantize_plain(team, T, s.attended, w.o_proj, s)
    add_branch(team, T, w.o_proj, w.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=NoMixer)
def _(team, T, w, sizes, kv, s, attention, batch):
    pass


@run_mixer.where(w=arguments.StreamMixer)
def _(team, T, w, sizes, kv, s, attention, batch):
    route_streams(team, T, s.hidden, w.router, sizes, s.streams.factors)
    predict_streams(team, T, s.streams.factors, sizes, s.hidden, s.streams.others, s.streams.before)
    run_mixer(team, T, w.attention, sizes, kv, s, attention, batch)
    quantize_normed(team, T, s.streams.before, w.attention.input_layernorm, sizes, w.left, s)
    linear(team, T, w.left, s, s.streams.low, STORE)
    quantize_plain(team, T, s.streams.low, w.right, s)
    linear(team, T, w.right, s, s.branch, STORE)
    add_laurel(team, T, s.branch, w.norm, s.streams.before, w.attention.input_layernorm, sizes, s.hidden)


@run_mixer.where(w=PerLayer)
def _(team, T, w, sizes, kv, s, attention, batch):
    if w.indices >= 0:
        run_mixer(team, T, w.first, sizes, narrow_cache(kv), s, attention, batch)
    else:
        run_mixer(team, T, w.second, sizes, wide_cache(kv), s, attention, batch)


@by_kind
def begin_attention(team, T, keys, w, sizes, kv, s, batch):
    """Compute queries, and append keys and values, which are normed."""
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, keys.qkv_proj, s)
    linear(team, T, keys.qkv_proj, s, s.qkv, STORE)
    norm_values(team, T, s.qkv, sizes, kv)
    rope_append(team, T, batch, s.qkv, w.q_norm, keys.k_norm, w.angles, w.rotary_dim, sizes, kv)


@begin_attention.where(keys=arguments.OthersKeys)
def _(team, T, keys, w, sizes, kv, s, batch):
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, keys.q_proj, s)
    linear(team, T, keys.q_proj, s, s.qkv, STORE)
    rotate_queries(team, T, batch, s.qkv, w.q_norm, w.angles, w.rotary_dim, sizes, kv)


@begin_attention.where(keys=PerLayer)
def _(team, T, keys, w, sizes, kv, s, batch):
    if keys.indices >= 0:
        begin_attention(team, T, keys.first, w, sizes, kv, s, batch)
    else:
        begin_attention(team, T, keys.second, w, sizes, kv, s, batch)


@unless(norm=NoNorm)
def norm_queries_keys(team, T, qkv, norm, sizes):
    """Norm queries and keys over all heads."""
    norm_width(team, T, qkv, norm, sizes)


@norm_queries_keys.where(norm=HeadsNorm)
def _(team, T, qkv, norm, sizes):
    norm_heads(team, T, qkv, norm, sizes)


@unless(gains=NoNorm)
def scale_rotated(team, T, qkv, gains, sizes):
    """Multiply queries by the gains of norms that stand behind the rotation."""
    scale_queries(team, T, qkv, gains, sizes)


@unless(end=NoEnd)
def end_layer(team, T, end, inputs, batch, sizes, s):
    """Add the layer's own input to the residual stream, and multiply that."""
    add_input(team, T, end.input, inputs, batch, sizes, s)
    scale_rows(team, T, end.scale, s.hidden)


@end_layer.where(end=arguments.StreamEnd)
def _(team, T, end, inputs, batch, sizes, s):
    route_streams(team, T, s.hidden, end.router, sizes, s.streams.factors)
    correct_streams(team, T, s.streams.factors, end.scale, sizes, s.streams.before, s.hidden, s.streams.others)
    quantize_plain(team, T, s.streams.before, end.input.gate, s)
    gate_input(team, T, end.input, inputs, batch, sizes, s)
    linear(team, T, end.input.projection, s, s.branch, STORE)
    add_to_streams(team, T, s.branch, end.input.norm, sizes, s.streams.others)


@unless(w=NoInputs)
def add_input(team, T, w, inputs, batch, sizes, s):
    """Add to the residual stream what its gates let through of the layer's own input."""
    quantize_normed(team, T, s.hidden, inputs.before, sizes, w.gate, s)
    gate_input(team, T, w, inputs, batch, sizes, s)
    add_branch(team, T, w.projection, w.norm, sizes, s)


@by_kind
def gate_input(team, T, w, inputs, batch, sizes, s):
    """Write for its projection what the gates let through of the layer's own input."""
    linear(team, T, w.gate, s, s.gate_up, STORE)
    take_inputs(team, T, inputs.table, batch.ids, s.inputs, inputs.norm, w.layer, sizes, s.gate_up)
    quantize_activated(team, T, s.gate_up, w.activation, sizes.layer_input_size, w.projection, s)


@unless(cap=Unchanged)
def cap_logits(team, rows, logits, cap):
    """Cap the logits."""
    cap_rows(team, rows, logits, cap)
