"""The decoder's forward pass: token ids in, logits out.

This, `engine.mixers`, `engine.mlps` and `engine.block_layers` alone say how a layer is wired. It reads like the paper:
embedding, then for each layer attention and MLP, each behind a norm and added to the residual stream, then the last
norm and the output matrix. What only some families have is a kind of its own: a norm that is not there (`NoNorm`), a
short convolution or a state instead of attention, an MLP without a gate, beside attention or of experts, numbers
without a cap. A function that depends on a kind is `by_kind`: its own body is the common case, which `where` replaces;
or it does nothing `unless` the model has a part. Of what it does not have nothing is compiled. What shall be compiled
by itself is `by_kind`, too; a plain function is written into its caller, and `engine.compiled` lists it.

This is plain Python, which `engine.compiled` compiles, calibration runs in NumPy (`conversion.float_pass`), and
`engine.counting` runs to find how much memory and work it takes. Its stages are the functions of `engine.stages`,
`engine.expert_stages` and `engine.stream_stages`; others with a `team` only put stages together. They serve a whole
prompt (T > 1) and one token (T = 1). Every thread runs the whole function and does its share of each stage; a stage
ends when all threads have done theirs, so that the next may read what they wrote. Three kinds of arrays stay apart:
parameters (never written), scratch (allocated once), cache.
"""

import numpy as np

from tinychat.engine import block_parts, draft_parts, patch_parts, stream_parts
from tinychat.engine.block_layers import end_mixture
from tinychat.engine.block_stages import mix_slots
from tinychat.engine.dory_parts import HOLD, REJOIN, LoopEnd
from tinychat.engine.expert_stages import (
    choose_experts,
    group_rows,
    linear_routed,
    quantize_routed,
    scatter_logits,
    spread_logits,
)
from tinychat.engine.mixers import run_mixer
from tinychat.engine.mlps import add_branch, begin_parallel, run_mlp
from tinychat.engine.stages import (
    add_positions,
    cap_rows,
    embed,
    head,
    hold_rows,
    keep_rows,
    layer_cache,
    layer_of,
    linear,
    norm_rows,
    pick_rows,
    quantize_activated,
    quantize_normed,
    quantize_plain,
    rejoin_rows,
    scale_rows,
    take_inputs,
)
from tinychat.engine.stream_stages import (
    add_image_rows,
    add_quarter,
    add_to_streams,
    correct_streams,
    match_streams,
    pick_quarter,
    pick_stream,
    place_rows,
    route_streams,
)
from tinychat.engine.wiring import by_kind, unless
from tinychat.kernels.buffers import NoStreams
from tinychat.kernels.variants import DeepImages, NoEnd, NoImages, NoInputs, NoNorm, NoPositions, Unchanged
from tinychat.kernels.weights import ADD, STORE

# The other streams. Not literals, for each of which a stage would be compiled once more.
FIRST, SECOND, THIRD = np.int64(0), np.int64(1), np.int64(2)


def forward(team, p, sizes, cache, s, attention, batch, logits):
    """Run a batch's rows, appending to the cache; leave logits of those that are wanted."""
    embed_ids(team, p, sizes, s, batch)
    for layer in range(sizes.num_hidden_layers):
        keep_rows(team, batch.counts[0], batch.kept, layer, s.hidden, s.kept)
        run_layer(team, layer_of(p.layers, layer), p.inputs, sizes, cache, s, attention, batch)
        add_images(team, batch.counts[0], p.images, layer, batch.images, s)
    keep_rows(team, batch.counts[0], batch.kept, sizes.num_hidden_layers, s.hidden, s.kept)
    predict(team, p, sizes, s, batch, logits)


def embed_ids(team, p, sizes, s, batch):
    """Begin the residual stream."""
    T = batch.counts[0]
    embed_inputs(team, T, p.embed_tokens, sizes, s, batch)
    place_images(team, T, p.images, batch.images, s)
    embed_positions(team, T, p.embed_positions, batch.vectors, s.hidden)
    norm_embedding(team, T, p.embed_norm, sizes, s, batch)
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
    find_logits(team, outputs, p.lm_head, p.norm, sizes, s, logits)
    cap_logits(team, outputs, logits, p.cap)
    project_state(team, outputs, p.state, p.norm, sizes, s)


@by_kind
def embed_inputs(team, T, weight, sizes, s, batch):
    """Write the embeddings of the ids."""
    embed(team, T, weight, batch.ids, sizes, s.hidden)


@embed_inputs.where(weight=patch_parts.PatchInput)
def _(team, T, weight, sizes, s, batch):
    quantize_plain(team, T, s.inputs, weight.projection, s)
    linear(team, T, weight.projection, s, s.hidden, STORE)


@embed_inputs.where(weight=patch_parts.PlacedPatchInput)
def _(team, T, weight, sizes, s, batch):
    pick_rows(team, T, batch.vectors, s.last_hidden, s.hidden)
    quantize_plain(team, T, s.inputs, weight.projection, s)
    linear(team, T, weight.projection, s, s.hidden, ADD)


@unless(images=NoImages)
def place_images(team, T, images, replaced, s):
    """Replace the embeddings of image tokens by the rows of the images."""
    place_rows(team, T, replaced, s.images, s.hidden)


@by_kind
def add_images(team, T, images, layer, replaced, s):
    """Add to the residual stream the part that rows of images have for this layer's outputs."""


@add_images.where(images=DeepImages)
def _(team, T, images, layer, replaced, s):
    if layer < images.layers:
        add_image_rows(team, T, replaced, s.images, layer + 1, s.hidden)


@unless(vectors=NoPositions)
def embed_positions(team, T, vectors, rows, hidden):
    """Add the vectors of positions to the embeddings."""
    add_positions(team, T, vectors, rows, hidden)


@unless(norm=NoNorm)
def norm_embedding(team, T, norm, sizes, s, batch):
    """Norm the embeddings."""
    norm_rows(team, T, norm, sizes, s.hidden)


@norm_embedding.where(norm=draft_parts.DraftInput)
def _(team, T, norm, sizes, s, batch):
    quantize_normed(team, T, s.hidden, norm.embedding_norm, sizes, norm.embedding_proj, s)
    linear(team, T, norm.embedding_proj, s, s.hidden, STORE)
    quantize_normed(team, T, s.last_hidden, norm.hidden_norm, sizes, norm.hidden_proj, s)
    linear(team, T, norm.hidden_proj, s, s.hidden, ADD)


@norm_embedding.where(norm=draft_parts.StatesInput)
def _(team, T, norm, sizes, s, batch):
    quantize_normed(team, T, s.hidden, norm.embedding_norm, sizes, norm.qkv_proj, s)
    linear(team, T, norm.qkv_proj, s, s.qkv, STORE)
    # A step has either the larger model's states, or hidden states that were made in a draft, of an id each.
    quantize_plain(team, batch.counts[3], s.inputs, norm.states_proj, s)
    linear(team, batch.counts[3], norm.states_proj, s, s.hidden, STORE)
    pick_rows(team, T - batch.counts[3], batch.wanted, s.last_hidden, s.hidden)
    norm_hidden(team, T, norm.hidden_norm, sizes, s)


@unless(norm=NoNorm)
def norm_hidden(team, T, norm, sizes, s):
    """Norm the hidden states that the residual stream begins with."""
    norm_rows(team, T, norm, sizes, s.hidden)


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


@begin_streams.where(streams=block_parts.MixtureOutput)
def _(team, T, streams, sizes, s):
    pass


@by_kind
def pick_hidden(team, outputs, streams, sizes, s, batch):
    """Pick the rows whose logits are wanted."""
    pick_rows(team, outputs, batch.wanted, s.hidden, s.last_hidden)


@pick_hidden.where(streams=stream_parts.Streams)
def _(team, outputs, streams, sizes, s, batch):
    pick_quarter(team, outputs, batch.wanted, s.hidden, s.last_hidden)
    end_stream(team, outputs, batch.wanted, FIRST, streams.first, sizes, s)
    end_stream(team, outputs, batch.wanted, SECOND, streams.second, sizes, s)
    end_stream(team, outputs, batch.wanted, THIRD, streams.third, sizes, s)


@pick_hidden.where(streams=block_parts.MixtureOutput)
def _(team, outputs, streams, sizes, s, batch):
    m, T = s.streams, batch.counts[0]
    mix_slots(team, T, m.others, streams.seen, s.hidden, True, streams.query, 0, sizes, m.factors, m.mixed)
    pick_rows(team, outputs, batch.wanted, m.mixed, s.last_hidden)


@by_kind
def end_stream(team, outputs, rows, stream, weight, sizes, s):
    """Add one of the other streams to the rows whose logits are wanted."""
    pick_stream(team, outputs, rows, s.streams.others, stream, sizes, s.branch)
    quantize_plain(team, outputs, s.branch, weight, s)
    linear(team, outputs, weight, s, s.branch, STORE)
    add_quarter(team, outputs, rows, s.hidden, s.branch, sizes, s.last_hidden)


@unless(end=NoEnd)
def end_layer(team, T, end, inputs, batch, sizes, s):
    """Add the layer's own input to the residual stream, and multiply that."""
    add_input(team, T, end.input, inputs, batch, sizes, s)
    scale_rows(team, T, end.scale, s.hidden)


@end_layer.where(end=stream_parts.StreamEnd)
def _(team, T, end, inputs, batch, sizes, s):
    route_streams(team, T, s.hidden, end.router, sizes, s.streams.factors)
    correct_streams(team, T, s.streams.factors, end.scale, sizes, s.streams.before, s.hidden, s.streams.others)
    quantize_plain(team, T, s.streams.before, end.input.gate, s)
    gate_input(team, T, end.input, inputs, batch, sizes, s)
    linear(team, T, end.input.projection, s, s.branch, STORE)
    add_to_streams(team, T, s.branch, end.input.norm, sizes, s.streams.others)


@end_layer.where(end=LoopEnd)
def _(team, T, end, inputs, batch, sizes, s):
    if end.step == HOLD:
        hold_rows(team, T, s.hidden, s.last_hidden)
    elif end.step == REJOIN:
        rejoin_rows(team, T, s.last_hidden, end.norm, sizes, s.hidden)


@end_layer.where(end=block_parts.MixtureEnd)
def _(team, T, end, inputs, batch, sizes, s):
    end_mixture(team, T, end, batch, sizes, s)


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


@unless(weight=patch_parts.NoOutput)
def find_logits(team, outputs, weight, norm, sizes, s, logits):
    """Compute logits of normed rows."""
    quantize_normed(team, outputs, s.last_hidden, norm, sizes, weight, s)
    head(team, outputs, weight, s, logits)


@find_logits.where(weight=draft_parts.FrequentOutput)
def _(team, outputs, weight, norm, sizes, s, logits):
    quantize_normed(team, outputs, s.last_hidden, norm, sizes, weight.rows, s)
    linear(team, outputs, weight.rows, s, s.branch, STORE)
    spread_logits(team, outputs, weight.ids, s.branch, logits)


@find_logits.where(weight=draft_parts.ClusteredOutput)
def _(team, outputs, weight, norm, sizes, s, logits):
    e = s.experts
    quantize_normed(team, outputs, s.last_hidden, norm, sizes, weight.centroids, e.routing)
    linear(team, outputs, weight.centroids, e.routing, e.logits, STORE)
    choose_experts(team, outputs, sizes, e)
    group_rows(team, outputs, e)
    quantize_routed(team, outputs, s.last_hidden, norm, sizes, weight.clusters, s.rows, e)
    linear_routed(team, weight.clusters, e.gate_up, s.tiles, e)
    scatter_logits(team, outputs, weight.ordering, e, logits)


@unless(state=draft_parts.NoState)
def project_state(team, outputs, state, norm, sizes, s):
    """Make the hidden states that a drafter reads for the next tokens, in the place of those that it has read."""
    quantize_normed(team, outputs, s.last_hidden, norm, sizes, state, s)
    linear(team, outputs, state, s, s.last_hidden, STORE)


@unless(cap=Unchanged)
def cap_logits(team, rows, logits, cap):
    """Cap the logits."""
    cap_rows(team, rows, logits, cap)
