"""The decoder's forward pass: token ids in, logits out, in one compiled function.

It reads like the paper: embedding, then for each layer attention and MLP, each behind a norm and added to the
residual stream, then the last norm and the output matrix. What only some families have is a type: a norm that is not
there (`NoNorm`), an MLP without a gate, beside attention or of experts (`PlainMlp`, `ParallelMlp`, `ExpertMlp`),
numbers without a cap. Of what a model does not have nothing is compiled. Models of which some layers have a convolution
in attention's place run `hybrid_forward`.

The same stages serve a whole prompt (T > 1) and one token (T = 1). Every thread runs the whole function and does its
share of each stage; a stage ends when all threads have done theirs, so that the next may read what they wrote. Three
kinds of arrays stay apart: parameters (never written), scratch (allocated once), cache.
"""

from tinychat.engine.arguments import ExpertMlp, GatedMlp, ParallelMlp
from tinychat.kernels.attend import attend
from tinychat.kernels.compile_queue import deferred_by_type
from tinychat.kernels.embedding import add_positions, embed, pick_rows
from tinychat.kernels.experts import (
    add_routed,
    choose_experts,
    group_rows,
    linear_routed,
    quantize_routed,
    quantize_routed_gated,
)
from tinychat.kernels.inputs import quantize_activated, quantize_gated, quantize_normed, quantize_plain
from tinychat.kernels.jit import by_type, entry_point, inline, is_kind
from tinychat.kernels.kv import layer_cache
from tinychat.kernels.linear import ADD, STORE, head, linear
from tinychat.kernels.memory import from_pointers, numbers_at
from tinychat.kernels.norms import add_normed, norm_rows, norm_width
from tinychat.kernels.rope import rope_append
from tinychat.kernels.scores import cap_rows
from tinychat.kernels.short_convolution import short_convolution
from tinychat.kernels.team import begin, record_time, release
from tinychat.kernels.team_queue import Team
from tinychat.kernels.variants import NoNorm, NoPositions, NoShared, Unchanged
from tinychat.kernels.weight_access import layer_of
from tinychat.kernels.weights import PerLayer


@inline
def forward(team, p, sizes, cache, s, attention, job, logits):
    """Run a job's rows, appending to the cache; leave logits of those that are wanted."""
    T, outputs = job.counts[0], job.counts[1]
    embed(team, T, p.embed_tokens, job.ids, sizes, s.hidden)
    finish_embedding(team, T, p, job.positions, sizes, s.hidden)
    for layer in range(sizes.num_hidden_layers):
        w, kv = layer_of(p.layers, layer), layer_cache(cache, layer)
        quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.qkv_proj, s)
        linear(team, T, w.qkv_proj, s, s.qkv, STORE)
        begin_parallel(team, T, w.mlp, sizes, s)
        norm_queries_keys(team, T, s.qkv, w.width_norm, sizes)
        rope_append(team, T, job, s.qkv, w.q_norm, w.k_norm, w.angles, w.rotary_dim, sizes, kv)
        attend(team, job, s.qkv, sizes, w.window, w.scoring, kv, attention, s.attended)
        quantize_plain(team, T, s.attended, w.o_proj, s)
        add_branch(team, T, w.o_proj, w.post_self_attn_layernorm, sizes, s)
        run_mlp(team, T, w.mlp, sizes, s)
    pick_rows(team, outputs, job.wanted, s.hidden, s.last_hidden)
    quantize_normed(team, outputs, s.last_hidden, p.norm, sizes, p.lm_head, s)
    head(team, outputs, p.lm_head, s, logits)
    cap_logits(team, outputs, logits, p.cap)


@inline
def hybrid_forward(team, p, sizes, cache, s, attention, job, logits):
    """Do the same in a model of `HybridLayers`.

    The lines are repeated: each function more that is written in makes the compilation longer, of all models.
    """
    T, outputs = job.counts[0], job.counts[1]
    embed(team, T, p.embed_tokens, job.ids, sizes, s.hidden)
    finish_embedding(team, T, p, job.positions, sizes, s.hidden)
    for layer in range(sizes.num_hidden_layers):
        parts = layer_of(p.layers, layer)
        kv = layer_cache(cache, parts.cache_layer)
        if parts.mixer.indices >= 0:
            w = parts.mixer.first
            quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.qkv_proj, s)
            linear(team, T, w.qkv_proj, s, s.qkv, STORE)
            norm_queries_keys(team, T, s.qkv, w.width_norm, sizes)
            rope_append(team, T, job, s.qkv, w.q_norm, w.k_norm, w.angles, w.rotary_dim, sizes, kv)
            attend(team, job, s.qkv, sizes, w.window, w.scoring, kv, attention, s.attended)
            quantize_plain(team, T, s.attended, w.o_proj, s)
            add_branch(team, T, w.o_proj, w.post_self_attn_layernorm, sizes, s)
        else:
            c = parts.mixer.second
            quantize_normed(team, T, s.hidden, c.input_layernorm, sizes, c.in_proj, s)
            linear(team, T, c.in_proj, s, s.qkv, STORE)
            short_convolution(team, T, job, s.qkv, c.taps, s.rows, sizes, kv, s.attended)
            quantize_plain(team, T, s.attended, c.out_proj, s)
            linear(team, T, c.out_proj, s, s.hidden, ADD)
        run_mlp(team, T, parts.mlp, sizes, s)
    pick_rows(team, outputs, job.wanted, s.hidden, s.last_hidden)
    quantize_normed(team, outputs, s.last_hidden, p.norm, sizes, p.lm_head, s)
    head(team, outputs, p.lm_head, s, logits)
    cap_logits(team, outputs, logits, p.cap)


@deferred_by_type
def finish_embedding(team, T, p, positions, sizes, hidden):
    """Add the vectors of positions to the embeddings, or norm them, where the model does so."""

    def learned(team, T, p, positions, sizes, hidden):
        add_positions(team, T, p.embed_positions, positions, hidden)

    def normed(team, T, p, positions, sizes, hidden):
        norm_rows(team, T, p.embed_norm, sizes, hidden)

    kinds = dict(zip(p.fields, p.types))
    if not is_kind(kinds["embed_positions"], NoPositions):
        return learned
    if not is_kind(kinds["embed_norm"], NoNorm):
        return normed
    return lambda team, T, p, positions, sizes, hidden: None


@deferred_by_type
def add_branch(team, T, weight, norm, sizes, s):
    """Apply the last linear of attention or MLP, and add what it gives to the residual stream, normed or not."""

    def plain(team, T, weight, norm, sizes, s):
        linear(team, T, weight, s, s.hidden, ADD)

    def normed(team, T, weight, norm, sizes, s):
        linear(team, T, weight, s, s.branch, STORE)
        add_normed(team, T, s.branch, norm, sizes, s.hidden)

    return plain if is_kind(norm, NoNorm) else normed


@deferred_by_type
def begin_mlp(team, T, mlp, sizes, s):
    """Run an MLP's norm and first linear."""

    def gated(team, T, mlp, sizes, s):
        quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.gate_up_proj, s)
        linear(team, T, mlp.gate_up_proj, s, s.gate_up, STORE)

    def plain(team, T, mlp, sizes, s):
        quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.up_proj, s)
        linear(team, T, mlp.up_proj, s, s.gate_up, STORE)

    return gated if is_kind(mlp, GatedMlp) else plain


@deferred_by_type
def end_mlp(team, T, mlp, sizes, s):
    """Run an MLP's activation and last linear, and add the result to the residual stream."""

    def gated(team, T, mlp, sizes, s):
        quantize_gated(team, T, s.gate_up, mlp.activation, sizes.intermediate_size, mlp.down_proj, s)
        add_branch(team, T, mlp.down_proj, mlp.post_mlp_layernorm, sizes, s)

    def plain(team, T, mlp, sizes, s):
        quantize_activated(team, T, s.gate_up, mlp.activation, sizes, mlp.down_proj, s)
        add_branch(team, T, mlp.down_proj, mlp.post_mlp_layernorm, sizes, s)

    return gated if is_kind(mlp, GatedMlp) else plain


@deferred_by_type
def begin_parallel(team, T, mlp, sizes, s):
    """Begin an MLP that stands beside attention, before attention changes the residual stream."""
    if is_kind(mlp, ParallelMlp):
        return lambda team, T, mlp, sizes, s: begin_mlp(team, T, mlp.mlp, sizes, s)
    return lambda team, T, mlp, sizes, s: None


@deferred_by_type
def run_mlp(team, T, mlp, sizes, s):
    """Run an MLP, or what remains of it."""

    def serial(team, T, mlp, sizes, s):
        begin_mlp(team, T, mlp, sizes, s)
        end_mlp(team, T, mlp, sizes, s)

    def per_layer(team, T, mlp, sizes, s):
        if mlp.indices >= 0:
            run_experts(team, T, mlp.first, sizes, s)
        else:
            begin_mlp(team, T, mlp.second, sizes, s)
            end_mlp(team, T, mlp.second, sizes, s)

    if is_kind(mlp, ParallelMlp):
        return lambda team, T, mlp, sizes, s: end_mlp(team, T, mlp.mlp, sizes, s)
    if is_kind(mlp, PerLayer):
        return per_layer
    if is_kind(mlp, ExpertMlp):
        return lambda team, T, mlp, sizes, s: run_experts(team, T, mlp, sizes, s)
    return serial


@inline
def run_experts(team, T, mlp, sizes, s):
    """Run an MLP of experts."""
    shared, e = has_shared(mlp.shared), s.experts
    quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.router, e.routing)
    linear(team, T, mlp.router, e.routing, e.logits, STORE)
    choose_experts(team, T, sizes.norm_topk_prob, shared, e)
    group_rows(team, T, e)
    run_shared(team, T, mlp, sizes, s)
    quantize_routed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, mlp.gate_up_proj, s.rows, e)
    linear_routed(team, mlp.gate_up_proj, e.gate_up, s.tiles, e)
    quantize_routed_gated(team, T, mlp.activation, sizes.expert_intermediate_size, mlp.down_proj, s.rows, e)
    linear_routed(team, mlp.down_proj, e.down, s.tiles, e)
    add_routed(team, T, shared, s.branch, s.hidden, e)


@by_type
def has_shared(shared):
    """Say whether there is an expert that all tokens pass."""
    return (lambda shared: False) if is_kind(shared, NoShared) else (lambda shared: True)


@deferred_by_type
def run_shared(team, T, mlp, sizes, s):
    """Run the expert that all tokens pass, where the model has one; leave what it gives in `s.branch`."""

    def run(team, T, mlp, sizes, s):
        size, shared = sizes.shared_intermediate_size, mlp.shared
        quantize_normed(team, T, s.hidden, mlp.post_attention_layernorm, sizes, shared.gate_up_proj, s)
        linear(team, T, shared.gate_up_proj, s, s.gate_up, STORE)
        quantize_gated(team, T, s.gate_up, mlp.activation, size, shared.down_proj, s)
        linear(team, T, shared.down_proj, s, s.branch, STORE)

    kinds = dict(zip(mlp.fields, mlp.types))
    return (lambda team, T, mlp, sizes, s: None) if is_kind(kinds["shared"], NoShared) else run


@deferred_by_type
def norm_queries_keys(team, T, qkv, norm, sizes):
    """Norm queries and keys over all heads, where the model does so."""
    if is_kind(norm, NoNorm):
        return lambda team, T, qkv, norm, sizes: None
    return lambda team, T, qkv, norm, sizes: norm_width(team, T, qkv, norm, sizes)


@deferred_by_type
def cap_logits(team, rows, logits, cap):
    """Cap the logits, where the model does so."""
    if is_kind(cap, Unchanged):
        return lambda team, rows, logits, cap: None
    return lambda team, rows, logits, cap: cap_rows(team, rows, logits, cap)


@entry_point
def worker_loop(thread, threads, queue_address, places_address, kind):
    """Do a share of the job that thread 0 posts: see `tinychat.engine.workers`.

    places_address, kind : of `Arguments`. A thread looks up where the arrays are when the job has begun, while the
    others wait for it, so it never meets those of another job. One that is let go reads on in them after the others
    have ended: `Workers.run` keeps them alive. The call to `forward` stands here once, for all threads: a second one
    would be compiled a second time.
    """
    queue = numbers_at(queue_address)
    while begin(queue, thread, threads):
        a = from_pointers(kind, numbers_at(places_address))
        team = Team(thread, queue, a.job.clocks)
        record_time(team)
        forward(team, a.parameters, a.sizes, a.cache, a.scratch, a.attention, a.job, a.logits)
        if thread == 0:
            release(queue)
            return True
    return False


@entry_point
def hybrid_worker_loop(thread, threads, queue_address, places_address, kind):
    """Do as `worker_loop`, for a model of `HybridLayers`."""
    queue = numbers_at(queue_address)
    while begin(queue, thread, threads):
        a = from_pointers(kind, numbers_at(places_address))
        team = Team(thread, queue, a.job.clocks)
        record_time(team)
        hybrid_forward(team, a.parameters, a.sizes, a.cache, a.scratch, a.attention, a.job, a.logits)
        if thread == 0:
            release(queue)
            return True
    return False
