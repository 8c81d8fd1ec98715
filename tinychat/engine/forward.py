"""The decoder's forward pass: token ids in, logits out, in one compiled function.

It reads like the paper: embedding, then for each layer attention and MLP, each behind a norm and added to the
residual stream, then the last norm and the output matrix. The same stages serve a whole prompt (T > 1) and one
token (T = 1). Every thread runs the whole function and does its share of each stage; a stage ends when all threads
have done theirs, so that the next may read what they wrote. Three kinds of arrays stay apart: parameters (never
written), scratch (allocated once), cache.
"""

from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.attention import attend
from tinychat.kernels.embedding import embed
from tinychat.kernels.inputs import quantize_gated, quantize_normed, quantize_plain
from tinychat.kernels.jit import kernel, written_in
from tinychat.kernels.linear import ADD, STORE, head, linear
from tinychat.kernels.memory import arrays_at
from tinychat.kernels.rope import rope_append
from tinychat.kernels.team import Team, begin, note_time, release
from tinychat.kernels.weights import layer_of


class Layer(NamedTuple):
    """What one layer has; stacked, each array has one more axis in front, of length L.

    Weights are as in `kernels.weights`; gains of the RMS norms are float32, zero beyond D.
    """

    input_layernorm: np.ndarray  # [D]
    qkv_proj: Any
    q_norm: np.ndarray  # [d], or [0] where the model has none
    k_norm: np.ndarray
    rotary_dim: np.ndarray  # int64: how many channels of a head are rotated
    window: np.ndarray  # int64: positions a query sees, itself included
    o_proj: Any
    post_attention_layernorm: np.ndarray  # [D]
    gate_up_proj: Any
    down_proj: Any


class Parameters(NamedTuple):
    """What training left."""

    embed_tokens: Any
    layers: Layer  # stacked
    norm: np.ndarray  # [D]
    lm_head: Any


class Sizes(NamedTuple):
    """The numbers of the configuration that the arrays do not show."""

    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    rms_norm_eps: np.float32


class Scratch(NamedTuple):
    """Working memory for chunks of up to C tokens."""

    x: Any  # activations, in the form that the linears read
    hidden: np.ndarray  # float32 [C, D]: the residual stream
    qkv: np.ndarray  # float32 [C, (H + 2 G) d + slack]
    attended: np.ndarray  # float32 [C, H d]
    gate_up: np.ndarray  # float32 [C, 2 F + slack]
    rows: np.ndarray  # float32 [threads, widest input]
    tiles: np.ndarray  # float32 [threads, TILE_FLOATS]


class Job(NamedTuple):
    """What one call runs: T of up to C rows, each a token of some sequence; and where memory is that changes."""

    counts: np.ndarray  # int64 [2]: T; for how many of the last rows to give logits
    ids: np.ndarray  # int64 [C]
    positions: np.ndarray  # int64 [C]
    sequences: np.ndarray  # int64 [C]: which of the caches is the row's; today all rows of a job have the same
    caches: np.ndarray  # int64 [1, places of the buffers of one cache]
    attention: np.ndarray  # int64 [places of attention's scratch]
    clocks: np.ndarray  # int64: when each stage ended, if that is asked (`kernels.team.note_time`)
    cos_sin: np.ndarray  # float32 [C, the largest rotary_dim]
    logits: np.ndarray  # float32 [C, V padded to 16]


@written_in
def forward(team, p, sizes, cache, s, attention, job):
    """Run a job's rows, appending to the cache; leave logits of the last ones."""
    T, outputs = job.counts[0], job.counts[1]
    embed(team, T, p.embed_tokens, job.ids, s.hidden)
    for layer in range(sizes.num_hidden_layers):
        w, kv = layer_of(p.layers, layer), layer_of(cache, layer)
        quantize_normed(team, T, s.hidden, w.input_layernorm, sizes, w.qkv_proj, s)
        linear(team, T, w.qkv_proj, s, s.qkv, STORE)
        rope_append(team, T, job, s.qkv, w.q_norm, w.k_norm, w.rotary_dim, sizes, kv)
        attend(team, T, job.positions, s.qkv, sizes, w.window, kv, attention, s.attended)
        quantize_plain(team, T, s.attended, w.o_proj, s)
        linear(team, T, w.o_proj, s, s.hidden, ADD)
        quantize_normed(team, T, s.hidden, w.post_attention_layernorm, sizes, w.gate_up_proj, s)
        linear(team, T, w.gate_up_proj, s, s.gate_up, STORE)
        quantize_gated(team, T, s.gate_up, sizes, w.down_proj, s)
        linear(team, T, w.down_proj, s, s.hidden, ADD)
    quantize_normed(team, outputs, s.hidden[T - outputs : T], p.norm, sizes, p.lm_head, s)
    head(team, outputs, p.lm_head, s, job.logits)


@kernel
def take_part(thread, threads, queue, parameters, sizes, cache, scratch, attention, job):
    """Do a share of the job that thread 0 posts: see `tinychat.engine.workers`.

    Of `cache` and `attention` only the types count. The job says where the arrays are: a thread looks that up when the
    job has begun, and uses it only while the others wait for it, so it never meets those of another job. The call to
    `forward` stands here once, for all threads: a second one would be compiled a second time.
    """
    while begin(queue, thread, threads):
        team = Team(thread, queue, job.clocks)
        note_time(team)
        front, memory = arrays_at(cache, job.caches[job.sequences[0]]), arrays_at(attention, job.attention)
        forward(team, parameters, sizes, front, scratch, memory, job)
        if thread == 0:
            release(queue)
            return True
    return False
