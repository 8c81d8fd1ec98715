"""The decoder's forward pass: token ids in, logits out, in one compiled function.

It reads like the paper: embedding, then for each layer attention and MLP, each behind a norm and added to the
residual stream, then the last norm and the output matrix. The same stages serve a whole prompt (T > 1) and one
token (T = 1). Every thread runs the whole function and does its share of each stage; `barrier` separates a stage
that writes from one that reads what all threads wrote. Three kinds of arrays stay apart: parameters (never
written), scratch (allocated once), cache.
"""

from typing import Any, NamedTuple

import numpy as np

from tinychat.kernels.activations import write_normed, write_plain, write_swiglu
from tinychat.kernels.attention import attend
from tinychat.kernels.embedding import embed
from tinychat.kernels.kv import layer_of_cache
from tinychat.kernels.linear import head, linear, tokens_per_tile
from tinychat.kernels.memory import arrays_at
from tinychat.kernels.policy import kernel, written_in
from tinychat.kernels.rope import rope_append
from tinychat.kernels.threads import THREADS, barrier, begin, release
from tinychat.kernels.weights import layer_of


class Norms(NamedTuple):
    """Gains of the RMS norms, float32, zero beyond D."""

    input_layernorm: np.ndarray  # [L, D]
    q_norm: np.ndarray  # [L, d], or [L, 0] where the model has none
    k_norm: np.ndarray
    post_attention_layernorm: np.ndarray  # [L, D]
    norm: np.ndarray  # [D]


class Parameters(NamedTuple):
    """What training left: weights as in `kernels.weights`, those of the layers stacked."""

    embed_tokens: Any
    qkv_proj: Any
    o_proj: Any
    gate_up_proj: Any
    down_proj: Any
    lm_head: Any
    norms: Norms


class Sizes(NamedTuple):
    """The numbers of the configuration that the arrays do not show."""

    num_attention_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    rms_norm_eps: np.float32
    windows: np.ndarray  # int64 [L]: positions a query sees, itself included


class Scratch(NamedTuple):
    """Working memory for chunks of up to C tokens."""

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
    cos_sin: np.ndarray  # float32 [C, d]
    logits: np.ndarray  # float32 [C, V padded to 16]


@written_in
def forward(thread, threads, mailbox, parameters, sizes, cache, x, attention, scratch, job):
    """Run a job's rows, appending to the cache; leave logits of the last ones.

    cache, attention : only their types count. The job says where the arrays are: a thread looks that up when the job
    has begun, and uses it only while the others wait for it, so it never meets those of another job. x : activations in
    the form that the linears read.
    """
    p, s, cos_sin = parameters, scratch, job.cos_sin
    T, outputs = job.counts[0], job.counts[1]
    cache, attention = arrays_at(cache, job.caches[job.sequences[0]]), arrays_at(attention, job.attention)
    heads, d, D, F, eps = (
        sizes.num_attention_heads,
        sizes.head_dim,
        sizes.hidden_size,
        sizes.intermediate_size,
        sizes.rms_norm_eps,
    )
    tokens = tokens_per_tile(T)
    at, alone, added = np.int64(0), np.bool_(0), np.bool_(1)  # literals would compile `linear` once for each

    embed(thread, threads, p.embed_tokens, job.ids[:T], s.hidden)
    for layer in range(p.norms.input_layernorm.shape[0]):
        kv, window = layer_of_cache(cache, layer), sizes.windows[layer]
        qkv_proj, o_proj = layer_of(p.qkv_proj, layer), layer_of(p.o_proj, layer)
        gate_up_proj, down_proj = layer_of(p.gate_up_proj, layer), layer_of(p.down_proj, layer)

        threads = barrier(mailbox, thread)
        gain = p.norms.input_layernorm[layer]
        write_normed(thread, threads, T, s.hidden, gain, D, eps, qkv_proj, x, tokens, s.rows)
        threads = barrier(mailbox, thread)
        linear(thread, threads, mailbox, qkv_proj, x, T, s.qkv, at, s.tiles, alone)
        threads = barrier(mailbox, thread)
        q_gain, k_gain = p.norms.q_norm[layer], p.norms.k_norm[layer]
        rope_append(thread, threads, T, s.qkv, heads, cos_sin, job.positions, q_gain, k_gain, eps, kv)
        threads = barrier(mailbox, thread)
        attend(thread, threads, mailbox, T, s.qkv, heads, d, job.positions, window, kv, attention, s.attended)
        threads = barrier(mailbox, thread)
        write_plain(thread, threads, T, s.attended, o_proj, x, tokens, s.rows)
        threads = barrier(mailbox, thread)
        linear(thread, threads, mailbox, o_proj, x, T, s.hidden, at, s.tiles, added)

        threads = barrier(mailbox, thread)
        gain = p.norms.post_attention_layernorm[layer]
        write_normed(thread, threads, T, s.hidden, gain, D, eps, gate_up_proj, x, tokens, s.rows)
        threads = barrier(mailbox, thread)
        linear(thread, threads, mailbox, gate_up_proj, x, T, s.gate_up, at, s.tiles, alone)
        threads = barrier(mailbox, thread)
        write_swiglu(thread, threads, T, s.gate_up, F, down_proj, x, tokens, s.rows)
        threads = barrier(mailbox, thread)
        linear(thread, threads, mailbox, down_proj, x, T, s.hidden, at, s.tiles, added)

    threads = barrier(mailbox, thread)
    last, tokens = s.hidden[T - outputs : T], tokens_per_tile(outputs)
    write_normed(thread, threads, outputs, last, p.norms.norm, D, eps, p.lm_head, x, tokens, s.rows)
    threads = barrier(mailbox, thread)
    head(thread, threads, mailbox, p.lm_head, x, outputs, job.logits, at, s.tiles, alone)
    threads = barrier(mailbox, thread)


@kernel
def take_part(thread, threads, mailbox, parameters, sizes, cache, x, attention, scratch, job):
    """Do a share of the job that thread 0 posts: see `tinychat.model.team`.

    The call to `forward` stands here once, for all threads: a second one would be compiled a second time.
    """
    while begin(mailbox, thread, threads):
        forward(thread, mailbox[THREADS], mailbox, parameters, sizes, cache, x, attention, scratch, job)
        if thread == 0:
            release(mailbox)
            return True
    return False
