"""The mixers of `engine.forward`, which see other positions: attention, and the parts in its place or beside it."""

from tinychat.engine import arguments, draft_parts, patch_parts, stream_parts
from tinychat.engine.dory_parts import OtherWidth
from tinychat.engine.mlps import add_branch, add_result, project_clipped
from tinychat.engine.stages import (
    attend,
    channel_factors,
    channel_rule,
    convolve,
    convolve_heads,
    delta_factors,
    delta_rule,
    gate_attended,
    gate_heads,
    linear,
    linear_heads,
    narrow_cache,
    norm_gated,
    norm_groups,
    norm_heads,
    norm_latents,
    norm_lengths,
    norm_selective,
    norm_sigmoid,
    norm_values,
    norm_width,
    quantize_heads,
    quantize_normed,
    quantize_plain,
    rope_append,
    rotate_queries,
    scale_queries,
    scan_selective,
    scan_steps,
    short_convolution,
    split_queries,
    step_factors,
    take_gates,
    wide_cache,
)
from tinychat.engine.stream_stages import add_laurel, predict_streams, route_streams
from tinychat.engine.wiring import by_kind, unless
from tinychat.kernels.buffers import NoLatents
from tinychat.kernels.variants import HeadsNorm, NoGates, NoLatent, NoMixer, NoNorm
from tinychat.kernels.weights import ADD, STORE, PerLayer


@by_kind
def run_mixer(team, T, w, sizes, kv, s, attention, batch):
    """Run attention."""
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.qkv_proj, s)
    linear(team, T, w.qkv_proj, s, s.qkv, STORE)
    norm_queries_keys(team, T, s.qkv, w.width_norm, sizes)
    rope_append(team, T, batch, s.qkv, w.q_norm, w.k_norm, w.angles, w.rotary_dim, sizes, kv)
    scale_rotated(team, T, s.qkv, w.rotated_gains, sizes)
    attend(team, batch, s.qkv, sizes, w.window, w.scoring, kv, attention, s.attended)
    read_attended(team, T, w.attended_norm, sizes, w.o_proj, s)
    add_branch(team, T, w.o_proj, w.post_self_attn_layernorm, sizes, s)


@by_kind
def read_attended(team, T, norm, sizes, weight, s):
    """Write what attention gives, normed, for its last linear."""
    quantize_normed(team, T, s.attended, norm, sizes, weight, s)


@read_attended.where(norm=NoNorm)
def _(team, T, norm, sizes, weight, s):
    quantize_plain(team, T, s.attended, weight, s)


@read_attended.where(norm=OtherWidth)
def _(team, T, norm, sizes, weight, s):
    quantize_normed(team, T, s.attended, norm.norm, norm.sizes, weight, s)


@run_mixer.where(w=draft_parts.StatesAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.qkv, ADD)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    quantize_plain(team, T, s.attended, a.o_proj, s)
    add_branch(team, T, a.o_proj, a.post_self_attn_layernorm, sizes, s)


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
    scale_rotated(team, T, s.qkv, a.rotated_gains, sizes)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    gate_attended(team, T, s.states.heads, sizes, s.attended)
    read_attended(team, T, a.attended_norm, sizes, a.o_proj, s)
    add_branch(team, T, a.o_proj, a.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.HeadGatedAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    find_head_gates(team, T, w.gates, a.input_layernorm, sizes, s)
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.qkv, STORE)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    gate_heads(team, T, s.states.gates, w.gates.with_softplus, sizes, sizes.head_dim, s.attended)
    quantize_plain(team, T, s.attended, a.o_proj, s)
    add_branch(team, T, a.o_proj, a.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.CompressedAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.qkv, STORE)
    convolve_heads(team, batch, s.qkv, w.taps, w.taps_bias, w.layer, sizes, s.states.heads)
    quantize_heads(team, T, s.states.heads, sizes.value_heads, 2 * sizes.head_dim, w.heads_proj, s)
    linear_heads(team, T, w.heads_proj, s, s.states.out, sizes.value_heads, sizes.head_dim)
    norm_lengths(team, T, s.states.out, w.key_scales, sizes, s.qkv)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    quantize_plain(team, T, s.attended, a.o_proj, s)
    add_branch(team, T, a.o_proj, a.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=arguments.OtherHeads)
def _(team, T, w, sizes, kv, s, attention, batch):
    run_mixer(team, T, w.attention, w.sizes, kv, s, attention, batch)


@unless(gates=NoGates)
def find_head_gates(team, T, gates, norm, sizes, s):
    """Find the gate of each head."""
    quantize_normed(team, T, s.hidden, norm, sizes, gates.gates_proj, s.states.inputs)
    linear(team, T, gates.gates_proj, s.states.inputs, s.states.gates, STORE)


@run_mixer.where(w=arguments.LatentAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    a = w.attention
    find_head_gates(team, T, w.gates, a.input_layernorm, sizes, s)
    quantize_normed(team, T, s.hidden, a.input_layernorm, sizes, a.qkv_proj, s)
    linear(team, T, a.qkv_proj, s, s.latents.down, STORE)
    norm_latents(team, T, s.latents.down, w.q_norm, w.kv_norm, sizes, s.latents.low, s.qkv)
    find_queries(team, T, w, w.q_proj, sizes, s)
    linear_heads(team, T, w.k_proj, s, s.qkv, sizes.num_attention_heads, sizes.head_dim)
    rope_append(team, T, batch, s.qkv, a.q_norm, a.k_norm, a.angles, a.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, a.window, a.scoring, kv, attention, s.attended)
    quantize_heads(team, T, s.attended, sizes.num_attention_heads, sizes.kv_lora_rank, w.v_proj, s)
    linear_heads(team, T, w.v_proj, s, s.latents.values, sizes.num_attention_heads, sizes.v_head_dim)
    gate_latents(team, T, w.gates, sizes, s)
    quantize_plain(team, T, s.latents.values, a.o_proj, s)
    linear(team, T, a.o_proj, s, s.hidden, ADD)


@unless(gates=NoGates)
def gate_latents(team, T, gates, sizes, s):
    """Multiply what latent attention gives each head by its gate."""
    gate_heads(team, T, s.states.gates, gates.with_softplus, sizes, sizes.v_head_dim, s.latents.values)


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
    find_channel_gates(team, T, w, w.low_proj, sizes, s)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.in_proj, s)
    linear(team, T, w.in_proj, s, s.qkv, STORE)
    convolve(team, batch, s.qkv, w.taps, w.taps_bias, w.layer, sizes)
    channel_factors(team, T, s.states.gates, w.log_decay, w.bias, s.qkv, sizes, s.states.decays, s.states.factors)
    channel_rule(team, batch, s.qkv, s.states.decays, s.states.factors, w.layer, sizes, s.states.out)
    norm_sigmoid(team, T, s.states.heads, w.norm, sizes, s.states.out)
    quantize_plain(team, T, s.states.out, w.out_proj, s)
    linear(team, T, w.out_proj, s, s.hidden, ADD)


@by_kind
def find_channel_gates(team, T, w, low_proj, sizes, s):
    """Find what decays of channels and gates of the output are made of, from vectors of the layer's input."""
    quantize_plain(team, T, s.states.gates, w.decay_proj, s.states.inputs)
    linear(team, T, w.decay_proj, s.states.inputs, s.states.decays, STORE)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, low_proj, s)
    linear(team, T, low_proj, s, s.states.low, STORE)
    quantize_plain(team, T, s.states.low, w.gate_proj, s)
    linear(team, T, w.gate_proj, s, s.states.heads, STORE)


@find_channel_gates.where(low_proj=NoLatent)
def _(team, T, w, low_proj, sizes, s):
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.decay_proj, s)
    linear(team, T, w.decay_proj, s, s.states.decays, STORE)
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.gate_proj, s)
    linear(team, T, w.gate_proj, s, s.states.heads, STORE)


@run_mixer.where(w=arguments.MambaLayer)
def _(team, T, w, sizes, kv, s, attention, batch):
    run_scan(team, T, w, sizes, s, batch)
    quantize_plain(team, T, s.states.out, w.out_proj, s)
    linear(team, T, w.out_proj, s, s.hidden, ADD)


@run_mixer.where(w=arguments.SelectiveLayer)
def _(team, T, w, sizes, kv, s, attention, batch):
    quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.in_proj, s)
    linear(team, T, w.in_proj, s, s.qkv, STORE)
    convolve(team, batch, s.qkv, w.taps, w.taps_bias, w.layer, sizes)
    quantize_plain(team, T, s.qkv, w.low_proj, s.states.inputs)
    linear(team, T, w.low_proj, s.states.inputs, s.states.low, STORE)
    norm_selective(team, T, w.gains, sizes, s.states.low)
    quantize_plain(team, T, s.states.low, w.steps_proj, s.states.inputs)
    linear(team, T, w.steps_proj, s.states.inputs, s.states.decays, STORE)
    low, steps = s.states.low, s.states.decays
    scan_selective(team, batch, s.qkv, steps, low, w.gains, w.decays, w.skip, w.layer, sizes, s.states.out)
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


@run_mixer.where(w=patch_parts.ClippedAttention)
def _(team, T, w, sizes, kv, s, attention, batch):
    project_clipped(team, T, s.hidden, w.input_layernorm, w.queries, sizes, s, s.qkv)
    project_clipped(team, T, s.hidden, w.input_layernorm, w.keys, sizes, s, s.qkv)
    project_clipped(team, T, s.hidden, w.input_layernorm, w.values, sizes, s, s.qkv)
    norm_values(team, T, s.qkv, sizes, kv)
    rope_append(team, T, batch, s.qkv, w.q_norm, w.k_norm, w.angles, w.rotary_dim, sizes, kv)
    attend(team, batch, s.qkv, sizes, w.window, w.scoring, kv, attention, s.attended)
    project_clipped(team, T, s.attended, NoNorm(), w.output, sizes, s, s.branch)
    add_result(team, T, s.branch, w.post_self_attn_layernorm, sizes, s)


@run_mixer.where(w=NoMixer)
def _(team, T, w, sizes, kv, s, attention, batch):
    pass


@run_mixer.where(w=stream_parts.StreamMixer)
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
