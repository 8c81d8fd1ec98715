"""Inkling 2 in NumPy, from its formulas: layers that read mixtures of blocks, and run in loops.

`reference` has the parts that other models have, too. Everything is float64; x is [T, D].
"""

import numpy as np
from reference import choose_scored, linear, rms_norm, soft_cap, softmax

EPS = 1e-6


def mixture(states, query):
    """Return a softmax over ``states`` [T, D] each, of length sqrt(D), by their products with a query [D]."""
    units = np.stack([rms_norm(state, 1.0, EPS) for state in states], axis=1)
    weights = softmax(units @ query / np.sqrt(len(query)))
    return np.einsum("tj,tjd->td", weights, units)


def with_message(x, message, down, forget, gain, eps):
    """Return ``(1 - tanh(f)) x + tanh(g) m`` by gates of low rank of both: down [R, 2 D], forget and gain [D, R]."""
    both = np.concatenate([rms_norm(x, 1.0, eps), rms_norm(message, 1.0, eps)], axis=1)
    low = linear(both, down)
    return (1 - np.tanh(linear(low, forget))) * x + np.tanh(linear(low, gain)) * message


def residual_convolution(x, taps, token_taps=None):
    """Return ``(x[t] + sum_i a[i] x[t - i]) / sqrt(K + 1)`` for taps a [K, C], the first that of the position itself.

    With ``token_taps`` [T, H, K], those of each token for the channels of a head are added, and 2 K + 1 is the divisor.
    """
    x = np.asarray(x, np.float64)
    (T, C), K = x.shape, len(taps)
    out = x.copy()
    for t in range(T):
        for i in range(min(K, t + 1)):
            own = 0 if token_taps is None else np.repeat(token_taps[t, :, i], C // token_taps.shape[1])
            out[t] += (taps[i] + own) * x[t - i]
    return out / np.sqrt(K + 1 if token_taps is None else 2 * K + 1)


def clipped(x, bound):
    """Return vectors of the last axis that are no longer than a bound."""
    x = np.asarray(x, np.float64)
    return x * np.minimum(1, bound / (np.linalg.norm(x, axis=-1, keepdims=True) + EPS))


def profiled_attention(q, k, v, weights, profiles, sinks, window, scale):
    """Causal attention whose scores have biases by distance, and whose queries have sinks.

    Parameters
    ----------
    q : [T, H, d]
    k, v : [S, G, d]
        Query t stands at position ``S - T + t``.
    weights : [T, H, R]
        How much of each profile a query adds to its scores.
    profiles : [R, reach]
        By the distance of key and query; beyond, a score has no bias.
    sinks : [T, H]
    window : int
        How many positions a query sees, its own included; 0 for all.
    """
    q, k, v = (np.asarray(each, np.float64) for each in (q, k, v))
    past, out = len(k) - len(q), np.zeros_like(q)
    for t, h in np.ndindex(q.shape[:2]):
        g, p = h * k.shape[1] // q.shape[1], past + t
        keys = np.arange(max(0, p + 1 - window) if window else 0, p + 1)
        scores = k[keys, g] @ q[t, h] * scale
        near = p - keys < profiles.shape[1]
        scores[near] += weights[t, h] @ profiles[:, (p - keys)[near]]
        out[t, h] = softmax(np.append(scores, sinks[t, h]))[:-1] @ v[keys, g]
    return out


def capped_swiglu(gate, up, gate_cap, up_cap):
    """Return ``a tanh(g / a) / (1 + exp(-g)) b tanh(u / b)`` for caps a and b."""
    gate = np.asarray(gate, np.float64)
    return soft_cap(gate, gate_cap) / (1 + np.exp(-gate)) * soft_cap(up, up_cap)


def mixture_layers(config, parts, x):
    """Return the last norm's inputs, of a model's embeddings [T, D]."""
    net, T = config.mixtures, len(x)
    first, last = net.loops.first, net.loops.last
    H, G, d, K = config.num_attention_heads, config.num_key_value_heads, config.head_dim, net.taps

    def of(name, *shape):
        found = np.asarray(parts.tensors[f"model.{name}.weight"], np.float64)
        return found.reshape(shape) if shape else found

    queries = of("middle_cycle_cross_pass_queries", -1, 2, x.shape[1])
    kv_queries = of("middle_cycle_cross_pass_kv_queries", -1, 2, x.shape[1])

    def convolved(name, x):
        return residual_convolution(x, of(name, -1, K).T[::-1])

    def run(layer, hidden, blocks, heard):
        """Return the residual stream behind a layer, and the blocks; heard : what the loop before left, or None."""
        at, whole = f"layers.{layer}.", layer in net.whole

        def read(reader, states, query):
            mixed = mixture(states, query)
            if heard is None:
                return mixed
            both = {"attn": (queries, 0), "k": (kv_queries, 0), "v": (kv_queries, 1), "mlp": (queries, 1)}
            vectors, place = both[reader]
            gate = [of(f"{at}controllers.{reader}.{part}_weight") for part in ("down", "forget", "gain")]
            return with_message(mixed, mixture(heard, vectors[layer - first, place]), *gate, config.rms_norm_eps)

        inputs = []
        for i, reader in enumerate(("attn", "k", "v")):
            gain = of(f"{at}{reader.replace('attn', 'q')}_input_norm" if whole else f"{at}attn_norm")
            mixed = hidden
            if layer:
                mixed = read(reader, [*blocks, hidden], of(f"{at}attention_input.query", -1, x.shape[1])[i * whole])
            inputs.append(rms_norm(mixed, gain, config.rms_norm_eps))
        q, weights, sinks, gates = (
            linear(inputs[0], of(f"{at}attn.{name}")) for name in ("wq_du", "wr_du", "attn_sink_proj", "gate_attn")
        )
        keys = []
        for letter, inner in zip("kv", inputs[1:]):
            found, name = linear(inner, of(f"{at}attn.w{letter}_dv")), f"{at}attn.{letter}_sconv"
            if whole:
                own = linear(inner, of(f"{name}.weight_proj")).reshape(T, G, K)
                found = residual_convolution(found, of(f"{name}.static_w", K, -1), own)
            else:
                found = convolved(name, found)
            keys.append(found.reshape(T, G, d))
        growth = 1 + net.growth * np.log(np.maximum(1, np.arange(1, T + 1) / net.floor)) if whole else np.ones(T)
        q = clipped((q * of(f"{at}attn.q_l2_clip.scale")).reshape(T, H, d), net.clip) * growth[:, None, None]
        weights = (weights * of(f"{at}attn.rel_l2_clip.scale")).reshape(T, H, -1)
        weights = clipped(weights, net.relative_clip) * growth[:, None, None]
        profiles = of(f"{at}attn.rel_logits_proj.proj", net.relative_size, -1)
        mixed = profiled_attention(
            q,
            clipped(keys[0], net.clip),
            rms_norm(keys[1], 1.0, config.rms_norm_eps),
            weights,
            profiles,
            sinks,
            config.sliding_windows[layer],
            d**-0.5,
        )
        branch = linear(mixed.reshape(T, -1) / (1 + np.exp(-gates)), of(f"{at}attn.wo_ud"))
        branch = convolved(f"{at}attn_sconv", branch)
        if layer % net.block == 0:
            blocks, residual = [*blocks, hidden], branch
        else:
            residual = hidden + branch
        inner = read("mlp", [*blocks, residual], of(f"{at}mlp_input.query"))
        inner = rms_norm(inner, of(f"{at}mlp_norm"), config.rms_norm_eps)
        return residual + convolved(f"{at}mlp_sconv", experts(config, of, at, inner)), blocks

    hidden, blocks = x, []
    for layer in range(first):
        hidden, blocks = run(layer, hidden, blocks, None)
    beginning, heard = (hidden, blocks), None
    for _ in range(net.loops.count):
        hidden, blocks = beginning
        for layer in range(first, last):
            hidden, blocks = run(layer, hidden, blocks, heard)
        # Without the blocks before the loops, and without what all loops begin with.
        heard = [*blocks[len(beginning[1]) + 1 :], hidden]
    for layer in range(last, config.num_hidden_layers):
        hidden, blocks = run(layer, hidden, blocks, None)
    return mixture([*blocks, hidden], of("attn_res.output_query"))


def experts(config, of, at, x):
    """Return the outputs of a layer's experts for x."""
    mixture = config.experts
    logits = linear(x, of(f"{at}mlp.gate"))
    chosen, weights = choose_scored(logits, of(f"{at}mlp.gate.bias"), mixture.num_experts_per_tok, True)
    out = np.zeros_like(x)
    for t, rank in np.ndindex(chosen.shape):
        expert = f"{at}mlp.experts.{chosen[t, rank]}."
        gate_up = linear(x[t : t + 1], of(f"{expert}w13_weight"))
        inner = capped_swiglu(gate_up[:, 0::2], gate_up[:, 1::2], *config.swiglu_caps)
        out[t] += weights[t, rank] * mixture.scale * linear(inner, of(f"{expert}w2_weight"))[0]
    return out
