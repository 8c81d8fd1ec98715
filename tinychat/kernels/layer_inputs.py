"""A layer's own input of each token beside the residual stream, and the factor at the layer's end (Gemma 4).

    input = table[id, layer] + project(embedding)[layer] / rms * gain

The table has rows of a few hundred numbers, one for each token and layer, those of a token together: what a step reads
of it are some pages of the mapped file for each token. Gemma 3n has the same, without the factor; ids beyond its table,
such as those of images, count as id 0. EmbeddingGemma 2 has no table.
"""

import numpy as np

from tinychat.kernels.embedding import expand_row
from tinychat.kernels.jit import always_inline, by_type, is_kind
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.norms import inverse_rms
from tinychat.kernels.simd import splat_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.variants import NoTable


@by_type
def begin_inputs(table, row, size, out):
    """Write row `row` of a table to ``out[:size]``, zeros where the model has none."""

    def zeros(table, row, size, out):
        for k in range(size):
            out[k] = np.float32(0)

    def expanded(table, row, size, out):
        expand_row(table, row, np.float32(1), out)

    return zeros if is_kind(table, NoTable) else expanded


@always_inline
def add_projected(projected, start, gain, eps, size, out, target):
    """Add to ``out[target:]`` the norm of `size` numbers of `projected` from `start` on; both flat."""
    scale = inverse_rms(projected, start, size, eps)
    for i in range(size):
        value = load_one(projected, start + i) * scale * gain[i]
        store_one(out, target + i, load_one(out, target + i) + value)


@stage
def take_inputs(team, T, table, ids, projected, gain, layer, sizes, gate_up):
    """Write a layer's inputs behind the gates of each token.

    table : a weight of P columns, whose row ``id * L + layer`` is that of a token and a layer, or `NoTable`;
    ids : int64 [>= T];
    projected : float32 [>= T, >= L P]; gain : float32 [P]; layer : int; sizes : P is the `layer_input_size`, and the
    table has `layer_input_ids`; gate_up : float32 [>= T, >= P, and the columns of the table].
    """
    size, layers = sizes.layer_input_size, sizes.num_hidden_layers
    first, last = share_of(team, T)
    for t in range(first, last):
        known = ids[t] if ids[t] < sizes.layer_input_ids else 0
        begin_inputs(table, known * layers + layer, size, gate_up[t, size:])
        start, target = t * projected.shape[1] + layer * size, t * gate_up.shape[1] + size
        add_projected(projected, start, gain, sizes.rms_norm_eps, size, gate_up, target)


@stage
def scale_rows(team, T, factor, hidden):
    """Multiply the residual stream by a number; factor : float32 [1]."""
    first, last = share_of(team, T)
    for t in range(first, last):
        for k in range(0, hidden.shape[1], LANES):
            store_f32(hidden, t * hidden.shape[1] + k, load_f32(hidden, t * hidden.shape[1] + k) * splat_f32(factor[0]))
