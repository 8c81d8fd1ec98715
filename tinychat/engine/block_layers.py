"""Layers that read mixtures of blocks, and run in loops: see `engine.forward` and `models.block_mixtures`."""

from tinychat.engine import block_parts
from tinychat.engine.block_stages import (
    add_rows,
    append_clipped,
    clip_queries,
    convolve_by_token,
    convolve_rows,
    load_slot,
    mix_slots,
    store_slot,
    take_message,
)
from tinychat.engine.expert_stages import clear_rows
from tinychat.engine.mixers import run_mixer
from tinychat.engine.mlps import run_experts, run_mlp
from tinychat.engine.stages import (
    attend,
    gate_attended,
    hold_rows,
    linear,
    quantize_normed,
    quantize_plain,
    take_gates,
)
from tinychat.engine.wiring import by_kind
from tinychat.kernels.variants import ProfileBias
from tinychat.kernels.weights import ADD, STORE, PerLayer


@run_mixer.where(w=block_parts.MixtureMixer)
def _(team, T, w, sizes, kv, s, attention, batch):
    if w.visit.begin >= 0:
        load_slot(team, T, s.streams.others, w.visit.begin, sizes, s.hidden)
    attend_mixtures(team, T, w.attention, w, sizes, kv, s, attention, batch)
    gate_attended(team, T, s.states.heads, sizes, s.attended)
    quantize_plain(team, T, s.attended, w.o_proj, s)
    linear(team, T, w.o_proj, s, s.branch, STORE)
    convolve_rows(team, batch, s.branch, w.taps, w.states.attention, sizes)
    if w.visit.append >= 0:
        store_slot(team, T, s.hidden, w.visit.append, sizes, s.streams.others)
        hold_rows(team, T, s.branch, s.hidden)
    else:
        add_rows(team, T, s.hidden, s.branch, sizes, s.hidden)


@by_kind
def attend_mixtures(team, T, a, w, sizes, kv, s, attention, batch):
    """Attend from a mixture to the keys and values of others."""
    m, first = s.streams, sizes.num_attention_heads * sizes.head_dim
    mix(team, T, w.visit, a.queries, a.step, w.key_gate, sizes, s)
    quantize_normed(team, T, m.mixed, a.key_norm, sizes, w.key_proj, s)
    linear(team, T, w.key_proj, s, m.keys, STORE)
    convolve_keys(team, T, batch, m.keys, a.key_norm, a.key_taps, a.key_taps_proj, w.states.keys, sizes, s)
    mix(team, T, w.visit, a.queries, 2 * a.step, w.value_gate, sizes, s)
    quantize_normed(team, T, m.mixed, a.value_norm, sizes, w.value_proj, s)
    linear(team, T, w.value_proj, s, m.values, STORE)
    convolve_keys(team, T, batch, m.values, a.value_norm, a.value_taps, a.value_taps_proj, w.states.values, sizes, s)
    mix(team, T, w.visit, a.queries, 0 * a.step, w.query_gate, sizes, s)
    quantize_normed(team, T, m.mixed, a.query_norm, sizes, w.query_proj, s)
    linear(team, T, w.query_proj, s, s.qkv, STORE)
    take_gates(team, T, s.qkv, sizes, s.states.heads)
    clip_queries(team, T, batch, s.qkv, w.clips, sizes)
    append_clipped(team, T, batch, m.keys, m.values, w.clips, sizes, kv)
    scoring = ProfileBias(a.profiles, s.qkv, first, sizes.num_attention_heads)
    attend(team, batch, s.qkv, sizes, w.window, scoring, kv, attention, s.attended)


@attend_mixtures.where(a=PerLayer)
def _(team, T, a, w, sizes, kv, s, attention, batch):
    if a.indices >= 0:
        attend_mixtures(team, T, a.first, w, sizes, kv, s, attention, batch)
    else:
        attend_mixtures(team, T, a.second, w, sizes, kv, s, attention, batch)


@by_kind
def mix(team, T, visit, queries, query, gate, sizes, s):
    """Mix slots and the residual stream, and take the message in that the loop before has for them."""
    m = s.streams
    seen = visit.attention
    mix_slots(team, T, m.others, seen, s.hidden, True, queries, query, sizes, m.factors, m.mixed)
    if visit.message.others > 0:
        read_message(team, T, visit, gate, m.mixed, sizes, s)


@by_kind
def read_message(team, T, visit, gate, x, sizes, s):
    """Take a message of the loop before in."""
    m = s.streams
    seen, queries = visit.message, gate.queries
    mix_slots(team, T, m.others, seen, s.hidden, False, queries, gate.query, sizes, m.factors, m.message)
    quantize_normed(team, T, x, gate.norm, sizes, gate.mixture_proj, s)
    linear(team, T, gate.mixture_proj, s, m.low, STORE)
    quantize_normed(team, T, m.message, gate.norm, sizes, gate.message_proj, s)
    linear(team, T, gate.message_proj, s, m.low, ADD)
    quantize_plain(team, T, m.low, gate.gates_proj, s)
    linear(team, T, gate.gates_proj, s, m.gates, STORE)
    take_message(team, T, m.gates, m.message, sizes, x)


@by_kind
def convolve_keys(team, T, batch, x, norm, taps, taps_proj, offset, sizes, s):
    """Convolve keys or values, with taps that each token has for itself."""
    quantize_normed(team, T, s.streams.mixed, norm, sizes, taps_proj, s.states.inputs)
    linear(team, T, taps_proj, s.states.inputs, s.states.gates, STORE)
    convolve_by_token(team, batch, x, taps, s.states.gates, offset, sizes)


@convolve_keys.where(taps_proj=block_parts.NoTaps)
def _(team, T, batch, x, norm, taps, taps_proj, offset, sizes, s):
    convolve_rows(team, batch, x, taps, offset, sizes)


@run_mlp.where(mlp=block_parts.MixtureMlp)
def _(team, T, mlp, sizes, s):
    m, visit = s.streams, mlp.visit
    hold_rows(team, T, s.hidden, m.before)
    mix_slots(team, T, m.others, visit.mlp, m.before, True, mlp.query, 0, sizes, m.factors, s.hidden)
    if visit.message.others > 0:
        read_message(team, T, visit, mlp.gate, s.hidden, sizes, s)
    clear_rows(team, T, s.hidden, s.last_hidden)
    run_experts(team, T, mlp.experts, mlp.experts.post_attention_layernorm, s.last_hidden, sizes, s)


@by_kind
def end_mixture(team, T, end, batch, sizes, s):
    """Convolve what experts give, add it to the residual stream, and keep that where a loop ends."""
    convolve_rows(team, batch, s.last_hidden, end.taps, end.states.mlp, sizes)
    add_rows(team, T, s.streams.before, s.last_hidden, sizes, s.hidden)
    if end.visit.keep >= 0:
        store_slot(team, T, s.hidden, end.visit.keep, sizes, s.streams.others)
