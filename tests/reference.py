"""The slow, obvious float64 version of every operation and of the whole decoder.

Written from the formulas with numpy alone; of tinychat it knows what a checkpoint calls its parts, and nothing else.
The letters of shapes: T query tokens, S keys (past + T), H query heads, G key/value heads, d head_dim, N out features,
K in features. A ``config`` is a ``tinychat.models.config.ModelConfig``.
"""

import math

import numpy as np

from tinychat.models.architectures import linears, norms, tables
from tinychat.models.tensors import POSITIONS, whole_and_part

ROWS = 16  # output rows that share one block of the packed layouts


def linear(x, weight, bias=None):
    """Return ``x [T, K] @ weight [N, K].T + bias [N]``."""
    out = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    return out if bias is None else out + np.asarray(bias, np.float64)


def rms_norm(x, weight, eps):
    """Return ``weight * x / sqrt(mean(x**2) + eps)`` over the last axis."""
    x = np.asarray(x, np.float64)
    return np.asarray(weight, np.float64) * (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps))


def layer_norm(x, weight, bias, eps):
    """Return ``weight * (x - mean(x)) / sqrt(var(x) + eps) + bias`` over the last axis."""
    x = np.asarray(x, np.float64)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return np.asarray(weight, np.float64) * centred * scale + np.asarray(bias, np.float64)


def silu(x):
    """Return ``x * sigmoid(x)``, written so that no large exponent overflows."""
    x = np.asarray(x, np.float64)
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, small) / (1.0 + small)


def gelu(x):
    """Return ``x / 2 * (1 + erf(x / sqrt(2)))``."""
    x = np.asarray(x, np.float64)
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    """Return the approximation ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``."""
    x = np.asarray(x, np.float64)
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x):
    """Return ``max(x, 0)``."""
    return np.maximum(np.asarray(x, np.float64), 0)


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "relu2": lambda x: relu(x) ** 2}


def soft_cap(x, cap):
    """Return ``cap * tanh(x / cap)``, or `x` where there is no cap."""
    return x if cap is None else cap * np.tanh(x / cap)


def swiglu(gate, up):
    """Return ``silu(gate) * up``."""
    return silu(gate) * np.asarray(up, np.float64)


def rope(x, angles, attention_factor=1.0):
    """Rotate the pairs (i, i + r/2) of the first r channels of ``x [T, heads, d]`` by ``angles [T, r/2]``."""
    x = np.asarray(x, np.float64)
    half = angles.shape[-1]
    cos = attention_factor * np.cos(angles)[:, None, :]
    sin = attention_factor * np.sin(angles)[:, None, :]
    first, second, others = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, others], axis=-1)


def softmax(scores):
    """Return the softmax over the last axis."""
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def attention(q, k, v, window=0, scale=None, cap=None, slopes=(), sinks=(), both_ways=False, biases=None, ends=()):
    """Grouped-query attention of the last T of S positions, causal unless `both_ways`.

    Parameters
    ----------
    q : [T, H, d]
    k, v : [S, G, d]
        Query head h reads key/value head ``h // (H // G)``. Query t stands at position ``S - T + t``.
    window : int
        How many positions a query sees, its own included; 0 for all.
    scale : float, optional
        What scores are multiplied by; ``1 / sqrt(d)`` when omitted.
    cap : float, optional
        What scores are brought below, softly.
    slopes : sequence of float, optional
        What each head's scores lose for each position of distance.
    sinks : sequence of float, optional
        A score of each head's that the softmax counts, and whose value is 0.
    both_ways : bool
        Queries see later positions, too, as far as earlier ones.
    biases : [32, H], optional
        What is added to scores, by `bucket` of the distance of key and query.
    ends : sequence of int, optional
        The position behind the image that each query is of, up to which it sees; 0 without one.

    Returns
    -------
    float64 [T, H, d]
    """
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    past = k.shape[0] - q.shape[0]
    heads_per_kv_head = q.shape[1] // k.shape[1]
    out = np.empty_like(q)
    for t in range(q.shape[0]):
        stop = past + t + 1
        start = max(0, stop - window) if window else 0
        if both_ways:
            stop = min(len(k), past + t + window) if window else len(k)
        stop = max([stop, *ends[t : t + 1]])
        for h in range(q.shape[1]):
            g = h // heads_per_kv_head
            scores = k[start:stop, g] @ q[t, h] * (q.shape[2] ** -0.5 if scale is None else scale)
            scores = soft_cap(scores, cap)
            if slopes:
                scores = scores - slopes[h] * np.abs(past + t - np.arange(start, stop))
            if biases is not None:
                scores = scores + [biases[bucket(s - past - t), h] for s in range(start, stop)]
            weights = softmax(np.append(scores, sinks[h])) if len(sinks) else softmax(scores)
            out[t, h] = weights[: stop - start] @ v[start:stop, g]
    return out


def bucket(distance):
    """Return the number of the bucket of a distance: 16 for each side, of which 8 are of one distance.

    The others begin at distances that grow by the same factor, to 128, and the last has no end.
    """
    side, size = 16 * (distance > 0), abs(distance)
    if size < 8:
        return side + size
    return side + max(i for i in range(8, 16) if size >= 8 * 16 ** ((i - 8) / 8) * (1 - 1e-12))


def top_n_sigma(logits, n):
    """Return the ids whose logits are at most n standard deviations below the largest."""
    logits = np.asarray(logits, np.float64)
    return [i for i, logit in enumerate(logits) if logit >= logits.max() - n * logits.std()]


def xtc(logits, threshold):
    """Return the ids that are left where the most likely ones are excluded: all but the least of those above it."""
    probabilities = softmax(np.asarray(logits, np.float64))
    order = np.argsort(-probabilities, kind="stable")
    likely = [i for i in order if probabilities[i] >= threshold] if threshold <= 0.5 else []
    return sorted({*order.tolist()} - {*likely[:-1]})


def dry_penalties(pieces, ids, multiplier, base, allowed, last_n, breakers):
    """Return DRY's penalties by token, for tokens of these texts and breakers that are each within one token.

    A token that would go on a repetition of n tokens, n at least `allowed`, loses multiplier * base^(n - allowed).
    """
    recent = ids[max(0, len(ids) - last_n) :]
    breaking = {i for i, piece in enumerate(pieces) if any(text in piece for text in breakers)}
    unbroken = next((k for k, i in enumerate(reversed(recent)) if i in breaking), len(recent))
    penalties = [0.0] * len(pieces)
    for end in range(1, len(recent)):
        same = 0
        while same < min(end, unbroken) and recent[end - 1 - same] == recent[-1 - same]:
            same += 1
        if same >= allowed and recent[end] not in breaking:
            penalties[recent[end]] = max(penalties[recent[end]], multiplier * base ** (same - allowed))
    return penalties


def quantize_activations(x, group_size):
    """Quantize ``x [T, K]`` to symmetric int8 codes with one scale per token and group of columns.

    Returns
    -------
    codes : int8 [T, K]
        ``round_half_even(x / scale)``; 0 where the whole group is 0.
    scales : float64 [T, ceil(K / group_size)]
        ``max(|x|) / 127`` of the group; the last group may be short.
    """
    x = np.asarray(x, np.float64)
    groups = -(-x.shape[1] // group_size)
    codes = np.zeros(x.shape, np.int8)
    scales = np.zeros((x.shape[0], groups))
    for t in range(x.shape[0]):
        for g in range(groups):
            columns = slice(g * group_size, (g + 1) * group_size)
            scales[t, g] = np.max(np.abs(x[t, columns])) / 127
            if scales[t, g] > 0:
                codes[t, columns] = np.rint(x[t, columns] / scales[t, g])
    return codes, scales


def unpack_int4(packed):
    """Turn ``packed`` uint8 [N/16, K/8, 16, 4] into codes [N, K]; low nibble: column 8j+i, high: 8j+4+i."""
    codes = np.empty((packed.shape[0] * ROWS, packed.shape[1] * 8), np.uint8)
    for r in range(ROWS):
        for i in range(4):
            codes[r::ROWS, i::8] = packed[:, :, r, i] & 15
            codes[r::ROWS, 4 + i :: 8] = packed[:, :, r, i] >> 4
    return codes


def unpack_int8(packed):
    """Turn ``packed`` uint8 [N/16, K/4, 16, 4] into codes [N, K]: byte (b, j, r, i) is (16b+r, 4j+i)."""
    codes = np.empty((packed.shape[0] * ROWS, packed.shape[1] * 4), np.uint8)
    for r in range(ROWS):
        for i in range(4):
            codes[r::ROWS, i::4] = packed[:, :, r, i]
    return codes


def unpack_bits(packed, bits):
    """Return codes uint8 [N, K] of packed uint8 [N/16, K bits / 32, 16, 4], of one bit or two.

    A line of a row has 32 bits in four bytes; column ``4 q + i`` of it is in byte i, after q others.
    """
    blocks, _, lanes, _ = packed.shape
    shifts = np.arange(0, 8, bits)[:, None]
    codes = packed[:, :, :, None, :] >> shifts & ((1 << bits) - 1)
    return codes.transpose(0, 2, 1, 3, 4).reshape(blocks * lanes, -1).astype(np.uint8)


def unpack_f32(packed, shape=None):
    """Turn ``packed`` float32 [N/16, K, 16] into float64 [N, K]; ``shape`` drops the padding."""
    weight = np.empty((packed.shape[0] * ROWS, packed.shape[1]))
    for r in range(ROWS):
        weight[r::ROWS] = packed[:, :, r]
    return weight if shape is None else weight[: shape[0], : shape[1]]


def dequantize(values, scales, row_scales, shape=None):
    """Return ``row_scale * scale * value`` as float64 [N, K].

    values : whole numbers [N, K]; scales : int8 [N/16, groups, 16]; row_scales : float32 [N/16, 16].
    """
    columns_per_group = values.shape[1] // scales.shape[1]
    by_group = np.empty((values.shape[0], scales.shape[1]))
    for r in range(ROWS):
        by_group[r::ROWS] = scales[:, :, r] * row_scales[:, r].astype(np.float64)[:, None]
    weight = np.asarray(values, np.float64) * np.repeat(by_group, columns_per_group, axis=1)
    return weight if shape is None else weight[: shape[0], : shape[1]]


def dequantize_int4(packed, scales, row_scales, table, shape=None):
    """Return the float64 [N, K] weight of an int4 layout, whose code c stands for ``table[c]``."""
    return dequantize(np.asarray(table)[unpack_int4(packed)], scales, row_scales, shape)


def dequantize_int8(packed, scales, row_scales, shape=None):
    """Return the float64 [N, K] weight of an int8 layout, whose code c stands for ``c - 128``."""
    return dequantize(unpack_int8(packed).astype(np.float64) - 128, scales, row_scales, shape)


def dequantize_affine(codes, scales, offsets, factors):
    """Return ``f * scale * code + h * offset`` as float64 [N, K].

    codes : whole numbers [N, K]; scales, offsets : [N/16, groups, 16], offsets perhaps [N/16, 0, 16], of float32, int8,
    uint16 that stands for float16, or uint8 for powers of two; factors : float32 [N/16, spans, 2, 16].
    """

    def by_row(numbers):
        numbers = numbers.view(np.float16) if numbers.dtype == np.uint16 else numbers
        if numbers.dtype == np.uint8:
            numbers = np.where(numbers == 0, 0, 2.0 ** (numbers.astype(int) - 127))
        wide = numbers.astype(np.float64).transpose(0, 2, 1).reshape(len(codes), -1)
        return np.repeat(wide, codes.shape[1] // wide.shape[1], axis=1)

    weight = codes * by_row(scales) * by_row(np.ascontiguousarray(factors[:, :, 0]))
    if offsets.shape[1]:
        weight += by_row(offsets) * by_row(np.ascontiguousarray(factors[:, :, 1]))
    return weight


def squared_error(group, scales, lowest=-8, highest=7):
    """Return, for every scale of ``scales [M]``, the squared error of rounding ``group [K]`` to its codes."""
    group = np.asarray(group, np.float64)
    step = np.asarray(scales, np.float64)[:, None]
    codes = np.clip(np.rint(group / step), lowest, highest)
    return np.sum((group - step * codes) ** 2, axis=1)


def best_scale(group, lowest=-8, highest=7, negative=True):
    """Find the float16 scale of least squared error for one group by trying every finite float16.

    Returns
    -------
    scale : np.float16
        0 for a group of zeros. Negative scales let the longer side of the codes serve positive weights.
    error : float
        Sum over the group of ``(w - scale * code)**2``.
    """
    candidates = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16)
    if negative:
        candidates = np.concatenate([candidates, -candidates])
    errors = squared_error(group, candidates, lowest, highest)
    best = int(np.argmin(errors))
    if not np.any(group):
        return np.float16(0), 0.0
    return candidates[best], float(errors[best])


def rope_angles(config, positions, sequence_length):
    """Return the rotation angles float64 [P, rotary_dim/2] of ``positions [P]``, and the factor on cosine and sine."""
    scaling = config.rope_scaling
    kind = "default" if scaling is None else scaling.rope_type
    frequencies, attention_factor = _FREQUENCIES[kind](config, scaling, sequence_length)
    return np.asarray(positions, np.float64)[:, None] * frequencies, attention_factor


def _plain_frequencies(base, d):
    return base ** (-np.arange(0, d, 2, dtype=np.float64) / d)


def _default(config, scaling, sequence_length):
    return _plain_frequencies(config.rope_theta, config.rotary_dim), 1.0


def _linear(config, scaling, sequence_length):
    return _plain_frequencies(config.rope_theta, config.rotary_dim) / scaling.factor, 1.0


def _dynamic(config, scaling, sequence_length):
    """Neural tangent kernel scaling: the base grows with the sequence once it passes the trained length."""
    d, trained = config.rotary_dim, config.max_position_embeddings
    stretch = scaling.factor * max(sequence_length, trained) / trained - (scaling.factor - 1)
    return _plain_frequencies(config.rope_theta * stretch ** (d / (d - 2)), d), 1.0


def _doubling(config, scaling, sequence_length):
    """The base grows by 2**n - 1, n - 1 the doublings of the training length that the sequence takes."""
    d = config.rotary_dim
    doublings = math.ceil(math.log2(sequence_length / scaling.original_max_position_embeddings))
    growth = max(1, 2 ** (doublings + 1) - 1)
    return _plain_frequencies(config.rope_theta * growth ** (d / (d - 2)), d), 1.0


def _llama3(config, scaling, sequence_length):
    """Slow waves are stretched by the factor, fast ones kept, those between blended."""
    trained = scaling.original_max_position_embeddings or config.max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    frequencies = _plain_frequencies(config.rope_theta, config.rotary_dim)
    for i, frequency in enumerate(frequencies):
        turns = trained * frequency / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        frequencies[i] = (1 - keep) * frequency / scaling.factor + keep * frequency
    return frequencies, 1.0


def _yarn(config, scaling, sequence_length):
    """Blend kept and stretched frequencies by a ramp over dimensions; cosine and sine grow too."""
    d, base = config.rotary_dim, config.rope_theta
    trained = scaling.original_max_position_embeddings or config.max_position_embeddings
    factor = scaling.factor or config.max_position_embeddings / trained

    def dimension(turns):
        return d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast or 32), dimension(scaling.beta_slow or 1)
    if scaling.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    high = high + 0.001 if low == high else high
    stretched = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
    kept = _plain_frequencies(base, d)
    return stretched * kept / factor + (1 - stretched) * kept, _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling, factor):
    def mscale(weight):
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)


def _longrope(config, scaling, sequence_length):
    """Each pair is stretched by a factor of its own: there are two lists, for short and for long sequences."""
    trained = scaling.original_max_position_embeddings
    factors = scaling.long_factor if sequence_length > trained else scaling.short_factor
    frequencies = _plain_frequencies(config.rope_theta, config.rotary_dim) / np.array(factors)
    if scaling.attention_factor is not None:
        return frequencies, scaling.attention_factor
    return frequencies, math.sqrt(1 + math.log(scaling.factor) / math.log(trained)) if scaling.factor > 1 else 1.0


def _proportional(config, scaling, sequence_length):
    """The fastest pairs turn as in a rotation of all channels; the others stay."""
    frequencies = _plain_frequencies(config.rope_theta, config.rotary_dim) / scaling.factor
    frequencies[int(scaling.rotated * config.rotary_dim / 2) :] = 0
    return frequencies, 1.0


_FREQUENCIES = {
    "proportional": _proportional,
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "doubling": _doubling,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


class Weights:
    """The tensors of a checkpoint by the model's own parts, float64: fused, reordered, scaled, shifted as those say."""

    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors
        self.linears = {linear.name: linear for linear in linears(config)}
        self.norms = {norm.name: norm for norm in norms(config)}
        self.kept = {}  # keys and values of layers
        self.images = ()  # see `decoder_logits`
        self.positions = None  # of tokens on three axes, int [T, 3]; None: from 0 on
        self.ends = []  # of `attention`

    def piece(self, name, layer):
        """Return which of its kind a layer's linear is; of experts or heads, the first."""
        linear = self.linears[name]
        return (linear.at.index(layer) if linear.at else layer) * linear.parts

    def tensor(self, source, part):
        """Return a tensor or its first rows, a product of two, of which the second may be transposed, or a sum."""
        if "*" in source:
            source, _, vector = source.rpartition("*")
            found, factors = self.tensor(source, part), np.asarray(self.tensors[f"{vector}.weight"], np.float64)
            return found * factors.reshape(-1, *[1] * (found.ndim - 1))
        if "^" in source:
            rows, other = (self.tensor(name, part) for name in source.split("^"))
            return rows + other[:1]
        source, is_product, factor = source.partition("@")
        name = f"{source}.{part}"
        if name not in self.tensors:
            name, rows = whole_and_part(name)
            return np.asarray(self.tensors[name][rows.first : rows.stop], np.float64)
        found = np.asarray(self.tensors[name], np.float64)
        if not is_product:
            return found
        other = self.tensor(factor.removesuffix(".T"), part)
        return found @ (other.T if factor.endswith(".T") else other)

    def stacked(self, linear, piece, part):
        """Return weights or biases of all sources of a linear, one above the other."""
        found = []
        for i, source in enumerate(linear.names(piece)):
            rows = self.tensor(source, part)
            rows = rows.T if linear.transposed else rows.reshape(-1, linear.columns) if linear.cut > 1 else rows
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True) if linear.unit_rows else rows
            rows = rows[linear.order[i]] if linear.order and linear.order[i] is not None else rows
            found.append((linear.scales[i] if linear.scales else linear.scale) * rows)
        return np.concatenate(found)

    def apply(self, name, layer, x, expert=0):
        """Return what a linear makes of ``x [T, K]``."""
        part, piece = self.linears[name], self.piece(name, layer) + expert
        bias = self.stacked(part, piece, "bias") if part.bias else None
        return linear(x, self.stacked(part, piece, "weight"), bias)

    def vector(self, name, layer):
        """Return a layer's vector as the checkpoint has it."""
        return np.asarray(self.tensors[f"{self.norms[name].source.format(layer)}.weight"], np.float64)

    def norm(self, name, layer, x):
        """Return what a norm makes of the last axis; `x` where there is no such norm."""
        if name not in self.norms or not self.norms[name].is_in(layer):
            return np.asarray(x, np.float64)
        norm, eps = self.norms[name], self.config.rms_norm_eps
        if name in ("post_self_attn_layernorm", "post_mlp_layernorm") and self.config.post_norm_eps is not None:
            eps = self.config.post_norm_eps
        source = norm.source.format(layer)
        gain = norm.scale
        if source:
            gain = norm.scale * (norm.offset + np.asarray(self.tensors[f"{source}.weight"], np.float64))
        if not self.config.layer_norm:
            return rms_norm(x, gain, eps)
        bias = norm.scale * np.asarray(self.tensors[f"{source}.bias"], np.float64) if norm.bias else 0.0
        return layer_norm(x, gain, bias, eps)


def norm_behind(config, parts, name, layer, x, of_stream=False):
    """Return `x` normed where the model norms: what a part gives or, `of_stream`, the residual stream behind it."""
    return parts.norm(name, layer, x) if config.stream_norms == of_stream else x


def decoder_logits(config, weights, ids, images=()):
    """Run the whole decoder over ``ids`` from an empty context.

    Parameters
    ----------
    config : ModelConfig
    weights : dict of str to array
        By the names of the Hugging Face checkpoint (``model.layers.0.self_attn.q_proj.weight`` ...).
    ids : sequence of int, length T
    images : sequence of (first, rows [n, parts * hidden_size], grid)
        Tokens from index `first` on whose rows replace embeddings, with the rows and columns of the image's grid; other
        parts are added to the outputs of the first layers.

    Returns
    -------
    float64 [T, vocab_size]
    """
    parts, x = Weights(config, weights), decoder_states(config, weights, ids, images=images)
    return soft_cap(
        parts.apply("embed_tokens" if config.tie_word_embeddings else "lm_head", 0, x), config.logits_softcap
    )


def decoder_states(config, weights, ids, second=None, kept=None, streams=None, images=()):
    """Return the hidden states that `decoder_logits` gives to the output matrix, float64 [T, hidden_size].

    second : the first of the tokens that get the vector of the second kind of text (BERT's segments); None: no token.
    kept : a dict that gets keys and values, [T, G, d] each, by the layers of Gemma 4 that have any.
    streams : a list that gets the residual stream before each layer and behind the last, [T, hidden_size] each.
    images : see `decoder_logits`.
    """
    parts = Weights(config, weights)
    embedding = parts.stacked(parts.linears["embed_tokens"], 0, "weight")
    x = config.embedding_multiplier * embedding[np.asarray(ids)]
    for first, rows, _ in images:
        x[first : first + len(rows)] = rows[:, : config.hidden_size]
        if config.joint_tokens:
            parts.ends += [0] * (first - len(parts.ends)) + [first + len(rows)] * len(rows)
    parts.images = images
    if config.rotary_axes:
        parts.positions = image_positions(len(ids), images)
    for table in (each for each in tables(config) if each.name == POSITIONS):
        vectors = parts.tensor(table.source, "weight")
        x = x + vectors[table.first : table.first + len(ids)]
    if second is not None:
        model = config.architecture.removesuffix("Model").lower()
        first_kind, second_kind = parts.tensor(f"{model}.embeddings.token_type_embeddings", "weight")
        x[second:] += second_kind - first_kind
    if config.residual_scales:
        x = (x + parts.vector("embed_shift", 0)) * parts.vector("embed_scale", 0)
    states = _layers(config, parts, parts.norm("embed_norm", 0, x), ids, [] if streams is None else streams)
    if kept is not None:
        kept.update(parts.kept)
    return states


def drafted(config, weights, embedded, hidden, keys, position):
    """Return the logits [V] of a drafter after a token, and the state [hidden_size of the larger model] that it makes.

    embedded : the token's embedding in the larger model, scaled; hidden : the state before it, behind the last norm;
    keys : keys and values, [>= position, G, d] each, of the layers of each size of heads, narrow ones first.
    """
    parts, varied, H = Weights(config, weights), config.varied, config.num_attention_heads
    x = parts.apply("embedding_proj", 0, embedded[None]) + parts.apply("hidden_proj", 0, hidden[None])
    for layer, window in enumerate(config.sliding_windows):
        is_wide = layer in varied.wide
        kind, (k, v) = "wide_" if is_wide else "", keys[is_wide]
        angles, factor = layer_angles(config, layer, position + 1)
        q = parts.apply(f"{kind}query_proj", layer, parts.norm("input_layernorm", layer, x)).reshape(1, H, -1)
        q = rope(parts.norm(f"{kind}q_norm", layer, q), angles[position:], factor)
        # The last position that the larger model has seen, and the window before that.
        seen = slice(max(0, position - 1 - window) if window else 0, position)
        mixed = attention(q, k[seen], v[seen], scale=config.attention_scale, both_ways=True)
        mixed = parts.apply(f"{kind}o_proj", layer, mixed.reshape(1, -1))
        x = x + parts.norm("post_self_attn_layernorm", layer, mixed)
        x = (x + _mlp_block(config, parts, layer, x)) * parts.vector("layer_scale", layer)
    x = parts.norm("norm", 0, x)
    (state,), clusters = parts.apply("state_proj", 0, x), config.drafter.clusters
    if clusters is None:
        return parts.apply("lm_head", 0, x)[0], state
    order = parts.vector("token_ordering", 0).astype(int).reshape(clusters.num_experts, -1)
    chosen = np.argsort(-parts.apply("router", 0, x)[0], kind="stable")[: clusters.num_experts_per_tok]
    found = {cluster: parts.apply("lm_head", 0, x, cluster)[0] for cluster in chosen}
    logits = np.full(config.vocab_size, min(map(np.min, found.values())) - 1.0)
    for cluster, values in found.items():
        logits[order[cluster]] = values
    return logits, state


def eagle_states(config, weights, states):
    """Return the hidden states ``[T, D]`` that EAGLE-3 makes of a larger model's ``[T, states, D]``."""
    tensors, eps = {name: np.asarray(values, np.float64) for name, values in weights.items()}, config.rms_norm_eps
    rows = np.asarray(states, np.float64).reshape(len(states), -1)
    if "input_norm.weight" in tensors:
        rows = rms_norm(rows, tensors["input_norm.weight"], eps)
    elif "fc_norm.0.weight" in tensors:
        normed = (
            rms_norm(part, tensors[f"fc_norm.{i}.weight"], eps) for i, part in enumerate(np.swapaxes(states, 0, 1))
        )
        rows = np.concatenate([*normed], axis=1)
    return rows @ tensors["fc.weight"].T


def eagle(config, weights, embedded, hidden):
    """Return the logits [T, V] of EAGLE-3 at positions 0 to T - 1, and the hidden states [T, D] that it makes.

    embedded : the tokens' embeddings; hidden : the hidden states before them, both [T, D].
    """
    w = {name: np.asarray(values, np.float64) for name, values in weights.items()}
    eps, d, T, layer = config.rms_norm_eps, config.head_dim, len(embedded), "midlayer."
    x, e = np.asarray(hidden, np.float64), rms_norm(embedded, w[f"{layer}input_layernorm.weight"], eps)
    g = rms_norm(x, w[f"{layer}hidden_norm.weight"], eps)
    x = g if config.eagle.adds_to_normed else x
    pair = np.concatenate([e, g], axis=1)
    q, k, v = ((pair @ w[f"{layer}self_attn.{each}_proj.weight"].T).reshape(T, -1, d) for each in "qkv")
    if f"{layer}self_attn.q_norm.weight" in w:
        q, k = (rms_norm(x, w[f"{layer}self_attn.{name}_norm.weight"], eps) for name, x in (("q", q), ("k", k)))
    angles, factor = layer_angles(config, 0, T)
    mixed = attention(rope(q, angles, factor), rope(k, angles, factor), v, scale=config.attention_scale)
    x = x + mixed.reshape(T, -1) @ w[f"{layer}self_attn.o_proj.weight"].T
    normed = rms_norm(x, w[f"{layer}post_attention_layernorm.weight"], eps)
    gate, up = (normed @ w[f"{layer}mlp.{each}_proj.weight"].T for each in ("gate", "up"))
    x = x + swiglu(gate, up) @ w[f"{layer}mlp.down_proj.weight"].T
    normed = rms_norm(x, w["norm.weight"], eps)
    some, ids = normed @ w["lm_head.weight"].T, np.arange(config.eagle.draft_vocab_size)
    logits = np.repeat(some.min(axis=1, keepdims=True) - 1, config.vocab_size, axis=1)
    logits[:, ids + weights.get("d2t", 0 * ids)] = some
    return logits, normed if config.eagle.gives_normed else x


def head_states(config, weights, ids, hidden):
    """Return the same of a draft head, which reads the model's hidden states ``[T, D]`` before each of the ids."""
    parts = Weights(config, weights)
    embedded = parts.stacked(parts.linears["embed_tokens"], 0, "weight")[np.asarray(ids)]
    inputs = {"embedding": embedded, "hidden": hidden}
    return _layers(
        config, parts, sum(parts.apply(f"{k}_proj", 0, parts.norm(f"{k}_norm", 0, v)) for k, v in inputs.items())
    )


def _layers(config, parts, x, ids=(), streams=None):
    if config.altup:
        return parts.norm("norm", 0, _stream_layers(config, parts, x, ids))
    if config.normalized:
        return _normalized_layers(config, parts, x)
    if config.mixtures:
        from reference_mixtures import mixture_layers

        return parts.norm("norm", 0, mixture_layers(config, parts, x))
    embedded, streams = x, [] if streams is None else streams
    for layer in range(config.num_hidden_layers):
        streams.append(x)
        before = x
        mixed = sum(mixer(config, parts, layer, x) for mixer in _mixers_of(config, layer))
        if config.residual_scales:
            x = scaled_sum(parts, "attention", layer, mixed, x)
            x = scaled_sum(parts, "mlp", layer, _mlp_block(config, parts, layer, x), x)
            continue
        x = x + mixed
        x = norm_behind(config, parts, "post_self_attn_layernorm", layer, x, of_stream=True)
        if layer in (config.mlp_alone or range(config.num_hidden_layers)):
            x = x + _mlp_block(config, parts, layer, before if config.parallel else x, before)
            x = norm_behind(config, parts, "post_mlp_layernorm", layer, x, of_stream=True)
        if config.varied:
            x = _layer_end(config, parts, layer, x, embedded, ids)
        if layer < config.deepstack_layers:
            for first, rows, _ in parts.images:
                x[first : first + len(rows)] += np.split(rows, 1 + config.deepstack_layers, axis=1)[1 + layer]
    streams.append(x)
    return parts.norm("norm", 0, x)


def unit_length(x):
    """Return ``x / sqrt(sum(x**2) + 1e-6)`` over the last axis."""
    x = np.asarray(x, np.float64)
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def interpolated(x, branch, rate):
    """Return ``x + rate * (b - x)``, brought to length 1, for a branch b of length 1."""
    return unit_length(x + rate * (unit_length(branch) - x))


def _normalized_layers(config, parts, x):
    """Dory: layers on the unit sphere, of which those in the middle run in loops."""
    D, H, G, d = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
    first, last = config.loops.first, config.loops.last
    # The checkpoint's numbers are times these; `Normalized` has what they give.
    beginning = np.sqrt(d / config.normalized.query_scale)
    rate_scale = config.normalized.rate_scale

    def of(layer, name):
        return np.asarray(parts.tensors[f"model.layers.{layer}.{name}.weight"], np.float64)

    def mlp(layer, x, name):
        bias = parts.tensors[f"model.layers.{layer}.mlp.{name}_proj.bias"] if config.mlp_bias else None
        return linear(x, of(layer, f"mlp.{name}_proj"), bias)

    def run(layer, x):
        heads = {"q": H, "k": G, "v": G, "gate": H}
        q, k, v, gates = (linear(x, of(layer, f"self_attn.{name}_proj")).reshape(-1, n, d) for name, n in heads.items())
        angles, factor = layer_angles(config, layer, len(x))
        q, k = (rope(unit_length(each), angles, factor) for each in (q, k))
        q = q * (of(layer, "self_attn.sqk") * np.sqrt(d) / beginning).reshape(H, d) ** 2
        mixed = attention(q, k, v, config.sliding_windows[layer]).reshape(len(x), -1)
        gate_scale = (of(layer, "self_attn.s_gate") * D**0.25 / beginning) ** 2
        mixed = mixed / (1 + np.exp(-gates.reshape(mixed.shape) * gate_scale))
        mixed = linear(unit_length(mixed), of(layer, "self_attn.o_proj"))
        x = interpolated(x, mixed, np.abs(of(layer, "lambda_1") * rate_scale))
        gate, up = (mlp(layer, x, name) * of(layer, f"mlp.suv_{name}") * np.sqrt(D) for name in ("gate", "up"))
        inner = mlp(layer, unit_length(swiglu(gate, up)), "down")
        return interpolated(x, inner, np.abs(of(layer, "lambda_2") * rate_scale))

    x = unit_length(x)
    for layer in range(first):
        x = run(layer, x)
    held = x
    for _ in range(config.loops.count):
        x = unit_length(unit_length(x) + held)
        for layer in range(first, last):
            x = run(layer, x)
    for layer in range(last, config.num_hidden_layers):
        x = run(layer, x)
    return x


def scaled_sum(parts, name, layer, branch, x):
    """Return the sum of a branch and the residual stream, each ``(v + shift) * scale``."""
    ends = ("branch_shift", "branch_scale", "stream_shift", "stream_scale")
    shift, scale, of_stream, stream_scale = (parts.vector(f"{name}_{end}", layer) for end in ends)
    return (branch + shift) * scale + (x + of_stream) * stream_scale


def _mixers_of(config, layer):
    found = []
    if config.compressed:
        return [_compressed_block]
    if layer in config.conv_layers:
        found.append(_convolution_block)
    if layer in config.state_layers:
        of_delta = _channel_delta_block if config.delta_net and config.delta_net.by_channel else _delta_block
        of_state = _mamba_block if config.mamba else of_delta
        found.append(_selective_block if config.selective else of_state)
    if layer in config.attention_layers:
        of_kind = _latent_block if config.latents else _attention_block
        found.append(_varied_attention_block if config.varied else of_kind)
    return found


def causal_convolution(x, taps):
    """Return the convolution of ``x [T, C]`` over the positions up to each with ``taps [C, K]``, the last its own."""
    K, out = taps.shape[1], np.zeros(np.shape(x))
    for t, k in np.ndindex(len(x), K):
        if t - K + 1 + k >= 0:
            out[t] += taps[:, k] * x[t - K + 1 + k]
    return out


def delta_rule(q, k, v, decays, rates, state=None):
    """Gated delta rule: a state that forgets, and replaces what it holds for a key by a part of the value.

    Parameters
    ----------
    q, k : [T, Hk, dk]
        They are brought to length 1; value head h reads head ``h // (Hv // Hk)``.
    v : [T, Hv, dv]
    decays : [T, Hv], or of each channel of the keys [T, Hv, dk]
    rates : [T, Hv]
    state : [Hv, dk, dv], optional
        Zeros when omitted.

    Returns
    -------
    float64 [T, Hv, dv], and the state after the last position
    """
    q, k, v = (np.asarray(each, np.float64) for each in (q, k, v))
    (T, heads, size), (_, groups, d) = v.shape, k.shape
    state = np.zeros((heads, d, size)) if state is None else np.array(state, np.float64)
    out = np.empty((T, heads, size))
    for t, h in np.ndindex(T, heads):
        g = h // (heads // groups)
        query, key = (x / np.sqrt(x @ x + 1e-6) for x in (q[t, g], k[t, g]))
        state[h] *= np.reshape(decays[t, h], (-1, 1))
        state[h] += np.outer(key, rates[t, h] * (v[t, h] - key @ state[h]))
        out[t, h] = query / math.sqrt(d) @ state[h]
    return out, state


def _delta_block(config, parts, layer, x):
    net, x = config.delta_net, parts.norm("input_layernorm", layer, x)
    part = {name: parts.vector(f"delta_{name}", layer) for name in ("A_log", "dt_bias", "norm", "taps")}
    qkvz = parts.apply("delta_in_proj", layer, x)
    rates, steps = np.split(parts.apply("delta_gates_proj", layer, x), 2, axis=1)
    qkv, z = np.split(qkvz, [net.channels], axis=1)
    qkv = silu(causal_convolution(qkv, part["taps"].reshape(net.channels, net.taps)))
    q, k, v = np.split(qkv, [net.key_size, 2 * net.key_size], axis=1)
    q, k = (each.reshape(len(x), net.key_heads, net.key_dim) for each in (q, k))
    decays = np.exp(-np.exp(part["A_log"]) * np.logaddexp(0, steps + part["dt_bias"]))
    heads = (len(x), net.value_heads, net.value_dim)
    out, _ = delta_rule(q, k, v.reshape(heads), decays, net.rate_scale / (1 + np.exp(-rates)))
    normed = rms_norm(out, part["norm"], net.norm_eps) * silu(z.reshape(heads))
    return parts.apply("delta_out_proj", layer, normed.reshape(len(x), -1))


def channel_decays(steps, log_decay, bound=0.0):
    """Return ``exp(-exp(A) softplus(s))`` of ``steps [T, H, d]``; with a bound, ``exp(bound * sigmoid(exp(A) s))``."""
    speed = np.exp(log_decay)[:, None]
    # No large exponent overflows in a tangent.
    return np.exp(bound * (1 + np.tanh(speed * steps / 2)) / 2 if bound else -speed * np.logaddexp(0, steps))


def _channel_delta_block(config, parts, layer, x):
    """Kimi Delta Attention: each channel of a key has a decay."""
    net, x = config.delta_net, parts.norm("input_layernorm", layer, x)
    part = {name: parts.vector(f"delta_{name}", layer) for name in ("A_log", "dt_bias", "norm", "taps")}
    heads = (len(x), net.value_heads, -1)
    qkv = causal_convolution(parts.apply("delta_in_proj", layer, x), part["taps"].reshape(net.channels, net.taps))
    q, k, v = (each.reshape(heads) for each in np.split(silu(qkv), 3, axis=1))
    low, rates = np.split(parts.apply("delta_gates_proj", layer, x), [net.rank], axis=1)
    if net.rank:
        steps = parts.apply("delta_decay_proj", layer, low)
        gates = parts.apply("delta_gate_proj", layer, parts.apply("delta_low_proj", layer, x))
    else:
        steps, gates = (parts.apply(f"delta_wide_{name}_proj", layer, x) for name in ("decay", "gate"))
    decays = channel_decays((steps + part["dt_bias"]).reshape(heads), part["A_log"], net.decay_bound)
    out, _ = delta_rule(q, k, v, decays, 1 / (1 + np.exp(-rates)))
    normed = rms_norm(out, part["norm"], net.norm_eps) / (1 + np.exp(-gates.reshape(heads)))
    return parts.apply("delta_out_proj", layer, normed.reshape(len(x), -1))


def state_space(x, b, c, decays, steps, state=None):
    """State-space duality: a state that forgets, and adds the product of key and value.

    Parameters
    ----------
    x : [T, H, P]
    b, c : [T, G, N]
        Keys and queries; head h reads those of ``h // (H // G)``.
    decays, steps : [T, H]
    state : [H, N, P], optional
        Zeros when omitted.

    Returns
    -------
    float64 [T, H, P], and the state after the last position
    """
    x, b, c = (np.asarray(each, np.float64) for each in (x, b, c))
    (T, heads, size), (_, groups, d) = x.shape, b.shape
    state = np.zeros((heads, d, size)) if state is None else np.array(state, np.float64)
    out = np.empty((T, heads, size))
    for t, h in np.ndindex(T, heads):
        g = h // (heads // groups)
        state[h] = decays[t, h] * state[h] + steps[t, h] * np.outer(b[t, g], x[t, h])
        out[t, h] = c[t, g] @ state[h]
    return out, state


def _mamba_block(config, parts, layer, x):
    net, x = config.mamba, parts.norm("input_layernorm", layer, x)
    part = {
        name.removeprefix("mamba_"): parts.vector(name, layer)
        for name, norm in parts.norms.items()
        if name.startswith("mamba_")
    }
    steps = np.logaddexp(0, parts.apply("mamba_steps_proj", layer, x) + part["dt_bias"]).clip(*net.step_limits)
    mixed, z = np.split(parts.apply("mamba_in_proj", layer, x), [net.channels], axis=1)
    taps = part["taps"].reshape(net.channels, net.taps)
    mixed = silu(causal_convolution(mixed, taps) + part["taps_bias"])
    v, b, c = np.split(mixed, [net.value_size, net.value_size + net.key_size], axis=1)
    v = v.reshape(len(x), net.value_heads, net.value_dim)
    b, c = (each.reshape(len(x), net.key_heads, net.key_dim) for each in (b, c))
    out, _ = state_space(v, b, c, np.exp(-np.exp(part["A_log"]) * steps), steps)
    out = (out + part["D"][:, None] * v).reshape(len(x), net.key_heads, -1)
    out = out * silu(z).reshape(out.shape)
    if net.normed:
        out = rms_norm(out, part["norm"].reshape(net.key_heads, -1), config.rms_norm_eps)
    return parts.apply("mamba_out_proj", layer, out.reshape(len(x), -1))


def selective_scan(x, steps, decays, b, c, state=None):
    """Return the results of Mamba's values and steps [T, C], decays [C, N], keys and queries [T, N]; the last state."""
    state, out = np.zeros(decays.shape) if state is None else np.array(state, np.float64), np.empty(x.shape)
    for t in range(len(x)):
        state = np.exp(-decays * steps[t][:, None]) * state + np.outer(steps[t] * x[t], b[t])
        out[t] = state @ c[t]
    return out, state


def _selective_block(config, parts, layer, x):
    net, x = config.selective, parts.norm("input_layernorm", layer, x)
    values, z = np.split(parts.apply("mamba_in_proj", layer, x), 2, axis=1)
    taps = parts.vector("mamba_taps", layer).reshape(net.channels, net.taps)
    values = silu(causal_convolution(values, taps) + parts.vector("mamba_taps_bias", layer))
    parted = np.split(parts.apply("mamba_low_proj", layer, values), np.cumsum([net.step_rank, net.key_dim]), axis=1)
    names = (f"mamba_{name}_norm" for name in ("steps", "keys", "queries"))
    low, b, c = (parts.norm(name, layer, each) for name, each in zip(names, parted))
    steps = np.logaddexp(0, parts.apply("mamba_steps_proj", layer, low))
    decays = np.exp(parts.vector("mamba_decays", layer)).reshape(net.channels, net.key_dim)
    out, _ = selective_scan(values, steps, decays, b, c)
    out = (out + parts.vector("mamba_D", layer) * values) * silu(z)
    return parts.apply("mamba_out_proj", layer, out)


def short_convolution(bcx, taps):
    """Return ``c`` times the causal convolution of ``b x`` with ``taps [D, K]``, of ``b, c, x [T, 3 D]``."""
    b, c, x = np.split(np.asarray(bcx, np.float64), 3, axis=1)
    (D, K), v = taps.shape, b * x
    out = np.zeros_like(v)
    for t, i, k in np.ndindex(len(v), D, K):
        if t - K + 1 + k >= 0:
            out[t, i] += taps[i, k] * v[t - K + 1 + k, i]
    return c * out


def _convolution_block(config, parts, layer, x):
    bcx = parts.apply("conv_in_proj", layer, parts.norm("input_layernorm", layer, x))
    taps = parts.vector("conv_taps", layer)
    out = parts.apply("conv_out_proj", layer, short_convolution(bcx, taps.reshape(config.hidden_size, -1)))
    return norm_behind(config, parts, "post_self_attn_layernorm", layer, out)


def _attention_block(config, parts, layer, x):
    d, H, G, kind = config.head_dim, config.num_attention_heads, config.num_key_value_heads, ""
    if layer in config.other_heads_at:
        H, kind = config.other_heads, "other_"
    qkv = parts.apply(f"{kind}qkv_proj", layer, parts.norm("input_layernorm", layer, x))
    queries = 2 * H * d if config.gated_attention else H * d
    q, k, v = np.split(qkv, [queries, queries + G * d], axis=1)
    q, gates = np.split(q, [H * d], axis=1)
    if config.qk_norm == "width":
        q, k = parts.norm("q_norm", layer, q), parts.norm("k_norm", layer, k)
    q, k, v = q.reshape(len(x), H, d), k.reshape(len(x), G, d), v.reshape(len(x), G, d)
    if config.qk_norm == "heads":
        q, k = (
            layer_norm(a, parts.vector(name, layer).reshape(a.shape[1:]), 0.0, config.rms_norm_eps)
            for a, name in ((q, "q_norm"), (k, "k_norm"))
        )
    if config.qk_norm == "head":
        q, k = parts.norm(f"{kind}q_norm", layer, q), parts.norm(f"{kind}k_norm", layer, k)
    if config.rotary_dims[layer]:
        angles, factor = layer_angles(config, layer, len(x), parts.positions)
        q, k = (rope(a, angles, factor) for a in (q, k))
    if config.qk_norm == "rotated":
        q, k = parts.norm("q_gains", layer, q), parts.norm("k_gains", layer, k)
    q = q * growth_of_queries(config, len(x))[:, None, None]
    if config.log_temperature_length:
        growth = np.log(1 + np.arange(len(x))) / np.log(config.log_temperature_length)
        q = q * np.maximum(1, growth)[:, None, None]
    mixed = attention(
        q,
        k,
        v,
        config.sliding_windows[layer],
        config.attention_scale,
        config.attention_softcap,
        config.alibi_slopes,
        parts.vector("sinks", layer) if config.sinks else (),
        config.bidirectional,
        parts.vector("distance_biases", layer).reshape(32, -1) if config.distance_biases else None,
        parts.ends,
    )
    if config.gated_heads:
        gates = parts.apply(f"{kind}head_gates_proj", layer, parts.norm("input_layernorm", layer, x))
        gates = np.repeat(gates, d, axis=1)
    mixed = mixed.reshape(len(x), -1)
    if config.softplus_gates:
        mixed = mixed * np.log1p(np.exp(gates))
    elif config.gated_attention or config.gated_heads:
        mixed = mixed / (1 + np.exp(-gates))
    mixed = parts.norm("attn_sub_norm", layer, mixed)
    return norm_behind(config, parts, "post_self_attn_layernorm", layer, parts.apply(f"{kind}o_proj", layer, mixed))


def compressed_heads(q, k, values, taps, bias, matrices, biases, key_scales):
    """Return the queries, keys and values that compressed attention gives to attention.

    Parameters
    ----------
    q : [T, H, d]
    k : [T, G, d]
    values : [T, G d]
    taps : [H + G, d, 2]
        The last for the position itself; `bias` is ``[H + G, d]``.
    matrices : [H + G, d, 2 d]
        For the position before, then for the position itself; `biases` are ``[H + G, d]``.
    key_scales : [G]

    Returns
    -------
    float64 [T, H, d], [T, G, d], [T, G d]
    """
    (T, H, d), G = q.shape, k.shape[1]
    u = np.concatenate([np.zeros((1, H + G, d)), np.concatenate([q, k], axis=1)])
    z = np.stack([bias] + [taps[..., 0] * u[t] + taps[..., 1] * u[t + 1] + bias for t in range(T)])
    found = np.empty((T, H + G, d))
    for t, h in np.ndindex(T, H + G):
        found[t, h] = matrices[h] @ np.concatenate([z[t, h], z[t + 1, h]]) + biases[h]
        group = [h // (H // G)] if h < H else [h - H]
        members = [h] if h < H else range((h - H) * (H // G), (h - H + 1) * (H // G))
        found[t, h] += np.mean([(q[t, m] + k[t, group[0]]) / 2 for m in members], axis=0)
    found *= np.sqrt(d) / np.maximum(np.linalg.norm(found, axis=2, keepdims=True), np.finfo(np.float32).eps)
    found[:, H:] *= key_scales[:, None]
    half = values.shape[1] // 2
    before = np.concatenate([np.zeros((1, half)), values[:-1, half:]])
    return found[:, :H], found[:, H:], np.concatenate([values[:, :half], before], axis=1)


def _compressed_block(config, parts, layer, x):
    d, H, G = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    found = parts.apply("qkv_proj", layer, parts.norm("input_layernorm", layer, x))
    q, k, v = np.split(found, [H * d, (H + G) * d], axis=1)
    linear, first = parts.linears["conv_heads_proj"], parts.piece("conv_heads_proj", layer)
    matrices, biases = (
        np.stack([parts.stacked(linear, first + h, part) for h in range(H + G)]) for part in ("weight", "bias")
    )
    q, k, v = compressed_heads(
        q.reshape(len(x), H, d),
        k.reshape(len(x), G, d),
        v,
        parts.vector("conv_taps", layer).reshape(H + G, d, 2),
        parts.vector("conv_taps_bias", layer).reshape(H + G, d),
        matrices,
        biases,
        parts.vector("key_scales", layer),
    )
    angles, factor = layer_angles(config, layer, len(x))
    q, k = (rope(a, angles, factor) for a in (q, k))
    window = config.sliding_windows[layer]
    mixed = attention(q, k, v.reshape(len(x), G, d), window, config.attention_scale)
    return parts.apply("o_proj", layer, mixed.reshape(len(x), -1))


def _varied_attention_block(config, parts, layer, x):
    """Gemma 4: heads of two sizes, normed values, keys and values that may be those of an earlier layer."""
    varied, H = config.varied, config.num_attention_heads
    source, kind = varied.sources[layer], "wide_" if layer in varied.wide else ""
    d = varied.wide_head_dim if kind else config.head_dim
    normed, angles = parts.norm("input_layernorm", layer, x), layer_angles(config, layer, len(x))
    if source == layer:
        G = varied.wide_key_value_heads if kind else config.num_key_value_heads
        q, k, v = np.split(parts.apply(f"{kind}qkv_proj", layer, normed), [H * d, (H + G) * d], axis=1)
        k = rope(parts.norm(f"{kind}k_norm", layer, k.reshape(len(x), G, d)), *angles)
        v = rms_norm(v.reshape(len(x), G, d), 1.0, config.rms_norm_eps)
        parts.kept[layer] = k, v
    else:
        q, (k, v) = parts.apply(f"{kind}query_proj", layer, normed), parts.kept[source]
    q = rope(parts.norm(f"{kind}q_norm", layer, q.reshape(len(x), H, d)), *angles)
    window, scale = config.sliding_windows[layer], config.attention_scale
    # Layers without a window see images as text.
    mixed = attention(q, k, v, window, scale, both_ways=config.bidirectional, ends=parts.ends if window else ())
    out = parts.apply(f"{kind}o_proj", layer, mixed.reshape(len(x), -1))
    return parts.norm("post_self_attn_layernorm", layer, out)


def _layer_input(config, parts, layer, x, embedded, ids):
    """Return the addition of a layer's input to the residual stream, through gates of `x`."""
    P, L = config.varied.input_size, config.num_hidden_layers
    projected = parts.apply("inputs_proj", 0, embedded).reshape(len(x), L, P)[:, layer]
    own = parts.norm("inputs_norm", 0, projected)
    if config.varied.input_ids:
        table = parts.stacked(parts.linears["layer_inputs"], 0, "weight").reshape(-1, L, P)
        own = own + table[np.where(np.asarray(ids) < len(table), ids, 0), layer]
    inner = ACTIVATIONS[config.hidden_act](parts.apply("input_gate", layer, x)) * own
    return parts.norm("input_norm", layer, parts.apply("input_proj", layer, inner))


def _layer_end(config, parts, layer, x, embedded, ids):
    if config.varied.input_size:
        x = x + _layer_input(config, parts, layer, x, embedded, ids)
    return x * parts.vector("layer_scale", layer)


def gaussian_top_k(gates, cutoff):
    """Return ``max(g - mean(g) - cutoff * deviation(g), 0)`` of ``gates [T, F]``."""
    gates = np.asarray(gates, np.float64)
    return relu(gates - gates.mean(axis=1, keepdims=True) - cutoff * gates.std(axis=1, keepdims=True))


def modalities(x, router):
    """Return the tanh of what a router ``[n, D]`` makes of ``x [T, D]``."""
    return np.tanh(linear(x, router))


def predict_streams(streams, m, coefficients):
    """Return the predictions of ``streams [n, T, D]`` from ``m [T, n]`` and ``coefficients [n n, n]``."""
    mixing = linear(m, coefficients).reshape(len(m), len(streams), len(streams))
    return streams + np.einsum("tij,jtd->itd", mixing, streams)


def correct_streams(predicted, x, m, coefficients):
    """Return predictions ``[n, T, D]`` corrected by what a layer made of the first, ``x [T, D]``."""
    factors = 1 + linear(m, coefficients)
    return predicted + factors.T[:, :, None] * (x - predicted[0])


def matched(x, wanted):
    """Return ``x [T, D]`` with the root mean square of `wanted`; of its own, 1e-5 is the least square."""
    size, own = (np.mean(each * each, axis=1, keepdims=True) for each in (wanted, x))
    return x * np.sqrt(size) / np.sqrt(np.maximum(own, 1e-5))


def _stream_layers(config, parts, x, ids):
    """Gemma 3n: return the mean of four streams behind all layers."""

    def matrix(name, layer):
        return parts.vector(name, layer).reshape(-1, x.shape[1] if name == "streams_router" else 4)

    def router_of(layer, x):
        return modalities(parts.norm("streams_norm", layer, x), matrix("streams_router", layer))

    inwards = np.split(parts.apply("streams_proj", 0, x), 3, axis=1)
    embedded, streams = x, np.stack([x, *(matched(other, x) for other in inwards)])
    for layer in range(config.num_hidden_layers):
        predicted = predict_streams(streams, router_of(layer, streams[0]), matrix("predictions", layer))
        y = predicted[0]
        normed = parts.norm("input_layernorm", layer, y)
        low = parts.apply("laurel_right", layer, parts.apply("laurel_left", layer, normed))
        laurel = normed + parts.norm("laurel_norm", layer, low)
        y = (y + _varied_attention_block(config, parts, layer, y) + laurel) / math.sqrt(2)
        y = y + _mlp_block(config, parts, layer, y)
        streams = correct_streams(predicted, y, router_of(layer, y), matrix("corrections", layer))
        scale = parts.vector("corrected_scale", layer)
        streams[1:] += _layer_input(config, parts, layer, scale * streams[0], embedded, ids)
    outwards = [parts.apply(f"stream_{i}_proj", 0, streams[i]) for i in (1, 2, 3)]
    return np.mean([streams[0], *(matched(other, streams[0]) for other in outwards)], axis=0)


def growth_of_queries(config, T):
    """Return the factors of queries at positions 0 to T - 1."""
    if not config.temperature_beta:
        return np.ones(T)
    return 1 + config.temperature_beta * np.log(1 + np.floor(np.arange(T) / config.temperature_length))


def latent_attention(q, c, r, of_keys, of_values, scale):
    """Causal attention to keys and values that are linears of a latent.

    Parameters
    ----------
    q : [T, H, n + d]
        The last d channels are rotated.
    c : [T, K]
        The latent of each position.
    r : [T, d]
        The rotated key of each position, of all heads.
    of_keys : [H, n, K]
    of_values : [H, m, K]
    scale : float

    Returns
    -------
    float64 [T, H, m]
    """
    T, heads = len(q), range(q.shape[1])
    keys = np.stack([np.concatenate([c @ of_keys[h].T, r], axis=1) for h in heads], axis=1)
    values = np.stack([c @ of_values[h].T for h in heads], axis=1)
    weights = [softmax(np.where(np.tri(T, dtype=bool), q[:, h] @ keys[:, h].T * scale, -np.inf)) for h in heads]
    return np.stack([weights[h] @ values[:, h] for h in heads], axis=1)


def _latent_block(config, parts, layer, x):
    sizes, H = config.latents, config.num_attention_heads
    found = parts.apply("qkv_proj", layer, parts.norm("input_layernorm", layer, x))
    q, c, r = np.split(found, np.cumsum([found.shape[1] - sizes.key_dim, sizes.kv_lora_rank]), axis=1)

    def normed(name, x):
        return rms_norm(x, parts.vector(name, layer), 1e-6)

    if sizes.q_lora_rank:
        q = parts.apply("q_b_proj", layer, normed("q_a_norm", q))
    q, n = q.reshape(len(x), H, -1), sizes.qk_nope_head_dim
    key = r[:, None]
    if config.rotary_dims[layer]:
        angles, factor = layer_angles(config, layer, len(x))
        q, key = np.concatenate([q[..., :n], rope(q[..., n:], angles, factor)], axis=2), rope(key, angles, factor)
    matrices = [
        np.stack([parts.stacked(parts.linears[name], parts.piece(name, layer) + h, "weight") for h in range(H)])
        for name in ("k_b_proj", "v_b_proj")
    ]
    of_keys, of_values = matrices[0].swapaxes(1, 2), matrices[1]
    q = q * growth_of_queries(config, len(x))[:, None, None]
    out = latent_attention(q, normed("kv_a_norm", c), key[:, 0], of_keys, of_values, config.attention_scale)
    if config.gated_heads:
        gates = parts.apply("head_gates_proj", layer, parts.norm("input_layernorm", layer, x))
        out = out / (1 + np.exp(-gates[:, :, None]))
    return parts.apply("o_proj", layer, out.reshape(len(x), -1))


def image_positions(T, images):
    """Return time, row and column of T tokens, int [T, 3]: those of text are equal, and go on behind an image's."""
    found, position, begins = [], 0, {first: (len(rows), grid) for first, rows, grid in images}
    while len(found) < T:
        count, (rows, columns) = begins.get(len(found), (1, (1, 1)))
        found += [(position, position + i // columns, position + i % columns) for i in range(count)]
        position += max(rows, columns)
    return np.array(found)


def layer_angles(config, layer, T, positions=None):
    """Return the rotation angles in a layer, and the factor on cosine and sine.

    Of positions 0 to T - 1, or of ``positions [T, 3]``, of which each pair of channels takes one.
    """
    if config.sliding_rope_theta is not None and config.sliding_windows[layer]:
        frequencies = _plain_frequencies(config.sliding_rope_theta, config.rotary_dims[layer])
        return np.arange(T, dtype=np.float64)[:, None] * frequencies, 1.0
    if positions is not None:
        of_axes = [rope_angles(config, positions[:, axis], T) for axis in range(3)]
        angles = [of_axes[axis][0][:, pair] for pair, axis in enumerate(config.rotary_axes)]
        return np.stack(angles, axis=1), of_axes[0][1]
    return rope_angles(config, np.arange(T), T)


def _mixed_block(config, parts, layer, x):
    """Gemma 4's mixture: an MLP and experts side by side."""
    inner = _gated(config, parts.apply("gate_up_proj", layer, parts.norm("post_attention_layernorm", layer, x)))
    out = parts.norm("mlp_norm", layer, parts.apply("down_proj", layer, inner))
    logits = parts.apply("router", layer, parts.norm("router_norm", layer, x))
    chosen, weights = choose_experts(logits, config.experts.num_experts_per_tok, True)
    total, inputs = np.zeros_like(out), parts.norm("before_experts", layer, x)
    for t, rank in np.ndindex(chosen.shape):
        e = chosen[t, rank]
        inner = _gated(config, parts.apply("expert_gate_up_proj", layer, inputs[t : t + 1], e))
        given = parts.apply("expert_down_proj", layer, inner, e)[0]
        total[t] += weights[t, rank] * parts.vector("expert_scale", layer)[e] * given
    return parts.norm("post_mlp_layernorm", layer, out + parts.norm("experts_norm", layer, total))


def _mlp_block(config, parts, layer, before, first=None):
    """Return the outputs of the MLP; `first` is the residual stream before attention."""
    x = parts.norm("post_attention_layernorm", layer, before)
    kind = "wide_" if config.varied and layer in config.varied.wide_mlps else ""
    if config.varied and config.experts:
        return _mixed_block(config, parts, layer, before)
    if config.experts and layer in config.experts.layers:
        return norm_behind(config, parts, "post_mlp_layernorm", layer, _mixture(config, parts, layer, x, first))
    inner = _inner(config, parts, kind, layer, x)
    return norm_behind(config, parts, "post_mlp_layernorm", layer, parts.apply(f"{kind}down_proj", layer, inner))


def _inner(config, parts, kind, layer, x, expert=0):
    experts = config.experts
    if limits := experts and {"expert_": experts.limits, "shared_": experts.shared_limits}.get(kind):
        limit = limits[experts.layers.index(layer)]
        return limited_swiglu(*np.split(parts.apply(f"{kind}gate_up_proj", layer, x, expert), 2, axis=1), limit)
    if config.gated:
        gate_up = parts.apply(f"{kind}gate_up_proj", layer, x, expert)
        if config.altup and config.altup.cutoffs[layer] is not None:
            gate, up = np.split(gate_up, 2, axis=1)
            gate_up = np.concatenate([gaussian_top_k(gate, config.altup.cutoffs[layer]), up], axis=1)
        return parts.norm("ffn_sub_norm", layer, _gated(config, gate_up))
    inner = parts.apply(f"{kind}up_proj", layer, x, expert)
    if config.hidden_act == "xielu":
        alphas = [float(parts.tensors[f"model.layers.{layer}.mlp.act_fn.alpha_{end}.weight"][0]) for end in "pn"]
        return xielu(inner, np.log1p(np.exp(alphas[0])), 0.5 + np.log1p(np.exp(alphas[1])))
    return ACTIVATIONS[config.hidden_act](inner)


def xielu(x, positive, negative):
    """Return ``p * x**2 + x / 2`` above 0, and ``n * (exp(x) - 1 - x) + x / 2`` below."""
    x = np.asarray(x, np.float64)
    return np.where(x > 0, positive * x * x, negative * (np.expm1(np.minimum(x, 0)) - x)) + x / 2


def clamped_swiglu(gate, up, alpha, limit):
    """Return ``g / (1 + exp(-alpha g)) * (u + 1)`` of clamped gates and what they let through."""
    gate, up = np.minimum(np.asarray(gate, np.float64), limit), np.clip(np.asarray(up, np.float64), -limit, limit)
    return gate / (1 + np.exp(-alpha * gate)) * (up + 1)


def limited_swiglu(gate, up, limit):
    """Return ``min(silu(g), limit) * u`` of gates and what they let through, clamped to the limit on both sides."""
    return np.minimum(silu(gate), limit) * np.clip(np.asarray(up, np.float64), -limit, limit)


def _gated(config, gate_up):
    gate, up = np.split(gate_up, 2, axis=1)
    if config.swiglu_limit is not None:
        return clamped_swiglu(gate, up, config.swiglu_alpha, config.swiglu_limit)
    return ACTIVATIONS[config.hidden_act](gate) * up


def choose_experts(logits, used, norm_topk):
    """Return the experts of each token [T, used], the likeliest first, ties to the lower one, and their weights."""
    chosen = np.array([sorted(range(len(row)), key=lambda e: (-row[e], e))[:used] for row in logits])
    weights = np.take_along_axis(softmax(logits), chosen, axis=1)
    return chosen, weights / weights.sum(axis=1, keepdims=True) if norm_topk else weights


def choose_scored(logits, bias, used, norm_topk, groups=1, used_groups=1, sigmoid=True):
    """Return the same of a router whose biases count for the choice alone; of sigmoids, or of a softmax.

    Experts are chosen from the groups whose two largest numbers have the largest sums.
    """
    scores = 1 / (1 + np.exp(-logits)) if sigmoid else softmax(logits)
    return _chosen(scores + bias, scores, used, norm_topk, groups, used_groups)


def choose_by_logits(logits, bias, used, norm_topk, groups=1, used_groups=1):
    """Return the same where biases are added to logits; weights are sigmoids."""
    return _chosen(logits + bias, 1 / (1 + np.exp(-logits)), used, norm_topk, groups, used_groups)


def choose_mixed(logits, used, reach):
    """Return the same of SparseMixer: each weight is a probability among the logits near it that are left."""
    chosen, weights = [], []
    for row in logits:
        left, found = [*range(len(row))], []
        for _ in range(used):
            best = min(left, key=lambda e: (-row[e], e))
            near = [e for e in left if row[best] - row[e] <= reach * max(abs(row[e]), row[best])]
            found.append((best, 1 / np.exp(row[near] - row[best]).sum()))
            left.remove(best)
        chosen.append([e for e, _ in found])
        weights.append([weight for _, weight in found])
    return np.array(chosen), np.array(weights)


def _chosen(wanted, scores, used, norm_topk, groups, used_groups):
    chosen = []
    for row in wanted:
        members = np.arange(len(row)).reshape(groups, -1)
        sums = [sum(sorted(row[group])[-2:]) for group in members]
        best = sorted(range(groups), key=lambda g: (-sums[g], g))[:used_groups]
        chosen.append(sorted(members[best].reshape(-1), key=lambda e: (-row[e], e))[:used])
    chosen = np.array(chosen)
    weights = np.take_along_axis(scores, chosen, axis=1)
    return chosen, weights / weights.sum(axis=1, keepdims=True) if norm_topk else weights


def _mixture(config, parts, layer, x, first):
    experts = config.experts
    seen = _router_mlp(config, parts, layer, x) if experts.router_size else first if experts.early else x
    scores = parts.apply("router", layer, seen)
    logits, shared_gate = np.split(scores, [experts.choices], axis=1)
    attributes = experts.num_experts_per_tok, experts.norm_topk_prob
    bias, groups = parts.vector("router_bias", layer) if experts.biased else 0.0, (experts.n_group, experts.topk_group)
    if experts.mixing_reach:
        chosen, weights = choose_mixed(logits, experts.num_experts_per_tok, experts.mixing_reach)
    elif experts.by_logits:
        chosen, weights = choose_by_logits(logits, bias, *attributes, *groups)
    elif experts.biased or experts.sigmoid:
        chosen, weights = choose_scored(logits, bias, *attributes, *groups, experts.sigmoid)
    else:
        chosen, weights = choose_experts(logits, *attributes)
    inputs = parts.apply("experts_in_proj", layer, x) if experts.latent_size else x
    out = np.zeros_like(inputs)
    for t, rank in np.ndindex(chosen.shape):
        e, row = chosen[t, rank], inputs[t : t + 1]
        if e == experts.num_experts:
            continue
        inner = _inner(config, parts, "expert_", layer, row, e)
        out[t] += weights[t, rank] * parts.apply("expert_down_proj", layer, inner, e)[0]
    out = parts.apply("experts_out_proj", layer, out) if experts.latent_size else out
    if experts.shared_intermediate_size:
        inner = _inner(config, parts, "shared_", layer, x)
        gate = 1 / (1 + np.exp(-shared_gate)) if shared_gate.size else 1
        out += parts.apply("shared_down_proj", layer, inner) * gate
    return out + (parts.vector("experts_shift", layer) if experts.shifted else 0)


def _router_mlp(config, parts, layer, x):
    """Return the inputs of a router that is an MLP's last linear; its vector is kept for the next layer's."""
    states = parts.apply("router_in_proj", layer, x)
    if layer:
        states = states + parts.vector("router_carry", layer) * parts.kept["router"]
    parts.kept["router"] = states
    inner = gelu(parts.apply("router_fc1", layer, parts.norm("router_mlp_norm", layer, states)))
    return gelu(parts.apply("router_fc2", layer, inner))


def values_of_codes(codes):
    """Return the weights of `GroupCodes`, float32 [N, K]: ``f * scale * (code - zero) + h * offset``, or by a table."""
    N, groups = codes.scales.shape
    scales, offsets = codes.scales, codes.offsets
    if codes.factors is not None:
        factors = np.repeat(codes.factors, groups // codes.factors.shape[1], axis=1)
        scales = scales * factors[:, :, 0]
        offsets = None if offsets is None else offsets * factors[:, :, 1]
    steps = codes.codes.astype(np.float32) - np.float32(codes.zero)
    if codes.table is not None:
        steps = codes.table[codes.codes].astype(np.float32)
    numbers = steps.reshape(N, groups, -1) * scales[:, :, None]
    if offsets is not None:
        numbers += offsets[:, :, None]
    return numbers.reshape(N, -1)
